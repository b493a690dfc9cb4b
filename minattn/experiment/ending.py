"""How a sim ends: with one clear line for whatever was wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable


def run(main: Callable[[], object]) -> None:
    """Run a sim and exit: 0, or with one clear line 2 for a bad argument and 130 for Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a character is no failure
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        main()
    except (ValueError, OSError, FloatingPointError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except MemoryError as error:
        print(f"error: not enough memory: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)

"""Files that are either the old one or the new one, whatever happens in between.

Saves are safetensors: arrays and a JSON text, read without running any code.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from minattn import checks
from minattn.arrays import Params


def write_bytes(path: str | Path, content: bytes) -> None:
    """Replace a file as a whole: write beside it, flush to disk, rename.

    Raises
    ------
    OSError
        If the folder cannot be written; an existing file is then as before.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def claimed(path: Path, name: str) -> Iterator[None]:
    """Hold a file to be written against every other process; errors call the argument `name`.

    What killed processes have left beside it, half-written, is removed.

    Raises
    ------
    ValueError
        If another run is writing it, or its folder cannot be written.
    """
    from filelock import FileLock, Timeout

    held = path.with_name(f".{path.name}.lock")
    lock = FileLock(held)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        checks.fail(name, f"{str(path)!r}, which another run is writing", "a file of its own")
    except OSError as error:
        checks.fail(name, f"{str(path)!r} ({error.strerror})", "a file that can be written")
    try:
        for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
            leftover.unlink(missing_ok=True)
        yield
    finally:
        held.unlink(missing_ok=True)
        lock.release()


def save_arrays(path: str | Path, arrays: Params, notes: dict[str, Any]) -> None:
    """Write arrays and JSON-able notes to one safetensors file."""
    from safetensors.numpy import save

    contiguous = {name: np.ascontiguousarray(a).reshape(a.shape) for name, a in arrays.items()}
    write_bytes(path, save(contiguous, metadata={"minattn": json.dumps(notes)}))


def load_arrays(path: str | Path, name: str = "path") -> tuple[Params, dict[str, Any]]:
    """Read what `save_arrays` wrote; errors call the argument `name`.

    Raises
    ------
    ValueError
        If the file does not exist, is damaged, or is not one of minattn's.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy") as file:
            notes = json.loads((file.metadata() or {})["minattn"])
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        checks.fail(name, f"{str(path)!r} ({error})", "a file that minattn saved")
    return arrays, notes

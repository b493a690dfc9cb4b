"""What the sims share: arguments, the results folder, what a summary must say, clean endings."""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import minattn
from minattn import checks
from minattn.claims import Claim
from minattn.engines.threads import available_cores
from minattn.saving import write_bytes

RESULTS = Path("results")
_LIBRARIES = ("numpy", "numba", "scipy", "matplotlib")


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints end like every other bad argument."""

    def parse_args(self, *arguments: Any, **options: Any) -> Any:
        """Parse, and settle what depends on the machine.

        What could not be published fails now rather than after the run.
        """
        found = super().parse_args(*arguments, **options)
        if getattr(found, "workers", 1) is None:
            found.workers = 1 if found.quick else available_cores()
        if getattr(found, "publish", False):
            name = Path(self.prog).stem
            with result_folder(RESULTS / "published" / name):
                pass
        return found

    def error(self, message: str) -> NoReturn:
        """Raise the complaint instead of printing the usage and exiting."""
        raise ValueError(message)


def parser(name: str, description: str | None) -> Parser:
    """Return an argument parser with the options that every sim has."""
    made = Parser(
        prog=f"sims/{name}.py",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--quick", action="store_true", help="a small run, to see that it works")
    made.add_argument("--seed", type=int, default=0, help="fixes every draw (default 0)")
    made.add_argument(
        "--out",
        type=Path,
        default=RESULTS / name,
        metavar="DIR",
        help=f"the result folder itself (default {RESULTS / name})",
    )
    made.add_argument(
        "--publish",
        action="store_true",
        help=f"also copy summary and figures to {RESULTS / 'published' / name}",
    )
    return made


def names(value: str, option: str, known: Iterable[str]) -> tuple[str, ...]:
    """Read a comma-separated choice, in the order of `known`.

    Raises
    ------
    ValueError
        If a name is unknown or none is given.
    """
    known = tuple(known)
    chosen = [part.strip() for part in value.split(",") if part.strip()]
    for name in chosen:
        checks.one_of(option, name, known)
    if not chosen:
        checks.fail(option, repr(value), "one or more of " + ", ".join(known))
    return tuple(name for name in known if name in chosen)


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


class ResultFolder:
    """A folder that a run fills beside the real one, and that takes its place when complete."""

    def __init__(self, target: Path, partial: Path) -> None:
        self.target = target
        self.partial = partial

    def path(self, name: str) -> Path:
        """Return where to write the file `name`."""
        return self.partial / name

    def complete(self) -> None:
        """Put the new folder in the place of the old one, as a whole."""
        old = _beside(self.target, "old")
        if self.target.exists():
            self.target.rename(old)
        self.partial.rename(self.target)
        shutil.rmtree(old, ignore_errors=True)

    def keep_interrupted(self) -> Path:
        """Keep what is done beside the target, whose own content stays as it was."""
        kept = self.target.with_name(self.target.name + ".interrupted")
        shutil.rmtree(kept, ignore_errors=True)
        self.partial.rename(kept)
        return kept


@contextlib.contextmanager
def result_folder(target: Path) -> Iterator[ResultFolder]:
    """Open a `ResultFolder` for one run; its partial files are gone if the run fails.

    Raises
    ------
    ValueError
        If the folder cannot be written, holds something that no run wrote, or another run is
        writing to it.
    """
    from filelock import FileLock, Timeout

    target = Path(os.path.realpath(target))  # a link stays, what it leads to is replaced
    _check_target(target)
    lock = FileLock(_beside(target, "lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        checks.fail("--out", f"{target}, which another run is writing to", "a folder of its own")
    except OSError as error:
        checks.fail("--out", f"{target} ({error.strerror})", "a folder that can be written")
    partial, old = _beside(target, "partial"), _beside(target, "old")
    try:
        if old.exists() and not target.exists():  # a run was killed between two renames
            old.rename(target)
        for leftover in (partial, old):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir()
        yield ResultFolder(target, partial)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        lock.release()
        _beside(target, "lock").unlink(missing_ok=True)


def _beside(target: Path, kind: str) -> Path:
    return target.with_name(f".{target.name}.{kind}")


def _check_target(target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        checks.fail("--out", f"{target} ({error.strerror})", "a folder that can be made")
    here = Path.cwd().resolve()
    if target == here or target in here.parents:  # it would be renamed under our feet
        checks.fail("--out", f"{target}, in which this process runs", "another folder")
    if target.exists() and not target.is_dir():
        checks.fail("--out", f"the file {target}", "a folder")
    if target.is_dir() and any(target.iterdir()) and not (target / "summary.json").exists():
        got = f"{target}, whose content no run has written"
        checks.fail("--out", got, "a new or empty folder, or one with a summary.json to replace")


def publish(folder: Path, name: str) -> Path:
    """Copy a completed run's summary and figures to results/published/NAME.

    Raises
    ------
    ValueError
        If that folder cannot be written.
    """
    with result_folder(RESULTS / "published" / name) as published:
        for file in sorted(folder.iterdir()):
            if file.suffix in (".json", ".md", ".png"):
                shutil.copy(file, published.path(file.name))
        published.complete()
    return published.target


def summary(
    name: str, settings: dict[str, Any], seed: int, engine: str, claims: Iterable[Claim]
) -> dict[str, Any]:
    """Return what every summary.json says; a sim adds its own numbers."""
    return {
        "name": name,
        "config": settings,
        "seeds": [seed],
        "engine": engine,
        "threads": minattn.engines.get_threads(),
        "versions": versions(),
        "claims": [claim.as_dict() for claim in claims],
    }


def versions() -> dict[str, str]:
    """Return the versions that numbers may depend on."""
    found = {"minattn": minattn.__version__, "python": platform.python_version()}
    for library in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[library] = version(library)
    return found


def write_json(path: Path, content: Any) -> None:
    """Write strict JSON; NaN and infinities, which it lacks, become null."""
    text = json.dumps(_plain(content), indent=2, allow_nan=False, ensure_ascii=False)
    # Names of files may hold bytes that are no UTF-8; \udcff is how JSON writes one of them.
    write_bytes(path, (text + "\n").encode("utf-8", "backslashreplace"))


def write_csv(path: Path, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a table with a header line."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def _plain(value: Any) -> Any:
    """Turn arrays, NumPy numbers, tuples and paths into what JSON knows."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    return str(value) if isinstance(value, Path) else value

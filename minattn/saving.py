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
from typing import TYPE_CHECKING, Any

import numpy as np

from minattn import checks
from minattn.arrays import Params

if TYPE_CHECKING:
    from filelock import BaseFileLock


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
    lock = locked(path, name, "file")
    try:
        for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
            leftover.unlink(missing_ok=True)
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def locked(path: Path, name: str, kind: str) -> BaseFileLock:
    """Return the lock of a path, a `kind` of thing, taken; errors call the argument `name`.

    Raises
    ------
    ValueError
        If another run has it, or nothing can be written beside the path.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        Path(lock.lock_file).touch()  # the lock itself takes some failures for another run
        lock.acquire(timeout=0)
    except Timeout:
        checks.fail(name, f"{str(path)!r}, which another run is writing", f"a {kind} of its own")
    except OSError as error:
        checks.fail(name, f"{str(path)!r} ({error.strerror})", f"a {kind} that can be written")
    return lock


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

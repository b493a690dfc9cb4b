"""Named tensors in a file, checked against its size before any of them is read."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

import numpy as np

from minattn import checks
from minattn.arrays import Array


@dataclass(frozen=True)
class Stored:
    """Where a tensor lies in its file."""

    dtype: str
    shape: tuple[int, ...]
    start: int  # bytes from the start of the file
    size: int  # bytes


class TensorFile(Protocol):
    """A file, or several, of named tensors."""

    @property
    def stored(self) -> dict[str, Stored]:
        """Every tensor by name."""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        """Return rows start..stop of a tensor, as an array of its own in float32 or float64."""


def damaged(path: Path, problem: str) -> NoReturn:
    """Raise the error of a file that cannot be what it says."""
    checks.fail("path", f"{path.name} ({problem})", "an undamaged file")


def mapped(path: Path) -> memoryview:
    """Map a file into memory, read-only: nothing is read before it is looked at.

    Raises
    ------
    ValueError
        If it cannot be opened or is empty.
    """
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # ValueError: an empty file
        checks.fail("path", f"{path.name!r} ({error})", "a model file that can be read")


def check_extents(path: Path, stored: dict[str, Stored], begin: int, end: int) -> None:
    """Fail unless every tensor lies within begin..end and no two overlap."""
    last, before = begin, "the header"
    for name, tensor in sorted(stored.items(), key=lambda item: (item[1].start, item[1].size)):
        if tensor.start + tensor.size > end:
            got = f"{name!r:.80} ends {tensor.start + tensor.size - end} bytes after the file"
            damaged(path, got)
        if tensor.start < last and tensor.size:
            damaged(path, f"{name!r:.80} overlaps {before!r:.80}")
        last, before = max(last, tensor.start + tensor.size), name


def count(shape: Iterable[int]) -> int:
    """Return the number of entries; Python's integers cannot overflow."""
    total = 1
    for length in shape:
        total *= length
    return total


def row_range(stored: Stored, start: int, stop: int | None) -> tuple[int, int]:
    """Return start and stop within the first axis."""
    length = stored.shape[0] if stored.shape else 1
    return start, length if stop is None else min(stop, length)


def floats(raw: memoryview, dtype: str) -> Array:
    """Return little-endian floats as float32 (exactly, from 16 bits) or float64."""
    if dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    kind = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}[dtype]
    native = np.float64 if dtype == "F64" else np.float32
    return np.frombuffer(raw, kind).astype(native)

"""GGUF: settings and tensors in one file, often quantised in blocks.

The header is read here, bounded by the file: the gguf library's own reader goes on past the end of
a damaged one. Sizes and contents of blocks are the library's.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from minattn import checks
from minattn.arrays import Array
from minattn.checkpoints.tensors import (
    Stored,
    check_extents,
    count,
    damaged,
    floats,
    mapped,
    row_range,
)

MAGIC = b"GGUF"
_SCALARS = ("B", "b", "H", "h", "I", "i", "f", "?", "", "", "Q", "q", "d")  # by the type's number
_STRING, _ARRAY = 8, 9
_LONGEST_KEPT = 4096  # entries of an array worth keeping: settings of layers, no vocabularies
_LONGEST_STRING = 1 << 20
_MOST_AXES = 4


class GGUFFile:
    """One file; its header is checked against its size when opened.

    `ValueError` if the gguf library is not installed, or the file is no GGUF file or damaged.
    """

    def __init__(self, path: Path) -> None:
        self._library = _library()
        self.path = path
        self._bytes = mapped(path)
        self._cursor = _Cursor(path, self._bytes)
        if self._cursor.take(4) != MAGIC:
            damaged(path, "no GGUF magic")
        version = self._cursor.number("I")
        if version not in (2, 3):
            checks.fail(
                "path", f"{path.name}, GGUF version {version}", "version 2 or 3, low end first"
            )
        tensors, settings = self._cursor.number("Q"), self._cursor.number("Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(settings):
            name = self._cursor.string()
            if name in self.metadata:
                damaged(path, f"the setting {name!r:.80} twice")
            self.metadata[name] = self._cursor.value(self._cursor.number("I"))
        self.stored = self._tensors(tensors)

    def _tensors(self, number: int) -> dict[str, Stored]:
        found: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            damaged(self.path, f"an alignment of {alignment!r:.40}")
        for _ in range(number):
            name = self._cursor.string()
            if name in found:
                damaged(self.path, f"the tensor {name!r:.80} twice")
            found[name] = self._entry(name, alignment)
        begin = -(-self._cursor.at // alignment) * alignment
        stored = {
            name: Stored(dtype, shape, begin + offset, size)
            for name, (dtype, shape, offset, size) in found.items()
        }
        check_extents(self.path, stored, begin, len(self._bytes))
        return stored

    def _entry(self, name: str, alignment: int) -> tuple[str, tuple[int, ...], int, int]:
        axes = self._cursor.number("I")
        if axes > _MOST_AXES:
            damaged(self.path, f"{name!r:.80} of {axes} axes")
        shape = tuple(self._cursor.number("Q") for _ in range(axes))[::-1]  # fastest axis last
        try:
            kind = self._library.GGMLQuantizationType(self._cursor.number("I"))
            block, size = self._library.GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            damaged(self.path, f"{name!r:.80} of an unknown dtype")
        offset = self._cursor.number("Q")
        if offset % alignment or (shape[-1] if shape else 1) % block:
            damaged(self.path, f"{name!r:.80}, {kind.name} {shape}, at {offset}")
        return kind.name, shape, offset, count(shape) // block * size

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        """Return rows start..stop of a tensor, as an array of its own in float32 or float64."""
        tensor = self.stored[name]
        if len(tensor.shape) < 2:  # its blocks may hold several entries
            return self._values(name, tensor, tensor.start, tensor.size, tensor.shape)[start:stop]
        start, stop = row_range(tensor, start, stop)
        row = tensor.size // max(tensor.shape[0], 1)
        shape = (stop - start, *tensor.shape[1:])
        return self._values(name, tensor, tensor.start + start * row, shape[0] * row, shape)

    def _values(
        self, name: str, tensor: Stored, start: int, size: int, shape: tuple[int, ...]
    ) -> Array:
        raw = self._bytes[start : start + size]
        if tensor.dtype in ("F16", "BF16", "F32", "F64"):
            return floats(raw, tensor.dtype).reshape(shape)
        kind = self._library.GGMLQuantizationType[tensor.dtype]
        blocks = np.frombuffer(raw, np.uint8).reshape(count(shape[:-1]), -1)
        try:
            values = self._library.quants.dequantize(blocks, kind)
        except NotImplementedError:
            checks.fail("path", f"{name!r} of {tensor.dtype}", "a dtype that gguf can dequantise")
        return np.asarray(values, np.float32).reshape(shape)


class _Cursor:
    """Reads forward, never past the end."""

    def __init__(self, path: Path, content: memoryview) -> None:
        self.path, self.content, self.at = path, content, 0

    def take(self, size: int) -> memoryview:
        if size > len(self.content) - self.at:
            damaged(self.path, "it ends within its header")
        self.at += size
        return self.content[self.at - size : self.at]

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def string(self) -> str:
        raw = self.take(self.number("Q"))
        return bytes(raw[:_LONGEST_STRING]).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array(self.number("I"), self.number("Q"))
        if kind >= len(_SCALARS):
            damaged(self.path, f"a setting of the unknown type {kind}")
        return self.number(_SCALARS[kind])

    def array(self, kind: int, length: int) -> Any:
        """Return a short array of numbers; step over any other."""
        if kind == _STRING:
            for _ in range(length):
                self.take(self.number("Q"))
            return None
        if kind >= len(_SCALARS) or not _SCALARS[kind]:
            damaged(self.path, f"an array of the type {kind}")
        code = _SCALARS[kind]
        raw = self.take(length * struct.calcsize(f"<{code}"))
        return list(struct.unpack(f"<{length}{code}", raw)) if length <= _LONGEST_KEPT else None


def _library() -> Any:
    try:
        import gguf
    except ImportError:
        checks.fail("path", "a GGUF file", "the gguf library: pip install 'minattn[gguf]'")
    return gguf

"""safetensors: a JSON header, then the tensors; one file, or shards with an index.

Read here rather than by the library, which maps no bfloat16 to NumPy and reads whole tensors.
Format: eight bytes N (little-endian), N bytes of JSON, data; the data is covered without holes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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

_LONGEST_HEADER = 100_000_000  # of the format's own library
_LONGEST_JSON = 1 << 28
_BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64}
_BITS |= dict.fromkeys(("U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8)
_BITS |= dict.fromkeys(("U16", "I16", "F16", "BF16"), 16)
_BITS |= dict.fromkeys(("U32", "I32", "F32"), 32) | dict.fromkeys(("U64", "I64", "F64"), 64)
_READABLE = ("F16", "BF16", "F32", "F64")


class SafetensorsFile:
    """One file; its header is checked against its size when opened.

    `ValueError` if the file is no safetensors file, or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes = mapped(path)
        header, begin = self._header()
        metadata = header.pop("__metadata__", None) or {}
        if not isinstance(metadata, dict):
            damaged(path, "metadata that is no table")
        self.metadata: dict[str, Any] = metadata
        end = len(self._bytes)
        self.stored = {name: self._entry(name, entry, begin) for name, entry in header.items()}
        check_extents(path, self.stored, begin, end)
        covered = begin + sum(tensor.size for tensor in self.stored.values())
        if covered != end:
            damaged(path, f"{end - covered} bytes that belong to no tensor")

    def _header(self) -> tuple[dict[str, Any], int]:
        size = len(self._bytes)
        if size < 8:
            damaged(self.path, f"{size} bytes, too short for a header")
        length = int.from_bytes(self._bytes[:8], "little")
        if length > size - 8 or length > _LONGEST_HEADER:
            damaged(self.path, f"a header of {length} bytes in a file of {size}")
        return parse(self.path, bytes(self._bytes[8 : 8 + length])), 8 + length

    def _entry(self, name: str, entry: Any, begin: int) -> Stored:
        try:
            dtype, shape, offsets = (entry[key] for key in ("dtype", "shape", "data_offsets"))
            numbers = [*shape, *offsets]
            start, stop = offsets
        except (TypeError, KeyError, ValueError):
            damaged(self.path, f"a header entry {name!r:.80} without dtype, shape or offsets")
        if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
            damaged(self.path, f"shape or offsets of {name!r:.80} that are no lengths")
        if not isinstance(dtype, str) or dtype not in _BITS:
            damaged(self.path, f"{name!r:.80} of the unknown dtype {dtype!r:.40}")
        bits = count(shape) * _BITS[dtype]
        if bits != 8 * (stop - start):
            damaged(self.path, f"{name!r:.80}, {dtype} {shape}, in {stop - start} bytes")
        return Stored(dtype, tuple(shape), begin + start, stop - start)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        """Return rows start..stop of a tensor, as an array of its own in float32 or float64."""
        tensor = self.stored[name]
        if tensor.dtype not in _READABLE:
            checks.fail(
                "path", f"{name!r:.80} of {tensor.dtype}", "a dtype of " + ", ".join(_READABLE)
            )
        start, stop = row_range(tensor, start, stop)
        row = tensor.size // max(tensor.shape[0], 1) if tensor.shape else tensor.size
        first = tensor.start + start * row
        raw = self._bytes[first : first + (stop - start) * row]
        return floats(raw, tensor.dtype).reshape(stop - start, *tensor.shape[1:])


class ShardedFile:
    """Several safetensors files, by an index that says which one holds a tensor.

    `ValueError` if the index is damaged, or names a file or tensor that is not there.
    """

    def __init__(self, index: Path) -> None:
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            damaged(index, "no weight_map")
        self._files: dict[str, SafetensorsFile] = {}
        self._home = weight_map
        self.stored: dict[str, Stored] = {}
        for name, shard in weight_map.items():
            if not isinstance(shard, str) or not shard or Path(shard).name != shard:
                damaged(index, f"{name!r:.80} in {shard!r:.60}, which is no file name")
            if shard not in self._files:
                if not (index.parent / shard).is_file():
                    checks.fail(
                        "path", f"{index.name} without the shard {shard!r:.80}", "every shard"
                    )
                self._files[shard] = SafetensorsFile(index.parent / shard)
            if name not in self._files[shard].stored:
                damaged(index, f"{name!r:.80}, which {shard!r:.80} lacks")
            self.stored[name] = self._files[shard].stored[name]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        """Return rows start..stop of a tensor, as an array of its own in float32 or float64."""
        return self._files[self._home[name]].read(name, start, stop)


def read_json(path: Path) -> dict[str, Any]:
    """Return the table in a JSON file.

    Raises
    ------
    ValueError
        If it cannot be read, is very long, or holds anything else.
    """
    try:
        if path.stat().st_size > _LONGEST_JSON:
            damaged(path, "more JSON than a model's settings need")
        return parse(path, path.read_bytes())
    except OSError as error:
        checks.fail("path", f"{path.name} ({error.strerror})", "a file that can be read")


def parse(path: Path, content: bytes) -> dict[str, Any]:
    """Return the JSON table in `content`; no name may occur twice.

    Raises
    ------
    ValueError
        If it is anything else.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            raise ValueError("a name that occurs twice")
        return table

    try:
        found = json.loads(content.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        damaged(path, f"JSON that cannot be read: {error!s:.80}")
    if not isinstance(found, dict):
        damaged(path, "JSON that is no table")
    return found

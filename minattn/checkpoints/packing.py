"""From stored tensors to W_q (d, H, h) and W_k (d, H_kv, h), by the row of the table."""

from __future__ import annotations

import math
from typing import NamedTuple, NoReturn

from minattn import checks
from minattn.arrays import Array
from minattn.checkpoints.layouts import Layout
from minattn.checkpoints.settings import Settings
from minattn.checkpoints.tensors import TensorFile


class Heads(NamedTuple):
    """Numbers of query and key heads, and their width."""

    queries: int
    keys: int
    width: int


def separate_heads(
    name: str, q_rows: int, k_rows: int, settings: Settings, heads: int | None
) -> Heads:
    """Divide the rows of W_q and W_k among heads; what is known must fit.

    Raises
    ------
    ValueError
        If neither the number of heads nor their width is known, or the rows do not fit.
    """
    width = settings.head_width
    if heads is None and width is None:
        _unknown(name, f"{q_rows} and {k_rows} rows of queries and keys")
    if heads is not None:
        width = _divide(name, q_rows, heads, f"{heads} query heads")
    assert width is not None
    found = Heads(
        _divide(name, q_rows, width, f"heads of width {width}"),
        _divide(name, k_rows, width, f"key heads of width {width}"),
        width,
    )
    return _checked(name, found, settings)


def fused_heads(
    name: str, rows: int, layout: Layout, settings: Settings, heads: int | None
) -> Heads:
    """Divide the rows of a tensor of queries, keys and values among heads; what is known must fit.

    Raises
    ------
    ValueError
        If neither the number of heads nor their width is known, or the rows do not fit.
    """
    keys, width = settings.key_heads, settings.head_width
    if layout.packing == "per_head":
        keys = None
    if heads is None and width is None:
        _unknown(name, f"{rows} rows of queries, keys and values")
    if heads is None:
        assert width is not None
        parts = _divide(name, rows, width, f"heads of width {width}")
        heads = parts - 2 * keys if keys else _divide(name, parts, 3, "as many queries as keys")
    keys = keys or heads
    parts = heads + 2 * keys
    width = _divide(name, rows, parts, f"{heads} query, {keys} key and {keys} value heads")
    return _checked(name, Heads(heads, keys, width), settings)


def _divide(name: str, rows: int, parts: int, what: str) -> int:
    if rows < parts or rows % parts:
        checks.fail("heads", f"{rows} rows in {name!r}", f"a multiple of {parts}: {what}")
    return rows // parts


def _checked(name: str, found: Heads, settings: Settings) -> Heads:
    for told, read, what in (
        (settings.key_heads, found.keys, "key_heads"),
        (settings.head_width, found.width, "head_width"),
    ):
        if told is not None and told != read:
            checks.fail(what, told, f"{read}, by the shape of {name!r}")
    if found.queries < 1 or found.queries % found.keys:
        got = f"{found.queries} query heads beside {found.keys} key heads in {name!r}"
        checks.fail("heads", got, "a multiple of the key heads")
    return found


def _unknown(name: str, got: str) -> NoReturn:
    needs = "heads or head_width, from config.json or as an option"
    checks.fail("heads", f"{name!r} with {got} and no word on heads", needs)


def projections(
    file: TensorFile, query: str, key: str, layout: Layout, settings: Settings, heads: int | None
) -> tuple[Array, Array]:
    """Read W_q (d, H, h) and W_k (d, H_kv, h) from the tensors of these names.

    Raises
    ------
    ValueError
        If a tensor is missing or its shape does not fit.
    """
    shape = matrix_shape(file, query, layout)
    if key:
        key_shape = matrix_shape(file, key, layout)
        found = separate_heads(query, shape[0], key_shape[0], settings, heads)
        return (
            _to_heads(_read(file, query, layout), found.queries, found.width),
            _to_heads(_read(file, key, layout), found.keys, found.width),
        )
    found = fused_heads(query, shape[0], layout, settings, heads)
    if layout.packing == "per_head":
        packed = file.read(query).reshape(found.queries, 3, found.width, -1)
        return packed[:, 0].transpose(2, 0, 1), packed[:, 1].transpose(2, 0, 1)
    first, last = found.queries * found.width, (found.queries + found.keys) * found.width
    return (
        _to_heads(_read(file, query, layout, 0, first), found.queries, found.width),
        _to_heads(_read(file, query, layout, first, last), found.keys, found.width),
    )


def biases(
    file: TensorFile, query: str, key: str, layout: Layout, found: Heads
) -> tuple[Array | None, Array | None]:
    """Read b_q (H, h) and b_k (H_kv, h), None where the file has none."""
    width = found.width
    if key:
        return (
            vector(file, query, found.queries, width),
            vector(file, key, found.keys, width),
        )
    packed = vector(file, query, (found.queries + 2 * found.keys) * width)
    if packed is None:
        return None, None
    if layout.packing == "per_head":
        split = packed.reshape(found.queries, 3, width)
        return split[:, 0], split[:, 1]
    first, last = found.queries * width, (found.queries + found.keys) * width
    return packed[:first].reshape(-1, width), packed[first:last].reshape(-1, width)


def matrix_shape(file: TensorFile, name: str, layout: Layout) -> tuple[int, int]:
    """Return (out, in) of a weight, whichever way it is stored.

    Raises
    ------
    ValueError
        If it is missing, no matrix or empty.
    """
    if name not in file.stored:
        checks.fail("path", f"no tensor {name!r}", f"every tensor of a {layout.family} file")
    shape = file.stored[name].shape
    if len(shape) != 2 or 0 in shape:
        checks.fail("path", f"{name!r} of shape {shape}", "a matrix")
    return (shape[1], shape[0]) if layout.transposed else (shape[0], shape[1])


def vector(file: TensorFile, name: str, *shape: int) -> Array | None:
    """Read a vector in this shape, None if the file has none of this name.

    Raises
    ------
    ValueError
        If it has another length.
    """
    if name not in file.stored:
        return None
    length = math.prod(shape)
    if file.stored[name].shape != (length,):
        checks.fail("path", f"{name!r} of shape {file.stored[name].shape}", f"({length},)")
    return file.read(name).reshape(shape)


def _read(
    file: TensorFile, name: str, layout: Layout, start: int = 0, stop: int | None = None
) -> Array:
    """Return rows start..stop of a weight as (out, in)."""
    if layout.transposed:
        return file.read(name).T[start:stop]
    return file.read(name, start, stop)


def _to_heads(rows: Array, heads: int, width: int) -> Array:
    """Turn (H h, d) into (d, H, h)."""
    return rows.reshape(heads, width, rows.shape[1]).transpose(2, 0, 1)

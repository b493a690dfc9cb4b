"""The squares that scores are made of, from a matrix or from factors that are not multiplied out.

With the factors of M = W_q W_k^T as matrices (d, k), G_q = W_q^T W_q, G_k = W_k^T W_k and
C = W_k^T W_q:

    tr(M M) = sum(C * C^T)           |row_m|^2 = (W_q G_k W_q^T)_mm
    |M|^2   = sum_m |row_m|^2        |col_k|^2 = (W_k G_q W_k^T)_kk

which takes O(d k^2) operations and O(d k + k^2) memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from minattn import checks
from minattn.arrays import Array

# Below every exponent of a product of two floats, so that a column of zeros never sets the scale.
_LOWEST_EXPONENT = -10_000
# Wide enough for a fast product, narrow enough for its result to stay in cache.
_BLOCK = 256


class Squares(NamedTuple):
    """The squares of one matrix M (d, d) or of many, in float64, up to a common factor."""

    overlap: Array  # (...), tr(M M)
    energy: Array  # (...), |M|^2
    rows: Array  # (..., d), squared norms
    columns: Array  # (..., d)


def of_matrix(M: Array) -> Squares:
    """Return the squares of M, shape (..., d, d)."""
    M, _ = _scaled(M, (-2, -1), np.float64)
    squares = M * M
    # Summed in the same order on both sides, so that rounding keeps a symmetric matrix at exactly
    # 0 and a transposed one at exactly the opposite scores.
    transposed = np.ascontiguousarray(np.swapaxes(squares, -1, -2))
    overlap = np.sum(M * np.swapaxes(M, -1, -2), axis=(-2, -1))
    energy = squares.sum(axis=(-2, -1))
    return Squares(overlap, energy, squares.sum(axis=-1), transposed.sum(axis=-1))


def of_factors(queries: Array, keys: Array, dtype: DTypeLike) -> tuple[Squares, Squares]:
    """Return the squares of a sum over heads, and what their rounding is relative to.

    Parameters
    ----------
    queries, keys : (..., d, H_kv, G, h) and (..., d, H_kv, 1, h)
        As from `grouped`.
    dtype : float32 or float64
        Of the products.

    Returns
    -------
    squares, sizes : Squares
        Each square is a sum, and its size the same sum over magnitudes: what terms that cancel
        leave of a square is uncertain by some units of rounding of its size.
    """
    queries, keys = _balanced(queries, keys, dtype)
    queries_T, keys_T = np.swapaxes(queries, -1, -2), np.swapaxes(keys, -1, -2)
    rows, row_sizes = _squared_norms(queries, keys_T @ keys)
    columns, column_sizes = _squared_norms(keys, queries_T @ queries)
    cross = keys_T @ queries
    cross = cross * np.swapaxes(cross, -1, -2)
    overlap, overlap_size = (
        terms.sum(axis=(-2, -1), dtype=np.float64) for terms in (cross, np.abs(cross))
    )
    return (
        Squares(overlap, rows.sum(axis=-1), rows, columns),
        Squares(overlap_size, row_sizes.sum(axis=-1), row_sizes, column_sizes),
    )


def rounding(d: int, *arrays: Array | np.float64) -> float:
    """Return the relative difference between two norms that rounding can explain.

    Whoever made the matrix computed in single precision or better, and errors of a d-term sum grow
    like sqrt(d) eps; 4 leaves room for a factorisation. Storing each entry in the given dtype then
    moves a norm, and the mean of the norms, by half an eps at most: this is what half precision
    adds, and it does not grow with d.
    """
    stored = max(float(np.finfo(array.dtype).eps) for array in arrays)
    computed = min(stored, float(np.finfo(np.float32).eps))
    return 4.0 * float(np.sqrt(d)) * computed + stored


def significant(squares: Squares, sizes: Squares) -> Squares:
    """Return the squares in float64, or zeros where all of |M|^2 can be rounding of its size."""
    overlap, energy, rows, columns = squares
    something = energy > rounding(rows.shape[-1], energy) * sizes.energy
    kept = something[..., None]
    return Squares(overlap * something, energy * something, rows * kept, columns * kept)


def within_rounding(squares: Squares, sizes: Squares, dtype: DTypeLike) -> Iterator[Squares]:
    """Yield the squares of one matrix as products rounded to `dtype` in other ways might be.

    But for a factor common to rows, or to columns, which moves no score, errors are about eps times
    the sizes, and within four times for all kinds of factors. They take every sign among rows and
    columns; tr(M M) and |M|^2 move so as to move their ratio.
    """
    unit = 4.0 * float(np.finfo(dtype).eps)
    for signs in np.random.default_rng(0).choice([-unit, unit], size=(4, 2, len(squares.rows))):
        errors = (np.copysign(unit, squares.overlap), -unit, *signs)
        for way in (-1.0, 1.0):
            yield Squares(
                *(
                    square + way * error * size
                    for square, error, size in zip(squares, errors, sizes, strict=True)
                )
            )


def grouped(W_q: Array, W_k: Array) -> tuple[Array, Array]:
    """Return views (..., d, H_kv, G, h) and (..., d, H_kv, 1, h): G queries beside their key."""
    fit = "W_q (..., d, H, h) and W_k (..., d, H_kv, h) with H a multiple of H_kv, or (d, k) twice"
    got = f"the shapes {W_q.shape} and {W_k.shape}"
    if W_q.ndim == W_k.ndim == 2:
        W_q, W_k = W_q[:, None, :], W_k[:, None, :]
    if W_q.ndim != W_k.ndim or W_q.ndim < 3:
        checks.fail("W_q, W_k", got, fit)
    *leading, heads, head_width = W_q.shape
    *leading_keys, key_heads, key_width = W_k.shape
    if leading != leading_keys or head_width != key_width or heads % key_heads:
        checks.fail("W_q, W_k", got, fit)
    queries = W_q.reshape(*leading, key_heads, heads // key_heads, head_width)
    return queries, W_k[..., None, :]


def apart(queries: Array, keys: Array) -> tuple[Array, Array]:
    """Return views (..., H_kv, G, d, 1, 1, h) of what `grouped` returns: each head a single one."""
    keys = np.broadcast_to(keys, queries.shape)
    queries, keys = (np.moveaxis(factor, -4, -2) for factor in (queries, keys))
    return queries[..., None, None, :], keys[..., None, None, :]


def _balanced(queries: Array, keys: Array, dtype: DTypeLike) -> tuple[Array, Array]:
    """Return factors (..., d, k) fit for squaring, queries that share a key summed.

    Column l of W_q and column l of W_k meet only in their product, so each is scaled by itself and
    the product's exponent goes to the query side: a large W_q beside a small W_k, in any column,
    neither overflows nor underflows. Powers of two make all of it exact.
    """
    # In float64, which keeps what is left where queries cancel. Such weights keep it finite.
    weights = np.full(queries.shape[-2], 0.5 ** (queries.shape[-2] - 1).bit_length())
    queries = np.einsum("...gh,g->...h", queries, weights)
    columns = (*queries.shape[:-2], -1)
    queries, query_exponents = _scaled(queries.reshape(columns), (-2,), dtype)
    keys, key_exponents = _scaled(keys.reshape(columns), (-2,), dtype)
    exponents = query_exponents + key_exponents
    exponents -= exponents.max(axis=-1, keepdims=True)
    queries *= np.ldexp(1.0, exponents)
    return queries, keys


def _scaled(array: Array, axes: tuple[int, ...], dtype: DTypeLike) -> tuple[Array, Array]:
    """Divide by the power of two below the largest magnitude over `axes`; return its exponent."""
    largest = np.maximum(array.max(axis=axes, keepdims=True), -array.min(axis=axes, keepdims=True))
    exponent = np.frexp(largest)[1]
    out = np.empty(array.shape, dtype)
    np.divide(array, np.ldexp(1.0, exponent - 1), out=out)
    return out, np.where(largest > 0, exponent, _LOWEST_EXPONENT)


def _squared_norms(factor: Array, gram: Array) -> tuple[Array, Array]:
    """Return the diagonal of factor @ gram @ factor.T, and its size, both (..., d)."""
    # One half of a symmetric matrix, twice, takes little more than half of the products.
    half = np.triu(gram) + np.triu(gram, 1)
    norms, sizes = np.zeros((2, *factor.shape[:-1]))
    *_, k = factor.shape
    for start in range(0, k, _BLOCK):
        stop = start + _BLOCK
        terms = factor[..., :stop] @ half[..., :stop, start:stop]
        terms *= factor[..., start:stop]
        norms += terms.sum(axis=-1)
        sizes += np.abs(terms, out=terms).sum(axis=-1)
    return norms, sizes

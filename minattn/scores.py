"""Three numbers that describe a bilinear form W_qk: symmetry, directionality, dispersion.

Rows belong to the query side and columns to the key side. A matrix is given as it is, or as the
factors of `W_qk = W_q @ W_k.T`, in which case the product is never formed. Arithmetic is float64
throughout; the dtype given decides only how much rounding the numbers are taken to carry.

Definitions: "The underlying structures of self-attention", ICML 2025, section 3.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from minattn import checks
from minattn.arrays import Array

Result: TypeAlias = Array | np.float64

# Below every exponent of a product of two floats, so that a column of zeros never sets the scale.
_LOWEST_EXPONENT = -10_000


class Scores(NamedTuple):
    """The scores of one matrix (numbers) or of many (arrays of one shape); none has a unit."""

    symmetry: Result
    directionality: Result
    directionality_published: Result
    dispersion: Result


def symmetry(M: Any) -> Result:
    """How symmetric a matrix is: 1 if symmetric, -1 if skew-symmetric, near 0 if neither.

    Parameters
    ----------
    M : array_like of finite real numbers (float16 to float64, integers), shape (..., d, d)

    Returns
    -------
    float64, shape (...)
        (|M+|^2 - |M-|^2) / |M|^2 with M+ and M- the symmetric and skew part, in [-1, 1];
        0 for the zero matrix, by convention.

    Raises
    ------
    ValueError
        If M is not square, empty, or not of finite real numbers.

    Notes
    -----
    Def. 3.1 without its factor 2, which contradicts the range stated there and is absent from the
    paper's figures. It equals tr(M M) / |M|^2.
    """
    return scores(M).symmetry


def directionality(M: Any, variant: str = "definition", gamma: float = 2.0) -> Result:
    """Whether rows (positive) or columns (negative) stand out by their norm.

    Parameters
    ----------
    M : array_like of finite real numbers (float16 to float64, integers), shape (..., d, d)
    variant : {"definition", "published"}
        What a norm beyond the threshold counts for: the whole norm, as in Def. 3.2, or its excess
        over the threshold, as in the code published with the paper.
    gamma : float
        The threshold is mean + gamma * std of the norms of that side, std with n - 1; at least 0.
        The paper names no value; its code has 2.

    Returns
    -------
    float64, shape (...)
        (r - c) / (r + c), with r and c the sums over rows and columns, in [-1, 1]; 0 where no norm
        exceeds its threshold, which at gamma = 2 is every matrix up to 5 x 5.

    Raises
    ------
    ValueError
        If M is not square, empty, or not of finite real numbers; if `variant` is unknown or
        `gamma` negative or not finite.

    Notes
    -----
    Def. 3.2. The paper's code takes columns minus rows and turns the sign when it plots. A norm
    exceeds the threshold only by more than rounding can explain, so that an orthogonal matrix
    scores 0.
    """
    checks.one_of("variant", variant, ("definition", "published"))
    found = scores(M, gamma)
    return found.directionality if variant == "definition" else found.directionality_published


def dispersion(M: Any) -> Result:
    """Whether the norms of columns (positive) or of rows (negative) are more spread.

    Parameters
    ----------
    M : array_like of finite real numbers (float16 to float64, integers), shape (..., d, d)

    Returns
    -------
    float64, shape (...)
        log(Var |column|^2 / Var |row|^2), natural logarithm. Where one side is constant up to
        rounding +inf (rows constant) or -inf (columns constant), where both are 0.

    Raises
    ------
    ValueError
        If M is not square, empty, or not of finite real numbers.

    Notes
    -----
    A companion to Def. 3.2, whose sums see only the few norms beyond a threshold. This one uses
    every row and column: for a random matrix its sd is about 2 / sqrt(d).
    """
    return scores(M).dispersion


def scores(M: Any, gamma: float = 2.0) -> Scores:
    """Return all scores of M, shape (..., d, d), each of shape (...).

    Arguments and errors are those of `symmetry`, `directionality` and `dispersion`.
    """
    gamma = checks.real("gamma", gamma, minimum=0.0)
    array = _reals("M", M)
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        checks.fail("M", f"the shape {array.shape}", "square matrices (..., d, d)")
    scaled, _ = _scaled(array, (-2, -1))
    return _scores(*_sums(scaled), gamma, _rounding(array.shape[-1], array))


def scores_from_factors(W_q: Any, W_k: Any, per_head: bool = False, gamma: float = 2.0) -> Scores:
    """All scores of W_qk = W_q W_k^T from its factors, without forming it.

    Parameters
    ----------
    W_q : array_like, shape (..., d, H, h) or (d, k)
        Query projections. A pair of plain (d, k) matrices is a single head.
    W_k : array_like, shape (..., d, H_kv, h) or (d, k)
        Key projections. H is a multiple of H_kv; with grouped queries, query head i reads key head
        i // (H // H_kv).
    per_head : bool
        Whether to score each head's matrix, or the sum of W_qk over heads as the paper does.
    gamma : float
        As in `directionality`.

    Returns
    -------
    Scores
        Each of shape (..., H) with `per_head`, otherwise (...).

    Raises
    ------
    ValueError
        If the shapes do not fit together, a factor is empty or holds anything but finite real
        numbers, or `per_head` or `gamma` is not valid.

    Notes
    -----
    Remark A.5 for the sum over heads. With the factors as (d, k) matrices, G_q = W_q^T W_q,
    G_k = W_k^T W_k and C = W_k^T W_q:

        tr(M M) = sum(C * C^T)           |row_m|^2 = (W_q G_k W_q^T)_mm
        |M|^2   = sum(G_q * G_k)         |col_k|^2 = (W_k G_q W_k^T)_kk

    which takes O(d k^2) operations and O(d k + k^2) memory. Queries that share a key are summed
    first, so that k is H_kv * h. Squares lose half of the digits that a cancelling product keeps:
    scores carry a relative error of about 1e-16 sum_l |q_l|^2 |k_l|^2 / |M|^2 over the columns l of
    the factors, and a product smaller than that error counts as zero.
    """
    checks.flag("per_head", per_head)
    gamma = checks.real("gamma", gamma, minimum=0.0)
    queries, keys = _grouped(_reals("W_q", W_q), _reals("W_k", W_k))
    floor = _rounding(queries.shape[-4], queries, keys)
    left, right = _balanced(queries, keys, per_head)
    found = _scores(*_gram_sums(left, right), gamma, floor)
    if per_head:
        heads = (*queries.shape[:-4], queries.shape[-3] * queries.shape[-2])
        return Scores(*(np.reshape(score, heads) for score in found))
    return found


def _reals(name: str, value: Any) -> Array:
    """Return `value` as a non-empty array of finite float16, float32 or float64, or fail."""
    needs = "an array of finite real numbers, float16 to float64 or integers"
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # ragged lists; arrays of a device
        checks.fail(name, f"a {type(value).__name__} that is no NumPy array", needs)
    if array.dtype.kind not in "iuf" or array.dtype.itemsize > 8:
        checks.fail(name, f"an array of {array.dtype}", needs)
    if array.size == 0:
        checks.fail(name, f"the empty shape {array.shape}", "at least one number")
    if array.dtype.kind in "iu":
        array = array.astype(np.float64)
    if not np.isfinite(array).all():
        checks.fail(name, "NaN or infinity", needs)
    return array


def _grouped(W_q: Array, W_k: Array) -> tuple[Array, Array]:
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


def _balanced(queries: Array, keys: Array, per_head: bool) -> tuple[Array, Array]:
    """Return float64 factors (..., d, k), or (..., H_kv, G or 1, d, h) per head, fit for squaring.

    Column l of W_q and column l of W_k meet only in their product, so each is scaled by itself and
    the product's exponent goes to the query side: a large W_q beside a small W_k, in any column,
    neither overflows nor underflows. Powers of two make all of it exact.
    """
    queries, query_exponent = _scaled(queries, (-4,) if per_head else (-4, -2))
    keys, key_exponent = _scaled(keys, (-4,))
    exponent = query_exponent + key_exponent
    exponent -= exponent.max(axis=-1 if per_head else (-3, -1), keepdims=True)
    queries = np.ldexp(queries, exponent)
    if per_head:
        return np.moveaxis(queries, -4, -2), np.moveaxis(keys, -4, -2)
    columns = (*keys.shape[:-3], -1)
    return queries.sum(axis=-2).reshape(columns), keys.reshape(columns)


def _scaled(array: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Divide by the power of two below the largest magnitude over `axes`; return its exponent."""
    largest = np.maximum(array.max(axis=axes, keepdims=True), -array.min(axis=axes, keepdims=True))
    exponent = np.frexp(largest.astype(np.float64))[1]
    scaled = np.divide(array, np.ldexp(1.0, exponent - 1), dtype=np.float64, order="C")
    return scaled, np.where(largest > 0, exponent, _LOWEST_EXPONENT)


def _rounding(d: int, *arrays: Array) -> float:
    """Return the relative difference between two norms that rounding can explain.

    Whoever made the matrix computed in single precision or better, and errors of a d-term sum grow
    like sqrt(d) eps; 4 leaves room for a factorisation. Storing each entry in the given dtype then
    moves a norm, and the mean of the norms, by half an eps at most: this is what half precision
    adds, and it does not grow with d.
    """
    stored = max(float(np.finfo(array.dtype).eps) for array in arrays)
    computed = min(stored, float(np.finfo(np.float32).eps))
    return 4.0 * float(np.sqrt(d)) * computed + stored


def _overlap(M: Array) -> Array:
    """Return tr(M M) for each matrix."""
    return np.sum(M * np.swapaxes(M, -1, -2), axis=(-2, -1))


def _sums(M: Array) -> tuple[Array, Array, Array, Array]:
    """Return tr(M M), |M|^2 and the squared norms of rows and columns of scaled M."""
    squares = M * M
    # Summed in the same order on both sides, so that rounding keeps a symmetric matrix at exactly
    # 0 and a transposed one at exactly the opposite scores.
    transposed = np.ascontiguousarray(np.swapaxes(squares, -1, -2))
    energy = squares.sum(axis=(-2, -1))
    return _overlap(M), energy, squares.sum(axis=-1), transposed.sum(axis=-1)


def _gram_sums(queries: Array, keys: Array) -> tuple[Array, Array, Array, Array]:
    """Return tr(M M), |M|^2 and the squared norms of rows and columns of M = queries keys^T."""
    queries_T, keys_T = np.swapaxes(queries, -1, -2), np.swapaxes(keys, -1, -2)
    gram_q, gram_k, cross = queries_T @ queries, keys_T @ keys, keys_T @ queries
    rows = np.maximum(np.sum(queries @ gram_k * queries, axis=-1), 0.0)
    columns = np.maximum(np.sum(keys @ gram_q * keys, axis=-1), 0.0)
    overlap, energy = _overlap(cross), np.sum(gram_q * gram_k, axis=(-2, -1))
    # What is left when columns cancel, as in the change of W_qk at step 0, is rounding.
    terms = np.einsum("...ll,...ll->...", gram_q, gram_k)
    something = energy > _rounding(queries.shape[-2], gram_q) * terms
    kept = something[..., None]
    return overlap * something, energy * something, rows * kept, columns * kept


def _scores(
    overlap: Array, energy: Array, rows: Array, columns: Array, gamma: float, floor: float
) -> Scores:
    r, r_excess = _tail_sums(rows, gamma, floor)
    c, c_excess = _tail_sums(columns, gamma, floor)
    return Scores(
        symmetry=np.clip(_ratio(overlap, energy), -1.0, 1.0),
        directionality=_ratio(r - c, r + c),
        directionality_published=_ratio(r_excess - c_excess, r_excess + c_excess),
        dispersion=_log_ratio(_spread(columns, floor), _spread(rows, floor)),
    )


def _tail_sums(squared_norms: Array, gamma: float, floor: float) -> tuple[Array, Array]:
    """Sum over the norms beyond mean + gamma std: the norms, and their excesses."""
    norms = np.sqrt(squared_norms)
    mean, variance = _moments(norms)
    excess = norms - (mean + gamma * np.sqrt(variance))
    exceeds = excess > floor * norms
    return np.sum(norms, axis=-1, where=exceeds), np.sum(excess, axis=-1, where=exceeds)


def _spread(squared_norms: Array, floor: float) -> Array:
    """Return the variance of the squared norms, 0 where they are constant up to rounding."""
    mean, variance = _moments(squared_norms)
    # A square is off by twice the relative error of its root.
    varies = np.abs(squared_norms - mean) > 2 * floor * mean
    return np.where(np.any(varies, axis=-1), variance[..., 0], 0.0)


def _moments(values: Array) -> tuple[Array, Array]:
    """Return mean and variance (n - 1; 0 for a single value) over the last axis, which stays."""
    mean = values.mean(axis=-1, keepdims=True)
    squares = np.sum((values - mean) ** 2, axis=-1, keepdims=True)
    return mean, squares / max(values.shape[-1] - 1, 1)


def _ratio(numerator: Array, denominator: Array) -> Result:
    """Divide, with 0 for 0 / 0."""
    out = np.zeros_like(denominator, dtype=np.float64)
    return np.divide(numerator, denominator, out=out, where=denominator > 0)[()]


def _log_ratio(numerator: Array, denominator: Array) -> Result:
    """Return log(numerator / denominator), with 0 for 0 / 0."""
    top, bottom = (
        np.log(value, out=np.full_like(value, -np.inf), where=value > 0)
        for value in (numerator, denominator)
    )
    either = (numerator > 0) | (denominator > 0)
    return np.subtract(top, bottom, out=np.zeros_like(top), where=either)[()]

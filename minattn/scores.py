"""Three numbers that describe a bilinear form W_qk: symmetry, directionality, dispersion.

Rows belong to the query side and columns to the key side. A matrix is given as it is, or as the
factors of `W_qk = W_q @ W_k.T`, in which case the product is never formed. Arithmetic is float64,
but for the products of large float32 factors; the dtype given decides how much rounding the numbers
are taken to carry.

Definitions: "The underlying structures of self-attention", ICML 2025, section 3.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from minattn import checks, squares
from minattn.arrays import Array, ratio
from minattn.squares import Squares

Result: TypeAlias = Array | np.float64

# From so many numbers in a factor on, float64 takes its time and a stack of factors its room.
_LARGE = 2**18
# How far products in float32 may move a score before they are repeated in float64.
_TOLERANCE = 1e-5


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
    return scores_from_squares(*squares_of(M), gamma)


def squares_of(M: Any) -> tuple[Squares, float]:
    """Return what M is scored by: its squares, and what of their roots rounding can explain.

    Raises
    ------
    ValueError
        If M is not square, empty, or not of finite real numbers.
    """
    array = _reals("M", M)
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        checks.fail("M", f"the shape {array.shape}", "square matrices (..., d, d)")
    found = squares.of_matrix(array)
    return found, squares.rounding(found.rows.shape[-1], array)


def scores_from_squares(found: Squares, floor: float, gamma: float = 2.0) -> Scores:
    """Return all scores of what `squares_of` has returned, or of several of them stacked."""
    overlap, energy, rows, columns = found
    # Rounding may leave less than nothing of rows that cancel.
    sides = np.maximum([rows, columns], 0.0)
    (r, c), (r_excess, c_excess) = _tail_sums(sides, gamma, floor)
    row_spread, column_spread = _spread(sides, floor)
    part = np.array([overlap, r - c, r_excess - c_excess])
    whole = np.array([energy, r + c, r_excess + c_excess])
    shares = np.clip(ratio(part, whole), -1.0, 1.0)
    return Scores(shares[0], shares[1], shares[2], _log_ratio(column_spread, row_spread))


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
    Remark A.5 for the sum over heads. `minattn.squares` has the formulas, which take O(d k^2)
    operations and O(d k + k^2) memory. Queries that share a key are summed first, so that k is
    H_kv * h. Squares lose half of the digits that a cancelling product keeps: scores carry a
    relative error of about 1e-16 times the magnitudes that cancel in |M|^2, over |M|^2, and a
    product smaller than that error counts as zero.

    Factors of at least 2^18 numbers, neither of them float64, are multiplied in float32. Its
    rounding is estimated; where it could move a score by more than 1e-5, as where terms cancel or
    a norm lies at its threshold, the products are repeated in float64.
    """
    checks.flag("per_head", per_head)
    gamma = checks.real("gamma", gamma, minimum=0.0)
    queries, keys = squares.grouped(_reals("W_q", W_q), _reals("W_k", W_k))
    heads = (*queries.shape[:-4], queries.shape[-3] * queries.shape[-2])
    if per_head:
        queries, keys = squares.apart(queries, keys)
    *leading, d, key_heads, _, width = queries.shape
    if d * key_heads * width < _LARGE:
        found = _factor_scores(queries, keys, gamma)
    else:
        single = max(queries.itemsize, keys.itemsize) <= 4
        score = _single_first if single else _factor_scores
        each = [score(queries[i], keys[i], gamma) for i in np.ndindex(*leading)]
        found = Scores(*(np.reshape(part, leading)[()] for part in zip(*each, strict=True)))
    return Scores(*(np.reshape(part, heads) for part in found)) if per_head else found


def _factor_scores(queries: Array, keys: Array, gamma: float) -> Scores:
    """Score a sum over heads, or many, with products in float64."""
    found, sizes = squares.of_factors(queries, keys, np.float64)
    # What is left when columns cancel, as in the change of W_qk at step 0, is rounding.
    significant = squares.significant(found, sizes)
    floor = squares.rounding(queries.shape[-4], queries, keys)
    return scores_from_squares(significant, floor, gamma)


def _single_first(queries: Array, keys: Array, gamma: float) -> Scores:
    """Score one sum over heads with products in float32, or in float64 where that would tell."""
    floor = squares.rounding(queries.shape[-4], queries, keys)
    found, sizes = squares.of_factors(queries, keys, np.float32)
    result = scores_from_squares(found, floor, gamma)
    for other in squares.within_rounding(found, sizes, np.float32):
        moved = scores_from_squares(other, floor, gamma)
        if not np.allclose(moved, result, rtol=0.0, atol=_TOLERANCE):
            return _factor_scores(queries, keys, gamma)
    return result


def _reals(name: str, value: Any) -> Array:
    """Return `value` as a non-empty array of finite float16, float32 or float64, or fail."""
    needs = "an array of finite real numbers, float16 to float64 or integers"
    array = checks.array(name, value, "iuf", needs)
    if array.dtype.itemsize > 8:
        checks.fail(name, f"an array of {array.dtype}", needs)
    if array.size == 0:
        checks.fail(name, f"the empty shape {array.shape}", "at least one number")
    if array.dtype.kind in "iu":
        array = array.astype(np.float64)
    if not np.isfinite(array).all():
        checks.fail(name, "NaN or infinity", needs)
    return array


def _tail_sums(squared_norms: Array, gamma: float, floor: float) -> Array:
    """Sum over the norms beyond mean + gamma std: the norms, and their excesses."""
    norms = np.sqrt(squared_norms)
    mean, variance = _moments(norms)
    excess = norms - (mean + gamma * np.sqrt(variance))
    beyond: Array = np.array([norms, excess]) * (excess > floor * norms)
    return beyond.sum(axis=-1)


def _spread(squared_norms: Array, floor: float) -> Array:
    """Return the variance of the squared norms, 0 where they are constant up to rounding."""
    mean, variance = _moments(squared_norms)
    # A square is off by twice the relative error of its root.
    varies = np.abs(squared_norms - mean) > 2 * floor * mean
    return np.where(varies.any(axis=-1), variance[..., 0], 0.0)


def _moments(values: Array) -> tuple[Array, Array]:
    """Return mean and variance (n - 1; 0 for a single value) over the last axis, which stays."""
    mean = values.mean(axis=-1, keepdims=True)
    squares = np.sum((values - mean) ** 2, axis=-1, keepdims=True)
    return mean, squares / max(values.shape[-1] - 1, 1)


def _log_ratio(numerator: Array, denominator: Array) -> Result:
    """Return log(numerator / denominator), with 0 for 0 / 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log(numerator) - np.log(denominator)
    return np.where(numerator == denominator, 0.0, log)[()]

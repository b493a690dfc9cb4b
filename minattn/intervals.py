"""Intervals for means over replicas."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from minattn import checks
from minattn.arrays import Array

LEVEL = 0.95  # of the intervals that decide claims
REACH = 10.0  # stands in for the infinite dispersion of a matrix of which one side has no spread


class Estimate(NamedTuple):
    """A mean over n replicas and its interval; numbers, or arrays of one shape."""

    mean: Any
    low: Any
    high: Any
    n: int


def mean_interval(values: Any, level: float = LEVEL) -> Estimate:
    """Student-t interval for the mean over independent replicas.

    Parameters
    ----------
    values : array_like, shape (n, ...)
        One entry a replica along the first axis.
    level : float
        Probability that the interval covers the mean, in (0, 1).

    Returns
    -------
    Estimate
        Each entry of shape (...). No spread gives an interval of no width. A single replica says
        nothing about spread: its interval is (-inf, inf).

    Raises
    ------
    ValueError
        If there is no replica, a value is not a finite real number, or `level` is not in (0, 1).
    """
    level = checks.real("level", level, 0.0, 1.0)
    if level in (0.0, 1.0):
        checks.fail("level", level, "a number strictly between 0 and 1")
    replicas = replicates(values)
    n = len(replicas)
    mean, error = mean_and_error(replicas)
    from scipy.special import stdtrit

    quantile = stdtrit(n - 1, (1.0 + level) / 2.0) if n > 1 else 1.0
    return Estimate(mean, mean - quantile * error, mean + quantile * error, n)


def replicates(values: Any, infinite: bool = False) -> Array:
    """Return `values` as float64 with a non-empty first axis, or fail; NaN always does."""
    array = checks.array("values", values)
    if array.ndim == 0 or array.size == 0:
        checks.fail("values", f"the shape {array.shape}", "at least one replica on the first axis")
    if np.isnan(array).any() or not (infinite or np.isfinite(array).all()):
        checks.fail("values", "NaN or infinity", "numbers" if infinite else "finite numbers")
    return array.astype(np.float64)


def mean_and_error(values: Array) -> tuple[Array, Array]:
    """Return mean and standard error over the first axis; the error of one value is infinite."""
    # Deviations from the first value are exactly 0 when all agree; those from a rounded mean are
    # not, and would turn a constant into a significant difference.
    shifted = values - values[0]
    n = len(values)
    mean = values[0] + shifted.mean(axis=0)
    if n == 1:
        return mean, np.full_like(mean, np.inf)[()]
    return mean, np.std(shifted, axis=0, ddof=1) / math.sqrt(n)


def finite(values: Array) -> Array:
    """Return scores with infinities brought within `REACH`, and 0 for NaN, so that means exist."""
    numbers = checks.array("values", values)
    return np.asarray(np.nan_to_num(numbers, posinf=REACH, neginf=-REACH))

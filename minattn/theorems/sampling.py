"""Monte-Carlo means with intervals that may be trusted many at a time."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from minattn.arrays import Array

# Chance that any interval of a family misses its value: checks must not fail by bad luck.
ERROR = 1e-4
# The squares and products averaged here are skewed: intervals from fewer draws would be too
# narrow, so there are none.
FEWEST_DRAWS = 2000


class Interval(NamedTuple):
    """Estimates, the ends of their intervals, and the standard deviation of a single draw.

    Numbers, or arrays of one shape.
    """

    value: Array
    low: Array
    high: Array
    spread: Array

    def furthest(self, predicted: float = 1.0) -> tuple[float, tuple[float, float]]:
        """Return value and (low, high) of the estimate most standard errors off `predicted`."""
        off = np.abs(self.value - predicted)
        spread = np.maximum(self.spread, np.finfo(np.float64).tiny)
        return self.at(int(np.argmax(off / spread)))

    def at(self, index: int) -> tuple[float, tuple[float, float]]:
        """Return value and (low, high) of one estimate, by its flat index."""
        value, low, high = (float(np.ravel(part)[index]) for part in self[:3])
        return value, (low, high)

    def over(self, scale: Array) -> Interval:
        """Divide everything by positive numbers."""
        return Interval(*(part / scale for part in self))

    def draws_for(self, half_width: float) -> int:
        """Return how many draws would bring every interval down to a half-width."""
        quantile = NormalDist().inv_cdf(_level(self.value))
        needed = (quantile * float(np.max(self.spread)) / half_width) ** 2
        return max(FEWEST_DRAWS, math.ceil(needed))


def settled_by(draws: int) -> str:
    """Say in a sentence how many draws would settle what is inconclusive."""
    return f" About {draws} draws would settle it."


def estimate_mean(values: Array) -> Interval:
    """Return the mean over the first axis, values (n, ...) with n > 1, with intervals (...)."""
    return _around(values.mean(axis=0), values.std(axis=0, ddof=1), len(values))


def estimate_ratio(top: Array, bottom: Array) -> Interval:
    """Return mean(top) / mean(bottom) over the first axis, with intervals.

    top and bottom (n, ...) with n > 1, draw by draw from the same sample: the delta method takes
    their correlation into account.
    """
    mean = bottom.mean(axis=0)
    ratio = top.mean(axis=0) / mean
    return _around(ratio, ((top - ratio * bottom) / mean).std(axis=0, ddof=1), len(top))


def _around(value: Array, spread: Array, n: int) -> Interval:
    """Student-t intervals that all hold together (Bonferroni)."""
    from scipy.special import stdtrit

    half = np.full_like(spread, np.inf)
    if n >= FEWEST_DRAWS:
        half = stdtrit(n - 1, _level(value)) * spread / math.sqrt(n)
    return Interval(value, value - half, value + half, spread)


def _level(value: Array) -> float:
    """Return the one-sided level of each of the two-sided intervals of a family."""
    return 1 - ERROR / (2 * np.size(value))

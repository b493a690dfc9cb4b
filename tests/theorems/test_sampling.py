"""Intervals: their formula, their coverage, and the draws that they ask for."""

import math

import numpy as np
import pytest
from scipy.stats import t

from minattn.theorems.sampling import (
    ERROR,
    FEWEST_DRAWS,
    Interval,
    estimate_mean,
    estimate_ratio,
    settled_by,
)


def test_interval_of_a_mean_by_its_formula():
    values = np.random.default_rng(0).exponential(size=(FEWEST_DRAWS, 3))
    found = estimate_mean(values)
    half = t.ppf(1 - ERROR / 6, FEWEST_DRAWS - 1) * values.std(axis=0, ddof=1)
    half /= math.sqrt(FEWEST_DRAWS)
    np.testing.assert_allclose(found.value, values.mean(axis=0))
    np.testing.assert_allclose(found.high - found.value, half)
    np.testing.assert_allclose(found.value - found.low, half)


def test_too_few_draws_give_no_interval():
    values = np.random.default_rng(0).exponential(size=(FEWEST_DRAWS - 1, 3))
    assert np.isinf(estimate_mean(values).high).all()
    assert np.isinf(estimate_ratio(values, values).low).all()
    assert np.isfinite(estimate_mean(values).spread).all()


def test_intervals_of_skewed_products_hold_together():
    rng, misses = np.random.default_rng(1), 0
    for _ in range(200):
        normal = rng.standard_normal((2, FEWEST_DRAWS, 8))
        found = estimate_mean(normal[0] ** 2 * normal[1] ** 2)  # kurtosis far above normal
        misses += bool(((found.low > 1) | (found.high < 1)).any())
    assert misses <= 3


def test_ratios_know_that_top_and_bottom_are_correlated():
    rng = np.random.default_rng(2)
    bottom = rng.uniform(1, 3, size=(4000, 1))
    exact = estimate_ratio(2 * bottom, bottom)
    assert exact.value[0] == pytest.approx(2)
    assert exact.high[0] - exact.low[0] < 1e-12
    apart = estimate_ratio(2 * rng.permutation(bottom), bottom)
    assert 0.02 < apart.high[0] - apart.low[0] < 0.3


def test_spread_of_a_ratio_is_that_of_repeated_experiments():
    rng = np.random.default_rng(3)
    top, bottom = rng.exponential(size=(2, 4000, 500)) + np.array([0.0, 1.0])[:, None, None]
    found = estimate_ratio(top, bottom)
    assert found.value.std() == pytest.approx(found.spread.mean() / math.sqrt(4000), rel=0.15)


def test_furthest_counts_in_standard_errors():
    parts = [np.array(x) for x in ([1.1, 1.05], [0.7, 1.0], [1.5, 1.1], [4.0, 0.1])]
    assert Interval(*parts).furthest() == (1.05, (1.0, 1.1))
    assert Interval(*parts).furthest(5.0) == (1.05, (1.0, 1.1))
    assert Interval(*parts).at(0) == (1.1, (0.7, 1.5))
    assert Interval(*parts).over(np.array([2.0, 1.0])).at(0) == (0.55, (0.35, 0.75))


def test_draws_asked_for_are_draws_enough():
    rng = np.random.default_rng(4)
    found = estimate_mean(rng.exponential(size=(2000, 4)))
    needed = found.draws_for(0.05)
    again = estimate_mean(rng.exponential(size=(needed, 4)))
    assert (again.high - again.low).max() / 2 == pytest.approx(0.05, rel=0.15)
    assert found.draws_for(100.0) == FEWEST_DRAWS
    assert settled_by(needed) == f" About {needed} draws would settle it."

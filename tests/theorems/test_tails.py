"""Lemma A.11: tails against quadrature, both kinds of verdict, each counterexample alone."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minattn.theorems import check
from minattn.theorems.tails import (
    continuous_pair,
    counterexamples,
    discrete,
    discrete_pair,
    laplace_tail,
    lemma_a11_rule,
    normal_tail,
    scaled_pair,
    scaled_pairs,
    shifted_pair,
    uniform_tail,
)

seeds = st.integers(0, 2**32 - 1)


def moments(tail):
    """Mean and variance of a law from its tail, by quadrature."""
    z = np.linspace(-20, 20, 400_001)
    P = np.array([tail(value) for value in z])
    mass = P[:-1] - P[1:]
    middle = (z[:-1] + z[1:]) / 2
    mean = (mass * middle).sum()
    return mean, (mass * (middle - mean) ** 2).sum()


def test_rule():
    assert lemma_a11_rule(np.array([0.1, 0.0, 1e-3])) == "holds exactly"
    assert lemma_a11_rule(np.array([0.1, -1e-5])) == "does not hold"


@pytest.mark.parametrize(
    ("tail", "variance"), [(normal_tail, 1.0), (laplace_tail, 0.5), (uniform_tail, 1 / 3)]
)
def test_tails_are_those_of_the_variances_claimed(tail, variance):
    assert moments(tail) == pytest.approx((0.0, variance), abs=1e-6)


def test_discrete_laws():
    tail, mean, variance = discrete([-4, 1, 6], [0.01, 0.98, 0.01])
    assert (mean, variance) == (pytest.approx(1.0), pytest.approx(0.5))
    assert [tail(z) for z in (-5, -4, 1, 6)] == pytest.approx([1.0, 0.99, 0.01, 0.0])


@pytest.mark.parametrize("pair", counterexamples(), ids=lambda pair: pair.name)
def test_every_counterexample_is_one(pair):
    assert pair.deviations[0] > pair.deviations[1] > 0
    gap, where = pair.gap(pair.threshold)
    assert gap < -1e-4
    assert where > math.sqrt(math.prod(pair.deviations)) - pair.mean
    assert check("Lemma A.11", suspects=lambda: [pair]).verdict == "does not hold"


def test_counterexamples_by_hand():
    pair = discrete_pair()
    assert (pair.heavy(3.0), pair.light(3.0)) == (0.0, pytest.approx(0.01))
    assert normal_tail(3.0) > laplace_tail(3.0)
    assert normal_tail(3.1) < laplace_tail(3.1)
    assert shifted_pair().threshold < shifted_pair().mean
    assert len(continuous_pair().points) > 100


@given(seed=seeds, draws=st.integers(3, 30))
def test_without_counterexamples_the_lemma_stands(seed, draws):
    assert check("Lemma A.11", seed, draws).verdict == "does not hold"
    alone = check("Lemma A.11", seed, draws, suspects=list)
    assert alone.verdict == "holds exactly"
    assert alone.measured >= 0


@given(seed=seeds)
def test_one_shape_suffices_from_the_mean_upwards_and_reverses_below(seed):
    pairs = scaled_pairs(np.random.default_rng(seed), 6)
    assert min(pair.gap(pair.mean)[0] for pair in pairs) >= 0
    rng = np.random.default_rng(seed)
    s = np.sort(rng.uniform(0.3, 2, 2))
    low = scaled_pair(5.0, (s[1] + 0.1, s[0]), normal_tail, 1.0)
    assert low.threshold < 0 < low.mean
    assert low.gap(low.threshold)[0] < 0
    assert check("Lemma A.11", seed, 3, suspects=list, scaled=lambda *_: [low]).verdict == (
        "does not hold"
    )

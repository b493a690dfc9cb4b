"""Remark A.13: counts against loops over patterns, and who contributes in a model."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minattn.theorems import check
from minattn.theorems.masking import count_masked_pairs, odds, remark_a13_rule, unmasked_shares

seeds = st.integers(0, 2**32 - 1)
rates = st.floats(0.05, 0.9)


def test_rule():
    none, some, empty = np.zeros(3), np.array([0.2, 0.1]), np.zeros((3, 0))
    assert remark_a13_rule(1e-15, none, none) == "holds exactly"
    assert remark_a13_rule(1e-15, none, empty) == "holds exactly"
    assert (
        remark_a13_rule(1e-15, none, some) == "holds only if the layer is the last attention layer"
    )
    assert remark_a13_rule(1e-15, some, none) == "does not hold"
    assert remark_a13_rule(0.1, none, none) == "does not hold"


@given(rate=rates, length=st.integers(2, 5))
def test_pairs_counted_one_by_one(rate, length):
    both = one = 0.0
    for pattern in itertools.product([False, True], repeat=length):
        probability = np.prod([rate if masked else 1 - rate for masked in pattern])
        for i, j in itertools.permutations(range(length), 2):
            both += probability * (pattern[i] and pattern[j])
            one += probability * (pattern[i] and not pattern[j])
    assert count_masked_pairs(rate, length) == pytest.approx((both, one))


def test_the_number_in_the_text():
    assert odds(0.15) == pytest.approx(0.17647, abs=1e-5)
    assert odds(0.2) == pytest.approx(0.25)


@settings(max_examples=3)
@given(seed=seeds)
def test_unmasked_queries_contribute_below_the_last_layer_only(seed):
    shares = unmasked_shares(seed, layers=3, rate=0.3)
    assert shares[-1] == 0
    assert shares[:-1].min() > 0.001


@settings(max_examples=4)
@given(seed=seeds, rate=st.floats(0.1, 0.5), length=st.integers(2, 8))
def test_remark_a13(seed, rate, length):
    given_as = {"seed": seed, "draws": 2, "rate": rate, "length": length}
    claim = check("Remark A.13", **given_as)
    assert claim.verdict == "holds only if the layer is the last attention layer"
    assert claim.measured == pytest.approx(rate / (1 - rate))
    assert check("Remark A.13", layers=1, **given_as).verdict == "holds exactly"
    for ratio in (lambda p: p, lambda p: 2 * odds(p), lambda p: 0.9 * p):
        assert check("Remark A.13", ratio=ratio, **given_as).verdict == "does not hold"

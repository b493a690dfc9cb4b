"""Prop. A.9 and Remark A.10: counts against loops over pairs, and altered formulas."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minattn.theorems import check
from minattn.theorems.counting import (
    all_sequences,
    any_law,
    early_symbol,
    late_symbol,
    mean_position_formula,
    position_formula,
    position_law,
    remark_a10_rule,
    role_counts,
    same,
    stationary_chain,
)

seeds = st.integers(0, 2**32 - 1)
sizes = st.fixed_dictionaries({"symbols": st.integers(2, 3), "length": st.integers(3, 5)})


def test_rule():
    exact, one, more = np.array([1e-15]), np.array([1.0, 1.0]), np.array([1.4, 1.1])
    assert remark_a10_rule(exact, more, more) == "holds exactly"
    assert remark_a10_rule(exact, one, more).startswith("holds only if the symbol's mean position")
    assert remark_a10_rule(exact, one, one) == "does not hold"
    assert remark_a10_rule(np.array([0.1]), more, more) == "does not hold"


@given(seed=seeds, size=sizes)
def test_counts_are_those_of_loops_over_pairs(seed, size):
    symbols, length = size["symbols"], size["length"]
    sequences = all_sequences(symbols, length)
    law = any_law(np.random.default_rng(seed), sequences, symbols)
    expected = np.zeros((2, symbols))
    for probability, tokens in zip(law, sequences, strict=True):
        for i in range(length):
            for j in range(i):
                expected[0, tokens[j]] += probability
                expected[1, tokens[i]] += probability
    counts = role_counts(sequences, law, symbols, "strictly_causal")
    np.testing.assert_allclose(counts, expected, atol=1e-12)


@given(seed=seeds, size=sizes)
def test_laws_are_laws(seed, size):
    sequences = all_sequences(size["symbols"], size["length"])
    for source in (any_law, stationary_chain, early_symbol, late_symbol):
        law = source(np.random.default_rng(seed), sequences, size["symbols"])
        assert law.sum() == pytest.approx(1)
        marginal = position_law(sequences, law, size["symbols"])
        np.testing.assert_allclose(marginal.sum(axis=1), 1)
        if source is stationary_chain:
            np.testing.assert_allclose(marginal, marginal[:1].repeat(len(marginal), 0))


def test_formulas_by_hand():
    marginal = np.array([[0.5, 0.5], [0.25, 0.75], [0.0, 1.0]])
    np.testing.assert_allclose(position_formula(marginal), [1.25 / 0.25, 1.75 / 2.75])
    np.testing.assert_allclose(mean_position_formula(marginal), [5.0, 1.75 / 2.75])


ALTERED = {
    "a layer that sees itself": {"mask": "causal"},
    "no mask": {"mask": "bidirectional"},
    "off by one": {"ratio": lambda m: (position_formula(m) * 0 + 1) + position_formula(m)},
    "upside down": {"ratio": lambda m: 1 / position_formula(m)},
    "direction in both": {"bidirectional_ratio": position_formula},
}


@settings(max_examples=8)
@given(seed=seeds, size=sizes)
def test_prop_a9(seed, size):
    assert check("Prop A.9", seed, 5, **size).verdict == "holds exactly"


@pytest.mark.parametrize("name", ALTERED)
@settings(max_examples=8)
@given(seed=seeds, size=sizes)
def test_prop_a9_altered(name, seed, size):
    assert check("Prop A.9", seed, 5, **size, **ALTERED[name]).verdict == "does not hold"


def test_a_layer_that_sees_itself_has_another_formula():
    def with_itself(marginal):
        k = np.arange(1, len(marginal) + 1)
        return ((len(k) + 1 - k) @ marginal) / (k @ marginal)

    assert check("Prop A.9", mask="causal", ratio=with_itself).verdict == "holds exactly"


@settings(max_examples=8)
@given(seed=seeds, size=sizes)
def test_remark_a10(seed, size):
    claim = check("Remark A.10", seed, 5, **size)
    assert claim.verdict == (
        "holds only if the symbol's mean position lies before the middle, mu < (N + 1)/2"
    )
    assert claim.interval == pytest.approx((1.0, 1.0))
    early = check("Remark A.10", seed, 5, source=early_symbol, **size)
    assert early.verdict == "holds exactly"
    assert early.measured > 1.1
    for altered in (
        {"early": late_symbol},
        {"ratio": lambda m: mean_position_formula(m) ** 2 + 0.1},
        {"ratio": same},
    ):
        assert check("Remark A.10", seed, 5, **size, **altered).verdict == "does not hold"

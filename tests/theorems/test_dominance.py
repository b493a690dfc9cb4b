"""Thm. 2.3 and Cor. A.12: where the boundary lies, and which side has the heavier tail."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minattn.theorems import check
from minattn.theorems.dominance import (
    BOUNDARY,
    QUERY_SHARE,
    SMALL_ROWS,
    VARIANCES,
    columns_win,
    heavier_tail_rule,
    norm_ratio,
    theorem_17_rule,
)
from minattn.theorems.roles import as_key, as_query

pytestmark = pytest.mark.usefixtures("hardly_any_chance")
seeds = st.integers(0, 2**32 - 1)
YES, NO, OPEN = "holds in expectation", "does not hold", "inconclusive"
CLEAR = (0.1, 0.6, 2.3)


@pytest.mark.parametrize(
    ("key_only", "both", "formula", "disagreements", "verdict"),
    [
        ((1.1, 1.2), (1.01, 1.1), YES, 0, YES),
        ((1.1, 1.2), (0.7, 0.8), YES, 0, f"holds only if {BOUNDARY}"),
        ((0.7, 0.8), (0.7, 0.8), YES, 0, NO),
        ((1.1, 1.2), (0.7, 0.8), NO, 0, NO),
        ((1.1, 1.2), (0.7, 0.8), YES, 1, NO),
        ((0.9, 1.2), (0.7, 0.8), YES, 0, OPEN),
        ((1.1, 1.2), (0.9, 1.1), YES, 0, OPEN),
        ((1.1, 1.2), (0.7, 0.8), OPEN, 0, OPEN),
        ((1.1, 1.2), (0.9, 1.1), NO, 0, NO),  # a refutation stands whatever else is open
    ],
)
def test_rule_of_17(key_only, both, formula, disagreements, verdict):
    assert theorem_17_rule(key_only, both, formula, disagreements) == verdict


def test_rule_of_18():
    assert heavier_tail_rule([-1, 0.1], [1, 0.2]) == YES
    assert heavier_tail_rule([0.1, -0.2], [0.2, -0.1]) == NO  # the furthest out decides
    assert heavier_tail_rule([0.1, -0.2], [0.2, 0.1]) == YES  # unless it is open
    assert heavier_tail_rule([-0.1, -0.2], [0.2, 0.1]) == OPEN


def test_the_counterexample():
    assert norm_ratio(np.array(VARIANCES), 3.0, 1.0)[0, 1] == pytest.approx(3.1 / 3.97)
    assert norm_ratio(np.array(VARIANCES), 3.0, 1.0)[0, 1] == pytest.approx(0.78, abs=0.005)
    assert not columns_win(np.array(VARIANCES), 3.0, 1.0)[0, 1]
    assert pytest.approx(1 / 3) == QUERY_SHARE


@given(seed=seeds, d=st.integers(2, 6))
def test_boundary_is_where_the_ratio_is_one(seed, d):
    rng = np.random.default_rng(seed)
    variances, B_key, B_query = rng.lognormal(size=d), *rng.uniform(0.1, 3, 2)
    assert np.array_equal(
        norm_ratio(variances, B_key, B_query) > 1, columns_win(variances, B_key, B_query)
    )


@settings(max_examples=4)
@given(seed=seeds)
def test_theorem_17(seed):
    claim = check("Thm 2.3 (17)", seed)
    assert claim.verdict == f"holds only if {BOUNDARY}"
    assert claim.measured == pytest.approx(0.781, abs=0.05)
    for holding in ({"query_share": 0.0}, {"query_share": 0.05}):
        clear = check("Thm 2.3 (17)", seed, variances=CLEAR, **holding)
        assert clear.verdict == YES
    assert check("Thm 2.3 (17)", seed, 2000).verdict == OPEN


ALTERED = {
    "roles swapped": {"key": as_query, "query": as_key},
    "one role turned": {"query": as_key},
    "variance forgotten": {"formula": lambda v, k, q: norm_ratio(v, k, 2 * q)},
    "boundary of the key role alone": {"boundary": lambda v, k, q: columns_win(v, k, 0 * q)},
    "mean not zero": {"law": lambda rng, s: 1 + rng.standard_normal(s)},
}


@pytest.mark.parametrize("name", ALTERED)
@settings(max_examples=3)
@given(seed=seeds)
def test_theorem_17_altered(name, seed):
    assert check("Thm 2.3 (17)", seed, **ALTERED[name]).verdict == NO


@settings(max_examples=2)
@given(seed=seeds)
def test_theorem_18(seed):
    assert check("Thm 2.3 (18)", seed, steps=1).verdict == f"holds only if {SMALL_ROWS}"
    swapped = check("Thm 2.3 (18)", seed, steps=1, key=as_query, query=as_key)
    assert swapped.verdict == YES
    equal = check("Thm 2.3 (18)", seed, steps=1, variances=lambda rng, d: np.ones(d))
    assert equal.verdict == OPEN
    assert "draws would settle it" in equal.found


@settings(max_examples=2)
@given(seed=seeds)
def test_cor_a12(seed):
    assert check("Cor A.12", seed, 8000, steps=1).verdict == YES  # for intervals within the margin
    unequal = check("Cor A.12", seed, steps=1, query_share=0.2)
    assert unequal.verdict == NO
    assert unequal.measured < 0
    assert check("Cor A.12", seed, steps=1, query=as_key).verdict == NO
    assert check("Cor A.12", seed, 2, steps=1).verdict == OPEN

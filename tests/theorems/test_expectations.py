"""Prop. A.7 and Cor. A.8: the checks notice swapped roles and wrong factors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minattn.theorems import check
from minattn.theorems.expectations import own_norm, shared_norm, standing_out
from minattn.theorems.random_matrices import uniform
from minattn.theorems.roles import as_key, as_query

pytestmark = pytest.mark.usefixtures("hardly_any_chance")
seeds = st.integers(0, 2**32 - 1)
sizes = st.fixed_dictionaries({"width": st.integers(5, 8), "terms": st.integers(3, 7)})
QUICK = {"draws": 30_000, "matrices": 2}


def shifted(rng, shape):
    return 0.6 + rng.standard_normal(shape)


def test_formulas_by_hand():
    covariance = np.array([[1.0, 0.5], [0.5, 3.0]])
    assert shared_norm(covariance, 2.0, 0.5).tolist() == [4.0, 4.0]
    assert own_norm(covariance, 2.0, 0.5).tolist() == [2.0, 6.0]


@pytest.mark.parametrize("name", ["Prop A.7", "Cor A.8"])
@settings(max_examples=3)
@given(seed=seeds)
def test_right_by_default_for_any_law_of_mean_zero(name, seed):
    assert check(name, seed, matrices=2).verdict == "holds in expectation"
    assert check(name, seed, matrices=2, law=uniform).verdict == "holds in expectation"


ALTERED = {
    "roles swapped": {"assemble": as_query},
    "no factor d": {"row_norm": lambda *a: own_norm(*a) / len(a[0])},
    "variance of another coordinate": {"row_norm": lambda *a: own_norm(*a)[::-1]},
    "sigma counted twice": {"column_norm": lambda S, s, B: shared_norm(S, 2 * s, B)},
    "half of the sum": {"column_norm": lambda S, s, B: shared_norm(S, s, B / 2)},
    "mean not zero": {"law": shifted},
}


@pytest.mark.parametrize("alteration", ALTERED)
@settings(max_examples=5)
@given(seed=seeds, size=sizes)
def test_altered_statements_do_not_hold(alteration, seed, size):
    claim = check("Prop A.7", seed, **QUICK, **size, **ALTERED[alteration])
    assert claim.verdict == "does not hold"


@settings(max_examples=5)
@given(seed=seeds, size=sizes)
def test_query_role_is_not_the_key_role(seed, size):
    assert check("Cor A.8", seed, assemble=as_key, **QUICK, **size).verdict == "does not hold"
    assert check("Cor A.8", seed, 2, matrices=2, **size).verdict == "inconclusive"


@settings(max_examples=3)
@given(seed=seeds)
def test_rows_stand_out_for_a_key_and_columns_for_a_query(seed):
    key = standing_out(np.random.default_rng(seed), as_key, 20)
    query = standing_out(np.random.default_rng(seed), as_query, 20)
    assert "rows, not columns, stand out: dispersion -2." in key
    assert "columns, not rows, stand out: dispersion +2." in query


def test_inconclusive_checks_name_the_draws_that_settle_them():
    claim = check("Prop A.7", 0, 2000, matrices=2)
    assert claim.verdict == "inconclusive"
    needed = int(claim.found.split("About ")[1].split()[0])
    assert check("Prop A.7", 0, needed, matrices=2).verdict == "holds in expectation"

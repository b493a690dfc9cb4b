"""Props. 2.1, 2.2 and Remark A.5: the checks notice wrong updates, splits and sums."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minattn.terms import weighted_outer_sum
from minattn.theorems import check
from minattn.theorems.gradient import (
    DEPENDS_ON_SYMBOL_ALONE,
    as_context,
    as_query,
    prop_22_rule,
    remark_a5_rule,
)

seeds = st.integers(0, 2**32 - 1)


def test_rules():
    small, large, none = np.array([1e-15]), np.array([0.3]), np.array([])
    assert prop_22_rule(small, small, small) == "holds exactly"
    assert prop_22_rule(small, small, none) == "holds exactly"
    assert prop_22_rule(small, small, large) == f"holds only if {DEPENDS_ON_SYMBOL_ALONE}"
    assert prop_22_rule(large, small, small) == "does not hold"
    assert prop_22_rule(small, large, small) == "does not hold"
    assert remark_a5_rule(small, small) == "holds exactly"
    assert remark_a5_rule(small, large).startswith("holds only if the sum over heads")
    assert remark_a5_rule(large, large) == "does not hold"


ASSEMBLIES = {
    "roles swapped": lambda x, beta: weighted_outer_sum(x, beta).swapaxes(-2, -1),
    "a factor": lambda x, beta: 1.01 * weighted_outer_sum(x, beta),
    "sign": lambda x, beta: -weighted_outer_sum(x, beta),
    "no diagonal": lambda x, beta: weighted_outer_sum(x, beta * (1 - np.eye(beta.shape[-1]))),
    "one head": lambda x, beta: weighted_outer_sum(x, beta[:, :, :1].repeat(beta.shape[2], 2)),
}


@settings(max_examples=3)
@given(seed=seeds, draws=st.integers(2, 4))
def test_prop_21(seed, draws):
    assert check("Prop 2.1", seed, draws).verdict == "holds exactly"


@pytest.mark.parametrize("name", ASSEMBLIES)
@settings(max_examples=2)
@given(seed=seeds)
def test_prop_21_of_an_altered_update(name, seed):
    # As many draws as by default: a strictly causal mask has no diagonal to leave out.
    assert check("Prop 2.1", seed, 12, assemble=ASSEMBLIES[name]).verdict == "does not hold"


@settings(max_examples=5)
@given(seed=seeds, layers=st.integers(1, 3))
def test_prop_22(seed, layers):
    given_as = {"seed": seed, "draws": 2, "layers": layers}
    assert check("Prop 2.2", **given_as).verdict == f"holds only if {DEPENDS_ON_SYMBOL_ALONE}"
    swapped = check("Prop 2.2", context=as_query, query=as_context, **given_as)
    assert swapped.verdict == "does not hold"
    no_mask = check(
        "Prop 2.2", context=lambda update, t: as_context(update, t) * (t != 4), **given_as
    )
    assert no_mask.verdict == "does not hold"


@settings(max_examples=5)
@given(seed=seeds)
def test_prop_22_where_x_depends_on_the_symbol_alone(seed):
    claim = check("Prop 2.2", seed, 2, positions=False, layers=1)
    assert claim.verdict == "holds exactly"


def other_head_first(W_q, W_k):
    return np.einsum("dhk,ehk->de", W_q, W_k[:, ::-1])


@settings(max_examples=5)
@given(seed=seeds, heads=st.sampled_from([2, 3]))
def test_remark_a5(seed, heads):
    claim = check("Remark A.5", seed, 3, heads=heads)
    assert claim.verdict.startswith("holds only if the sum over heads is a description")
    assert claim.measured > 0.01
    assert check("Remark A.5", seed, 3, heads=1).verdict == "holds exactly"
    altered = check("Remark A.5", seed, 3, heads=heads, joined=other_head_first)
    assert altered.verdict == "does not hold"

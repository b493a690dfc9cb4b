"""App. A.3: products of conditionals against loops, and altered conditioning."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minattn.theorems import check
from minattn.theorems.likelihood import (
    all_others,
    any_joint,
    appendix_a3_rule,
    in_some_order,
    independent,
    product_of_conditionals,
    some_before,
)

seeds = st.integers(0, 2**32 - 1)
sizes = st.fixed_dictionaries({"symbols": st.integers(2, 3), "length": st.integers(2, 4)})
# Two tokens of two symbols may be as good as independent: then the cyclic product sums to 1 too.
longer = st.fixed_dictionaries({"symbols": st.integers(2, 3), "length": st.integers(3, 4)})


def test_rule():
    exact, off = np.array([1e-16]), np.array([0.4, -0.2])
    assert appendix_a3_rule(exact, exact, off) == "holds exactly"
    assert appendix_a3_rule(off, exact, off) == "does not hold"
    assert appendix_a3_rule(exact, off, off) == "does not hold"
    assert appendix_a3_rule(exact, exact, np.array([0.4, 1e-16])) == "does not hold"


@given(seed=seeds, size=sizes)
def test_products_are_those_of_loops_over_sequences(seed, size):
    rng = np.random.default_rng(seed)
    joint = any_joint(rng, size["symbols"], size["length"])
    context = rng.random((size["length"],) * 2) < 0.5
    np.fill_diagonal(context, False)
    product = product_of_conditionals(joint, context)
    for tokens in itertools.product(range(size["symbols"]), repeat=size["length"]):
        expected = 1.0
        for i, seen in enumerate(context):
            agree = [
                (other, joint[other])
                for other in np.ndindex(joint.shape)
                if all(other[j] == tokens[j] for j in np.flatnonzero(seen))
            ]
            hit = sum(mass for other, mass in agree if other[i] == tokens[i])
            expected *= hit / sum(mass for _, mass in agree)
        assert product[tokens] == pytest.approx(expected)


@given(seed=seeds, length=st.integers(2, 6))
def test_orders_are_acyclic_and_all_others_is_not(seed, length):
    rng = np.random.default_rng(seed)
    for context in (in_some_order, some_before):
        assert not np.linalg.matrix_power(context(rng, length).astype(int), length).any()
    assert in_some_order(rng, length).sum() == length * (length - 1) / 2
    assert all_others(rng, length).sum() == length * (length - 1)


@settings(max_examples=8)
@given(seed=seeds, size=longer)
def test_appendix_a3(seed, size):
    given_as = {"seed": seed, "draws": 4, **size}
    claim = check("App. A.3", **given_as)
    assert claim.verdict == "holds exactly"
    assert abs(claim.measured - 1) > 1e-3
    for altered in (
        {"acyclic": all_others},
        {"reduced": all_others},
        {"cyclic": in_some_order},
        {"joint_law": independent},
    ):
        assert check("App. A.3", **given_as, **altered).verdict == "does not hold"

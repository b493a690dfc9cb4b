"""Remark A.6 and S39: the checks notice wrong changes of W_q W_k^T."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minattn.theorems import check
from minattn.theorems.factors import (
    Step,
    as_drawn,
    cosine,
    exact_change,
    first_order,
    orthogonal,
    remark_a6_rule,
    s39_rule,
    zero_queries,
)

seeds = st.integers(0, 2**32 - 1)
head_widths = st.integers(2, 5)


def test_rules():
    exact, one, less = np.array([1e-15]), np.array([1.0, 0.99999]), np.array([1.0, 0.7])
    assert remark_a6_rule(exact, one, one) == "holds exactly"
    assert remark_a6_rule(exact, less, one).startswith("holds only if W_q W_q^T and W_k W_k^T")
    assert remark_a6_rule(exact, less, less) == "does not hold"
    assert remark_a6_rule(np.array([0.1]), one, one) == "does not hold"
    assert s39_rule(np.array([2.0, 2.01]), np.array([0.1, 0.1])) == (
        "holds only if o(eta^2) is read as O(eta^2)"
    )
    assert s39_rule(np.array([3.0, 2.9]), np.array([0.1, 0.1])) == "holds exactly"
    assert s39_rule(np.array([0.0]), np.array([1e-9])) == "holds exactly"
    assert s39_rule(np.array([1.0, 2.0]), np.array([0.1, 0.1])) == "does not hold"


def test_cosine_of_matrices():
    A = np.array([[1.0, 2.0], [0.0, 0.0]])
    assert cosine(A, 3 * A) == pytest.approx(1)
    assert cosine(A, -A) == pytest.approx(-1)
    assert cosine(A, np.array([[0.0, 0.0], [1.0, 0.0]])) == 0


def test_a_step_changes_the_product_by_what_it_says():
    step = Step(np.random.default_rng(0), as_drawn, head_width=3)
    W_q, W_k = step.before
    G = step.update
    moved = (W_q + 0.5 * G @ W_k) @ (W_k + 0.5 * G.T @ W_q).T - W_q @ W_k.T
    np.testing.assert_allclose(step.change(0.5), moved, atol=1e-14)


@settings(max_examples=6)
@given(seed=seeds, head_width=head_widths)
def test_remark_a6(seed, head_width):
    given_as = {"seed": seed, "draws": 4, "head_width": head_width}
    claim = check("Remark A.6", **given_as)
    assert claim.verdict.startswith("holds only if W_q W_q^T and W_k W_k^T are multiples")
    assert claim.measured < 0.99
    for change in (first_order, lambda G, q, k, eta: exact_change(G.T, q, k, eta)):
        assert check("Remark A.6", change=change, **given_as).verdict == "does not hold"
    straight = check("Remark A.6", seed, 4, redraw=orthogonal, head_width=6)
    assert straight.verdict == "holds exactly"


@settings(max_examples=6)
@given(seed=seeds, head_width=head_widths)
def test_s39(seed, head_width):
    given_as = {"seed": seed, "draws": 3, "head_width": head_width}
    claim = check("S39", **given_as)
    assert claim.verdict == "holds only if o(eta^2) is read as O(eta^2)"
    assert claim.measured == pytest.approx(2, abs=0.01)
    assert check("S39", approximation=exact_change, **given_as).verdict == "holds exactly"
    assert check("S39", redraw=zero_queries, **given_as).verdict == "holds exactly"
    half = check("S39", approximation=lambda *a: first_order(*a) / 2, **given_as)
    assert half.verdict == "does not hold"

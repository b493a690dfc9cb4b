"""S25 and S26: printed and mended forms, and cases in which the printed ones are right."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minattn.terms import weighted_outer_sum
from minattn.theorems import check
from minattn.theorems.slips import (
    _jacobian,
    full_product,
    own_position,
    product_along_position,
    s26_rule,
    sum_along_position,
    summed_again,
)

seeds = st.integers(0, 2**32 - 1)


def test_rule_of_s26():
    no, yes = np.array([0.4]), np.array([1e-15])
    assert s26_rule(yes, no, no) == "holds exactly"
    assert s26_rule(no, yes, yes) == "holds only if the sum over layers is read as a product"
    assert s26_rule(no, no, yes).endswith("as a product, and over paths through all positions")
    assert s26_rule(no, no, no) == "does not hold"


def test_jacobians_of_row_vectors():
    A, x = np.arange(6.0).reshape(2, 3), np.ones((1, 1, 2))
    np.testing.assert_allclose(_jacobian(lambda z: z @ A, x), A)


def test_chains_by_hand():
    J, K = np.arange(16.0).reshape(4, 4), np.ones((4, 4))
    blocks = own_position(J, 2)
    assert blocks.tolist() == [[0, 1, 0, 0], [4, 5, 0, 0], [0, 0, 10, 11], [0, 0, 14, 15]]
    np.testing.assert_allclose(sum_along_position([J, K], 2), blocks + own_position(K, 2))
    np.testing.assert_allclose(product_along_position([J, K], 2), blocks @ own_position(K, 2))
    np.testing.assert_allclose(full_product([J, K], 2), J @ K)
    np.testing.assert_allclose(full_product([J], 2), J)


@settings(max_examples=4)
@given(seed=seeds, length=st.integers(2, 6))
def test_s25(seed, length):
    given_as = {"seed": seed, "draws": 3, "length": length}
    claim = check("S25", **given_as)
    assert claim.verdict == "holds only if the sum that repeats is dropped"
    assert claim.measured == pytest.approx(length)
    assert check("S25", printed=weighted_outer_sum, **given_as).verdict == "holds exactly"
    wrong = check("S25", mended=lambda x, beta: summed_again(x, beta) / 9, **given_as)
    assert wrong.verdict == "does not hold"


@settings(max_examples=3)
@given(seed=seeds)
def test_s26(seed):
    itself = np.eye(4, dtype=bool)
    all_paths = check("S26", seed, 2)
    assert all_paths.verdict.endswith("a product, and over paths through all positions")
    alone = check("S26", seed, 2, mask=itself)
    assert alone.verdict == "holds only if the sum over layers is read as a product"
    assert check("S26", seed, 2, mask=itself, layers_above=1).verdict == "holds exactly"
    assert check("S26", seed, 2, printed=full_product).verdict == "holds exactly"

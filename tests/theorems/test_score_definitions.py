"""Defs. 3.1 and 3.2, Lemma A.14, Prop. A.16: the checks notice wrong scores."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minattn as ma
from minattn.theorems import check
from minattn.theorems.score_definitions import (
    def_31_rule,
    directly,
    mixed_matrices,
    part_norms,
    prop_a16_rule,
)

seeds = st.integers(0, 2**32 - 1)
widths = st.integers(6, 20)


def test_rules():
    assert def_31_rule(np.array([1.0, -1.0]), np.array([9.0])) == "holds exactly"
    conditional = def_31_rule(np.array([2.0, -2.0]), np.array([1.0, -1.0]))
    assert conditional == "holds only if its factor 2 is dropped"
    assert def_31_rule(np.array([2.0]), np.array([1.5])) == "does not hold"
    assert prop_a16_rule(np.array([1e-15]), np.array([0.0])) == "holds exactly"
    assert prop_a16_rule(np.array([0.1]), np.array([0.0])) == "does not hold"
    assert prop_a16_rule(np.array([0.0]), np.array([0.1])) == "does not hold"


def test_parts_of_a_matrix_by_hand():
    plus, minus, whole = part_norms(np.array([[1.0, 2.0], [0.0, 1.0]]))
    assert (plus, minus, whole) == (4.0, 2.0, 6.0)


def test_matrices_run_from_symmetric_to_skew():
    M = mixed_matrices(np.random.default_rng(0), 5, 4)
    assert np.array_equal(M[0], M[0].T)
    assert np.array_equal(M[-1], -M[-1].T)
    assert 0.01 < abs(M[2] - M[2].T).max() < 10


def test_directionality_by_hand():
    columns = np.ones((8, 8))
    columns[:, 0] = 5
    assert directly(columns, 2.0) == -1
    assert directly(np.outer([1] * 7 + [4], [1, 1.2, 0.9, 1, 1.1, 1, 1, 2]), 2.0) == pytest.approx(
        0.1707273103
    )


@given(seed=seeds, width=widths)
def test_symmetry_score(seed, width):
    given_as = {"seed": seed, "width": width, "draws": 10}
    printed = check("Def 3.1", **given_as)
    assert printed.verdict == "holds only if its factor 2 is dropped"
    assert printed.measured == pytest.approx(2)
    assert check("Def 3.1", factor=1.0, **given_as).verdict == "holds exactly"
    wrong = check("Def 3.1", score=lambda M: 1.5 * ma.symmetry(M), **given_as)
    assert wrong.verdict == "does not hold"


@given(seed=seeds, width=widths)
def test_lemma_a14(seed, width):
    assert check("Lemma A.14", seed, width=width).verdict == "holds exactly"
    for score in (
        lambda M: 2 * ma.symmetry(M),
        lambda M: ma.symmetry(np.abs(M)),
        lambda M: ma.symmetry(M[..., ::-1, :]),
    ):
        assert check("Lemma A.14", seed, width=width, score=score).verdict == "does not hold"


ALTERED = {
    "columns minus rows": lambda M, gamma: -float(ma.directionality(M, gamma=gamma)),
    "excesses": lambda M, gamma: float(ma.directionality(M, "published", gamma)),
    "gamma ignored": lambda M, gamma: float(ma.directionality(M)),
    "not bounded": lambda M, gamma: 2 * float(ma.directionality(M, gamma=gamma)),
}


@pytest.mark.parametrize("name", ALTERED)
@given(seed=seeds, width=st.integers(8, 20))
def test_directionality_score(name, seed, width):
    given_as = {"seed": seed, "width": width, "draws": 20}
    assert check("Def 3.2", **given_as).verdict == "holds exactly"
    assert check("Def 3.2", score=ALTERED[name], **given_as).verdict == "does not hold"


@given(seed=seeds, width=st.integers(10, 30))
def test_prop_a16(seed, width):
    given_as = {"seed": seed, "width": width}
    assert check("Prop A.16", **given_as).verdict == "holds exactly"
    for score in (
        lambda M: np.abs(ma.directionality(M)),  # no change of sign
        lambda M: ma.directionality(M) * 3,  # out of range
        lambda M: ma.directionality(np.tanh(M)),  # depends on scale
        lambda M: ma.directionality(M) + (M[..., 0, 1] == M[..., 1, 0]),  # symmetric ones not 0
    ):
        assert check("Prop A.16", variants=(score,), **given_as).verdict == "does not hold"

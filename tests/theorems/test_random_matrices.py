"""Prop. A.15 and App. A.5.5: right and wrong constants."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minattn.theorems import check
from minattn.theorems.random_matrices import (
    gaussian_variance,
    printed_variance,
    uniform,
)

pytestmark = pytest.mark.usefixtures("hardly_any_chance")
seeds = st.integers(0, 2**32 - 1)


def test_variances_by_hand():
    assert printed_variance(10, 0.5, 2.0) == 10 * (32 + 1)
    assert gaussian_variance(10, 0.5, 2.0) == 10 * (32 + 4)
    assert printed_variance(3, 0.7, 1.0) == gaussian_variance(3, 0.7, 1.0)


def test_uniform_numbers_are_standardised():
    z = uniform(np.random.default_rng(0), (100_000,))
    assert (z.mean(), z.std()) == pytest.approx((0.0, 1.0), abs=0.01)
    assert (z**4).mean() == pytest.approx(1.8, rel=0.02)


@settings(max_examples=4)
@given(seed=seeds, width=st.integers(3, 16))
def test_prop_a15(seed, width):
    given_as = {"seed": seed, "width": width}
    claim = check("Prop A.15", **given_as)
    assert claim.verdict == "holds only if 8/n is read as 1/n"
    assert claim.measured == pytest.approx(1 / 8, rel=0.1)
    assert check("Prop A.15", constant=1.0, **given_as).verdict == "holds in expectation"
    for altered in ({"mended": 2.0}, {"law": lambda rng, s: 0.5 + rng.standard_normal(s)}):
        assert check("Prop A.15", **given_as, **altered).verdict == "does not hold"
    assert check("Prop A.15", seed, 2000, width=width).verdict == "inconclusive"


@settings(max_examples=6)
@given(seed=seeds, width=st.integers(4, 24))
def test_appendix_a55(seed, width):
    given_as = {"seed": seed, "width": width}
    claim = check("App. A.5.5", **given_as)
    assert claim.verdict.startswith("holds only if mu^2 is read as mu^2 s^2 (mu = 0 or s = 1)")
    for right in ({"variance": gaussian_variance}, {"mean": 0.0}, {"deviation": 1.0}):
        assert check("App. A.5.5", **given_as, **right).verdict == "holds in expectation"
    for wrong in (
        {"law": uniform},
        {"mended": lambda *a: 2 * gaussian_variance(*a)},
        {"law": lambda rng, s: 0.3 + rng.standard_normal(s)},
    ):
        assert check("App. A.5.5", **given_as, **wrong).verdict == "does not hold"

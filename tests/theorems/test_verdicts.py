"""The shared rules, on numbers of every kind."""

import math

import numpy as np
import pytest

from minattn.theorems.verdicts import (
    DOES_NOT_HOLD,
    HOLDS_EXACTLY,
    HOLDS_IN_EXPECTATION,
    INCONCLUSIVE,
    expectation_rule,
    identity_rule,
    is_exact,
    mended_rule,
    misprint_rule,
    only_if,
    threshold_rule,
)


def test_identities_hold_up_to_rounding_everywhere_or_not_at_all():
    assert identity_rule([1e-15, -3e-12, 0.0]) == HOLDS_EXACTLY
    assert identity_rule([[1e-15], [2e-9]]) == DOES_NOT_HOLD
    assert identity_rule([1e-15, -0.1]) == DOES_NOT_HOLD
    assert identity_rule([0.01], limit=0.1) == HOLDS_EXACTLY


def test_no_number_and_nan_are_no_proof():
    assert not is_exact([])
    assert not is_exact([0.0, math.nan])
    assert not is_exact([math.inf])


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        ([0.95, 0.99], [1.05, 1.01], HOLDS_IN_EXPECTATION),
        ([0.95, 1.01], [1.05, 1.03], DOES_NOT_HOLD),  # one interval misses, however narrowly
        ([0.95, 0.5], [1.05, 0.9], DOES_NOT_HOLD),
        ([0.95, 0.8], [1.05, 1.2], INCONCLUSIVE),  # one interval is too wide
        ([-np.inf], [np.inf], INCONCLUSIVE),
        ([0.8, 1.2], [1.2, 1.3], DOES_NOT_HOLD),  # a refutation needs no other to be narrow
        ([math.nan], [math.nan], INCONCLUSIVE),
    ],
)
def test_expectations(low, high, verdict):
    assert expectation_rule(low, high) == verdict


def test_expectations_of_other_values():
    assert expectation_rule(-0.02, 0.03, predicted=0.0) == HOLDS_IN_EXPECTATION
    assert expectation_rule(0.95, 1.05, predicted=0.0) == DOES_NOT_HOLD
    assert expectation_rule(-0.02, 0.03, predicted=0.0, margin=0.01) == INCONCLUSIVE


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.6, 0.7, HOLDS_IN_EXPECTATION),
        (0.3, 0.4, DOES_NOT_HOLD),
        (0.4, 0.6, INCONCLUSIVE),
        (-math.inf, math.inf, INCONCLUSIVE),
        (math.nan, 0.1, INCONCLUSIVE),
    ],
)
def test_thresholds(low, high, verdict):
    assert threshold_rule(low, high, 0.5) == verdict


def test_misprints():
    assert misprint_rule([1e-15], [2.0], "x") == HOLDS_EXACTLY
    assert misprint_rule([1.0], [1e-15], "x = 1") == only_if("x = 1") == "holds only if x = 1"
    assert misprint_rule([1.0], [2.0], "x") == DOES_NOT_HOLD


def test_what_is_mended():
    yes, no, open_ = HOLDS_IN_EXPECTATION, DOES_NOT_HOLD, INCONCLUSIVE
    assert mended_rule(yes, no, "x") == yes
    assert mended_rule(open_, yes, "x") == open_
    assert mended_rule(no, yes, "x") == only_if("x")
    assert mended_rule(no, no, "x") == no
    assert mended_rule(no, open_, "x") == open_

"""Thm. 2.4: the rule on numbers of all kinds, and altered agreements."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minattn.theorems import check
from minattn.theorems.bidirectional import split_pair, theorem_24_rule

HIGH, LOW, WIDE = [0.6, 0.8], [-0.1, 0.1], [0.2, 0.9]
YES, NO, OPEN = "holds in expectation", "does not hold", "inconclusive"


@pytest.mark.parametrize(
    ("residual", "before", "after", "verdict"),
    [
        (1e-16, [HIGH, HIGH], [HIGH, HIGH], YES),
        (1e-16, [LOW, LOW], [HIGH, HIGH], "holds only if the model has been trained"),
        (1e-16, [LOW, LOW], [HIGH, LOW], NO),
        (1e-16, [HIGH, HIGH], [HIGH, LOW], NO),
        (1e-16, [LOW, LOW], [HIGH, WIDE], OPEN),
        (1e-16, [WIDE, LOW], [HIGH, HIGH], OPEN),
        (0.1, [HIGH, HIGH], [HIGH, HIGH], NO),
    ],
)
def test_rule(residual, before, after, verdict):
    assert theorem_24_rule(residual, before, after) == verdict


def test_too_little_training_gives_no_verdict():
    for after in ([HIGH, HIGH], [LOW, LOW], [WIDE, HIGH]):
        assert theorem_24_rule(1e-16, [LOW, LOW], after, trained=False) == OPEN
    assert theorem_24_rule(0.1, [LOW, LOW], [HIGH, HIGH], trained=False) == NO
    claim = check("Thm 2.4", draws=2, steps=2)
    assert claim.verdict == OPEN
    assert claim.found.endswith("More steps are needed.")


def test_split_by_hand():
    x = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert split_pair(x, 2.0, 5.0).tolist() == [[0.0, 2.0], [5.0, 0.0]]


def trained_only(agreement):
    return np.stack([agreement[0], np.full_like(agreement[1], 0.9)])


@settings(max_examples=2)
@given(seed=st.integers(0, 2**32 - 1))
def test_theorem_24(seed):
    # Agreements of untrained models spread by .13: with 6 of them an interval may reach .5.
    quick = {"seed": seed, "draws": 12, "steps": 2, "least_learnt": -1}
    claim = check("Thm 2.4", **quick)
    assert claim.verdict == NO
    assert -0.5 < claim.measured < 0.5
    assert check("Thm 2.4", transform=lambda a: 0 * a + 0.9, **quick).verdict == YES
    trained = check("Thm 2.4", transform=trained_only, **quick)
    assert trained.verdict == "holds only if the model has been trained"
    wrong = check("Thm 2.4", split=lambda x, b, c: split_pair(x, c, b), **quick)
    assert wrong.verdict == NO


def test_a_wrong_split_refutes_even_symmetric_coefficients():
    claim = check(
        "Thm 2.4",
        draws=6,
        steps=2,
        transform=np.ones_like,
        split=lambda x, b, c: 2 * split_pair(x, b, c),
    )
    assert claim.verdict == NO

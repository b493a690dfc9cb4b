"""What a check may conclude, and the rules that several checks share.

A rule is a pure function: numbers in, verdict out. No check writes a verdict in any other way.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from minattn import checks
from minattn.claims import DOES_NOT_HOLD as DOES_NOT_HOLD  # part of this module, for checks
from minattn.claims import INCONCLUSIVE as INCONCLUSIVE

HOLDS_EXACTLY = "holds exactly"
HOLDS_IN_EXPECTATION = "holds in expectation"

# Identities in float64 leave residuals of about 1e-15; a wrong one leaves one of order 1.
ROUNDING = 1e-9
# Relative precision that an expectation is measured to before it is said to hold.
MARGIN = 0.1


def only_if(condition: str) -> str:
    """Return the verdict for a statement that needs a condition which it does not state."""
    return f"holds only if {checks.text('condition', condition)}"


def is_exact(residuals: ArrayLike, limit: float = ROUNDING) -> bool:
    """Whether every residual is rounding; NaN is not."""
    values, limit = checks.array("residuals", residuals), checks.real("limit", limit)
    return bool(values.size and (np.abs(values) <= limit).all())


def identity_rule(residuals: ArrayLike, limit: float = ROUNDING) -> str:
    """Hold exactly if every residual, of any shape, is at most `limit`."""
    return HOLDS_EXACTLY if is_exact(residuals, limit) else DOES_NOT_HOLD


def expectation_rule(
    low: ArrayLike, high: ArrayLike, predicted: float = 1.0, margin: float = MARGIN
) -> str:
    """Whether intervals, given by their ends, meet a prediction.

    One that leaves `predicted` out refutes it; all of them together within `margin` of it confirm
    it; anything else is too wide to say.
    """
    low, high = checks.array("low", low), checks.array("high", high)
    predicted, margin = checks.real("predicted", predicted), checks.real("margin", margin, 0)
    if ((low > predicted) | (high < predicted)).any():
        return DOES_NOT_HOLD
    if ((low >= predicted - margin) & (high <= predicted + margin)).all():
        return HOLDS_IN_EXPECTATION
    return INCONCLUSIVE


def threshold_rule(low: float, high: float, threshold: float) -> str:
    """Whether an interval lies above a threshold (holds), below it, or across it."""
    threshold = checks.real("threshold", threshold)
    if math.isnan(checks.number("low", low)) or math.isnan(checks.number("high", high)):
        return INCONCLUSIVE
    if low > threshold:
        return HOLDS_IN_EXPECTATION
    return DOES_NOT_HOLD if high < threshold else INCONCLUSIVE


def misprint_rule(printed: ArrayLike, mended: ArrayLike, condition: str) -> str:
    """Judge a formula as printed and as mended, by the residuals of the two."""
    if is_exact(checks.array("printed", printed)):
        return HOLDS_EXACTLY
    qualified = is_exact(checks.array("mended", mended))
    return only_if(condition) if qualified else DOES_NOT_HOLD


def mended_rule(printed: str, mended: str, condition: str) -> str:
    """Judge a statement by the verdicts on it as printed, and as it reads under a condition."""
    texts = {"printed": printed, "mended": mended, "condition": condition}
    for name, value in texts.items():
        checks.text(name, value)
    if printed != DOES_NOT_HOLD:
        return printed
    if mended == HOLDS_IN_EXPECTATION:
        return only_if(condition)
    return mended

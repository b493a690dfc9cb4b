"""Claims: what was predicted, what was measured, by which rule, and the verdict.

A rule is fixed before the run and turns replicate values into a verdict. Simulations and theorems
report through the same `Claim`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from minattn import checks
from minattn.arrays import Array
from minattn.intervals import mean_and_error, replicates
from minattn.intervals import mean_interval as mean_interval  # part of this module, for users
from minattn.tables import GAP, line_below, row_lines

HOLDS = "holds"
DOES_NOT_HOLD = "does not hold"
INCONCLUSIVE = "inconclusive"
UNDERTRAINED = "undertrained"  # measured before the models were trained: no verdict is drawn
VERDICTS = (HOLDS, DOES_NOT_HOLD, INCONCLUSIVE, UNDERTRAINED)

_ERROR = 0.05  # 1 - LEVEL, which in floating point is a little more

_REPORTED = ("claim", "predicted", "measured", "interval", "rule", "verdict")


@dataclass(frozen=True)
class Claim:
    """One statement, its prediction and measurement, and the verdict drawn by a rule.

    A verdict is one of `VERDICTS`, or begins with one and says more: "holds only if ...".

    `ValueError` if a text is no string, a number none, the verdict none of these, or the interval
    not (low, high) with low <= high.
    """

    claim: str
    predicted: str
    measured: float | None  # None: there is no number
    interval: tuple[float, float] | None  # of the mean at 95%, or the range: see the rule
    rule: str
    verdict: str
    p_value: float | None = None  # of the rule's test, before any correction for other claims
    source: str = ""  # of a statement of the theory
    method: str = ""
    assumptions: str = ""
    found: str = ""

    def __post_init__(self) -> None:
        for name in ("claim", "predicted", "rule", "source", "method", "assumptions", "found"):
            checks.text(name, getattr(self, name))
        if self.measured is not None:
            checks.number("measured", self.measured, "a number or None")
        if self.p_value is not None:
            checks.real("p_value", self.p_value, 0, 1)
        plain = [v for v in VERDICTS if f"{self.verdict} ".startswith(f"{v} ")]
        if not plain:
            checks.fail("verdict", repr(self.verdict), f"one of {VERDICTS}, perhaps qualified")
        if self.interval is not None:
            needs = "None or (low, high) with low <= high"
            if not isinstance(self.interval, (tuple, list)) or len(self.interval) != 2:
                checks.fail("interval", repr(self.interval), needs)
            low, high = (checks.number("interval", end, needs) for end in self.interval)
            if not low <= high:
                checks.fail("interval", self.interval, needs)

    def as_dict(self) -> dict[str, Any]:
        """Return what strict JSON can hold: the six reported fields, and the others where set.

        Infinities and NaN, which JSON lacks, become the strings "inf", "-inf" and "nan": `float`
        reads them back, and an infinite measurement stays distinct from a missing one.
        """
        fields = dataclasses.asdict(self).items()
        reported = {
            name: value for name, value in fields if name in _REPORTED or value not in ("", None)
        }
        return {name: _json_safe(value) for name, value in reported.items()}


def _json_safe(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return [_json_safe(part) for part in value]
    number = float(value)
    return number if math.isfinite(number) else str(number)


class Decision(NamedTuple):
    """What a rule reads off replicate values."""

    measured: float
    interval: tuple[float, float]
    p_value: float | None
    verdict: str


@dataclass(frozen=True)
class Rule:
    """A readable text, and the function from replicate values to a `Decision`."""

    text: str
    decide: Callable[[Any], Decision]

    def __str__(self) -> str:
        return self.text


def above(threshold: float) -> Rule:
    """Hold if the mean over replicas lies above `threshold`.

    Values have shape (n,). Decided by the two-sided 95% Student-t interval: entirely above, the
    claim holds; entirely below, it does not; otherwise the data are inconclusive.
    """
    threshold = checks.real("threshold", threshold)
    text = f"mean above {threshold:g}, by its 95% interval"
    return Rule(text, partial(_compare, threshold=threshold, upward=True))


def below(threshold: float) -> Rule:
    """Hold if the mean over replicas lies below `threshold`; see `above`."""
    threshold = checks.real("threshold", threshold)
    text = f"mean below {threshold:g}, by its 95% interval"
    return Rule(text, partial(_compare, threshold=threshold, upward=False))


def at_most(limit: float) -> Rule:
    """Hold if every value is at most `limit`.

    For residuals of identities, which leave nothing to chance. Values have any shape. The largest
    is reported, the range stands in for the interval, and the verdict is never inconclusive. An
    infinite value is a failure, NaN an error.
    """
    limit = checks.real("limit", limit)
    return Rule(f"every value at most {limit:g}", partial(_bound, limit=limit))


def _compare(values: Any, threshold: float, upward: bool) -> Decision:
    array = replicates(values)
    if array.ndim != 1:
        checks.fail("values", f"the shape {array.shape}", "one value a replica, shape (n,)")
    mean, low, high = (float(part) for part in mean_interval(array)[:3])
    p_value = _p_value(array, threshold)
    verdict = INCONCLUSIVE
    if p_value < _ERROR:  # the same as: the interval leaves the threshold out
        verdict = HOLDS if (mean > threshold) == upward else DOES_NOT_HOLD
    return Decision(mean, (low, high), p_value, verdict)


def _p_value(values: Array, threshold: float) -> float:
    """Two-sided Student-t test that the mean equals `threshold`; 1 for a single replica."""
    mean, error = (float(part) for part in mean_and_error(values))
    if len(values) == 1 or mean == threshold:
        return 1.0
    if error == 0.0:
        return 0.0
    from scipy.special import stdtr

    return float(2.0 * stdtr(len(values) - 1, -abs(mean - threshold) / error))


def _bound(values: Any, limit: float) -> Decision:
    array = replicates(np.ravel(values), infinite=True)
    low, high = float(array.min()), float(array.max())
    return Decision(high, (low, high), None, HOLDS if high <= limit else DOES_NOT_HOLD)


def judge(claim: str, predicted: str, values: Any, rule: Rule, undertrained: bool = False) -> Claim:
    """Apply `rule` to replicate values and report the claim.

    Parameters
    ----------
    claim, predicted : str
    values : array_like, shape (n,), or any shape for `at_most`
    rule : Rule
        `above`, `below`, `at_most`, or one of your own.
    undertrained : bool
        True reports the numbers but draws no verdict.

    Raises
    ------
    ValueError
        If an argument is of the wrong kind or the values do not suit the rule.
    """
    checks.instance("rule", rule, Rule)
    checks.flag("undertrained", undertrained)
    measured, interval, p_value, verdict = rule.decide(values)
    if undertrained:
        p_value, verdict = None, UNDERTRAINED
    return Claim(claim, predicted, measured, interval, str(rule), verdict, p_value)


def holm(claims: Iterable[Claim]) -> list[Claim]:
    """Correct the verdicts of a family of claims for their number, by Holm's step-down method.

    A verdict stands only if the claim's Holm-adjusted p-value is below 0.05, and becomes
    inconclusive otherwise. Intervals and p-values stay the plain ones; the rule's text says over
    how many claims. Claims without a p-value (`at_most`, undertrained) are neither counted nor
    changed. The order is kept. Apply it once, to the whole family as `judge` returned it.
    """
    claims = _listed(claims)
    tested = [index for index, claim in enumerate(claims) if claim.p_value is not None]
    adjusted = _holm_adjusted([claims[index].p_value for index in tested])
    for index, p_value in zip(tested, adjusted, strict=True):
        claims[index] = dataclasses.replace(
            claims[index],
            rule=f"{claims[index].rule}; Holm over {len(tested)} claims",
            verdict=claims[index].verdict if p_value < _ERROR else INCONCLUSIVE,
        )
    return claims


def _listed(claims: Iterable[Claim]) -> list[Claim]:
    try:
        found = list(claims)
    except TypeError:
        checks.fail("claims", repr(claims), "a list of them")
    return [checks.instance("claims", claim, Claim) for claim in found]


def _holm_adjusted(p_values: Sequence[float | None]) -> Array:
    """Return max over smaller p-values of p times the number of claims not yet passed, up to 1."""
    plain = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(plain)
    remaining = np.arange(len(plain), 0, -1)
    adjusted = np.empty_like(plain)
    adjusted[order] = np.minimum(np.maximum.accumulate(plain[order] * remaining), 1.0)
    return adjusted


_HEADER = ("claim", "predicted", "measured", "95% interval", "verdict")
_WIDEST_VERDICT = 20  # a longer, qualified one is wrapped
_NARROWEST = 72  # below it the columns of numbers leave no room for words


def table(claims: Iterable[Claim], width: int = 100) -> str:
    """Lay claims out as plain text, long cells wrapped.

    No line exceeds `width` characters, which must be at least 72 (`ValueError`); the last one has
    no newline. Numbers have three significant digits. "interval" is the 95% interval of the mean,
    or the range of the values where the rule is `at_most`.
    """
    width = checks.integer("width", width, _NARROWEST)
    rows = [_cells(claim) for claim in _listed(claims)]
    natural = [max(map(len, column)) for column in zip(_HEADER, *rows, strict=True)]
    natural[4] = min(natural[4], _WIDEST_VERDICT)
    room = width - len(GAP) * (len(_HEADER) - 1) - sum(natural[2:])
    predicted = min(natural[1], max(room * 2 // 5, room - natural[0], len(_HEADER[1])))
    widths = [min(natural[0], room - predicted), predicted, *natural[2:]]
    lines = [*row_lines(_HEADER, widths), line_below(widths)]
    for row in rows:
        lines += row_lines(row, widths)
    return "\n".join(lines)


def _cells(claim: Claim) -> tuple[str, ...]:
    """Return the cells of one claim, every run of white space made a single space."""
    interval = "-"
    if claim.interval is not None:
        interval = "[{}, {}]".format(*map(_number, claim.interval))
    claim_text, predicted = (" ".join(text.split()) for text in (claim.claim, claim.predicted))
    return claim_text, predicted, _number(claim.measured), interval, claim.verdict


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value + 0.0:.3g}"  # + 0.0 makes -0 a plain 0

"""Scores and norms of random matrices: Prop. A.15 and App. A.5.5."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from minattn.arrays import Array
from minattn.scores import symmetry
from minattn.theorems.registry import Outcome, Trial, statement
from minattn.theorems.roles import Law, normal
from minattn.theorems.sampling import estimate_mean, settled_by
from minattn.theorems.verdicts import INCONCLUSIVE, MARGIN, expectation_rule, mended_rule

# (n, mean, standard deviation of the entries) -> the variance of a squared row norm
VarianceFormula: TypeAlias = Callable[[int, float, float], float]

UNIFORM_HALF_WIDTH = 3**0.5


def uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw independent uniform numbers of mean 0 and variance 1."""
    return rng.uniform(-UNIFORM_HALF_WIDTH, UNIFORM_HALF_WIDTH, shape)


@statement(
    "Prop A.15",
    text="the symmetry of an n x n matrix of i.i.d. zero-mean entries has mean 8/n, so that a "
    "random matrix is neither symmetric nor skew",
    source="Prop. A.15",
    assumptions="Gaussian entries",
    method="expectation",
    predicted="1: mean symmetry over 8/n",
    rule=f"the 99.99% interval contains 1 and lies within {MARGIN:g} of it; if that is so of 1/n "
    "alone, the statement is conditional",
    draws=30_000,
)
def prop_a15(
    trial: Trial, *, constant: float = 8.0, mended: float = 1.0, law: Law = normal, width: int = 16
) -> Outcome:
    """Average the symmetry of random matrices."""
    values = symmetry(law(trial.rng, (trial.draws, width, width)))
    mean = estimate_mean(np.asarray(values)[:, None] * width)
    scaled, ends = mean.at(0)
    verdict = mended_rule(
        expectation_rule(mean.low / constant, mean.high / constant),
        expectation_rule(mean.low / mended, mean.high / mended),
        f"{constant:g}/n is read as {mended:g}/n",
    )
    deviation = float(np.std(values)) * width
    found = (
        f"At n = {width} the mean is {scaled:.3f}/n and the standard deviation {deviation:.3f}/n "
        f"(sqrt(2)/n would be {2**0.5:.3f}/n)."
    )
    if verdict == INCONCLUSIVE:
        found += settled_by(mean.draws_for(0.7 * MARGIN * mended))
    return Outcome(scaled / constant, (ends[0] / constant, ends[1] / constant), verdict, found)


def printed_variance(n: int, mean: float, deviation: float) -> float:
    """Return n (2 s^4 + 4 mu^2), as printed."""
    return n * (2 * deviation**4 + 4 * mean**2)


def gaussian_variance(n: int, mean: float, deviation: float) -> float:
    """Return n (2 s^4 + 4 mu^2 s^2)."""
    return n * (2 * deviation**4 + 4 * mean**2 * deviation**2)


@statement(
    "App. A.5.5",
    text="at initialisation the squared norm of a row of n i.i.d. entries has mean n(s^2 + mu^2) "
    "and variance n(2 s^4 + 4 mu^2)",
    source="App. A.5.5",
    assumptions="entries of mean mu = .5 and standard deviation s = .6; Gaussian for the verdict, "
    "uniform beside it",
    method="expectation",
    predicted="1: variance measured over variance printed, and mean over mean",
    rule=f"the 99.99% intervals of both contain 1 and lie within {MARGIN:g} of it; if that takes "
    "n(2 s^4 + 4 mu^2 s^2), the statement is conditional",
    draws=60_000,
)
def appendix_a55(
    trial: Trial,
    *,
    variance: VarianceFormula = printed_variance,
    mended: VarianceFormula = gaussian_variance,
    law: Law = normal,
    mean: float = 0.5,
    deviation: float = 0.6,
    width: int = 16,
) -> Outcome:
    """Measure mean and variance of squared norms of random rows."""
    entries = (trial.draws, width)
    norms = ((mean + deviation * law(trial.rng, entries)) ** 2).sum(axis=1)
    other = ((mean + deviation * uniform(trial.rng, entries)) ** 2).sum(axis=1)
    # Squared deviations average to the variance; intervals for it are those of a mean.
    squares = (norms - norms.mean()) ** 2 * trial.draws / (trial.draws - 1)
    average = estimate_mean(norms[:, None] / (width * (deviation**2 + mean**2)))
    spread = estimate_mean(squares[:, None])
    shape = (width, mean, deviation)
    verdicts = []
    for form in (variance, mended):
        low, high = spread.low / form(*shape), spread.high / form(*shape)
        both = np.concatenate([average.low, low]), np.concatenate([average.high, high])
        verdicts.append(expectation_rule(*both))
    condition = "mu^2 is read as mu^2 s^2 (mu = 0 or s = 1), and the entries are Gaussian"
    verdict = mended_rule(verdicts[0], verdicts[1], condition)
    measured, *ends = (float(part[0]) / variance(*shape) for part in spread[:3])
    found = (
        f"The mean is {float(average.value[0]):.4f} of that stated; the variance is {measured:.3f} "
        f"of the printed one and {float(spread.value[0]) / mended(*shape):.3f} of "
        f"n(2 s^4 + 4 mu^2 s^2), of which uniform entries have {other.var() / mended(*shape):.3f}."
    )
    interval = (ends[0], ends[1])
    if verdict == INCONCLUSIVE:
        found += settled_by(spread.draws_for(0.7 * MARGIN * mended(*shape)))
    return Outcome(measured, interval, verdict, found)

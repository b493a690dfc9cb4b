"""Expected norms of rows and columns when a token has a single role: Prop. A.7 and Cor. A.8."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from minattn.arrays import Array
from minattn.scores import Scores, scores
from minattn.theorems.registry import Outcome, Trial, statement
from minattn.theorems.roles import (
    Assemble,
    Law,
    as_key,
    as_query,
    normal,
    squared_norms,
    weighted_sums,
)
from minattn.theorems.sampling import estimate_mean, settled_by
from minattn.theorems.verdicts import INCONCLUSIVE, MARGIN, expectation_rule

# (Sigma (d, d), sigma^2, sum beta^2) -> the expected squared norms (d,)
Formula: TypeAlias = Callable[[Array, float, float], Array]

_ASSUMPTIONS = (
    "x_i i.i.d. with mean 0 and covariance Sigma, x_* independent of them with mean 0 and "
    "covariance s^2 I, beta fixed"
)
_RULE = (
    "the simultaneous 99.99% intervals of all 2d ratios of measured to predicted squared norm "
    f"contain 1 and lie within {MARGIN:g} of it"
)


def shared_norm(covariance: Array, variance: float, energy: float) -> Array:
    """s^2 tr(Sigma) sum beta^2, the same on every line: of the side that x_* spans alone."""
    return np.full(len(covariance), variance * np.trace(covariance) * energy)


def own_norm(covariance: Array, variance: float, energy: float) -> Array:
    """Sigma_mm d s^2 sum beta^2, one for each line: of the side that the x_i span."""
    return np.diagonal(covariance) * len(covariance) * variance * energy


@statement(
    "Prop A.7",
    text="a token t* in the role of key leaves columns of equal expected squared norm "
    "s^2 tr(Sigma) sum beta^2, and rows of Sigma_mm d s^2 sum beta^2",
    source="Prop. A.7",
    assumptions=_ASSUMPTIONS,
    method="expectation",
    predicted="ratio of measured to predicted squared norm 1 for every row and column",
    rule=_RULE,
    draws=150_000,
)
def prop_a7(
    trial: Trial,
    *,
    assemble: Assemble = as_key,
    row_norm: Formula = own_norm,
    column_norm: Formula = shared_norm,
    law: Law = normal,
    width: int = 6,
    terms: int = 5,
    matrices: int = 200,
) -> Outcome:
    """Measure all rows and columns, and by scores of many matrices which side stands out."""
    return _one_role(trial, assemble, row_norm, column_norm, law, width, terms, matrices)


@statement(
    "Cor A.8",
    text="in the role of query the two sides change places: rows of equal expected squared norm, "
    "columns proportional to Sigma_kk",
    source="Cor. A.8",
    assumptions=_ASSUMPTIONS,
    method="expectation",
    predicted="ratio of measured to predicted squared norm 1 for every row and column",
    rule=_RULE,
    draws=150_000,
)
def cor_a8(
    trial: Trial,
    *,
    assemble: Assemble = as_query,
    row_norm: Formula = shared_norm,
    column_norm: Formula = own_norm,
    law: Law = normal,
    width: int = 6,
    terms: int = 5,
    matrices: int = 200,
) -> Outcome:
    """Measure as for Prop. A.7."""
    return _one_role(trial, assemble, row_norm, column_norm, law, width, terms, matrices)


def _one_role(
    trial: Trial,
    assemble: Assemble,
    row_norm: Formula,
    column_norm: Formula,
    law: Law,
    width: int,
    terms: int,
    matrices: int,
) -> Outcome:
    rng = trial.rng
    # Not diagonal, and with variances far from equal, so that the two formulas differ everywhere.
    root = np.linalg.qr(rng.standard_normal((width, width)))[0] * np.geomspace(0.3, 2, width)
    covariance = root @ root.T
    beta, variance = rng.uniform(0.5, 1.5, terms), rng.uniform(0.5, 2)
    w = weighted_sums(rng, trial.draws, beta, root, law)
    x_star = np.sqrt(variance) * law(rng, (trial.draws, width))
    rows, columns = squared_norms(assemble(w, x_star))
    energy = float(beta @ beta)
    predicted = [form(covariance, variance, energy) for form in (row_norm, column_norm)]
    ratios = estimate_mean(np.concatenate([rows, columns], axis=1) / np.concatenate(predicted))
    measured, interval = ratios.furthest()
    verdict = expectation_rule(ratios.low, ratios.high)
    found = f"The ratio furthest from 1, of {2 * width}, is {measured:.3f}; "
    found += standing_out(rng, assemble, min(trial.draws, matrices))
    if verdict == INCONCLUSIVE:
        found += settled_by(ratios.draws_for(0.7 * MARGIN))
    return Outcome(measured, interval, verdict, found)


def standing_out(rng: np.random.Generator, assemble: Assemble, draws: int, width: int = 64) -> str:
    """Say which side the scores find standing out, under the same assumptions, at 100 terms."""
    unequal = rng.lognormal(size=(draws, width))
    many, one = (_scores_of(rng, assemble, unequal, symbols) for symbols in (100, 1))
    mild = _scores_of(rng, assemble, rng.uniform(0.5, 1.5, size=(draws, width)), 100)
    spread = np.asarray(many.dispersion)
    more, less = ("columns", "rows") if spread.mean() > 0 else ("rows", "columns")
    definition, published = (np.mean(score) for score in many[1:3])
    return (
        f"with log-normal(0,1) variances, d = {width}, 100 terms and {draws} matrices, {more}, not "
        f"{less}, stand out: dispersion {spread.mean():+.2f} (standard error "
        f"{spread.std() / draws**0.5:.2f}), directionality {definition:+.2f} by the definition and "
        f"{published:+.2f} as published, if each term has a t* of its own; dispersion "
        f"{np.mean(one.dispersion):+.2f} and directionality {np.mean(one.directionality):+.2f} if "
        f"all share one; with variances uniform on (.5, 1.5) {np.mean(mild.dispersion):+.2f} and "
        f"{np.mean(mild.directionality):+.2f} (standard error "
        f"{np.std(mild.directionality) / draws**0.5:.2f})."
    )


def _scores_of(
    rng: np.random.Generator, assemble: Assemble, variances: Array, symbols: int
) -> Scores:
    """Score sums of 100 terms, shared out among as many t*; variances (draws, d)."""
    draws, width = variances.shape
    M = np.zeros((draws, width, width))
    for _ in range(symbols):
        beta = rng.standard_normal((draws, 100 // symbols, 1))
        x = np.sqrt(variances)[:, None] * rng.standard_normal((draws, 100 // symbols, width))
        M += assemble((beta * x).sum(axis=1), rng.standard_normal((draws, width)))
    return scores(M)

"""Whether columns dominate under next-token training: Thm. 2.3, its two parts, and Cor. A.12."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from minattn.arrays import Array
from minattn.intervals import mean_interval
from minattn.scores import dispersion
from minattn.theorems.registry import Outcome, Trial, statement
from minattn.theorems.roles import (
    Assemble,
    Law,
    as_key,
    as_query,
    both_roles,
    normal,
    squared_norms,
)
from minattn.theorems.sampling import Interval, estimate_mean, estimate_ratio, settled_by
from minattn.theorems.trained import REPLICAS, STEPS, Trained, trained_models
from minattn.theorems.verdicts import (
    DOES_NOT_HOLD,
    HOLDS_IN_EXPECTATION,
    INCONCLUSIVE,
    MARGIN,
    expectation_rule,
    mended_rule,
    only_if,
    threshold_rule,
)

# (variances (d,), B_key, B_query) -> (d, d), entry (k, m) for column k and row m
PairFormula: TypeAlias = Callable[[Array, float, float], Array]
# (rng, d) -> variances of the coordinates (d,)
VarianceLaw: TypeAlias = Callable[[np.random.Generator, int], Array]

BOUNDARY = "(tau - Sigma_mm) B_key > (tau - Sigma_kk) B_query"
# The counterexample, tau = 1: the first column loses against the second row ...
VARIANCES = (0.1, 0.99, 1.91)
QUERY_SHARE = 1 / 3
# ... and variances far enough from tau to tell that, with the key role alone, it does not.
KEY_ONLY_VARIANCES = (0.1, 0.6, 2.3)
# B_query / B_key at which the boundary is looked for besides.
OTHER_SHARES = (0.1, 1.0, 3.0)


def norm_ratio(variances: Array, B_key: float, B_query: float) -> Array:
    """E|col_k|^2 / E|row_m|^2 = (tau B_key + S_kk B_query) / (S_mm B_key + tau B_query)."""
    tau = np.mean(variances)
    columns = tau * B_key + variances * B_query
    return np.asarray(columns[:, None] / (variances * B_key + tau * B_query))


def columns_win(variances: Array, B_key: float, B_query: float) -> Array:
    """Whether (tau - S_mm) B_key > (tau - S_kk) B_query, (d, d) for column k and row m."""
    slack = np.mean(variances) - variances
    return np.asarray(slack * B_key > slack[:, None] * B_query)


def theorem_17_rule(
    key_only: tuple[float, float], both: tuple[float, float], formula: str, disagreements: int
) -> str:
    """Judge Thm. 2.3 (17) by the smallest ratio with the key role alone and with both roles.

    `key_only` and `both` are (low, high) of those ratios, `formula` the verdict on the formula of
    the ratio, `disagreements` the number of pairs measured on the wrong side of the boundary.
    """
    alone, together = (threshold_rule(*ends, 1.0) for ends in (key_only, both))
    if DOES_NOT_HOLD in (alone, formula) or disagreements:
        return DOES_NOT_HOLD
    if INCONCLUSIVE in (alone, together, formula):
        return INCONCLUSIVE
    return HOLDS_IN_EXPECTATION if together == HOLDS_IN_EXPECTATION else only_if(BOUNDARY)


@statement(
    "Thm 2.3 (17)",
    text="next-token training gives every column a larger expected squared norm than every row "
    "whose variance is below the mean, Sigma_mm < tau = tr(Sigma)/d",
    source="Thm. 2.3, Eq. 17",
    assumptions="those of Prop. A.7 with x_* of covariance tau I, in the key and in the query role "
    "at once, with sums of beta^2 B_key > B_query",
    method="expectation",
    predicted="> 1: the least E|col_k|^2 / E|row_m|^2, over k and the m with Sigma_mm < tau",
    rule="the 99.99% interval of the least ratio lies above 1 with the key role alone and with "
    "both roles; below 1 with both alone makes it conditional, if the formula of the boundary "
    "agrees with all ratios measured",
    draws=100_000,
)
def theorem_17(
    trial: Trial,
    *,
    query_share: float = QUERY_SHARE,
    variances: ArrayLike = VARIANCES,
    key_only_variances: ArrayLike = KEY_ONLY_VARIANCES,
    formula: PairFormula = norm_ratio,
    boundary: PairFormula = columns_win,
    key: Assemble = as_key,
    query: Assemble = as_query,
    law: Law = normal,
) -> Outcome:
    """Measure E|col_k|^2 / E|row_m|^2 for one role and for two, and where the boundary lies."""
    spreads = np.asarray(key_only_variances, float), np.asarray(variances, float)
    cases = [(spreads[0], 0.0), *((spreads[1], share) for share in (query_share, *OTHER_SHARES))]
    ratios, relative, lost = [], [], 0
    for spread, share in cases:
        M = both_roles(trial.rng, trial.draws, spread, share, law=law, key=key, query=query)
        small = spread < spread.mean()
        ratios.append(_pair_ratios(M, small))
        relative.append(ratios[-1].over(formula(spread, 1.0, share)[:, small]))
        wins = boundary(spread, 1.0, share)[:, small]
        lost += int(np.where(wins, ratios[-1].high < 1, ratios[-1].low > 1).sum())
    alone, together = (part.at(int(np.argmin(part.value))) for part in ratios[:2])
    agree = [expectation_rule(part.low, part.high) for part in relative]
    against = [DOES_NOT_HOLD, INCONCLUSIVE, HOLDS_IN_EXPECTATION]
    verdict = theorem_17_rule(alone[1], together[1], min(agree, key=against.index), lost)
    off = max(float(np.abs(part.value - 1).max()) for part in relative)
    found = (
        f"With the key role alone the least ratio is {alone[0]:.3f}; with both roles, "
        f"Sigma = diag({', '.join(f'{value:g}' for value in spreads[1])}) and B_query = "
        f"{query_share:.3g} B_key it is {together[0]:.3f}; of {sum(r.value.size for r in ratios)} "
        f"pairs at several B_query / B_key, {lost} lie on the wrong side of the boundary "
        f"{BOUNDARY}, and none is further than {off:.1%} from the formula of the ratio."
    )
    if verdict == INCONCLUSIVE:
        gap = min(abs(part.value.min() - 1) for part in ratios[:2])
        width = 0.7 * max(min(MARGIN, gap), 1e-3)
        found += settled_by(max(part.draws_for(width) for part in relative))
    return Outcome(*together, verdict, found)


def _pair_ratios(M: Array, small: Array) -> Interval:
    """Estimate E|col_k|^2 / E|row_m|^2 for all k and the m of small variance."""
    rows, columns = squared_norms(M)
    rows = rows[:, small]
    shape = (len(M), columns.shape[1], rows.shape[1])
    tops = np.broadcast_to(columns[:, :, None], shape)
    return estimate_ratio(tops, np.broadcast_to(rows[:, None, :], shape))


QUANTILES = (0.9, 0.99, 0.999)
SMALL_ROWS = "the rows are those of (17), with Sigma_mm < tau"


def lognormal_variances(rng: np.random.Generator, width: int) -> Array:
    """Draw variances of coordinates far from equal, (d,)."""
    return rng.lognormal(size=width)


def heavier_tail_rule(low: ArrayLike, high: ArrayLike) -> str:
    """Judge "columns have the heavier tail beyond some threshold".

    low, high: intervals of P(column norm > w) - P(row norm > w) at rising thresholds w. The last
    one that is decided either way, counted from the furthest out, decides.
    """
    for ends in zip(np.ravel(low)[::-1], np.ravel(high)[::-1], strict=True):
        verdict = threshold_rule(*ends, 0.0)
        if verdict != INCONCLUSIVE:
            return verdict
    return INCONCLUSIVE


@statement(
    "Thm 2.3 (18)",
    text="beyond some threshold gamma, column norms exceed any w more often than row norms do",
    source="Thm. 2.3, Eq. 18",
    assumptions="those of (17), with log-normal(0,1) variances of 32 coordinates; as it stands the "
    "statement is read of all columns and all rows, on average",
    method="expectation",
    predicted="> 0: share of columns minus share of rows whose norm exceeds w, w the "
    f"{QUANTILES[-1]:g} quantile of all norms",
    rule="the 99.99% interval, at the furthest of the thresholds "
    f"{', '.join(f'{q:g}' for q in QUANTILES)} at which it leaves out 0, lies above 0; if it does "
    "so against the rows of (17) alone, the statement is conditional",
    draws=4000,
)
def theorem_18(
    trial: Trial,
    *,
    query_share: float = QUERY_SHARE,
    width: int = 32,
    variances: VarianceLaw = lognormal_variances,
    key: Assemble = as_key,
    query: Assemble = as_query,
    law: Law = normal,
    steps: int = STEPS,
) -> Outcome:
    """Measure the tails of column and row norms, then the spread of norms after training.

    Far out the largest variance alone decides. Every column has its share of it; so has one row,
    which then reaches further than columns do, and the other rows fall behind.
    """

    def draw(spread: Array) -> Array:
        share = query_share
        return both_roles(trial.rng, trial.draws, spread, share, law=law, key=key, query=query)

    spread = variances(trial.rng, width)
    M = draw(spread)
    excess, isotropic = _tail_excess(M), _tail_excess(draw(np.ones(width)))
    small = spread <= spread.mean()
    against_small = _tail_excess(M, small)
    stated, mended = (heavier_tail_rule(p.low, p.high) for p in (excess, against_small))
    verdict = mended_rule(stated, mended, SMALL_ROWS)
    parts = (excess, against_small, isotropic)
    shown = [", ".join(f"{v:+.1e}" for v in part.value) for part in parts]
    trained = trained_models(trial.seed, steps, min(REPLICAS, trial.draws)).causal
    found = (
        f"Columns minus all rows beyond the thresholds: {shown[0]}; minus the {small.sum()} rows "
        f"with Sigma_mm < tau: {shown[1]}; mean dispersion "
        f"{np.mean(dispersion(M)):+.2f} (with equal variances {shown[2]}, intervals "
        f"{'around' if np.all(isotropic.low * isotropic.high < 0) else 'not all around'} 0); "
        f"{_after_training(trained, steps, 'next-token')}"
    )
    if verdict == INCONCLUSIVE:
        found += settled_by(excess.draws_for(0.7 * float(np.abs(excess.value).max())))
    return Outcome(*excess.at(-1), verdict, found)


def _tail_excess(M: Array, chosen: Array | slice = slice(None)) -> Interval:
    """Estimate the share of columns minus that of chosen rows beyond quantiles of all norms."""
    rows, columns = (np.sqrt(squares) for squares in squared_norms(M))
    thresholds = np.quantile(np.concatenate([rows, columns], axis=1), QUANTILES)[:, None]
    sides = columns, rows[:, chosen]
    beyond = [np.mean(norms[:, None] > thresholds, axis=2) for norms in sides]
    return estimate_mean(beyond[0] - beyond[1])


@statement(
    "Cor A.12",
    text="bidirectional training spreads the norms of rows and of columns equally",
    source="Cor. A.12",
    assumptions="those of (17) with B_query = B_key, and log-normal(0,1) variances of 32 "
    "coordinates, drawn anew for each matrix",
    method="expectation",
    predicted="0: mean dispersion, log Var|col|^2 / Var|row|^2",
    rule=f"the 99.99% interval of the mean contains 0 and lies within {MARGIN:g} of it",
    draws=4000,
)
def cor_a12(
    trial: Trial,
    *,
    query_share: float = 1.0,
    width: int = 32,
    key: Assemble = as_key,
    query: Assemble = as_query,
    steps: int = STEPS,
) -> Outcome:
    """Measure the dispersion of random updates, then of what training did to W_qk."""
    rng, draws = trial.rng, trial.draws
    variances = rng.lognormal(size=(draws, width))
    scale = np.sqrt(variances)
    # The sum of beta_i x_i over Gaussian tokens is Gaussian: one draw of it will do for any number.
    w_key, w_query = scale * rng.standard_normal((2, draws, width))
    x_star = np.sqrt(variances.mean(axis=1, keepdims=True)) * rng.standard_normal((draws, width))
    M = key(w_key, x_star) + np.sqrt(query_share) * query(w_query, x_star)
    mean = estimate_mean(np.reshape(dispersion(M), (draws, 1)))
    measured, interval = mean.at(0)
    verdict = expectation_rule(mean.low, mean.high, predicted=0.0)
    trained = trained_models(trial.seed, steps, min(REPLICAS, draws)).bidirectional
    found = f"Mean dispersion {measured:+.3f}; {_after_training(trained, steps, 'masked')}"
    if verdict == INCONCLUSIVE:
        found += settled_by(mean.draws_for(0.7 * MARGIN))
    return Outcome(measured, interval, verdict, found)


def _after_training(trained: Trained, steps: int, objective: str) -> str:
    """Report how spread columns and rows of the change of W_qk are, over layers."""
    mean, low, high, n = mean_interval(trained.dispersion.mean(axis=0))
    return (
        f"after {steps} steps of {objective} training, which removed {trained.learnt:.0%} of the "
        "loss above the best reachable one, the change of W_qk has dispersion "
        f"{mean:+.2f} (95% interval {low:+.2f} to {high:+.2f} over {n} replicas)."
    )

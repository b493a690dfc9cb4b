"""How symmetric the coefficients are in bidirectional training: Thm. 2.4."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from minattn.arrays import Array
from minattn.intervals import mean_interval
from minattn.theorems.registry import Outcome, Trial, statement
from minattn.theorems.sampling import settled_by
from minattn.theorems.trained import LEAST_LEARNT, STEPS, trained_models
from minattn.theorems.verdicts import (
    DOES_NOT_HOLD,
    HOLDS_IN_EXPECTATION,
    INCONCLUSIVE,
    is_exact,
    only_if,
    threshold_rule,
)

# Agreement a gives the symmetric parts a share (1 + a)/2 of sum beta^2; beyond 1/2 that is more
# than three quarters, the least that "nearly symmetric" could mean.
NEARLY = 0.5


def theorem_24_rule(
    pair_residual: float,
    before: ArrayLike,
    after: ArrayLike,
    trained: bool = True,
    threshold: float = NEARLY,
) -> str:
    """Judge by the identity of a pair's terms and intervals of the agreement.

    before, after: (L, 2) ends of the 95% intervals by layer, at initialisation and after training.
    Every layer must lie above the threshold; one that lies below it refutes, if what it was
    measured on is `trained`.
    """
    if not is_exact([pair_residual]):
        return DOES_NOT_HOLD
    if not trained:
        return INCONCLUSIVE
    start, end = (
        {threshold_rule(low, high, threshold) for low, high in np.asarray(ends)}
        for ends in (before, after)
    )
    if start == end == {HOLDS_IN_EXPECTATION}:
        return HOLDS_IN_EXPECTATION
    if DOES_NOT_HOLD in end:
        return DOES_NOT_HOLD
    if INCONCLUSIVE in start | end:
        return INCONCLUSIVE
    return only_if("the model has been trained")


def split_pair(x: Array, b: float, c: float) -> Array:
    """Return (b + c) K+ + (b - c) K- with K = x_1^T x_2, (d, d)."""
    K = np.outer(x[0], x[1])
    return (b + c) * (K + K.T) / 2 + (b - c) * (K - K.T) / 2


@statement(
    "Thm 2.4",
    text="in bidirectional training the terms of each pair are nearly symmetric together, because "
    "beta_ij is nearly beta_ji",
    source="Thm. 2.4, S105",
    assumptions="two-layer models of width 32, masked training at p = .15 on Dirichlet chains, one "
    "for each replica; pairs whose two queries both receive a gradient",
    method="training",
    predicted=f"> {NEARLY:g}: agreement 2 sum beta_ij beta_ji / sum (beta_ij^2 + beta_ji^2)",
    rule=f"the 95% interval of the agreement over replicas lies above {NEARLY:g} in every layer, "
    "at initialisation and after training; below it in one layer after training refutes; no "
    f"verdict if training removed less than {LEAST_LEARNT:g} of the loss above the best reachable",
    draws=6,
)
def theorem_24(
    trial: Trial,
    *,
    split: Callable[[Array, float, float], Array] = split_pair,
    transform: Callable[[Array], Array] = np.asarray,
    steps: int = STEPS,
    least_learnt: float = LEAST_LEARNT,
) -> Outcome:
    """Split a pair's terms exactly; then measure the agreement in real models, layer by layer.

    `transform` acts on the measured agreements, (2, L, R).
    """
    x, (b, c) = trial.rng.standard_normal((2, 5)), trial.rng.standard_normal(2)
    together = b * np.outer(x[0], x[1]) + c * np.outer(x[1], x[0])
    residual = float(np.linalg.norm(split(x, b, c) - together) / np.linalg.norm(together))
    models = trained_models(trial.seed, steps, trial.draws)
    values = transform(models.bidirectional.agreement)
    start, end = (mean_interval(np.moveaxis(part, -1, 0)) for part in values)
    before, after = (np.stack([part.low, part.high], axis=-1) for part in (start, end))
    worst = int(np.argmin(end.mean))
    enough = models.bidirectional.learnt >= least_learnt
    verdict = theorem_24_rule(residual, before, after, enough)
    found = (
        f"Agreement by layer, lowest first, {_listed(start.mean)} at initialisation and "
        f"{_listed(end.mean)} after {steps} steps, {trial.draws} replicas, which removed "
        f"{models.bidirectional.learnt:.0%} of the loss above the best reachable one "
        f"({_listed(models.reversible.agreement[-1].mean(axis=1))} on reversible chains), while "
        "the update has symmetry "
        f"{_listed(models.bidirectional.update_symmetry[-1].mean(axis=1))} and the change of W_qk "
        f"{_listed(models.bidirectional.symmetry.mean(axis=1))}; the split of a pair into "
        f"(beta_ij + beta_ji) K+ + (beta_ij - beta_ji) K- is exact within {residual:.0e}."
    )
    if not enough:
        found += " More steps are needed."
    elif verdict == INCONCLUSIVE:
        found += settled_by(4 * trial.draws)
    interval = (float(end.low[worst]), float(end.high[worst]))
    return Outcome(float(end.mean[worst]), interval, verdict, found)


def _listed(values: Array) -> str:
    return ", ".join(f"{value:+.2f}" for value in values)

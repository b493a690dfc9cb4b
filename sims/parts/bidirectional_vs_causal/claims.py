"""The claims of `bidirectional_vs_causal.py`, whose docstring states their rules."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from minattn.arrays import Array, ratio
from minattn.claims import Claim, above, at_most, below, holm, judge
from minattn.comparison import ARMS, Run
from minattn.intervals import finite
from minattn.params import W_qk
from minattn.scores import symmetry

UNDERTRAINED_BELOW = 0.5
CONTROL = "iid"  # its context has nothing to teach
Runs = dict[tuple[str, str], Run]  # by source and arm


def undertrained(run: Run) -> bool:
    """Whether training removed too little to draw a verdict; of the control nothing is asked."""
    if run.task.name == CONTROL:
        return False
    if run.task.has_optimum:
        return float(run.share_removed[-1].mean()) < UNDERTRAINED_BELOW
    return float(run.loss[-1].mean()) >= run.task.context_free_loss


def judge_all(runs: Runs) -> list[Claim]:
    """Return the primary claims, then the others with Holm's correction."""
    return [*primary(runs), *holm(secondary(runs))]


def primary(runs: Runs) -> Iterator[Claim]:
    """Claims 1 to 4 of the docstring, as far as their arms have run."""
    for one, other in mask_pairs(runs):
        yield judge(
            f"{one.task.name}: the mask alone makes the change of W_qk more symmetric",
            "bidirectional - causal > 0",
            final(one, "change_symmetry") - final(other, "change_symmetry"),
            above(0),
            undertrained(one) or undertrained(other),
        )
    for arm in ("next_causal", "masked_causal"):
        for run in of_arm(runs, arm):
            yield judge(
                f"{run.task.name}: columns more spread than rows after {ARMS[arm].title}",
                "dispersion > 0",
                final(run, "change_dispersion"),
                above(0),
                undertrained(run),
            )
    expected = {
        "lag1": ("makes the change of W_qk symmetric", "symmetry > 0.5", above(0.5)),
        "lag2": ("does not make the change symmetric", "symmetry < 0.5", below(0.5)),
    }
    for run in of_arm(runs, "next_causal"):
        if run.task.name in expected:
            text, predicted, rule = expected[run.task.name]
            claim = f"{run.task.name}: next-token training {text}"
            values = final(run, "change_symmetry")
            yield judge(claim, predicted, values, rule, undertrained(run))
    for arm, definition in ARMS.items():
        residuals = [run.proof_residual.ravel() for (_, name), run in runs.items() if name == arm]
        if residuals:
            yield judge(
                f"{definition.title}: <Ghat, D> = -dL/dD along a full-rank D",
                "residual < 1e-9",
                np.concatenate(residuals),
                at_most(1e-9),
            )


def secondary(runs: Runs) -> Iterator[Claim]:
    """Claims 5 to 8 of the docstring, as far as their arms have run."""
    for one, other in mask_pairs(runs):
        if one.task.has_optimum:
            yield judge(
                f"{one.task.name}: the mask alone, where both arms had learnt as much",
                "bidirectional - causal > 0",
                np.subtract(*at_matched_share(one, other)),
                above(0),
                undertrained(one) or undertrained(other),
            )
    for run in of_arm(runs, "next_causal"):
        values = final(run, "change_directionality")
        claim = f"{run.task.name}: columns dominate after next-token training"
        yield judge(claim, "directionality < 0", values, below(0), undertrained(run))
    for run in of_arm(runs, "masked_bidirectional"):
        agreement = late_agreement(run)
        if np.isfinite(agreement).all():
            claim = f"{run.task.name}: beta_ij agrees with beta_ji, masked bidirectional"
            yield judge(claim, "agreement > 0", agreement, above(0), undertrained(run))
    if runs:
        start = symmetry(W_qk(next(iter(runs.values())).initial))
        yield judge("control: an untrained W_qk is not symmetric", "about 1/d", start, below(0.1))
    for arm, definition in ARMS.items():
        if ("iid", arm) in runs and ("lag1", arm) in runs:
            sizes = [final(runs[name, arm], "change_norm") for name in ("iid", "lag1")]
            claim = f"control: i.i.d. symbols move W_qk less than lag-1 chains, {definition.title}"
            untrained = undertrained(runs["lag1", arm])
            yield judge(claim, "ratio < 0.5", sizes[0] / sizes[1], below(0.5), untrained)


def of_arm(runs: Runs, arm: str) -> list[Run]:
    """Return the runs of an arm on sources with something to learn."""
    return [run for (source, name), run in runs.items() if name == arm and source != "iid"]


def mask_pairs(runs: Runs) -> list[tuple[Run, Run]]:
    """Return the arms that differ in the mask alone, for each source with something to learn."""
    pairs = []
    for run in of_arm(runs, "masked_bidirectional"):
        if (run.task.name, "masked_causal") in runs:
            pairs.append((run, runs[run.task.name, "masked_causal"]))
    return pairs


def final(run: Run, metric: str) -> Array:
    """Last record of a metric, the mean over layers: (R,). Dispersions are kept within reach."""
    return finite(run.history.metrics[metric][-1]).mean(axis=0)


def late_agreement(run: Run) -> Array:
    """Agreement of beta_ij with beta_ji, the mean over the last quarter of the records: (R,)."""
    values = run.history.metrics["agreement"]
    late = values[-max(1, len(values) // 4) :].reshape(-1, values.shape[-1])
    defined = np.isfinite(late)
    count = defined.sum(axis=0, dtype=late.dtype)
    return ratio(np.where(defined, late, 0).sum(axis=0), count, empty=np.nan)


def at_matched_share(one: Run, other: Run) -> tuple[Array, Array]:
    """Symmetry of the change (R,) of each arm where it first reached the smaller final share."""
    target = np.minimum(one.share_removed[-1], other.share_removed[-1])
    found = []
    for run in (one, other):
        first = (run.share_removed >= target).argmax(axis=0)
        found.append(run.metric("change_symmetry")[first, np.arange(len(first))])
    return found[0], found[1]

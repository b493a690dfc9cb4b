"""The scores as defined, and their properties: Defs. 3.1 and 3.2, Lemma A.14, Prop. A.16."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from minattn.arrays import Array
from minattn.scores import directionality, symmetry
from minattn.theorems.registry import Outcome, Trial, statement
from minattn.theorems.verdicts import (
    DOES_NOT_HOLD,
    HOLDS_EXACTLY,
    identity_rule,
    is_exact,
    only_if,
)

# Matrices (..., d, d) -> a score each (...)
Score: TypeAlias = Callable[[Array], Array | np.float64]
# A matrix (d, d), gamma -> a score
GammaScore: TypeAlias = Callable[[Array, float], float]


def mixed_matrices(rng: np.random.Generator, draws: int, width: int) -> Array:
    """Draw matrices (draws, d, d) from symmetric over mixed to skew, both ends included."""
    M = rng.standard_normal((draws, width, width))
    share = np.linspace(0, 1, draws)[:, None, None]
    transposed = M.swapaxes(-2, -1)
    return (1 - share) * (M + transposed) + share * (M - transposed)


def part_norms(M: Array) -> tuple[Array, Array, Array]:
    """Return |M+|^2, |M-|^2 and |M|^2, each (...)."""
    transposed = M.swapaxes(-2, -1)
    parts = (M + transposed) / 2, (M - transposed) / 2, M
    plus, minus, whole = ((part * part).sum(axis=(-2, -1)) for part in parts)
    return plus, minus, whole


def def_31_rule(printed: Array, mended: Array) -> str:
    """Judge "the score lies in [-1, 1]" by the values printed, and those without the factor."""
    if _within_one(printed):
        return HOLDS_EXACTLY
    return only_if("its factor 2 is dropped") if _within_one(mended) else DOES_NOT_HOLD


def _within_one(values: Array) -> bool:
    return bool(np.all(np.abs(values) <= 1 + 1e-12))


@statement(
    "Def 3.1",
    text="the symmetry score 2 (|M+|^2 - |M-|^2)/|M|^2 lies in [-1, 1]",
    source="Def. 3.1",
    assumptions="any matrix but zero; M+ and M- are the symmetric and the skew part",
    method="counterexample",
    predicted="at most 1: largest absolute score",
    rule="no score leaves [-1, 1]; if none does without the factor, the definition is conditional",
    draws=50,
)
def def_31(
    trial: Trial, *, factor: float = 2.0, score: Score = symmetry, width: int = 7
) -> Outcome:
    """Score matrices from symmetric to skew as printed, and as the package does."""
    M = mixed_matrices(trial.rng, trial.draws, width)
    plus, minus, whole = part_norms(M)
    printed = factor * (plus - minus) / whole
    ours = np.asarray(score(M))
    found = (
        f"As printed a symmetric matrix scores {printed[0]:+.3f} and a skew one {printed[-1]:+.3f};"
        f" without the factor the scores span {ours.min():+.3f} to {ours.max():+.3f}."
    )
    ends = (float(printed.min()), float(printed.max()))
    return Outcome(float(np.abs(printed).max()), ends, def_31_rule(printed, ours), found)


def whole_norms(M: Array, gamma: float) -> float:
    """Score a matrix by `minattn.directionality`, as defined."""
    return float(directionality(M, gamma=gamma))


def directly(M: Array, gamma: float) -> float:
    """Score a matrix word by word: sums of the norms beyond mean + gamma std on each side."""
    sums = []
    for vectors in (M, M.T):
        norms = [float(np.sqrt(sum(entry**2 for entry in vector))) for vector in vectors]
        threshold = np.mean(norms) + gamma * np.std(norms, ddof=1)
        sums.append(sum(norm for norm in norms if norm > threshold))
    r, c = sums
    return 0.0 if r + c == 0 else (r - c) / (r + c)


@statement(
    "Def 3.2",
    text="the directionality (r - c)/(r + c) compares the rows and columns whose norm exceeds "
    "mean + gamma std: it lies in [-1, 1], and is negative where columns dominate",
    source="Def. 3.2",
    assumptions="the definition leaves gamma open; std with n - 1; 0 where nothing exceeds",
    method="identity",
    predicted="0: largest difference from the definition written out, or from -1 for a matrix with "
    "one column scaled up and from +1 for its transpose",
    rule="every difference is rounding and no score leaves [-1, 1]",
    draws=40,
)
def def_32(trial: Trial, *, score: GammaScore = whole_norms, width: int = 16) -> Outcome:
    """Compare with the definition at several gamma, and see how much gamma decides."""
    gammas = (1.0, 2.0, 3.0)
    off, turned = [], 0
    for _ in range(trial.draws):
        M = trial.rng.standard_normal((width, width))
        values = [score(M, gamma) for gamma in gammas]
        off += [abs(v - directly(M, g)) for v, g in zip(values, gammas, strict=True)]
        off += [max(0.0, abs(value) - 1) for value in values]
        turned += np.sign(values[0]) * np.sign(values[1]) < 0
        column = np.ones((width, width))
        column[:, 0] = 5
        off += [abs(score(column, 2.0) + 1), abs(score(column.T, 2.0) - 1)]
    found = (
        f"Largest difference {max(off):.1e}; the choice of gamma matters: between 1 and 2 the "
        f"score of {turned} of {trial.draws} random {width} x {width} matrices changes its sign."
    )
    return Outcome(max(off), (min(off), max(off)), identity_rule(off), found)


@statement(
    "Lemma A.14",
    text="the symmetric and the skew part of a matrix are orthogonal, so that |M|^2 = |M+|^2 + "
    "|M-|^2 and the symmetry score is tr(M M)/|M|^2",
    source="Lemma A.14",
    assumptions="any matrix but zero; the score without the printed factor 2",
    method="identity",
    predicted="0: largest relative difference of the two sides",
    rule="every difference is rounding",
    draws=50,
)
def lemma_a14(trial: Trial, *, score: Score = symmetry, width: int = 7) -> Outcome:
    """Compare the norms of the parts, and the score with the trace."""
    M = mixed_matrices(trial.rng, trial.draws, width) * trial.rng.lognormal(size=(width, 1))
    plus, minus, whole = part_norms(M)
    trace = np.trace(M @ M, axis1=-2, axis2=-1) / whole
    off = np.concatenate([abs(plus + minus - whole) / whole, abs(score(M) - trace)])
    found = f"The two sides differ by at most {off.max():.1e} over {trial.draws} matrices."
    return Outcome(
        float(off.max()), (float(off.min()), float(off.max())), identity_rule(off), found
    )


def published(M: Array) -> Array | np.float64:
    """Score matrices by the directionality of excesses over the threshold."""
    return directionality(M, variant="published")


def prop_a16_rule(invariances: Array, symmetric: Array) -> str:
    """Judge by residuals: invariances and range; scores of symmetric and skew matrices, all 0."""
    return HOLDS_EXACTLY if is_exact(invariances) and is_exact(symmetric) else DOES_NOT_HOLD


@statement(
    "Prop A.16",
    text="the directionality lies in [-1, 1], does not change with scale, changes sign under "
    "transposition, and is 0 for symmetric, skew and orthogonal matrices",
    source="Prop. A.16",
    assumptions="both variants, gamma = 2",
    method="identity",
    predicted="0: largest difference from each of these values",
    rule="every difference is rounding",
    draws=30,
)
def prop_a16(
    trial: Trial, *, variants: tuple[Score, ...] = (directionality, published), width: int = 24
) -> Outcome:
    """Score random matrices with one strong row, transposed, scaled, and special ones."""
    rng, draws = trial.rng, trial.draws
    M = rng.standard_normal((draws, width, width))
    M[:, 0] *= rng.uniform(1, 4, size=(draws, 1))
    orthogonal = np.linalg.qr(M)[0]
    transposed = M.swapaxes(-2, -1)
    invariances, special = [], []
    for score in variants:
        value = score(M)
        invariances += [
            np.maximum(np.abs(value) - 1, 0),
            score(3e5 * M) - value,
            score(-M) - value,
            score(transposed) + value,
        ]
        special += [score(M + transposed), score(M - transposed), score(orthogonal)]
    off = np.abs(np.concatenate(invariances + special))
    found = (
        f"Largest difference {off.max():.1e} over {draws} matrices and {len(variants)} variants."
    )
    verdict = prop_a16_rule(np.concatenate(invariances), np.concatenate(special))
    return Outcome(float(off.max()), (float(off.min()), float(off.max())), verdict, found)

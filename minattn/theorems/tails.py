"""Does the larger variance have the heavier tail? Lemma A.11, by exact probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from minattn.arrays import Array
from minattn.theorems.registry import Outcome, Trial, statement
from minattn.theorems.verdicts import DOES_NOT_HOLD, HOLDS_EXACTLY

Tail: TypeAlias = Callable[[float], float]


@dataclass(frozen=True)
class Pair:
    """Two laws of equal mean, the first of larger variance, and where to compare their tails.

    `heavy` and `light` return P(X > z); `deviations` are (s_a, s_b), s_a > s_b.
    """

    name: str
    heavy: Tail
    light: Tail
    mean: float
    deviations: tuple[float, float]
    points: Sequence[float]

    @property
    def threshold(self) -> float:
        """sqrt(s_a s_b) - mu, as printed."""
        return math.sqrt(math.prod(self.deviations)) - self.mean

    def gap(self, least: float) -> tuple[float, float]:
        """Return the least P_a(> z) - P_b(> z) over the points z > least, and its z."""
        points = [z for z in self.points if z > least]
        gaps = [self.heavy(z) - self.light(z) for z in points]
        if not gaps:
            return math.inf, math.nan
        return min(zip(gaps, points, strict=True))


def discrete(values: Sequence[float], chances: Sequence[float]) -> tuple[Tail, float, float]:
    """Return the tail, mean and variance of a law on finitely many values."""
    v, p = np.asarray(values, float), np.asarray(chances, float)
    mean = float(v @ p)

    def tail(z: float) -> float:
        return float(p[v > z].sum())

    return tail, mean, float((v - mean) ** 2 @ p)


def discrete_pair() -> Pair:
    """{0, 2} with probability 1/2 each, against {-4, 1, 6} with .01, .98, .01."""
    heavy, mean, larger = discrete([0, 2], [0.5, 0.5])
    light, _, smaller = discrete([-4, 1, 6], [0.01, 0.98, 0.01])
    deviations = math.sqrt(larger), math.sqrt(smaller)
    return Pair("two points against three", heavy, light, mean, deviations, [1.5, 3.0, 5.0])


def continuous_pair() -> Pair:
    """N(0, 1) against the Laplace law of variance 1/2."""
    points = np.linspace(0, 8, 801)
    deviations = 1.0, math.sqrt(0.5)
    return Pair("normal against Laplace", normal_tail, laplace_tail, 0.0, deviations, list(points))


def normal_tail(z: float) -> float:
    """P(N(0, 1) > z), accurate far out."""
    return math.erfc(z / math.sqrt(2)) / 2


def laplace_tail(z: float, scale: float = 0.5) -> float:
    """P(X > z) for the Laplace law, of variance 2 scale^2."""
    return math.exp(-z / scale) / 2 if z >= 0 else 1 - math.exp(z / scale) / 2


def uniform_tail(z: float) -> float:
    """P(U > z) for U uniform on (-1, 1)."""
    return min(1.0, max(0.0, (1 - z) / 2))


def scaled_pair(mean: float, deviations: tuple[float, float], tail: Tail, spread: float) -> Pair:
    """X = mean + s Z with the same Z for both; tail of Z, whose standard deviation is `spread`."""

    def at(s: float) -> Tail:
        return lambda z: tail((z - mean) * spread / s)

    points = mean + np.linspace(-4, 4, 161) * deviations[0]
    return Pair(
        "one law, two scales", at(deviations[0]), at(deviations[1]), mean, deviations, list(points)
    )


def counterexamples() -> list[Pair]:
    """Return pairs on which the lemma fails beyond its threshold."""
    return [discrete_pair(), continuous_pair(), shifted_pair()]


def shifted_pair() -> Pair:
    """N(2, 1) against N(2, 1/4): one shape, but a threshold that lies below the mean."""
    return scaled_pair(2.0, (1.0, 0.5), normal_tail, 1.0)


def scaled_pairs(rng: np.random.Generator, draws: int) -> list[Pair]:
    """Draw pairs X = mu + s Z; with mu <= 0, the printed threshold lies above mu."""
    laws: list[tuple[Tail, float]] = [
        (normal_tail, 1.0),
        (laplace_tail, math.sqrt(0.5)),
        (uniform_tail, math.sqrt(1 / 3)),
    ]
    pairs = []
    for number in range(draws):
        small, large = np.sort(rng.uniform(0.3, 2, size=2))
        mean = -float(rng.uniform(0, 2))
        pairs.append(scaled_pair(mean, (float(large), float(small)), *laws[number % len(laws)]))
    return pairs


def lemma_a11_rule(gaps: Array) -> str:
    """Judge by the least difference of the tails of each pair beyond the printed threshold."""
    return DOES_NOT_HOLD if np.min(gaps) < -1e-12 else HOLDS_EXACTLY


@statement(
    "Lemma A.11",
    text="of two laws of equal mean mu, the one of larger variance has the heavier tail beyond "
    "z > sqrt(s_a s_b) - mu",
    source="Lemma A.11",
    assumptions="s_a > s_b are standard deviations; tails are computed exactly",
    method="counterexample",
    predicted=">= 0: least P(X_a > z) - P(X_b > z) beyond the threshold",
    rule="no pair has a smaller tail at any z beyond its threshold",
    draws=30,
)
def lemma_a11(
    trial: Trial,
    *,
    suspects: Callable[[], list[Pair]] = counterexamples,
    scaled: Callable[[np.random.Generator, int], list[Pair]] = scaled_pairs,
) -> Outcome:
    """Compare tails for suspected counterexamples and for laws that differ by a scale alone."""
    doubtful, family = suspects(), scaled(trial.rng, trial.draws)
    gaps = [pair.gap(pair.threshold) for pair in (*doubtful, *family)]
    verdict = lemma_a11_rule(np.array([gap for gap, _ in gaps]))
    shown = [_shown(pair) for pair in doubtful]
    above = min(pair.gap(pair.mean)[0] for pair in family)
    found = (
        "; ".join(shown)
        + ("; " if shown else "")
        + (
            f"among {len(family)} pairs X = mu + s Z with one Z the least difference at z > mu is "
            f"{above:.1g}: a common shape and z >= mu {'suffice' if above >= 0 else 'fail too'}."
        )
    )
    return Outcome(min(gaps)[0], None, verdict, found)


def _shown(pair: Pair) -> str:
    """Write out where a pair contradicts the lemma: first, and most."""
    points = [z for z in pair.points if z > pair.threshold]
    lost = [z for z in points if pair.heavy(z) < pair.light(z)]
    if not lost:
        return f"{pair.name}: no contradiction"
    most = min(lost, key=lambda z: pair.heavy(z) - pair.light(z))
    larger, smaller = (deviation**2 for deviation in pair.deviations)
    return (
        f"{pair.name} (mean {pair.mean:g}, variances {larger:.2g} and {smaller:.2g}, threshold "
        f"{pair.threshold:.2f}): P(X > {most:.2f}) is {pair.heavy(most):.2g} against "
        f"{pair.light(most):.2g}, and less from {lost[0]:.2f} to {lost[-1]:.2f}"
    )

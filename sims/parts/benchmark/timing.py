"""Timing that survives a shared machine: turns, rounds, quartiles, and a watch on the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any, NamedTuple

import numpy as np

from minattn.arrays import Array
from minattn.claims import DOES_NOT_HOLD, HOLDS, INCONCLUSIVE, Claim, Decision, Rule, judge

# Seconds of a turn: at rest, as threads of the one before spin for up to a tenth of a second and
# would take a core from the next, and then at least of untimed and of timed steps.
REST, WARM, BLOCK = 0.15, 0.03, 0.05
FEW = 5  # rounds at most where a turn takes seconds, or there are many settings
CALM = 0.1  # share of the cores that other processes may take in a round


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """One way to make a step: `step` returns when its results are there."""

    name: str
    step: Callable[[], Any]
    session: Callable[[], AbstractContextManager[object]] = nullcontext


class Quartiles(NamedTuple):
    """Median and quartiles over rounds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Times:
    """Seconds a step by contestant, (rounds,) each; entry i of all is of the same round.

    `others` is the largest share of the cores that other processes took in one of these rounds, NaN
    where the system does not say.
    """

    seconds: dict[str, Array]
    others: float

    @property
    def calm(self) -> bool:
        """Whether these rounds can be trusted, as far as is known."""
        return not self.others > CALM

    def fastest(self, names: Sequence[str]) -> str:
        """Return the one with the least median."""
        return min(names, key=lambda name: float(np.median(self.seconds[name])))


def take_turns(contestants: Sequence[Contestant], rounds: int) -> Times:
    """Time all contestants in every round, in an order that turns from round to round.

    Rounds in which other processes took more than `CALM` of the cores are made again, as long as
    they are no more than the rounds wanted; if there are too few calm ones, all are kept.
    """
    calm: list[tuple[float, dict[str, float]]] = []
    disturbed: list[tuple[float, dict[str, float]]] = []
    while len(calm) < rounds and len(disturbed) <= rounds:
        before = _busy()
        order = contestants[:: 1 if (len(calm) + len(disturbed)) % 2 else -1]
        seconds = {one.name: _turn(one) for one in order}
        share = _share_of_others(before, _busy())
        (disturbed if share > CALM else calm).append((share, seconds))
    kept = calm if len(calm) == rounds else calm + disturbed
    return Times(
        {one.name: np.array([seconds[one.name] for _, seconds in kept]) for one in contestants},
        max(share for share, _ in kept),
    )


def _turn(contestant: Contestant) -> float:
    """Return the seconds a step takes, the mean over a block of steps."""
    with contestant.session():
        sleep(REST)
        _repeat(contestant.step, WARM)
        return _repeat(contestant.step, BLOCK)


def _repeat(step: Callable[[], Any], at_least: float) -> float:
    start, count = perf_counter(), 0
    while (elapsed := perf_counter() - start) < at_least or not count:
        step()
        count += 1
    return elapsed / count


def quartiles(values: Array) -> Quartiles:
    """Return median and quartiles."""
    low, median, high = (float(value) for value in np.percentile(values, (25, 50, 75)))
    return Quartiles(median, low, high)


def at_most(limit: float) -> Rule:
    """Hold if the median over rounds is at most `limit`, and both quartiles are, or neither."""

    def decide(values: Array) -> Decision:
        median, low, high = quartiles(values)
        verdict = HOLDS if high <= limit else DOES_NOT_HOLD if low > limit else INCONCLUSIVE
        return Decision(median, (low, high), None, verdict)

    return Rule(f"median over rounds at most {limit:g}, its quartiles on the same side", decide)


def claim(text: str, values: Array, limit: float, calm: bool = True) -> Claim:
    """Judge one target by values (rounds,); what others disturbed is inconclusive."""
    made = judge(text, f"<= {limit:g}", values, at_most(limit))
    if calm:
        return made
    return Claim(made.claim, made.predicted, made.measured, made.interval, made.rule, INCONCLUSIVE)


def _busy() -> tuple[float, float, float]:
    """Return seconds since the start: of all cores, of these idle, and of this process."""
    mine = process_time()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return np.nan, np.nan, mine
    wanted = [f"cpu{core}" for core in cores]
    ticks = [line.split()[1:9] for line in lines if line.split()[0] in wanted]
    seconds = np.array(ticks, dtype=float).sum(axis=0) / os.sysconf("SC_CLK_TCK")
    return float(seconds.sum()), float(seconds[3] + seconds[4]), mine


def _share_of_others(before: tuple[float, ...], after: tuple[float, ...]) -> float:
    whole, idle, mine = (b - a for a, b in zip(before, after, strict=True))
    return max(0.0, 1 - (idle + mine) / whole) if whole > 0 else np.nan

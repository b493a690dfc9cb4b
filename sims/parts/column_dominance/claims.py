"""What `column_dominance.py` predicts from its first stage, and the claims of its second."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from parts.column_dominance.training import (
    ATTENTIONS,
    CANDIDATES,
    OPTIMIZERS,
    TRAINED,
    Results,
    Setting,
)

from minattn.arrays import Array, ratio
from minattn.claims import Claim, above, below, judge
from minattn.intervals import finite

Condition = tuple[str, str, str]
AUTHORS = ("adamw", "softmax", "factors")


class Found(NamedTuple):
    """What stage 1 predicts: the condition, the candidate, and what every candidate reached."""

    condition: Condition
    candidate: str
    correlations: dict[str, float]


def conditions() -> list[Condition]:
    """Return all combinations of optimiser, attention and what is trained."""
    return list(product(OPTIMIZERS, ATTENTIONS, TRAINED))


def natural(results: Results, source: str = "drifting") -> Results:
    """Return the results on one source in which nothing was put by hand."""
    return {s: r for s, r in results.items() if s.source == source and s.spread == "none"}


def explore(explored: Results) -> Found:
    """Stage 1: the condition of largest dispersion, and the candidate that correlates best."""
    means = {
        condition: np.mean(
            [r["change_dispersion"] for s, r in explored.items() if s.condition == condition]
        )
        for condition in conditions()
    }
    correlations = {name: float(correlation(explored, name).mean()) for name in CANDIDATES}
    condition = max(means, key=means.__getitem__)
    return Found(condition, max(correlations, key=correlations.__getitem__), correlations)


def correlation(results: Results, candidate: str) -> Array:
    """Correlation (R,) over settings of what a candidate predicts and the dispersion measured."""
    predicted = finite(np.stack([result[candidate] for result in results.values()]))
    measured = finite(np.stack([result["change_dispersion"] for result in results.values()]))
    centred = [values - values.mean(axis=0) for values in (predicted, measured)]
    norms = [np.linalg.norm(values, axis=0) for values in centred]
    together = (centred[0] * centred[1]).sum(axis=0)
    return ratio(together, norms[0] * norms[1])


def undertrained(place: Setting, result: dict[str, Array]) -> bool:
    """Whether training reached too little to draw a verdict."""
    first, last = (float(value.mean()) for value in result["loss"])
    goal = float(result["goal"].mean())
    if place.source == "text":
        return last >= goal
    return first - last < 0.5 * (first - goal)


def at(results: Results, condition: Condition, knob: float = 1.0, **where: str) -> Any:
    """Return the setting and result of one condition."""
    wanted = {"source": "drifting", "spread": "none"} | where
    for place, result in results.items():
        fits = all(getattr(place, name) == value for name, value in wanted.items())
        if fits and place.condition == condition and place.knob == knob:
            return place, result
    raise KeyError(condition, knob, where)


def score(results: Results, name: str, *place: Any, **where: str) -> tuple[Array, bool]:
    """Return a score of the change (R,), and whether it comes from too little training."""
    chosen, result = at(results, *place, **where)
    return finite(result[name]), undertrained(chosen, result)


def primary(tested: Results, found: Found) -> Iterator[Claim]:
    """Claims 1 to 5 of the docstring."""
    condition, candidate, _ = found
    authors, where = "AdamW, softmax, factors", " ".join(condition)
    counted = at(tested, AUTHORS)[1]["count_error"]
    yield judge("counts as key and as query follow Prop. A.9", "0", counted, below(0.02))
    high, few = score(tested, "change_dispersion", AUTHORS)
    text = f"columns more spread than rows, {authors}, knob 1"
    yield judge(text, "dispersion > 0", high, above(0), few)
    values, few = score(tested, "change_directionality", AUTHORS)
    text = f"columns dominate rows, {authors}, knob 1"
    yield judge(text, "directionality < 0", values, below(0), few)
    low, few_too = score(tested, "change_dispersion", AUTHORS, 0.0)
    text = f"early symbols spread the columns, {authors}"
    yield judge(text, "knob 1 - knob 0 > 0", high - low, above(0), few or few_too)
    for source, knob in (("drifting", 1.0), ("text", 0.0)):
        values, few = score(tested, "change_dispersion", condition, knob, source=source)
        text = f"the condition found ({where}) spreads columns: {kind(source)}"
        yield judge(text, "dispersion > 0", values, above(0), few)
    for source in ("drifting", "text"):
        values = correlation(natural(tested, source), candidate)
        text = f'the candidate found ("{candidate}") predicts dispersion: {kind(source)}'
        yield judge(text, "correlation > 0", values, above(0))


def kind(source: str) -> str:
    """Return what a source is called in a claim."""
    return "text" if source == "text" else "fresh seeds"


def secondary(tested: Results, found: Found) -> Iterator[Claim]:
    """Claims 6 to 9 of the docstring."""
    condition, candidate, _ = found
    for source, knob in (("drifting", 1.0), ("text", 0.0)):
        for place in conditions():
            if place in (condition, AUTHORS if source == "drifting" else None):
                continue  # a primary claim
            values, few = score(tested, "change_dispersion", place, knob, source=source)
            where = "text" if source == "text" else "knob 1"
            text = f"columns more spread than rows, {' '.join(place)}, {where}"
            yield judge(text, "dispersion > 0", values, above(0), few)
    pairs = [
        [score(tested, "change_dispersion", place, knob) for knob in (1.0, 0.0)]
        for place in conditions()
    ]
    steps = [high - low for (high, _), (low, _) in pairs]
    few = any(flag for pair in pairs for _, flag in pair)
    text = "early symbols spread the columns, mean over all conditions"
    yield judge(text, "knob 1 - knob 0 > 0", np.mean(steps, axis=0), above(0), few)
    counted, best = (correlation(natural(tested), name) for name in ("positions", candidate))
    text = 'the theory\'s own "positions" predicts dispersion: fresh seeds'
    yield judge(text, "correlation > 0", counted, above(0))
    if candidate != "positions":
        text = f'"{candidate}" predicts better than "positions": fresh seeds'
        yield judge(text, "difference > 0", best - counted, above(0))
    yield from controls(tested)


def controls(tested: Results) -> Iterator[Claim]:
    """Claims of the docstring's line 9."""
    for optimizer in OPTIMIZERS:
        place = (optimizer, "softmax", "W_qk")
        (keys, few), (queries, few_too) = (
            score(tested, "change_dispersion", place, 1.0, spread=side)
            for side in ("keys", "queries")
        )
        text = f"control: uneven keys against uneven queries, by hand, {' '.join(place)}"
        yield judge(text, "difference > 0", keys - queries, above(0), few or few_too)
    start = finite(at(tested, AUTHORS)[1]["untrained_dispersion"])
    text = "control: untrained, neither side is more spread"
    yield judge(text, "dispersion < 0.2", start, below(0.2))
    yield judge(text, "dispersion > -0.2", start, above(-0.2))

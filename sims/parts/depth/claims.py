"""The claims of `depth.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from parts.depth.training import OBJECTIVES, OPTIMIZERS, Results

from minattn.arrays import Array
from minattn.claims import Claim, above, at_most, below, judge
from minattn.comparison import ARMS
from minattn.intervals import finite

PREDICTED = {"masked_bidirectional": "symmetry", "next_causal": "dispersion"}


def undertrained(result: dict[str, Array]) -> bool:
    """Whether training did not get below the loss of symbol frequencies alone."""
    return float(result["loss"][-1].mean()) >= float(result["goal"].mean())


def depths(results: Results) -> list[int]:
    """Return the numbers of layers, ascending."""
    return sorted({place.layers for place in results})


def chosen(results: Results, layers: int, objective: str, optimizer: str) -> dict[str, Array]:
    """Return the result of one setting."""
    for place, result in results.items():
        if (place.layers, place.objective, place.optimizer) == (layers, objective, optimizer):
            return result
    raise KeyError(layers, objective, optimizer)


def ends(values: Array) -> Array:
    """First layer minus last of an array (L, R): (R,)."""
    return np.asarray(values[0] - values[-1])


def final(result: dict[str, Array], name: str) -> Array:
    """Last record (L, R); infinite dispersions are kept within reach."""
    return finite(result[name][-1])


def summarised(name: str, values: Array) -> Array:
    """Return what a metric (records, L, R) comes to: (L, R)."""
    if name.startswith(("cosine", "share")):
        return np.nanmean(values, axis=0)
    return finite(values[-1])


def primary(results: Results) -> Iterator[Claim]:
    """Claims 1 to 5 of the docstring."""
    deepest = depths(results)[-1]
    yield from real_change(results, deepest)
    for objective in OBJECTIVES:
        result = chosen(results, deepest, objective, "adamw")
        share = np.nanmean(result["share_through_others"], axis=0)[0]
        text = f"the first of {deepest} layers is moved mostly through other positions"
        claim = f"{ARMS[objective].title}: {text}"
        yield judge(claim, "share > 0.5", share, above(0.5), undertrained(result))
    yield from what_is_predicted(results, deepest)
    for objective in OBJECTIVES:
        result = chosen(results, deepest, objective, "sgd")
        off = 1 - result["cosine_with_first_order"]
        claim = f"{ARMS[objective].title}: SGD's change of W_qk is its first order"
        yield judge(claim, "1 - cosine < 0.01", off, at_most(0.01))
    shares = [result["share_through_others"][:, -1].ravel() for result in results.values()]
    known = np.concatenate(shares)
    claim = "check: no share through other positions in the last layer"
    yield judge(claim, "0", known[np.isfinite(known)], at_most(1e-10))


def real_change(results: Results, layers: int) -> Iterator[Claim]:
    """Claim 1 in models of one depth."""
    for objective in OBJECTIVES:
        for optimizer in OPTIMIZERS:
            result = chosen(results, layers, objective, optimizer)
            values = ends(result["cosine_with_update"].mean(axis=0))
            text = f"{layers} layers: the first layer's change deviates most from Ghat"
            claim = f"{ARMS[objective].title}, {optimizer}, {text}"
            yield judge(claim, "first - last < 0", values, below(0), undertrained(result))


def what_is_predicted(results: Results, layers: int) -> Iterator[Claim]:
    """Claim 3 in models of one depth."""
    for objective, name in PREDICTED.items():
        result = chosen(results, layers, objective, "adamw")
        values = ends(final(result, f"change_{name}"))
        claim = f"{ARMS[objective].title}, {layers} layers: {name} shows least in the first layer"
        yield judge(claim, "first - last < 0", values, below(0), undertrained(result))


def secondary(results: Results) -> Iterator[Claim]:
    """Claims 6 to 10 of the docstring."""
    *shallower, deepest = depths(results)
    for layers in shallower:
        yield from real_change(results, layers)
        yield from what_is_predicted(results, layers)
    for objective, name in PREDICTED.items():
        result = chosen(results, deepest, objective, "adamw")
        for layer, values in enumerate(final(result, f"change_{name}")):
            claim = f"{ARMS[objective].title}: {name} of the change, layer {layer} of {deepest}"
            yield judge(claim, f"{name} > 0", values, above(0), undertrained(result))
    for objective in OBJECTIVES:
        yield from over_training(results, deepest, objective)
    start = chosen(results, deepest, OBJECTIVES[0], "adamw")["symmetry"][0].mean(axis=0)
    claim = "control: an untrained W_qk is not symmetric"
    yield judge(claim, "about 1/d", start, below(0.1))


def over_training(results: Results, deepest: int, objective: str) -> Iterator[Claim]:
    """Claims 8 and 9 for one objective."""
    result: dict[str, Any] = chosen(results, deepest, objective, "adamw")
    few, title = undertrained(result), ARMS[objective].title
    shares = result["share_through_others"][:, 0]
    known = shares[np.isfinite(shares).all(axis=1)]
    claim = f"{title}: training lessens the first layer's share through other positions"
    yield judge(claim, "end - start < 0", known[-1] - known[0], below(0), few)
    cosine = result["cosine_with_first_order"].mean(axis=(0, 1))
    claim = f"{title}: AdamW turns the step away from gradient descent's"
    yield judge(claim, "cosine < 0.9", cosine, below(0.9), few)

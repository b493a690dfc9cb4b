"""The claims of `time_reversal.py`, whose docstring states their rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from parts.time_reversal.training import OBJECTIVES, Key, Results, last, share_removed

from minattn.arrays import Array
from minattn.claims import Claim, Rule, above, below, holm, judge

FLUXES = (0.0, 0.25, 0.5, 0.75, 1.0)
UNDERTRAINED_BELOW = 0.5
LOWER, TOP = 0, 1


def judge_all(results: Results) -> list[Claim]:
    """Return the primary claims, then the others with Holm's correction."""
    return [*primary(results), *holm(secondary(results))]


def primary(results: Results) -> Iterator[Claim]:
    """Claims 1 to 7 of the docstring."""
    ends = [("masked", True, flux) for flux in (0.0, 1.0)]
    reversible, cyclic = ends
    before = results[reversible]["untrained_agreement"][LOWER]
    at_0, at_1 = (results[key]["trained_agreement"][LOWER] for key in ends)

    def about(keys: Iterable[Key], claim: str, predicted: str, values: Array, rule: Rule) -> Claim:
        return judge(claim, predicted, values, rule, undertrained(results, keys))

    claim = "untrained, reversible: beta_ij does not agree with beta_ji (lower layer)"
    yield judge(claim, "agreement < 0.1", before, below(0.1))
    claim = "trained, reversible: beta_ij agrees with beta_ji (lower layer)"
    yield about([reversible], claim, "agreement > 0.5", at_0, above(0.5))
    claim = "agreement is of the data: larger on reversible chains than on cyclic ones"
    yield about(ends, claim, "flux 0 - flux 1 > 0", at_0 - at_1, above(0))
    claim = "agreement is of the objective: more than half of it is left on cyclic chains"
    yield about(ends, claim, "flux 1 - half of flux 0 > 0", at_1 - at_0 / 2, above(0))
    for objective, title in OBJECTIVES.items():
        keys = [(objective, True, 0.0), (objective, True, 1.0)]
        difference = np.subtract(*(change_symmetry(results[key]) for key in keys))
        claim = f"{title}: the change of W_qk is more symmetric on reversible chains"
        yield about(keys, claim, "flux 0 - flux 1 > 0", difference, above(0))
    masked, other = (change_symmetry(results[name, True, 1.0]) for name in OBJECTIVES)
    claim = "cyclic chains: masked training still makes the change of W_qk symmetric"
    yield about([cyclic], claim, "symmetry > 0.3", masked, above(0.3))
    claim = "cyclic chains: masked training makes it more symmetric than next-token training"
    keys = [cyclic, ("next", True, 1.0)]
    yield about(keys, claim, "masked - next token > 0", masked - other, above(0))
    for when in ("untrained", "trained"):
        index = results["masked", False, 0.0][f"{when}_exchange"].mean(axis=0)
        claim = f"control: reversible, no positions, {when}: beta_ij and beta_ji exchangeable"
        yield judge(claim, "index 1, below 2", index, below(2))


def secondary(results: Results) -> Iterator[Claim]:
    """Claims 8 to 11 of the docstring."""
    for objective, title in OBJECTIVES.items():
        keys = [(objective, True, flux) for flux in FLUXES]
        metrics = {"change_symmetry": "symmetry of the change of W_qk"}
        if objective == "masked":
            metrics |= {"trained_agreement": "agreement", "trained_ghat": "symmetry of Ghat"}
        for metric, text in metrics.items():
            for layer, place in ((LOWER, "lower"), (TOP, "top")):
                values = np.stack([last(results[key], metric)[layer] for key in keys])
                claim = f"{title}: {text} falls with the net flux, {place} layer"
                bad = undertrained(results, keys)
                yield judge(claim, "slope < 0", slope(FLUXES, values), below(0), bad)
    key = ("masked", True, 0.0)
    values, bad = results[key]["trained_agreement"][TOP], undertrained(results, [key])
    claim = "trained, reversible: beta_ij agrees with beta_ji (top layer)"
    yield judge(claim, "agreement > 0", values, above(0), bad)
    keys = [("masked", False, flux) for flux in (0.0, 1.0)]
    bad = undertrained(results, keys)
    values = results[keys[1]]["trained_exchange"].mean(axis=0)
    claim = "no positions: on cyclic chains beta_ij and beta_ji are not exchangeable"
    yield judge(claim, "index > 2", values, above(2), bad)
    values = np.subtract(*(results[key]["trained_agreement"][LOWER] for key in keys))
    claim = "no positions: agreement is larger on reversible chains than on cyclic ones"
    yield judge(claim, "flux 0 - flux 1 > 0", values, above(0), bad)


def undertrained(results: Results, keys: Iterable[Key]) -> bool:
    """Whether training removed too little, in any of the settings, to draw a verdict."""
    return any(share_removed(results[key]).mean() < UNDERTRAINED_BELOW for key in keys)


def change_symmetry(result: dict[str, Array]) -> Array:
    """Symmetry (R,) of the change of W_qk at the end, the mean over layers."""
    return result["change_symmetry"][-1].mean(axis=0)


def slope(x: Iterable[float], values: Array) -> Array:
    """Slope (R,) of the least-squares line through values (len(x), R)."""
    centred = np.asarray(x, dtype=float) - np.mean(list(x))
    return centred @ values / (centred @ centred)

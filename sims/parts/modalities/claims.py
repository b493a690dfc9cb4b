"""The claims of `modalities.py`, whose docstring states their rules."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from parts.modalities.training import Results

from minattn.arrays import Array
from minattn.claims import Claim, above, at_most, below, judge
from minattn.intervals import finite

MASKED, NEXT, MASKED_CAUSAL = "masked_bidirectional", "next_causal", "masked_causal"


def primary(results: Results) -> Iterator[Claim]:
    """Claims 1 to 4 of the docstring."""
    for name in modalities(results):
        masked, few = score(results, name, MASKED, "symmetry")
        contrasts = {
            MASKED_CAUSAL: "the mask alone makes the change of W_qk more symmetric",
            NEXT: "masked bidirectional training makes the change more symmetric than next token",
        }
        for arm, text in contrasts.items():
            other, few_too = score(results, name, arm, "symmetry")
            claim, short = f"{name}: {text}", few or few_too
            yield judge(claim, "difference > 0", masked - other, above(0), short)
        values, few = score(results, name, NEXT, "dispersion")
        claim = f"{name}: columns more spread than rows after next token"
        yield judge(claim, "dispersion > 0", values, above(0), few)
    residuals = [result["proof_residual"].ravel() for result in results.values()]
    claim = "<Ghat, D> = -dL/dD along a full-rank D, every arm"
    yield judge(claim, "residual < 1e-9", np.concatenate(residuals), at_most(1e-9))


def secondary(results: Results) -> Iterator[Claim]:
    """Claims 5 to 8 of the docstring."""
    for name in modalities(results):
        values, few = score(results, name, NEXT, "directionality")
        claim = f"{name}: columns dominate after next token"
        yield judge(claim, "directionality < 0", values, below(0), few)
        masked, few_too = score(results, name, MASKED, "directionality")
        claim = f"{name}: directionality, next token against masked bidirectional"
        yield judge(claim, "difference < 0", values - masked, below(0), few or few_too)
        values, few = score(results, name, MASKED_CAUSAL, "dispersion")
        claim = f"{name}: columns more spread than rows after masked causal"
        yield judge(claim, "dispersion > 0", values, above(0), few)
        moved, few = score(results, name, MASKED, "norm")
        alone, _ = score(results, name, MASKED, "norm", shuffled=True)
        claim = f"control, {name}: shuffled symbols move W_qk less, masked bidirectional"
        yield judge(claim, "ratio < 0.5", alone / moved, below(0.5), few)
    start = next(iter(results.values()))["untrained_symmetry"]
    yield judge("control: an untrained W_qk is not symmetric", "about 1/d", start, below(0.1))


def modalities(results: Results) -> list[str]:
    """Return the modalities that there are results of."""
    return list(dict.fromkeys(place.modality for place in results))


def score(
    results: Results, modality: str, arm: str, name: str, shuffled: bool = False
) -> tuple[Array, bool]:
    """Return a score of the change at the end, the mean over layers (R,); whether undertrained."""
    for place, result in results.items():
        if (place.modality, place.arm, place.shuffled) == (modality, arm, shuffled):
            values = finite(result[f"change_{name}"][-1])
            return values.mean(axis=0), undertrained(result)
    raise KeyError(modality, arm, shuffled)


def undertrained(result: dict[str, Array]) -> bool:
    """Whether training did not get below the loss of symbol frequencies alone."""
    return float(result["loss"][-1].mean()) >= float(result["goal"].mean())

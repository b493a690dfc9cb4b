"""The claims of `symmetric_init.py`, whose docstring states their rules."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from parts.symmetric_init.training import (
    MASKS,
    STARTS,
    Results,
    form_symmetry,
    net_speed_up,
    undertrained,
)

from minattn.arrays import Array
from minattn.claims import Claim, Rule, above, below, judge

FASTER, NO_GAIN = above(0), 0.1


def compare(text: str, one: dict[str, Array], other: dict[str, Array], rule: Rule) -> Claim:
    """Judge the net speed-up of one run over another."""
    predicted = f"net speed-up {'> 0' if rule == FASTER else f'< {NO_GAIN:g}'}"
    return judge(text, predicted, net_speed_up(one, other), rule, undertrained(one, other))


def primary(results: Results) -> Iterator[Claim]:
    """Claims 1 to 5 of the docstring."""
    for source in dict.fromkeys(source for source, *_ in results):
        free = {start: results[source, "bidirectional", start] for start in STARTS}
        causal = {s: results[source, "causal", s] for s in STARTS if s != "redrawn"}
        text = f"{source}: a symmetric start is faster"
        yield compare(text, free["symmetric"], free["random"], FASTER)
        text = f"{source}: a symmetric start at the plain norm is faster"
        yield compare(text, free["symmetric_matched"], free["random"], FASTER)
        text = f"{source}, causal mask: a symmetric start gains nothing"
        yield compare(text, causal["symmetric"], causal["random"], below(NO_GAIN))
        one, other = free["symmetric"], causal["symmetric"]
        text = f"{source}: from the symmetric start the causal mask keeps less symmetry"
        values = form_symmetry(one) - form_symmetry(other)
        bad = undertrained(one, other)
        yield judge(text, "bidirectional - causal > 0", values, above(0), bad)
        text = f"{source}, causal mask: symmetry is lost in a quarter of training"
        yield judge(text, "symmetry < 0.5", form_symmetry(other, 0.25), below(0.5), bad)
        for mask, runs in (("bidirectional", free), ("causal", causal)):
            text = f"{source}, {mask} mask: penalising asymmetry gains nothing"
            yield compare(text, runs["penalty"], runs["random"], below(NO_GAIN))


def secondary(results: Results) -> Iterator[Claim]:
    """Claims 6 to 9 of the docstring."""
    pairs = {
        ("symmetric_matched", "random"): "symmetric below plain, at the plain norm",
        ("symmetric", "random_matched"): "symmetric below plain, at the symmetric norm",
        ("random_matched", "random"): "plain at the symmetric norm below plain",
    }
    for source in dict.fromkeys(source for source, *_ in results):
        for mask in MASKS:
            for (one, other), text in pairs.items():
                runs = [results[source, mask, start] for start in (other, one)]
                values = np.subtract(*(run["loss"][-1] for run in runs))
                claim = f"{source}, {mask} mask, final loss: {text}"
                yield judge(claim, "difference > 0", values, above(0), undertrained(*runs))
            run = results[source, mask, "penalty"]
            claim = f"{source}, {mask} mask: the penalty makes W_qk symmetric"
            bad = undertrained(run)
            yield judge(claim, "symmetry > 0.9", form_symmetry(run), above(0.9), bad)
        free, causal = (results[source, mask, "random"] for mask in MASKS)
        values, bad = form_symmetry(free) - form_symmetry(free, 0.0), undertrained(free)
        claim = f"{source}: masked training makes the plain start symmetric"
        yield judge(claim, "after - before > 0", values, above(0), bad)
        values, bad = form_symmetry(free) - form_symmetry(causal), undertrained(free, causal)
        claim = f"{source}: and more so than under the causal mask"
        yield judge(claim, "bidirectional - causal > 0", values, above(0), bad)
        claim = f"{source}, control: other initial draws gain nothing"
        redrawn = results[source, "bidirectional", "redrawn"]
        yield compare(claim, redrawn, free, below(NO_GAIN))

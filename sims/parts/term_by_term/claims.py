"""The claims of `term_by_term.py`, whose docstring states them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from parts.term_by_term.dissection import Dissection, energy_shares, norm, step_gap, symmetry_gap

from minattn.claims import Claim, at_most, judge


def judge_all(arms: list[Dissection]) -> Iterable[Claim]:
    """Yield the claims of the docstring, each over all arms."""
    rows: list[tuple[str, str, float, list[float]]] = [
        (
            "Ghat W_k = -dL/dW_q and Ghat^T W_q = -dL/dW_k",
            "residual",
            1e-10,
            [float(arm.update.residual[0]) for arm in arms],
        ),
        (
            "<Ghat, D> = -dL/dD along a full-rank D",
            "residual",
            1e-9,
            [arm.proof_residual for arm in arms],
        ),
    ]
    for family, words in (("as_key", "keys"), ("as_query", "queries")):
        sums = [abs(sum(arm.symbol_shares[family].values()) - 1) for arm in arms]
        rows.append((f"shares sum to 1 over the symbols as {words}", "|sum - 1|", 1e-12, sums))
    ends = [float(arm.running[0][-1]) for arm in arms]
    rows.append(("the running sum of the terms ends at Ghat", "distance / |Ghat|", 1e-12, ends))
    energies = [abs(sum(energy_shares(arm.total).values()) - 1) for arm in arms]
    rows.append(("energies of symmetric and skew part add up", "|sum - 1|", 1e-12, energies))
    slopes = [symmetry_gap(arm) for arm in arms]
    rows.append(("the terms' effects on symmetry add up", "residual", 1e-9, slopes))
    gaps = [step_gap(arm) for arm in arms]
    rows.append(("one SGD step, eta = 1, moves W_qk by the exact formula", "residual", 1e-10, gaps))
    if all(arm.contributions for arm in arms):
        left = [sum(arm.contributions.values()) - arm.total for arm in arms]
        gaps = [norm(gap) / norm(arm.total) for gap, arm in zip(left, arms, strict=True)]
        text = "tokens', positions' and cross contributions add up to Ghat"
        rows.append((text, "distance / |Ghat|", 1e-12, gaps))
    for text, measure, limit, values in rows:
        yield judge(text, f"{measure} < {limit:g}", np.array(values), at_most(limit))

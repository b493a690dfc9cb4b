"""What `term_by_term.py` prints, and what it writes as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from parts.term_by_term.dissection import Dissection, Terms, energy_shares, norm
from parts.term_by_term.figures import draw

from minattn import experiment
from minattn.blocks import PARTS
from minattn.claims import Claim, table
from minattn.descent import product_change
from minattn.scores import symmetry


def report(
    arms: list[Dissection], found: list[dict[str, Any]], claims: list[Claim], top: int
) -> None:
    """Print each arm's largest terms, the arms side by side, and the table of claims."""
    for arm in arms:
        print("\n" + "\n".join(largest_terms(arm, top)))
    print("\n" + "\n".join(side_by_side(found)))
    print("\n" + table(claims))
    print("\nIntervals are the range over the arms.\n")


def largest_terms(arm: Dissection, top: int) -> list[str]:
    """Return the lines of an arm's table: its largest terms and what each does to W_qk."""
    before, now = arm.losses
    loss = f"{before:.3f} untrained, {now:.3f} trained" if arm.trained else f"{now:.3f} untrained"
    lines = [
        f"{arm.title}: loss {loss}; {len(arm.terms.beta)} terms",
        f"sequence: {' '.join(arm.tokens)}",
        f"{'query':>9}{'key':>9}{'beta_ij':>12}{'K+ energy':>11}{'K- energy':>11}{'share':>9}"
        f"{'score, own':>13}{'score, all':>13}{'symmetry':>12}",
    ]
    columns = [column.tolist()[:top] for column in arm.terms]
    for i, j, beta, _, plus, minus, share, own, everything, slope in zip(*columns, strict=True):
        query, key = (f"{place} ({arm.tokens[place]})" for place in (i, j))
        lines.append(
            f"{query:>9}{key:>9}{beta:>+12.2e}{plus:>11.1%}{minus:>11.1%}{share:>9.1%}"
            f"{own:>+13.2e}{everything:>+13.2e}{slope:>+12.2e}"
        )
    return lines


def side_by_side(facts: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table that compares the arms."""
    rows: list[tuple[str, list[str]]] = [
        ("terms", [str(arm["terms"]) for arm in facts]),
        ("largest terms to within a tenth", [str(arm["terms_within_a_tenth"]) for arm in facts]),
        ("cosine of ten terms with Ghat", [f"{arm['cosine_of_ten_terms']:.3f}" for arm in facts]),
        ("cosine of an SGD step with Ghat", [f"{arm['cosine_of_sgd_step']:.3f}" for arm in facts]),
    ]
    for part in facts[0]["contributions"]:
        text = f"contribution to Ghat: {part}"
        rows.append((text, [f"{arm['contributions'][part]:.1%}" for arm in facts]))
    for form in facts[0]["forms"]:
        found = [arm["forms"][form] for arm in facts]
        for name in found[0]["energy"]:
            text = f"{form}: {name} energy"
            rows.append((text, [f"{one['energy'][name]:.1%}" for one in found]))
        if "block_share" in found[0]:
            for part in PARTS:
                pairs = [(one["block_share"][part], one["block_symmetry"][part]) for one in found]
                text = f"{form}: {part} blocks, energy (symmetry)"
                rows.append((text, [f"{share:.1%} ({value:+.2f})" for share, value in pairs]))
    heads = [arm["title"].split(", ") for arm in facts]
    lines = [f"{'':46}" + "".join(f"{head[k]:>16}" for head in heads) for k in (0, 1)]
    return lines + [f"{text:46}" + "".join(f"{v:>16}" for v in values) for text, values in rows]


def facts(arm: Dissection) -> dict[str, Any]:
    """Return what summary.json says of an arm."""
    distances, cosines = arm.running
    first = np.argmax(distances <= 0.1) + 1
    step = product_change(arm.params, arm.update, 1e-3)
    found: dict[str, Any] = {
        "arm": arm.arm,
        "title": arm.title,
        "loss_untrained": arm.losses[0],
        "loss": arm.losses[1],
        "tokens": arm.tokens,
        "masked": int((arm.update.tokens == arm.task.n_symbols).sum()),
        "terms": len(arm.terms.beta),
        "terms_within_a_tenth": first,
        "cosine_of_ten_terms": cosines[min(10, len(cosines)) - 1],
        "shares": arm.symbol_shares,
        "contributions": {
            name: float((part * arm.total).sum()) / norm(arm.total) ** 2
            for name, part in arm.contributions.items()
        },
        "cosine_of_sgd_step": step.cosine_to_update[0, 0],
        "forms": {},
    }
    for name, M in (("Ghat", arm.total), ("change", arm.change)):
        if M is not None:
            form = {"norm": norm(M), "symmetry": symmetry(M), "energy": energy_shares(M)}
            if name in arm.blocks:
                blocks = arm.blocks[name]
                for kind in ("share", "symmetry"):
                    values = getattr(blocks, kind).items()
                    form[f"block_{kind}"] = {part: value.item() for part, value in values}
            found["forms"][name] = form
    return found


def write(arms: list[Dissection], summary: dict[str, Any], folder: experiment.ResultFolder) -> None:
    """Write summary.json, terms.csv and the figures."""
    experiment.write_json(folder.path("summary.json"), summary)
    header = ("arm", "query_token", "key_token", *Terms._fields)
    rows = []
    for arm in arms:
        for values in zip(*(column.tolist() for column in arm.terms), strict=True):
            rows.append((arm.arm, arm.tokens[values[0]], arm.tokens[values[1]], *values))
    experiment.write_csv(folder.path("terms.csv"), header, rows)
    draw(arms, folder)

"""The figures of `term_by_term.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from parts.term_by_term.dissection import Dissection, energy_shares

from minattn import plots
from minattn.blocks import PARTS
from minattn.experiment import ResultFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMS = {"Ghat": "Ghat", "change": "Change of W_qk"}


def draw(arms: list[Dissection], folder: ResultFolder) -> None:
    """Write every figure."""
    where = f"{arms[0].task.title}, {_trained(arms[0])}, layer {arms[0].update.layer}"
    beta = [(arm.title, arm.update.beta[0, 0, 0], arm.tokens) for arm in arms]
    title = f"Coefficients of one sequence (■: masked): {where}"
    pages = {
        "beta": plots.coefficients(beta, title),
        "running_sum": running_sums(arms, where),
        "symbols": symbols(arms, where),
        "parts": parts(arms, where),
        "Ghat": plots.matrices(
            [(arm.title, arm.total / np.linalg.norm(arm.total)) for arm in arms],
            f"Ghat of one sequence, each over its norm: {where}",
        ),
    }
    changes = [(arm.title, arm.change) for arm in arms if arm.change is not None]
    if changes:
        pages["change"] = plots.matrices(changes, f"Change of W_qk: {where}")
    for form in arms[0].blocks:
        pages[f"blocks_{form}"] = blocks(arms, form, where)
    for name, page in pages.items():
        plots.save(page, folder.figure(name))


def _trained(arm: Dissection) -> str:
    return "trained" if arm.trained else "untrained"


def running_sums(arms: list[Dissection], where: str) -> Figure:
    """Draw how fast the sum of the largest terms comes to Ghat."""
    made = plots.figure(9.6, 4.6)
    made.suptitle(f"The running sum of the terms, largest first, against Ghat\n{where}")
    panels = made.subplots(1, 2)
    for number, arm in enumerate(arms):
        for axes, values in zip(panels, arm.running, strict=True):
            count = np.arange(1, len(values) + 1)
            colour, style = plots.COLOURS[number], plots.LINES[number]
            label = f"{arm.title} ({len(count)} terms)"
            axes.plot(count, values, style, color=colour, label=label, drawstyle="steps-post")
    shared = {"xlabel": "number of terms", "xscale": "log"}
    ylabel = "|sum - Ghat| / |Ghat|"
    plots.tidy(panels[0], title="relative distance", ylabel=ylabel, ylim=(0, None), **shared)
    plots.tidy(panels[1], title="cosine", ylabel="cosine of sum and Ghat", **shared)
    plots.legend_below(made, panels[0], len(arms))
    return made


def symbols(arms: list[Dissection], where: str) -> Figure:
    """Draw each symbol's share of Ghat as key and as query."""
    made = plots.figure(11.0, 4.8)
    made.suptitle(f"Whose terms make Ghat? Shares <terms, Ghat> / |Ghat|², ■ masked\n{where}")
    panels = made.subplots(1, len(arms))
    for axes, arm in zip(panels, arms, strict=True):
        shares = arm.symbol_shares
        place = np.arange(len(shares["as_key"]))
        for shift, (family, name) in zip(
            (-0.2, 0.2), (("as_key", "as key"), ("as_query", "as query")), strict=True
        ):
            colour, hatch = (plots.COLOURS[0], "") if shift < 0 else (plots.COLOURS[1], "///")
            heights = list(shares[family].values())
            axes.bar(
                place + shift,
                heights,
                0.4,
                color=colour,
                hatch=hatch,
                label=name,
                edgecolor="0.2",
                linewidth=0.5,
            )
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xticks(place, list(shares["as_key"]))
        plots.tidy(axes, title=arm.title, xlabel="symbol")
    panels[0].set_ylabel("share of Ghat (each family sums to 1)")
    plots.legend_below(made, panels[0], 2)
    return made


def parts(arms: list[Dissection], where: str) -> Figure:
    """Draw the energy of Ghat and of the change by symmetry, and by tokens and positions."""
    forms = [("Ghat", arm, arm.total) for arm in arms]
    forms += [("change", arm, arm.change) for arm in arms if arm.change is not None]
    labels = [f"{FORMS[form]}: {arm.title}" for form, arm, _ in forms]
    energies = [energy_shares(M) for _, _, M in forms]
    halves = {name: [shares[name] for shares in energies] for name in energies[0]}
    split = bool(arms[0].blocks)
    made = plots.figure(12.0 if split else 7.0, 1.9 + 0.45 * len(forms))
    made.suptitle(f"Where the energy lies\n{where}")
    panels = made.subplots(1, 3 if split else 1, squeeze=False, sharey=True)[0]
    _stacked(panels[0], halves, labels)
    plots.tidy(panels[0], title="symmetric and skew part", xlabel="share of energy")
    if split:
        found = [arm.blocks[form] for form, arm, _ in forms]
        share = {part: [float(b.share[part].item()) for b in found] for part in PARTS}
        _stacked(panels[1], share, labels)
        title, xlabel = "as a form on tokens and positions", "share of energy"
        plots.tidy(panels[1], title=title, xlabel=xlabel)
        for number, part in enumerate(PARTS):
            values = [b.symmetry[part].item() for b in found]
            colour = plots.COLOURS[number]
            panels[2].plot(values, range(len(found)), "os^"[number], color=colour, label=part)
        panels[2].axvline(0, color="black", linewidth=0.8)
        title, xlabel = "symmetry of its blocks", "symmetry"
        plots.tidy(panels[2], title=title, xlabel=xlabel, xlim=(-1.05, 1.05))
    panels[0].invert_yaxis()
    for axes in panels:
        axes.legend(
            ncols=3,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.22),
            columnspacing=0.8,
            handlelength=1.2,
            frameon=False,
        )
    return made


def _stacked(axes: Axes, shares: dict[str, list[float]], labels: list[str]) -> None:
    """Draw a horizontal bar a label, cut into shares."""
    left = np.zeros(len(labels))
    for number, (name, values) in enumerate(shares.items()):
        hatch = ("", "///", "...")[number]
        colour = plots.COLOURS[number]
        axes.barh(
            labels,
            values,
            left=left,
            color=colour,
            hatch=hatch,
            label=name,
            edgecolor="0.2",
            linewidth=0.5,
        )
        left = left + values


def blocks(arms: list[Dissection], form: str, where: str) -> Figure:
    """Draw a form on the rows of token and position embedding stacked."""
    made = plots.figure(4.2 * len(arms), 5.4)
    made.suptitle(f"{FORMS[form]} as a form on tokens and positions\n{where}")
    for number, arm in enumerate(arms):
        found = arm.blocks[form]
        names = ("token_token", "token_position", "position_token", "position_position")
        TT, TP, PT, PP = (np.squeeze(getattr(found, name)) for name in names)
        M = np.block([[TT, TP], [PT, PP]])
        axes = made.add_subplot(1, len(arms), number + 1)
        limit = float(abs(M).max()) or 1.0
        image = axes.imshow(
            M, cmap=plots.DIVERGING, vmin=-limit, vmax=limit, interpolation="nearest", aspect="auto"
        )
        for line in (axes.axhline, axes.axvline):
            line(len(TT) - 0.5, color="black", linewidth=0.8)
        middles = [(len(TT) - 1) / 2, len(TT) + (len(PP) - 1) / 2]
        axes.set_xticks(middles, ["tokens (keys)", "positions (keys)"])
        axes.set_yticks(
            middles, ["tokens\n(queries)", "positions\n(queries)"], rotation=90, va="center"
        )
        axes.tick_params(length=0)
        axes.set_title(arm.title)
        bar = made.colorbar(image, ax=axes, location="bottom", shrink=0.8, label="entry")
        bar.set_ticks([-limit, 0, limit], labels=[f"{-limit:.1e}", "0", f"{limit:.1e}"])
    return made

"""The figures of `time_reversal.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from parts.time_reversal.claims import undertrained
from parts.time_reversal.training import OBJECTIVES, Results

from minattn import plots
from minattn.experiment import ResultFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLACES = ("lower layer", "top layer")
ROWS = {
    "trained_agreement": "agreement of beta_ij\nwith beta_ji",
    "trained_ghat": "symmetry of Ghat",
    "change_symmetry": "symmetry of the\nchange of W_qk",
}
KINDS = {
    ("masked", True): "masked, positions",
    ("next", True): "next token, positions",
    ("masked", False): "masked, no positions",
    ("next", False): "next token, no positions",
}


def draw(results: Results, folder: ResultFolder) -> None:
    """Write every figure."""
    pages = {
        "overview": against_flux(results),
        "exchangeability": exchangeability(results),
        "training": over_training(results),
    }
    for name, page in pages.items():
        plots.save(page, folder.figure(name))


def against_flux(results: Results) -> Figure:
    """Draw what is there after training against the net flux, a column a layer."""
    made = plots.figure(9.0, 8.2)
    made.suptitle(
        "Reversible (net flux 0) to cyclic (1) chains at one entropy rate, after training\n"
        "mean over replicas with its 95% interval; hollow: undertrained"
    )
    panels = made.subplots(len(ROWS), 2, sharex=True, sharey="row")
    for row, (metric, label) in enumerate(ROWS.items()):
        for layer, axes in enumerate(panels[row]):
            axes.axhline(0, color="0.6", linewidth=0.8)
            for number, (kind, title) in enumerate(KINDS.items()):
                _knob_curve(axes, results, kind, metric, layer, title, number)
            if metric == "trained_agreement":
                _knob_curve(
                    axes,
                    results,
                    ("masked", True),
                    "untrained_agreement",
                    layer,
                    "masked, positions, untrained",
                    4,
                )
            plots.tidy(axes, title=PLACES[layer] if row == 0 else "")
        panels[row, 0].set_ylabel(label)
    for axes in panels[-1]:
        axes.set_xlabel("net flux")
    plots.legend_below(made, panels[0, 0], 3)
    return made


def _knob_curve(
    axes: Any,
    results: Results,
    kind: tuple[str, bool],
    metric: str,
    layer: int,
    label: str,
    number: int,
) -> None:
    """Draw one kind of model along the knob; hollow, if it was to be trained and hardly was."""
    fluxes = [flux for (*other, flux) in results if tuple(other) == kind]
    found = [results[(*kind, flux)][metric] for flux in fluxes]
    values = np.stack([(one[-1] if one.ndim == 3 else one)[layer] for one in found])
    if np.isfinite(values).all():
        plots.curve(axes, np.array(fluxes), values, label, number, marker="o")
        for flux, value in zip(fluxes, values.mean(axis=1), strict=True):
            if not metric.startswith("untrained") and undertrained(results, [(*kind, flux)]):
                axes.plot(flux, value, "o", mfc="white", mec=plots.COLOURS[number], ms=4)
    else:  # next-token models have no pair in which both can be non-zero
        axes.plot([], [], color=plots.COLOURS[number], linestyle=plots.LINES[number], label=label)


def exchangeability(results: Results) -> Figure:
    """Draw the index of exchangeability, and how energy is split between later and earlier keys."""
    made = plots.figure(9.0, 6.0)
    made.suptitle(
        "Are beta_ij and beta_ji, i < j, exchangeable? Masked training\n"
        "index: 1 if they are; mean over replicas with its 95% interval; hollow: undertrained"
    )
    panels = made.subplots(2, 2, sharex=True, sharey="row")
    for layer in range(2):
        axes = panels[0, layer]
        axes.axhline(1, color="0.6", linewidth=0.8)
        panels[1, layer].axhline(0, color="0.6", linewidth=0.8)
        number = 0
        for positions, text in ((True, "positions"), (False, "no positions")):
            for when in ("trained", "untrained"):
                label, kind = f"{text}, {when}", ("masked", positions)
                _knob_curve(axes, results, kind, f"{when}_exchange", layer, label, number)
                _knob_curve(panels[1, layer], results, kind, f"{when}_later", layer, label, number)
                number += 1
        axes.set_yscale("log")
        plots.tidy(axes, title=PLACES[layer])
        plots.tidy(panels[1, layer], xlabel="net flux")
    panels[0, 0].set_ylabel("index")
    panels[1, 0].set_ylabel("energy with the later key\nminus with the earlier key")
    plots.legend_below(made, panels[0, 0], 4)
    return made


def over_training(results: Results) -> Figure:
    """Draw curves over training at the ends of the knob, with positions."""
    rows = {
        "excess": "loss - best reachable\n(nats)",
        "agreement": "agreement, lower layer",
        "change_symmetry": "symmetry of the change\nof W_qk, mean over layers",
    }
    made = plots.figure(9.0, 7.6)
    made.suptitle("Over training, models with positions\nmean over replicas with its 95% interval")
    panels = made.subplots(len(rows), len(OBJECTIVES), sharex=True, sharey="row")
    for column, (objective, title) in enumerate(OBJECTIVES.items()):
        chosen = {
            f: r for (name, positions, f), r in results.items() if name == objective and positions
        }
        for number, (flux, result) in enumerate(chosen.items()):
            values = {
                "excess": result["loss"] - result["optimum"],
                "agreement": result["agreement"][:, 0],
                "change_symmetry": result["change_symmetry"].mean(axis=1),
            }
            for row, metric in enumerate(rows):
                label = f"net flux {flux:g}"
                plots.curve(panels[row, column], result["steps"], values[metric], label, number)
        for row in range(len(rows)):
            panels[row, column].axhline(0, color="0.6", linewidth=0.8)
            plots.tidy(panels[row, column], title=title if row == 0 else "")
        if objective == "next":
            axes, text = panels[1, column], "no pair can have both\nunder the causal mask"
            axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color="0.4")
        panels[-1, column].set_xlabel("step")
    for row, label in enumerate(rows.values()):
        panels[row, 0].set_ylabel(label)
    plots.legend_below(made, panels[0, 0], 5)
    return made

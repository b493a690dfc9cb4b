"""The figures of `modalities.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from parts.modalities.training import Results

from minattn import plots
from minattn.comparison import ARMS
from minattn.experiment import ResultFolder
from minattn.intervals import finite

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORES = {
    "change_symmetry": "symmetry",
    "change_dispersion": "dispersion (log ratio)\n> 0: columns more spread",
    "change_directionality": "directionality\n< 0: columns dominate",
}


def draw(results: Results, titles: dict[str, str], folder: ResultFolder) -> None:
    """Write every figure."""
    titles = {name: title.replace("$", r"\$") for name, title in titles.items()}  # no formulas
    plots.save(overview(results, titles), folder.figure("overview"))
    plots.save(losses(results, titles), folder.figure("loss"))
    for modality, title in titles.items():
        panels = []
        for place, result in results.items():
            if place.modality == modality and not place.shuffled:
                change = result["change_of_first_replica"][0]
                size = np.sqrt(np.mean(change**2)) or 1.0  # arms differ in it: compare patterns
                panels.append((ARMS[place.arm].title, change / size))
        heading = "Change of W_qk over its rms entry, first replica, first layer"
        page = plots.matrices(panels, f"{heading}: {title}")
        plots.save(page, folder.figure(f"matrices_{modality}"))


def overview(results: Results, titles: dict[str, str]) -> Figure:
    """Draw the scores of the change over training, a column a modality."""
    made = plots.figure(3.3 * len(titles) + 1.0, 2.7 * len(SCORES) + 1.2)
    made.suptitle("What training adds to W_qk\nmean over layers, 95% interval over replicas")
    panels = made.subplots(len(SCORES), len(titles), squeeze=False, sharex=True, sharey="row")
    for row, (metric, label) in enumerate(SCORES.items()):
        for column, (modality, title) in enumerate(titles.items()):
            axes = panels[row, column]
            axes.axhline(0, color="0.6", linewidth=0.8)
            for name, number, result in curves(results, modality):
                values = finite(result[metric]).mean(axis=1)
                plots.curve(axes, result["steps"], values, name, number)
            plots.tidy(axes, title=title if row == 0 else "")
        panels[row, 0].set_ylabel(label)
    for axes in panels[-1]:
        axes.set_xlabel("step")
    plots.legend_below(made, panels[0, 0], len(ARMS) + 1)
    return made


def losses(results: Results, titles: dict[str, str]) -> Figure:
    """Draw the held-out loss over training, a panel a modality."""
    made = plots.figure(3.3 * len(titles) + 1.0, 3.9)
    made.suptitle("Held-out loss over training\nmean over replicas with its 95% interval")
    panels = made.subplots(1, len(titles), squeeze=False)[0]
    for axes, (modality, title) in zip(panels, titles.items(), strict=True):
        for name, number, result in curves(results, modality):
            plots.curve(axes, result["steps"], result["loss"], name, number)
            goal = float(result["goal"].mean())
        axes.axhline(goal, color="0.4", linewidth=1, label="symbol frequencies alone")
        plots.tidy(axes, title=title, xlabel="step", ylabel="loss (nats)")
    plots.legend_below(made, panels[0], 3)
    return made


def curves(results: Results, modality: str) -> Any:
    """Yield name, number and result of each arm of a modality, the shuffled control last."""
    for place, result in results.items():
        if place.modality == modality:
            number = len(ARMS) if place.shuffled else list(ARMS).index(place.arm)
            suffix = ", shuffled" if place.shuffled else ""
            yield ARMS[place.arm].title + suffix, number, result

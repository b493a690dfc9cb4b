"""The figures of `depth.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from parts.depth.claims import summarised
from parts.depth.training import OBJECTIVES, OPTIMIZERS, Results

from minattn import plots
from minattn.comparison import ARMS
from minattn.experiment import ResultFolder
from minattn.intervals import mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORES = {
    "change_symmetry": "symmetry of the change",
    "change_dispersion": "dispersion of the change",
    "update_symmetry": "symmetry of Ghat",
}
STEPS = {
    "cosine_with_update": "cosine of real change\nwith Ghat",
    "cosine_with_first_order": "cosine of real change\nwith first order",
    "share_through_others": "share of the update\nthrough other positions",
}


def draw(results: Results, folder: ResultFolder) -> None:
    """Write every figure."""
    plots.save(by_layer(results, SCORES, "What training adds"), folder.figure("scores"))
    plots.save(by_layer(results, STEPS, "What one step does"), folder.figure("steps"))
    plots.save(over_training(results), folder.figure("over_training"))


def by_layer(results: Results, metrics: dict[str, str], title: str) -> Figure:
    """Draw metrics (rows) by layer for objectives and optimisers (columns), a line a depth."""
    columns = [(objective, optimizer) for objective in OBJECTIVES for optimizer in OPTIMIZERS]
    made = plots.figure(11.5, 2.7 * len(metrics) + 1.1)
    made.suptitle(f"{title}, by layer: mean and 95% interval over replicas")
    panels = made.subplots(len(metrics), len(columns), squeeze=False, sharex=True, sharey="row")
    depths = sorted({place.layers for place in results})
    for row, (metric, label) in enumerate(metrics.items()):
        for column, group in enumerate(columns):
            axes = panels[row, column]
            axes.axhline(0, color="0.6", linewidth=0.8)
            for place, result in results.items():
                if (place.objective, place.optimizer) == group:
                    number = depths.index(place.layers)
                    values = summarised(metric, result[metric])
                    layers = np.linspace(0, 1, len(values))
                    name = f"{place.layers} layers"
                    bars(axes, layers, values, name, number)
            heading = f"{ARMS[group[0]].title}\n{group[1]}" if row == 0 else ""
            plots.tidy(axes, title=heading)
            axes.set_xticks([0, 1], ["first", "last"])
        panels[row, 0].set_ylabel(label)
    for axes in panels[-1]:
        axes.set_xlabel("layer")
    plots.legend_below(made, panels[0, 0], len(depths))
    return made


def bars(axes: Any, places: Any, values: Any, label: str, number: int) -> None:
    """Draw the mean of values (L, R) with its interval at each layer."""
    estimate = mean_interval(values.T)
    colour, style = plots.COLOURS[number], plots.LINES[number]
    error = estimate.high - estimate.mean
    axes.errorbar(
        places, estimate.mean, yerr=error, color=colour, ls=style, label=label, capsize=2, ms=4
    )


def over_training(results: Results) -> Figure:
    """Draw cosines and shares over training in the deepest model, a curve a layer."""
    deepest = max(place.layers for place in results)
    columns = [(objective, optimizer) for objective in OBJECTIVES for optimizer in OPTIMIZERS]
    made = plots.figure(11.5, 2.7 * len(STEPS) + 1.1)
    made.suptitle(f"Over training, {deepest} layers: mean and 95% interval over replicas")
    panels = made.subplots(len(STEPS), len(columns), squeeze=False, sharex=True, sharey="row")
    layers = sorted({0, deepest // 2, deepest - 1})
    for row, (metric, label) in enumerate(STEPS.items()):
        for column, group in enumerate(columns):
            axes = panels[row, column]
            for place, result in results.items():
                if (place.layers, place.objective, place.optimizer) == (deepest, *group):
                    steps = result["steps" if metric.startswith("share") else "steps_made"]
                    for number, layer in enumerate(layers):
                        values = result[metric][:, layer]
                        plots.curve(axes, steps, values, f"layer {layer}", number)
            heading = f"{ARMS[group[0]].title}\n{group[1]}" if row == 0 else ""
            plots.tidy(axes, title=heading)
        panels[row, 0].set_ylabel(label)
    for axes in panels[-1]:
        axes.set_xlabel("step")
    plots.legend_below(made, panels[0, 0], len(layers))
    return made

"""The figures of `column_dominance.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from parts.column_dominance.training import Results

from minattn import plots
from minattn.experiment import ResultFolder
from minattn.intervals import finite, mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KNOBS = (("knob 0", "drifting", 0.0), ("knob 1", "drifting", 1.0), ("text", "text", 0.0))
TRAINED_BY = (("adamw", "factors"), ("adamw", "W_qk"), ("sgd", "factors"), ("sgd", "W_qk"))


def draw(results: Results, found: Any, folder: ResultFolder) -> None:
    """Write every figure."""
    plots.save(conditions(results), folder.figure("conditions"))
    plots.save(predictions(results, found), folder.figure("predictions"))
    plots.save(over_training(results), folder.figure("over_training"))


def conditions(results: Results) -> Figure:
    """Draw dispersion and directionality of every condition, by source."""
    names = list(dict.fromkeys(place.condition for place in results))
    made = plots.figure(10.5, 5.0)
    made.suptitle("What training adds to W_qk, by condition: mean and 95% interval over replicas")
    panels = made.subplots(1, 2, sharey=True)
    shown = {"change_dispersion": "dispersion (> 0: columns more spread)"}
    shown["change_directionality"] = "directionality (< 0: columns dominate)"
    for axes, (metric, title) in zip(panels, shown.items(), strict=True):
        axes.axvline(0, color="0.5", linewidth=0.8)
        for number, (group, source, knob) in enumerate(KNOBS):
            chosen = {
                place.condition: mean_interval(finite(result[metric]))
                for place, result in results.items()
                if (place.source, place.knob, place.spread) == (source, knob, "none")
            }
            rows = [names.index(place) + 0.22 * (number - 1) for place in chosen]
            means = [estimate.mean for estimate in chosen.values()]
            errors = [estimate.high - estimate.mean for estimate in chosen.values()]
            colour, mark = plots.COLOURS[number], "osD"[number]
            axes.errorbar(
                means, rows, xerr=errors, fmt=mark, color=colour, label=group, capsize=2, ms=4
            )
        axes.set_yticks(range(len(names)), [", ".join(name) for name in names])
        plots.tidy(axes, xlabel=title)
    panels[0].invert_yaxis()
    plots.legend_below(made, panels[0], 3)
    return made


def predictions(results: Results, found: Any) -> Figure:
    """Draw the dispersion predicted against the one measured, one point a setting and replica."""
    names = dict.fromkeys(("positions", found[1], "consistency", "squares"))
    shown = list(names)[:3]
    made = plots.figure(3.7 * len(shown), 4.3)
    made.suptitle("Dispersion of the change of W_qk: predicted and measured, fresh seeds and text")
    panels = made.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, shown, strict=True):
        for number, group in enumerate(TRAINED_BY):
            chosen = [
                (result[name], result["change_dispersion"])
                for place, result in results.items()
                if (place.optimizer, place.trained) == group and place.spread == "none"
            ]
            x, y = (np.concatenate(values) for values in zip(*chosen, strict=True))
            colour, mark = plots.COLOURS[number], "osD^"[number]
            axes.plot(x, y, mark, ms=3, alpha=0.6, color=colour, label=", ".join(group))
        axes.axline((0, 0), slope=1, color="0.5", linewidth=0.8)
        axes.axhline(0, color="0.8", linewidth=0.8)
        plots.tidy(axes, title=f'"{name}"', xlabel="predicted dispersion")
    panels[0].set_ylabel("measured dispersion")
    plots.legend_below(made, panels[0], len(TRAINED_BY))
    return made


def over_training(results: Results) -> Figure:
    """Draw the dispersion of the change over training, by optimiser and what is trained."""
    made = plots.figure(12, 3.6)
    made.suptitle("Dispersion of the change of W_qk over training: mean and 95% interval")
    panels = made.subplots(1, len(TRAINED_BY), sharey=True)
    lines = [("softmax", *knob) for knob in KNOBS] + [("linear", *knob) for knob in KNOBS[:2]]
    for axes, group in zip(panels, TRAINED_BY, strict=True):
        axes.axhline(0, color="0.6", linewidth=0.8)
        for place, result in results.items():
            if (place.optimizer, place.trained) == group and place.spread == "none":
                for number, (attention, name, source, knob) in enumerate(lines):
                    if (place.attention, place.source, place.knob) == (attention, source, knob):
                        values = result["dispersion_over_training"]
                        title = f"{attention}, {name}"
                        plots.curve(axes, result["steps"], values, title, number)
        plots.tidy(axes, title=", ".join(group), xlabel="step")
    panels[0].set_ylabel("dispersion")
    plots.legend_below(made, panels[0], len(lines))
    return made

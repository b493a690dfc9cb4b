"""The figures of `benchmark.py`, from its measured rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from parts.benchmark.contestants import NAMES
from parts.benchmark.results import Rows

from minattn import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(rows: Rows) -> dict[str, Figure]:
    """Return the figures by name, those for which there are rows."""
    kinds = {
        "steps": ("floors", over_floor),
        "curves": ("slope", curves),
        "memory": ("MiB", memory),
    }
    units = {row["unit"] for row in rows}
    return {name: make(rows) for name, (unit, make) in kinds.items() if unit in units}


def look(name: str) -> dict[str, Any]:
    """Return a contestant's colour and marker, the same in every figure."""
    number = NAMES.index(name)
    style = {"color": plots.COLOURS[number], "marker": plots.MARKERS[number]}
    return style | {"linestyle": plots.LINES[number], "markersize": 5}


def over_floor(rows: Rows) -> Figure:
    """Draw the time of each setting's step over that of its matrix products alone."""
    chosen = [row for row in rows if row["unit"] == "floors"]
    settings = list(dict.fromkeys(row["setting"] for row in chosen))
    made = plots.figure(8.6, 0.32 * len(settings) + 2.2)
    axes = made.subplots()
    for name in NAMES:
        own = [row for row in chosen if row["of"] == name]
        if own:
            places = [settings.index(row["setting"]) for row in own]
            _spread(axes, own, places, name)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(settings)), settings)
    axes.set_ylim(len(settings) - 0.5, -0.5)
    title = "Step over matrix products alone"
    plots.tidy(axes, title=title, xlabel="time / floor (bars: quartiles)", xscale="log")
    ticks = [tick for tick in (1, 2, 3, 5, 10, 20, 50, 100) if tick <= axes.get_xlim()[1]]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    plots.legend_below(made, axes, 3)
    return made


def _spread(axes: Axes, rows: Rows, places: Sequence[float], name: str) -> None:
    medians = np.array([row["median"] for row in rows])
    ends = [[row["median"] - row["low"], row["high"] - row["median"]] for row in rows]
    points = look(name) | {"linestyle": ""}
    axes.errorbar(medians, places, xerr=np.transpose(ends), label=name, **points)


def curves(rows: Rows) -> Figure:
    """Draw the time of a step against each size, on logarithmic axes."""
    timed = [row for row in rows if row["part"] == "curves" and row["unit"] == "s"]
    sizes = list(dict.fromkeys(row["curve"] for row in timed))
    made = plots.figure(3.4 * len(sizes) + 0.6, 3.9)
    made.suptitle("Time of a training step against its sizes")
    panels = made.subplots(1, len(sizes), squeeze=False)[0]
    for size, axes in zip(sizes, panels, strict=True):
        for name in NAMES:
            own = [row for row in timed if (row["curve"], row["of"]) == (size, name)]
            if own:
                values = [row[size] for row in own]
                axes.plot(values, [1e3 * row["median"] for row in own], label=name, **look(name))
        values = sorted({row[size] for row in timed if row["curve"] == size})
        plots.tidy(axes, xlabel=size, xscale="log", yscale="log")
        axes.set_xticks(values, [str(value) for value in values])
        axes.minorticks_off()
    panels[0].set_ylabel("milliseconds")
    plots.legend_below(made, panels[0], 3)
    return made


def memory(rows: Rows) -> Figure:
    """Draw the peak memory of a step, setting by setting."""
    chosen = [row for row in rows if row["unit"] == "MiB"]
    settings = list(dict.fromkeys(row["setting"] for row in chosen))
    names = [name for name in NAMES if any(row["of"] == name for row in chosen)]
    made = plots.figure(8.6, 0.7 * len(settings) + 1.8)
    axes = made.subplots()
    height = 0.8 / len(names)
    for number, name in enumerate(names):
        own = [row for row in chosen if row["of"] == name]
        places = [settings.index(row["setting"]) + (number + 0.5) * height - 0.4 for row in own]
        colour = look(name)["color"]
        medians = [row["median"] for row in own]
        bars = axes.barh(places, medians, 0.9 * height, color=colour, label=name)
        axes.bar_label(bars, fmt="%.0f", padding=3, fontsize=8)
    axes.set_yticks(range(len(settings)), settings)
    axes.set_ylim(len(settings) - 0.5, -0.5)
    axes.set_axisbelow(True)
    plots.tidy(axes, title="Peak memory of a training step", xlabel="MiB above the level before it")
    plots.legend_below(made, axes, len(names))
    return made

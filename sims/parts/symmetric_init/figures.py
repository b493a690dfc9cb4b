"""The figures of `symmetric_init.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from parts.symmetric_init.training import MASKS, STARTS, Results, net_speed_up

from minattn import plots
from minattn.arrays import Array
from minattn.experiment import ResultFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(results: Results, folder: ResultFolder) -> None:
    """Write every figure."""
    plots.save(overview(results), folder.figure("overview"))
    plots.save(speed_ups(results), folder.figure("speed_up"))


def columns(results: Results) -> Iterator[tuple[int, str, str, dict[str, dict[str, Array]]]]:
    """Yield number, source, mask and the runs by start, of each column of panels."""
    sources = dict.fromkeys(source for source, *_ in results)
    for number, (source, mask) in enumerate((s, m) for s in sources for m in MASKS):
        runs = {start: r for (*other, start), r in results.items() if other == [source, mask]}
        yield number, source, mask, runs


def overview(results: Results) -> Figure:
    """Draw loss, loss above the plain run's, and symmetry over training."""
    shown = list(columns(results))
    made = plots.figure(3.4 * len(shown) + 0.6, 8.6)
    made.suptitle(
        "Masked training from plain and symmetric starts\nmean over replicas with its 95% interval"
    )
    panels = made.subplots(3, len(shown), sharex=True, squeeze=False)
    for column, source, mask, runs in shown:
        steps, plain = runs["random"]["steps"], runs["random"]["loss"]
        for number, (start, result) in enumerate(runs.items()):
            values = (result["loss"], result["loss"] - plain, result["symmetry"].mean(axis=1))
            for axes, value in zip(panels[:, column], values, strict=True):
                plots.curve(axes, steps, value, STARTS[start].title, number)
        panels[1, column].axhline(0, color="0.6", linewidth=0.8)
        panels[2, column].axhline(0, color="0.6", linewidth=0.8)
        panels[2, column].set_ylim(-0.3, 1.05)
        for row, axes in enumerate(panels[:, column]):
            plots.tidy(axes, title=f"{source}, {mask} mask" if row == 0 else "")
        panels[-1, column].set_xlabel("step")
    labels = ("held-out loss\n(nats)", "loss - loss of plain\n(nats)", "symmetry of W_qk")
    for axes, label in zip(panels[:, 0], labels, strict=True):
        axes.set_ylabel(label)
    plots.legend_below(made, panels[0, 0], 3)
    return made


def speed_ups(results: Results) -> Figure:
    """Draw the net speed-up over plain of each start, a dot a replica."""
    shown = list(columns(results))
    made = plots.figure(2.6 * len(shown) + 2.4, 3.6)
    made.suptitle("Net speed-up over the plain start: mean, 95% interval, replicas")
    panels = made.subplots(1, len(shown), sharex=True, sharey=True, squeeze=False)[0]
    titles = [start.title for start in STARTS.values()]  # all, so that each keeps its colour
    for (_, source, mask, runs), axes in zip(shown, panels, strict=True):
        values = {
            STARTS[start].title: net_speed_up(result, runs["random"])
            for start, result in runs.items()
            if start != "random"
        }
        plots.intervals(axes, titles, values)
        plots.tidy(axes, title=f"{source}, {mask} mask", xlabel="net speed-up")
    return made

"""The film of `bidirectional_vs_causal.py`: W_qk and its scores while the arms are trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minattn import plots
from minattn.arrays import Array, Params
from minattn.comparison import ARMS, Run
from minattn.intervals import mean_interval
from minattn.model import Tape
from minattn.params import W_qk

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

SCORES = {
    "symmetry": "symmetry of W_qk",
    "dispersion": "dispersion of W_qk",
    "excess": "loss above the best (nats)",
}
Moving = list[tuple[Any, ...]]  # what changes from frame to frame, with what it shows
PER_SECOND, LAST_SECONDS, DPI = 8, 3, 90


@dataclass
class Camera:
    """Observer that keeps W_qk of the first replica's first layer, and records nothing."""

    frames: list[Array] = field(default_factory=list)

    def __call__(self, step: int, params: Params, grads: Params, tape: Tape) -> dict[str, Any]:
        """Take a frame."""
        self.frames.append(W_qk(params)[0])
        return {}


def shoot(runs: Sequence[Run], frames: Sequence[Sequence[Array]], path: Path) -> None:
    """Write the film as GIF.

    Parameters
    ----------
    runs : sequence of Run
        The arms of one source.
    frames : sequence of sequences of Array, each (d, d)
        W_qk at each record of each run.
    path : Path
    """
    from matplotlib.animation import PillowWriter

    made, show = scene(runs, frames)
    writer = PillowWriter(fps=PER_SECOND)
    with writer.saving(made, str(path), DPI):
        for number in range(len(frames[0])):
            show(number)
            writer.grab_frame()
        for _ in range(PER_SECOND * LAST_SECONDS):  # before it begins again
            writer.grab_frame()


def scene(runs: Sequence[Run], frames: Sequence[Sequence[Array]]) -> tuple[Figure, Any]:
    """Return the figure of the film, and a function that shows the record of a number."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    made = plots.figure(9.0, 6.6)
    FigureCanvasAgg(made)
    above, below = made.subfigures(2, 1, height_ratios=(1.35, 1))
    images, moving = _matrices(above, runs, frames), _curves(below, runs)

    def show(number: int) -> None:
        steps = runs[0].history.steps
        task = runs[0].task.title
        what = "W_qk of the first replica, and scores in the mean over replicas"
        made.suptitle(f"{task}: step {steps[number]} of {steps[-1]}\n{what}")
        for image, filmed in images:
            image.set_data(filmed[number])
        for line, dot, at, values in moving:
            line.set_data(at[: number + 1], values[: number + 1])
            dot.set_data(at[number : number + 1], values[number : number + 1])

    show(0)
    for _ in range(2):  # until the layout has settled: it must not move while the film runs
        made.draw_without_rendering()
    made.set_layout_engine("none")
    return made, show


def _matrices(above: SubFigure, runs: Sequence[Run], frames: Sequence[Sequence[Array]]) -> Moving:
    """Draw the first W_qk of each run; return each image with all that it is to show."""
    images = []
    above.suptitle(" ")  # room for what the whole film says of each step
    panels = above.subplots(1, len(runs), squeeze=False)[0]
    for run, filmed, axes in zip(runs, frames, panels, strict=True):
        limit = float(np.quantile(abs(filmed[-1]), 0.98)) or 1.0  # arms differ in it
        image = axes.imshow(
            filmed[0], cmap=plots.DIVERGING, vmin=-limit, vmax=limit, interpolation="nearest"
        )
        bar = above.colorbar(image, ax=axes, location="bottom", shrink=0.8, extend="both")
        bar.set_ticks([-limit, 0, limit], labels=[f"{-limit:.1f}", "0", f"{limit:.1f}"])
        axes.set(title=ARMS[run.arm].title, xlabel="column (key side)")
        images.append((image, filmed))
    above.axes[0].set_ylabel("row (query side)")
    return images


def _curves(below: SubFigure, runs: Sequence[Run]) -> Moving:
    """Draw the curves of the scores; return each line and dot with the points that they reach."""
    known = all(run.optimum is not None for run in runs)
    shown = {name: label for name, label in SCORES.items() if name != "excess" or known}
    moving = []
    panels = below.subplots(1, len(shown), squeeze=False)[0]
    for (name, label), axes in zip(shown.items(), panels, strict=True):
        for run in runs:
            number = list(ARMS).index(run.arm)
            values = mean_interval((run.excess if name == "excess" else run.metric(name)).T).mean
            colour, style = plots.COLOURS[number], plots.LINES[number]
            axes.plot(run.history.steps, values, color=colour, alpha=0.2, linewidth=1)
            (line,) = axes.plot([], [], style, color=colour, label=ARMS[run.arm].title)
            (dot,) = axes.plot([], [], plots.MARKERS[number], color=colour, markersize=5)
            moving.append((line, dot, run.history.steps, values))
        axes.axhline(0, color="0.6", linewidth=0.8)
        plots.tidy(axes, title=label, xlabel="step")
    plots.legend_below(below, below.axes[0], len(runs))
    return moving

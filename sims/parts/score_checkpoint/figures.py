"""The figure of `score_checkpoint.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from minattn import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOWERS = ("encoder", "decoder", "cross")
LABELS = {
    "symmetry": "symmetry",
    "directionality": "directionality\n< 0: columns dominate",
    "directionality_published": "directionality\n(published variant)",
    "dispersion": "dispersion (log ratio)\n> 0: columns more spread",
}
FEW_LAYERS = 2  # what a panel of any model has room for


def against_depth(models: list[Any], form: str) -> Figure:
    """Draw every score (rows) of every model (columns) against depth."""
    sizes = [max(FEW_LAYERS, *(row.layer for row in model.rows)) + 1 for model in models]
    widths = [float(np.clip(0.5 * np.sqrt(size), 1.0, 2.5)) for size in sizes]
    shown = [tower for tower in TOWERS if any(tower in model.towers for model in models)]
    made = plots.figure(2.2 * sum(widths) + 1.4, 2.5 * len(LABELS) + 1.2)
    made.suptitle(f"{form} against depth\ngrey: random factors of the same shape; dots: heads")
    panels = made.subplots(
        len(LABELS), len(models), squeeze=False, sharex="col", sharey="row", width_ratios=widths
    )
    for line, (score, label) in zip(panels, LABELS.items(), strict=True):
        for axes, model in zip(line, models, strict=True):
            axes.axhline(0, color="0.6", linewidth=0.8)
            for tower in shown:
                _draw(axes, model, tower, score)
            plots.tidy(axes, title=model.name if score == "symmetry" else "")
        line[0].set_ylabel(label)
    for axes in panels[-1]:
        axes.set_xlabel("layer")
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    plots.legend_below(made, panels[0, 0], len(shown))
    return made


def _draw(axes: Any, model: Any, tower: str, score: str) -> None:
    """Draw a tower's layers; of one that the model lacks, only its label."""
    rows = model.towers.get(tower, [])
    number = TOWERS.index(tower)
    label = "cross-attention" if tower == "cross" else tower
    if not rows:
        axes.plot([], [], plots.LINES[number], marker=plots.MARKERS[number], markersize=4,
                  color=plots.COLOURS[number], label=label)  # fmt: skip
        return
    # Heads of a model differ in number only between towers.
    heads = np.array([getattr(row.per_head, score) for row in rows])
    plots.against_depth(
        axes,
        np.array([row.layer for row in rows], dtype=float),
        np.array([getattr(row.scores, score) for row in rows]),
        tuple(np.array([getattr(end, score) for end in ends])
              for ends in zip(*(row.band for row in rows), strict=True)),
        label,
        number,
        heads if score == "symmetry" else None,
    )  # fmt: skip

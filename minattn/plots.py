"""Figures: curves with bands, matrices with their margins, coefficients of one sequence.

Figures are made without a display. Colours are told apart by colour-blind readers (Okabe and Ito)
and by line style in grey.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minattn import checks
from minattn.arrays import Array
from minattn.intervals import mean_interval
from minattn.objectives import MASKED
from minattn.saving import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
LINES = ("-", "--", ":", "-.", "-", "--")
MARKERS = ("o", "s", "^", "D", "v", "P")
DIVERGING = "RdBu_r"
COLUMN, SMALLEST = 6.5, 6.0  # width in inches of a printed column, points of its smallest text
MOST_TOKENS = 18  # that can be read along one of three axes in a column


def figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, laid out so that nothing overlaps."""
    from matplotlib.figure import Figure

    size = checks.positive("width", width), checks.positive("height", height)
    return Figure(figsize=size, layout="constrained")


def save(made: Figure, path: str | Path) -> None:
    """Write a figure in the format of the path's ending, PNG or PDF.

    Text that would be smaller than `SMALLEST` points where the figure is printed `COLUMN` inches
    wide is enlarged. A file that is there is replaced as a whole.

    Raises
    ------
    OSError
        If the folder cannot be written; an existing file is then as before.
    """
    import matplotlib

    path, drawn = checks.path("path", path), io.BytesIO()
    form = checks.one_of("path", path.suffix, (".png", ".pdf"))[1:]
    _enlarge(made, SMALLEST * max(1.0, made.get_figwidth() / COLUMN))
    dated = {"CreationDate": None} if form == "pdf" else {}  # equal runs, equal files
    with matplotlib.rc_context({"pdf.fonttype": 42}):  # text stays text
        made.savefig(drawn, dpi=150, metadata=dated, format=form)
    write_bytes(path, drawn.getvalue())


def _enlarge(made: Figure, least: float) -> None:
    """Make no text smaller than so many points."""
    from matplotlib.text import Text

    for axes in made.axes:
        for axis in (axes.xaxis, axes.yaxis):
            size = axis.get_tick_params().get("labelsize", "medium")  # a number or a name
            axis.set_tick_params(labelsize=max(_points(Text(size=size)), least))
    for text in made.findobj(Text):
        if _points(text) < least:
            text.set_fontsize(least)


def _points(text: Any) -> float:
    return float(text.get_fontsize())


def curve(
    axes: Axes, steps: Array, values: Array, label: str, number: int, marker: str = ""
) -> None:
    """Draw the mean over replicas of values (records, R), with its 95% interval as a band.

    Records in which a replica has no finite value are left out. A `marker` shows where they are.
    """
    steps, values = _numbers("steps", steps, 1), _numbers("values", values, 2)
    if len(steps) != len(values):
        checks.fail("values", f"{len(values)} records", f"{len(steps)}, as steps have")
    known = np.isfinite(values).all(axis=1)
    if not known.any():
        return
    estimate = mean_interval(values[known].T)
    colour, style = COLOURS[number % len(COLOURS)], LINES[number % len(LINES)]
    shown: dict[str, Any] = {"color": colour, "linewidth": 1.6, "marker": marker, "markersize": 4}
    axes.plot(steps[known], estimate.mean, style, label=label, **shown)
    axes.fill_between(
        steps[known], estimate.low, estimate.high, color=colour, alpha=0.18, linewidth=0
    )


def matrices(panels: Sequence[tuple[str, Array]], title: str) -> Figure:
    """Draw matrices (d, d) side by side on one colour scale, row and column norms in the margins.

    Parameters
    ----------
    panels : list of (title, matrix)
    title : str
        Of the whole figure.
    """
    panels = [(name, _finite("panels", M)) for name, M in _some(panels)]
    made = figure(3.1 * len(panels) + 0.6, 4.6)  # so that cells are about square
    made.suptitle(title)
    limit = max(float(abs(M).max()) for _, M in panels) or 1.0
    longest = max(float(np.linalg.norm(M, axis=a).max()) for _, M in panels for a in (0, 1)) or 1.0
    widths = [5.0, 1.2] * len(panels)
    grid = made.add_gridspec(2, 2 * len(panels), height_ratios=(1.2, 5), width_ratios=widths)
    maps = []
    for number, (name, M) in enumerate(panels):
        main = made.add_subplot(grid[1, 2 * number])
        above = made.add_subplot(grid[0, 2 * number], sharex=main)
        beside = made.add_subplot(grid[1, 2 * number + 1], sharey=main)
        image = main.imshow(
            M, cmap=DIVERGING, vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest"
        )
        maps.append(main)
        index = np.arange(len(M))
        above.bar(index, np.linalg.norm(M, axis=0), color=COLOURS[0], width=0.9)
        beside.barh(index, np.linalg.norm(M, axis=1), color=COLOURS[1], height=0.9)
        above.set(title=name, ylim=(0, 1.05 * longest))
        beside.set(xlim=(0, 1.05 * longest))
        main.set(xlabel="column (key side)", ylabel="row (query side)" if number == 0 else "")
        above.tick_params(labelbottom=False)
        beside.tick_params(labelleft=False)
        if number == 0:
            above.set_ylabel("norm")
        else:
            above.tick_params(labelleft=False)
        beside.set_xlabel("norm")
    made.colorbar(
        image, ax=maps, location="bottom", shrink=0.5, aspect=40, label="entry, one scale for all"
    )
    return made


def coefficients(panels: Sequence[tuple[str, Array, Sequence[str]]], title: str) -> Figure:
    """Draw beta (N, N) of one sequence under several models, with its tokens on both axes.

    Each panel has its own scale: coefficients of different objectives differ in size. Of a long
    sequence every second or third token is written, as there is room for, and every masked one.

    Parameters
    ----------
    panels : list of (title, beta, token names)
    title : str
    """
    panels = [(name, _finite("panels", beta), tokens) for name, beta, tokens in _some(panels)]
    for _, beta, tokens in panels:
        if beta.shape != (len(tokens), len(tokens)):
            checks.fail("panels", f"{len(tokens)} tokens for {beta.shape}", "one a row and column")
    made = figure(4.1 * len(panels) + 0.4, 5.0)
    made.suptitle(title)
    for number, (name, beta, tokens) in enumerate(panels):
        axes = made.add_subplot(1, len(panels), number + 1)
        limit = float(abs(beta).max()) or 1.0
        image = axes.imshow(beta, cmap=DIVERGING, vmin=-limit, vmax=limit, interpolation="nearest")
        ticks = _written(tokens)
        tokens = [tokens[place] for place in ticks]
        upright = 90 if max(map(len, tokens)) > 1 else 0  # long labels would run together
        axes.set_xticks(ticks, tokens, rotation=upright)
        axes.set_yticks(ticks, tokens)
        axes.tick_params(length=0)
        axes.set(title=name, xlabel="key j", ylabel="query i" if number == 0 else "")
        bar = made.colorbar(image, ax=axes, location="bottom", shrink=0.8, label="beta_ij")
        bar.set_ticks([-limit, 0, limit], labels=[f"{-limit:.1e}", "0", f"{limit:.1e}"])
    return made


def _written(tokens: Sequence[str]) -> list[int]:
    """Return the places of all masked tokens, and of others with room between them."""
    step = 1 + len(tokens) // MOST_TOKENS
    written = [place for place, token in enumerate(tokens) if token == MASKED]
    for place in range(len(tokens)):
        if all(abs(place - other) >= step for other in written):
            written.append(place)
    return sorted(written)


def intervals(axes: Axes, names: Sequence[str], values: dict[str, Array]) -> None:
    """Draw, a line a name from the top, the mean of values[name] (R,) with its 95% interval.

    Replicas are small dots. Names without values keep their line free, so that panels can share
    the axis.
    """
    axes.axvline(0, color="0.6", linewidth=0.8)
    for number, name in enumerate(names):
        if name in values:
            colour = COLOURS[number % len(COLOURS)]
            found = mean_interval(values[name])
            axes.plot(values[name], np.full(found.n, number), "o", color=colour, alpha=0.3, ms=3)
            ends = [[found.mean - found.low], [found.high - found.mean]]
            axes.errorbar(found.mean, number, xerr=ends, fmt="s", color=colour, capsize=3, ms=5)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


def legend_below(made: Figure | SubFigure, axes: Axes, columns: int) -> None:
    """Put one legend for all panels below them."""
    handles, labels = axes.get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def tidy(axes: Axes, **settings: Any) -> None:
    """Set titles and labels, and draw a light grid behind the data."""
    axes.set(**settings)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def against_depth(
    axes: Axes,
    depth: Array,
    values: Array,
    band: tuple[Array, Array],
    label: str,
    number: int,
    parts: Array | None = None,
) -> None:
    """Draw one value a layer, with the band of random layers behind it.

    Infinite values are left out.

    Parameters
    ----------
    axes : Axes
    depth : Array, shape (L,)
    values : Array, shape (L,)
    band : (low, high), each of shape (L,)
    label : str
    number : int
        Which colour, line style and marker.
    parts : Array, shape (L, H), optional
        Values of a layer's parts, as small dots.
    """
    depth, values = _numbers("depth", depth, 1), _numbers("values", values, 1)
    if len(depth) != len(values):
        checks.fail("values", f"{len(values)} layers", f"{len(depth)}, as depth has")
    colour, style = COLOURS[number % len(COLOURS)], LINES[number % len(LINES)]
    edges = np.concatenate([depth[:1] - 0.5, depth[1:] - 0.5, depth[-1:] + 0.5])
    for low, high, left, right in zip(*band, edges, edges[1:], strict=False):
        axes.fill_between([left, right], low, high, color="0.85", linewidth=0, zorder=0)
    if parts is not None:
        where = np.repeat(depth, parts.shape[1])
        axes.plot(where, parts.ravel(), ".", color=colour, alpha=0.25, markersize=3, zorder=1)
    shown = np.where(np.isfinite(values), values, np.nan)
    marker = MARKERS[number % len(MARKERS)]
    axes.plot(
        depth, shown, style, marker=marker, color=colour, label=label, markersize=4, linewidth=1.3
    )


def _numbers(name: str, value: Any, axes: int) -> Array:
    """Return an array of real numbers with so many axes, none of them empty, or fail."""
    found = checks.array(name, value)
    if found.ndim != axes or found.size == 0:
        checks.fail(name, f"the shape {found.shape}", f"{axes} axes, none of them 0")
    return found


def _finite(name: str, value: Any) -> Array:
    found = _numbers(name, value, 2)
    if not np.isfinite(found).all():
        checks.fail(name, "NaN or infinity", "finite entries: there is no colour for others")
    return found


def _some(panels: Any) -> Sequence[Any]:
    if not isinstance(panels, Sequence) or not panels or isinstance(panels, str):
        checks.fail("panels", repr(panels), "a list of at least one")
    return panels

"""What `score_checkpoint.py` prints, and what it writes as numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from parts.score_checkpoint.figures import LABELS
from parts.score_checkpoint.scoring import Model, Row, form

from minattn.scores import Scores

HEADER = ("tower", "layer", "symmetry", "directionality", "same, published", "dispersion")


def report(models: list[Model]) -> None:
    """Print a table per layer for each model, then the summary."""
    for model in models:
        print(f"\n{model.name} ({model.family}): {form(model.rows)}, summed over heads\n")
        print(line(HEADER))
        for tower, rows in model.towers.items():
            for row in rows:
                numbers = (f"{value:.3f}{mark}" for value, mark in zip(*marked(row), strict=True))
                print(line((tower, str(row.layer), *numbers)))
            ends = (f"{a:.3f} to {b:.3f}" for a, b in zip(*rows[0].band, strict=True))
            print(line(("", "random", *ends)))
            d, heads, key_heads, width = rows[0].shape
            used = f"; each layer used {rows[0].uses} times" if rows[0].uses > 1 else ""
            print(f"{tower}: d {d}, {heads} query and {key_heads} key heads of {width}{used}\n")
    print("* outside the range of random factors of the same shape\n")
    print(f"{'':40}  {'median':>8}  {'quartiles':>17}  layers outside that range")
    for model in models:
        print(f"{model.name} ({model.family})")
        for tower, rows in model.towers.items():
            for score in LABELS:
                cell = summarise(rows, score)
                quartiles = f"{cell['low']:.3f} to {cell['high']:.3f}"
                name = score.replace("_", ", ")
                start = f"  {tower:10}{name:28}  {cell['median']:8.3f}  {quartiles:>17}"
                print(f"{start}  {cell['outside']} of {len(rows)}")
    print()


def line(cells: tuple[str, ...]) -> str:
    """Lay out two names and four numbers in columns."""
    widths = (8, 7, 17, 17, 17, 17)
    return " ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def marked(row: Row) -> tuple[Scores, list[str]]:
    """Return the scores of a layer, and a * for each outside its null band."""
    ends = zip(row.scores, row.band.low, row.band.high, strict=True)
    return row.scores, ["" if low <= value <= high else "*" for value, low, high in ends]


def summarise(rows: list[Row], score: str) -> dict[str, Any]:
    """Return median and quartiles of a score over layers, and how many lie outside the band."""
    values = np.array([getattr(row.scores, score) for row in rows])
    # Between infinite values nothing can be interpolated.
    method = "linear" if np.isfinite(values).all() else "lower"
    low, median, high = np.percentile(values, (25, 50, 75), method=method)
    place = Scores._fields.index(score)
    outside = sum(marked(row)[1][place] == "*" for row in rows)
    return {"median": median, "low": low, "high": high, "outside": outside}


def describe(model: Model) -> dict[str, Any]:
    """Return a model's entry in summary.json."""
    towers = {}
    for tower, rows in model.towers.items():
        d, heads, key_heads, width = rows[0].shape
        towers[tower] = {
            "width": d,
            "heads": heads,
            "key_heads": key_heads,
            "head_width": width,
            "layers": len(rows),
            "uses": rows[0].uses,
            "scores": {score: summarise(rows, score) for score in LABELS},
            "null_band": {score: [getattr(end, score) for end in rows[0].band] for score in LABELS},
            "by_layer": {score: [getattr(row.scores, score) for row in rows] for score in LABELS},
        }
    return {"name": model.name, "family": model.family, "towers": towers}


def csv_rows(models: list[Model]) -> Iterator[tuple[Any, ...]]:
    """Yield scores.csv; the head is empty for the sum over heads."""
    for model in models:
        for row in model.rows:
            start = (model.name, model.family, row.tower, row.layer, row.uses)
            what = form([row])
            for score in LABELS:
                ends = (float(getattr(end, score)) for end in row.band)
                yield *start, "", what, score, float(getattr(row.scores, score)), *ends
                for head, value in enumerate(getattr(row.per_head, score)):
                    ends = (float(getattr(end, score)) for end in row.head_band)
                    yield *start, head, what, score, float(value), *ends

"""How time grows with each size, and from which size on the compiled engine is worth it."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
from parts.benchmark.contestants import ENGINES, admit
from parts.benchmark.results import Found, noise, row, timed
from parts.benchmark.settings import Setting
from parts.benchmark.timing import FEW, claim, quartiles, take_turns

from minattn.arrays import Array

BASE = Setting(width=64, length=64, batch=8, vocabulary=64, layers=2, heads=4)
DRAWN = (*ENGINES, "torch eager")
UPPER_END = 3  # points that the slope is fitted to


class Curve(NamedTuple):
    """One size of `BASE` varied; `limit` is of the slope at the upper end, log against log."""

    size: str
    values: tuple[int, ...]
    limit: float | None  # None: it is drawn and not judged


CURVES = (
    Curve("length", (16, 32, 64, 128, 256, 512), 2.0),
    Curve("batch", (4, 8, 16, 32, 64, 128), 1.1),
    Curve("width", (16, 32, 64, 128, 256), None),
    # Without a norm, float32 gradients of 16 layers are off by 1e-3, whoever computes them.
    Curve("layers", (1, 2, 4, 8), 1.1),
    Curve("replicas", (1, 2, 4, 8, 16), 1.1),
)


def curves(quick: bool) -> list[Curve]:
    """Return the curves; a quick run has one, of its first points."""
    return [CURVES[1]._replace(values=CURVES[1].values[:UPPER_END])] if quick else list(CURVES)


def measure(curve: Curve, options: Namespace) -> Found:
    """Time the points of one curve, and judge the slope of the compiled engine's."""
    found, points = Found(), []
    makers = {name: options.makers[name] for name in DRAWN if name in options.makers}
    for value in curve.values:
        setting = replace(BASE, **{curve.size: value})
        contestants, left_out = admit(makers, setting, options.seed)
        times = take_turns(contestants, min(options.rounds, FEW))
        points.append(times)
        rows = timed("curves", times, setting, curve=curve.size)
        found.add(Found(rows, lines=noise(times), left_out=left_out))
    for name in points[-1].seconds:
        slopes = upper_slopes(curve.values, [times.seconds[name] for times in points])
        found.rows.append(row("curves", name, slopes, "slope", curve=curve.size))
        told = f"{name} {quartiles(slopes).median:.2f}"
        found.lines.append(f"slope of time against {curve.size}, upper end: {told}")
        if name == "numba" and curve.limit is not None:
            text = f"slope of time against {curve.size}, upper end"
            calm = all(times.calm for times in points)
            found.claims.append(claim(text, slopes, curve.limit, calm))
    return found


def upper_slopes(values: tuple[int, ...], seconds: list[Array]) -> Array:
    """Return the least-squares slopes of log time against log size, one a round."""
    rounds = min(map(len, seconds))
    logs = np.log([times[:rounds] for times in seconds[-UPPER_END:]])
    return np.polyfit(np.log(values[-UPPER_END:]), logs, 1)[0]


def crossings(quick: bool) -> list[Setting]:
    """Return small models between which the faster engine changes."""
    plain = {"vocabulary": 16, "layers": 1, "heads": 1, "dtype": "float64"}
    made = [
        Setting(width=d, length=d, batch=B, replicas=R, **plain)
        for d, B, R in product((4, 8, 16, 32), (1, 8), (1, 16))
    ]
    return made[:2] if quick else made


def measure_crossing(setting: Setting, options: Namespace) -> Found:
    """Time the two engines on a small model."""
    contestants, _ = admit({name: options.makers[name] for name in ENGINES}, setting, options.seed)
    times = take_turns(contestants, min(options.rounds, FEW))
    ratio = times.seconds["numba"] / times.seconds["numpy"]
    rows = timed("crossover", times, setting)
    rows.append(row("crossover", "numba over numpy", ratio, "1", setting))
    told = "{:.2f} ({:.2f} to {:.2f})".format(*quartiles(ratio))
    return Found(rows, lines=[f"{setting}: numba over numpy {told}", *noise(times)])

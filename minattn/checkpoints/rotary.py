"""Rotary positions: which components of a query turn, and by how much a position."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from minattn import checks
from minattn.arrays import Array


@dataclass(frozen=True, eq=False)
class Rotary:
    """Angles by which pairs of a head's components turn from one position to the next.

    With n = 2 len(frequencies) rotated components, pair p is (p, p + n/2), or (2p, 2p + 1) where
    `interleaved`; components from n on stay. `problem` says why there are no frequencies.
    """

    frequencies: Array  # (n / 2,), radians a position
    interleaved: bool = False
    problem: str = ""


def rotate(heads: Array, rotary: Rotary, offset: int) -> Array:
    """Turn the last axis (..., h) of queries by `offset` positions.

    Raises
    ------
    ValueError
        If the frequencies are not known, or cover more than h components.
    """
    if rotary.problem:
        checks.fail("rotary offset", rotary.problem, "rotary positions whose angles are known")
    half = len(rotary.frequencies)
    if 2 * half > heads.shape[-1]:
        got = f"{2 * half} rotated components of a head of {heads.shape[-1]}"
        checks.fail("rotary", got, "at most the head's width")
    first, second = slice(0, half), slice(half, 2 * half)
    if rotary.interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    angles = offset * rotary.frequencies
    cos, sin = (f(angles).astype(heads.dtype) for f in (np.cos, np.sin))
    turned = heads.copy()
    turned[..., first] = heads[..., first] * cos - heads[..., second] * sin
    turned[..., second] = heads[..., second] * cos + heads[..., first] * sin
    return turned


def make(width: int, base: float, scaling: dict[str, Any], interleaved: bool) -> Rotary:
    """Return the angles base^(-2p / width), p = 0 .. width / 2 - 1, rescaled as the model does.

    Parameters
    ----------
    width : int
        Rotated components n, even.
    base : float
    scaling : dict
        As in config.json's `rope_scaling` or `rope_parameters`: "default", "linear" and "llama3"
        are known; of others, whose angles depend on more than the weights, only a `problem`.
    interleaved : bool
    """
    nothing = np.empty(0)
    if width < 2 or width % 2 or not base > 0:
        problem = f"{width} rotated components and base {base:g}"
        return Rotary(nothing, interleaved, problem)
    frequencies = float(base) ** (-np.arange(0, width, 2) / width)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    try:
        if kind == "linear":
            frequencies = frequencies / float(scaling["factor"])
        elif kind == "llama3":
            frequencies = _llama3(frequencies, scaling)
        elif kind not in ("default", None):
            return Rotary(nothing, interleaved, f"rotary scaling {kind!r:.40}")
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        return Rotary(nothing, interleaved, f"rotary scaling {kind!r:.40} ({error!r:.80})")
    return Rotary(frequencies, interleaved)


def _llama3(frequencies: Array, scaling: dict[str, Any]) -> Array:
    """Slow the angles whose wave is long against the length of the first training."""
    factor, length = float(scaling["factor"]), scaling["original_max_position_embeddings"]
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = float(length) * frequencies / (2.0 * math.pi)  # over that length
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return kept * frequencies + (1.0 - kept) * frequencies / factor

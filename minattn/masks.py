"""Which keys a query may attend to: C_i of the theory, as a boolean array."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from minattn import checks
from minattn.arrays import Array

NAMES = ("causal", "strictly_causal", "bidirectional")

Mask: TypeAlias = str | Array


def allowed_pairs(mask: Mask, length: int) -> Array:
    """Return the (N, N) boolean array whose entry (i, j) says that query i may see key j.

    Parameters
    ----------
    mask : {"causal", "strictly_causal", "bidirectional"} or (N, N) bool array
        Key j <= query i; j < i; every pair; or the array itself.
    length : int
        N, the number of positions.

    Raises
    ------
    ValueError
        If the name is unknown, or the array is not boolean or not (N, N).
    """
    length = checks.integer("length", length, minimum=1)
    mask = check_mask(mask)
    if isinstance(mask, str):
        return _named(mask, length)
    if len(mask) != length:
        checks.fail("mask", f"the shape {mask.shape}", f"shape {(length, length)}, as tokens have")
    array = np.array(mask, order="C")
    array.setflags(write=False)
    return array


def check_mask(mask: Mask) -> Mask:
    """Return a mask that may be one of some length, or fail.

    Raises
    ------
    ValueError
        If the name is unknown, or the array is not boolean or not square.
    """
    if isinstance(mask, str):
        return checks.one_of("mask", mask, NAMES)
    needs = f"one of {NAMES} or a boolean array of shape (N, N)"
    array = checks.array("mask", mask, "b", needs)
    if array.ndim != 2 or len(array) != array.shape[1] or array.size == 0:
        checks.fail("mask", f"the shape {array.shape}", needs)
    return array


def same_mask(mask: Mask, other: Mask) -> bool:
    """Whether two masks are the same name or equal arrays."""
    return np.array_equal(mask, other)


@lru_cache(maxsize=64)
def _named(name: str, length: int) -> Array:
    pairs: Array = np.ones((length, length), dtype=bool)
    if name == "causal":
        pairs = np.tril(pairs)
    elif name == "strictly_causal":
        pairs = np.tril(pairs, k=-1)
    pairs.setflags(write=False)
    return pairs


def describe(mask: Any) -> str:
    """Name a mask in a sentence."""
    return mask if isinstance(mask, str) else "custom"

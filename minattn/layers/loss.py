"""Weighted mean cross-entropy over the positions of positive weight, per replica."""

from __future__ import annotations

import numpy as np

from minattn.arrays import Array
from minattn.engines import Reference


def shares(weights: Array) -> Array:
    """Return weights (R, ..., N) divided by their sum per replica; zeros where the sum is zero."""
    axes = tuple(range(1, weights.ndim))
    largest = weights.max(axis=axes, keepdims=True)
    weights = weights / np.where(largest > 0, largest, 1)  # so that the sum cannot overflow
    total = weights.sum(axis=axes, keepdims=True)
    return weights / np.maximum(total, 1)  # it is 0, or at least the 1 of the largest


def forward(
    engine: Reference, logits: Array, targets: Array, shares: Array, out: Array | None = None
) -> tuple[Array, Array]:
    """Return the loss (R,) and the gradient of the logits, which one pass gives together.

    Logits (R, T, V); targets and shares (R, T).
    """
    return engine.cross_entropy(logits, targets, shares, out=out)

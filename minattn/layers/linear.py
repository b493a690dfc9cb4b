"""A linear map of rows, y = x W + b. Rows x (R, T, d), weights W (R, d, k), bias b (R, k)."""

from __future__ import annotations

from minattn.arrays import Array
from minattn.engines import Reference


def forward(engine: Reference, x: Array, W: Array, b: Array | None = None) -> Array:
    """Return y (R, T, k)."""
    y = engine.matmul(x, W)  # 1
    if b is not None:
        engine.add(y, b[:, None])  # 2
    return y


def backward(engine: Reference, x: Array, W: Array, dy: Array) -> tuple[Array, Array]:
    """Return dx (R, T, d) and dW (R, d, k); a bias has the gradient `bias_gradient`."""
    dW = engine.matmul(x.swapaxes(-2, -1), dy)  # 1
    dx = engine.matmul(dy, W.swapaxes(-2, -1))  # 1
    return dx, dW


def bias_gradient(engine: Reference, dy: Array) -> Array:
    """Return db (R, k), line 2 of `forward`."""
    return engine.row_sums(dy)

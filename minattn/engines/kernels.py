"""The loops of the numba engine, as plain Python functions on C-contiguous arrays.

Each fuses what the reference engine does in several passes over memory. They are compiled in
`numba_cpu.py`; as plain functions they can be read, stepped through and tested.

Shapes: M matrices of N rows and columns, R replicas, T tokens, d or V columns.
"""

from __future__ import annotations

import math

import numpy as np

from minattn.arrays import Array


def row_stops(allowed: Array) -> Array:
    """Return for each row of `allowed` (N, N) the column after the last allowed one."""
    size = allowed.shape[0]
    stops = np.zeros(size, dtype=np.int64)
    for i in range(size):
        for j in range(size):
            if allowed[i, j]:
                stops[i] = j + 1
    return stops


def softmax_rows(scores: Array, allowed: Array, stops: Array, scale: float, out: Array) -> None:
    """Write the softmax of scale * scores over the allowed keys; scores and out (M, N, N)."""
    matrices, size = scores.shape[0], scores.shape[1]
    for m in range(matrices):
        for i in range(size):
            stop = stops[i]
            top = -np.inf
            for j in range(stop):
                if allowed[i, j]:
                    top = max(top, scores[m, i, j] * scale)
            total = 0.0
            for j in range(stop):
                weight = 0.0
                if allowed[i, j]:
                    weight = math.exp(scores[m, i, j] * scale - top)
                out[m, i, j] = weight
                total += weight
            # An empty row has no column before its stop: nothing is divided by its zero total.
            inverse = 1.0 / total if stop else 0.0
            for j in range(stop):
                out[m, i, j] *= inverse
            for j in range(stop, size):
                out[m, i, j] = 0.0


def softmax_rows_backward(
    weights: Array, d_weights: Array, allowed: Array, stops: Array, scale: float, out: Array
) -> None:
    """Write scale A (dA - sum_k A dA), zero where not allowed; A, dA and out (M, N, N)."""
    matrices, size = weights.shape[0], weights.shape[1]
    for m in range(matrices):
        for i in range(size):
            stop = stops[i]
            mean = 0.0
            for j in range(stop):
                if allowed[i, j]:
                    mean += weights[m, i, j] * d_weights[m, i, j]
            for j in range(stop):
                slope = d_weights[m, i, j] - mean if allowed[i, j] else 0.0
                out[m, i, j] = scale * weights[m, i, j] * slope
            for j in range(stop, size):
                out[m, i, j] = 0.0


def scale_rows(scores: Array, allowed: Array, scale: float, out: Array) -> None:
    """Write scale * scores on the allowed pairs and zero elsewhere; scores and out (M, N, N)."""
    matrices, size = scores.shape[0], scores.shape[1]
    for m in range(matrices):
        for i in range(size):
            for j in range(size):
                out[m, i, j] = scores[m, i, j] * scale if allowed[i, j] else 0.0


def cross_entropy_rows(
    logits: Array, targets: Array, weights: Array, losses: Array, out: Array
) -> None:
    """Write each replica's weighted loss (R,) and its gradient; logits and out (R, T, V)."""
    replicas, tokens, symbols = logits.shape
    for r in range(replicas):
        loss = 0.0
        for t in range(tokens):
            weight = weights[r, t]
            if not weight > 0.0:
                for v in range(symbols):
                    out[r, t, v] = 0.0
                continue
            target = targets[r, t]
            chosen = logits[r, t, target]  # read first: out may be logits
            top = logits[r, t, 0]
            for v in range(symbols):
                top = max(top, logits[r, t, v])
            total = 0.0
            for v in range(symbols):
                exponential = math.exp(logits[r, t, v] - top)
                out[r, t, v] = exponential
                total += exponential
            loss += weight * (math.log(total) + top - chosen)
            for v in range(symbols):
                out[r, t, v] *= weight / total
            out[r, t, target] -= weight
        losses[r] = loss


def embedding_gradient_rows(tokens: Array, dx: Array, out: Array) -> None:
    """Add each token's gradient to its row; tokens (R, T), dx (R, T, d), out (R, rows, d)."""
    replicas, length, width = dx.shape
    out[...] = 0.0
    for r in range(replicas):
        for t in range(length):
            row = tokens[r, t]
            for c in range(width):
                out[r, row, c] += dx[r, t, c]


def layer_norm_rows(
    x: Array, gain: Array, shift: Array, epsilon: float, y: Array, normed: Array, inverse: Array
) -> None:
    """Write the layer norm y, the normalised rows and 1/s; x, y, normed (R, T, d)."""
    replicas, tokens, width = x.shape
    for r in range(replicas):
        for t in range(tokens):
            mean = 0.0
            for c in range(width):
                mean += x[r, t, c]
            mean /= width
            variance = 0.0
            for c in range(width):
                variance += (x[r, t, c] - mean) ** 2
            scale = 1.0 / math.sqrt(variance / width + epsilon)
            inverse[r, t] = scale
            for c in range(width):
                normed[r, t, c] = (x[r, t, c] - mean) * scale
                y[r, t, c] = gain[r, c] * normed[r, t, c] + shift[r, c]


def layer_norm_rows_backward(
    dy: Array, gain: Array, normed: Array, inverse: Array, dx: Array, dgain: Array, dshift: Array
) -> None:
    """Write the gradients of x (R, T, d), gain and shift (R, d)."""
    replicas, tokens, width = dy.shape
    dgain[...] = 0.0
    dshift[...] = 0.0
    for r in range(replicas):
        for t in range(tokens):
            mean = 0.0
            along = 0.0
            for c in range(width):
                dn = gain[r, c] * dy[r, t, c]
                mean += dn
                along += dn * normed[r, t, c]
                dgain[r, c] += dy[r, t, c] * normed[r, t, c]
                dshift[r, c] += dy[r, t, c]
            mean /= width
            along /= width
            for c in range(width):
                dn = gain[r, c] * dy[r, t, c]
                dx[r, t, c] = inverse[r, t] * (dn - mean - normed[r, t, c] * along)


def gelu_entries(u: Array, scale: float, cubic: float, y: Array) -> None:
    """Write the GELU of each entry; u and y one-dimensional."""
    for i in range(u.shape[0]):
        a = u[i]
        y[i] = 0.5 * a * (1.0 + math.tanh(scale * (a + cubic * a * a * a)))


def gelu_entries_backward(u: Array, dy: Array, scale: float, cubic: float, du: Array) -> None:
    """Write the gradient of u; u, dy and du one-dimensional."""
    for i in range(u.shape[0]):
        a = u[i]
        tanh = math.tanh(scale * (a + cubic * a * a * a))
        slope = scale * (1.0 + 3.0 * cubic * a * a)
        du[i] = dy[i] * 0.5 * (1.0 + tanh + a * (1.0 - tanh * tanh) * slope)


def adamw_entries(
    value: Array,
    gradient: Array,
    mean: Array,
    square: Array,
    beta1: float,
    beta2: float,
    step_size: float,
    inverse_correction: float,
    epsilon: float,
    shrink: float,
) -> None:
    """Update value, mean and square in place; all arrays one-dimensional."""
    for i in range(value.shape[0]):
        g = gradient[i]
        mean[i] = beta1 * mean[i] + (1.0 - beta1) * g
        square[i] = beta2 * square[i] + (1.0 - beta2) * g * g
        scaled = math.sqrt(square[i] * inverse_correction) + epsilon
        value[i] = shrink * value[i] - step_size * mean[i] / scaled

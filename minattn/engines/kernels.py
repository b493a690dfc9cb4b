"""The loops of the numba engine, as plain Python functions on C-contiguous arrays.

Each fuses what the reference engine does in several passes over memory. They are compiled in
`numba_cpu.py`; as plain functions they can be read, stepped through and tested.

Shapes: M matrices of N rows and columns, R replicas, T tokens, d or V columns.
"""

from __future__ import annotations

import math

import numpy as np
from numba.extending import register_jitable

from minattn.arrays import Array

# Rows go up to a multiple of this, so that vector code has no remainder to go through.
LANES = 16
# For `exponential`: ln 2 in two parts, the first so short that n times it is exact.
LOG2_E = 1.4426950408889634
LN2_HIGH = 0.693145751953125
LN2_LOW = 1.42860682030941723212e-6
ROUND_TO_INTEGER = 1.5 * 2.0**52  # added and taken away again: what is left is an integer


@register_jitable
def exponential(x: float) -> float:
    """Return exp(x) within 1.5 units in the last place, for -708 <= x <= 709; exp(-708) below that.

    x = n ln 2 + r with |r| <= ln(2)/2: exp(r) by its Taylor series to r^13, which leaves 4e-18, and
    2^n by writing n into the exponent's bits. Without a branch or a table, so that loops over it
    become vector code.
    """
    x = max(np.float64(x), -708.0)  # in this order, which keeps NaN
    shifted = x * LOG2_E + ROUND_TO_INTEGER  # n, in the lowest bits
    n = shifted - ROUND_TO_INTEGER
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    series = 1.0 / 6227020800
    series = series * r + 1.0 / 479001600
    series = series * r + 1.0 / 39916800
    series = series * r + 1.0 / 3628800
    series = series * r + 1.0 / 362880
    series = series * r + 1.0 / 40320
    series = series * r + 1.0 / 5040
    series = series * r + 1.0 / 720
    series = series * r + 1.0 / 120
    series = series * r + 1.0 / 24
    series = series * r + 1.0 / 6
    series = series * r + 0.5
    series = series * r + 1.0
    series = series * r + 1.0
    bits = (np.float64(shifted).view(np.int64) + 1023) << 52
    return series * np.int64(bits).view(np.float64)


@register_jitable
def largest(row: Array, stop: int) -> float:
    """Return the largest of row[:stop], or -inf; four side by side, as each waits for its own."""
    a = b = c = d = -np.inf
    for j in range(0, stop - 3, 4):
        a = max(a, row[j])
        b = max(b, row[j + 1])
        c = max(c, row[j + 2])
        d = max(d, row[j + 3])
    for j in range(stop - stop % 4, stop):
        a = max(a, row[j])
    return max(max(a, b), max(c, d))


def row_spans(allowed: Array) -> tuple[Array, Array]:
    """Return for each row of `allowed` (N, N) its first allowed column and the one after its last.

    An empty row starts at N and stops at 0.
    """
    size = len(allowed)
    starts, stops = np.full(size, size), np.zeros(size, dtype=np.int64)
    for i in range(size):
        for j in range(size):
            if allowed[i, j]:
                starts[i] = j
                break
        for j in range(size, 0, -1):
            if allowed[i, j - 1]:
                stops[i] = j
                break
    return starts, stops


def softmax_rows(scores: Array, allowed: Array, stops: Array, scale: float, out: Array) -> None:
    """Write the softmax of scale * scores over the allowed keys; scores and out (M, N, N)."""
    matrices, size, _ = scores.shape
    row = np.empty(size + LANES)
    for m in range(matrices):
        for i in range(size):
            filled = stops[i] + -stops[i] % LANES
            stop = min(filled, size)
            for j in range(stop):
                row[j] = scores[m, i, j] * scale if allowed[i, j] else -np.inf
            for j in range(stop, filled):
                row[j] = -np.inf
            top = largest(row, filled)
            total = 0.0
            for j in range(filled):
                row[j] = exponential(row[j] - top)
                total += row[j]
            # An empty row has no column before its stop: nothing is divided by its zero total.
            inverse = 1.0 / total if stop else 0.0
            for j in range(stop):
                out[m, i, j] = row[j] * inverse if allowed[i, j] else 0.0
            for j in range(stop, size):
                out[m, i, j] = 0.0


def softmax_rows_backward(
    weights: Array, d_weights: Array, allowed: Array, stops: Array, scale: float, out: Array
) -> None:
    """Write scale A (dA - sum_k A dA), zero where not allowed; A, dA and out (M, N, N)."""
    matrices, size, _ = weights.shape
    for m in range(matrices):
        for i in range(size):
            stop = min(stops[i] + -stops[i] % LANES, size)
            mean = 0.0
            for j in range(stop):
                mean += weights[m, i, j] * d_weights[m, i, j] if allowed[i, j] else 0.0
            for j in range(stop):
                slope = d_weights[m, i, j] - mean
                out[m, i, j] = scale * weights[m, i, j] * slope if allowed[i, j] else 0.0
            for j in range(stop, size):
                out[m, i, j] = 0.0


def scale_rows(scores: Array, allowed: Array, scale: float, out: Array) -> None:
    """Write scale * scores on the allowed pairs and zero elsewhere; scores and out (M, N, N)."""
    matrices, size, _ = scores.shape
    for m in range(matrices):
        for i in range(size):
            for j in range(size):
                out[m, i, j] = scores[m, i, j] * scale if allowed[i, j] else 0.0


def mutual_entries(weights: Array, allowed: Array, out: Array) -> None:
    """Write the sums of `Reference.mutual_sums`; weights (R, M, N, N) and out (R, 3)."""
    replicas, matrices, size, _ = weights.shape
    active = np.empty(size, dtype=np.bool_)
    for r in range(replicas):
        product, energy, pairs = 0.0, 0.0, 0
        for m in range(matrices):
            W = weights[r, m]
            for i in range(size):
                active[i] = False
                for j in range(size):
                    if W[i, j] != 0:
                        active[i] = True
                        break
            for i in range(size):
                if active[i]:
                    for j in range(i):
                        if active[j] and allowed[i, j] and allowed[j, i]:
                            product += W[i, j] * W[j, i]
                            energy += W[i, j] * W[i, j] + W[j, i] * W[j, i]
                            pairs += 1
        out[r, 0], out[r, 1], out[r, 2] = 2 * product, energy, 2 * pairs


def cross_entropy_rows(
    logits: Array, targets: Array, weights: Array, losses: Array, out: Array
) -> None:
    """Write each replica's weighted loss (R,) and its gradient; logits and out (R, T, V)."""
    replicas, tokens, symbols = logits.shape
    row = np.empty(symbols)
    for r in range(replicas):
        loss = 0.0
        for t in range(tokens):
            weight = weights[r, t]
            if not weight > 0.0:
                for v in range(symbols):
                    out[r, t, v] = 0.0
                continue
            for v in range(symbols):
                row[v] = logits[r, t, v]
            top = largest(row, symbols)
            chosen = row[targets[r, t]]
            total = 0.0
            for v in range(symbols):
                row[v] = exponential(row[v] - top)
                total += row[v]
            loss += weight * (math.log(total) + top - chosen)
            share = weight / total
            for v in range(symbols):
                out[r, t, v] = row[v] * share
            out[r, t, targets[r, t]] -= weight
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
            if scale == 0.0:  # the variance has overflowed: no zeros, but what a step's check sees
                scale = np.nan
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
    """Write the GELU of each entry; u and y one-dimensional.

    (1 + tanh(z)) / 2 = 1 / (1 + exp(-2 z)), which loses no digits for negative z.
    """
    for i in range(u.shape[0]):
        a = u[i]
        z = scale * (a + cubic * a * a * a)
        y[i] = a / (1.0 + exponential(min(-2.0 * z, 700.0)))


def gelu_entries_backward(u: Array, dy: Array, scale: float, cubic: float, du: Array) -> None:
    """Write the gradient of u; u, dy and du one-dimensional."""
    for i in range(u.shape[0]):
        a = u[i]
        z = scale * (a + cubic * a * a * a)
        gate = 1.0 / (1.0 + exponential(min(-2.0 * z, 700.0)))
        slope = scale * (1.0 + 3.0 * cubic * a * a)
        du[i] = dy[i] * gate * (1.0 + 2.0 * a * (1.0 - gate) * slope)


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

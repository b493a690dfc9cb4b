"""The slow obvious truth: loops over indices, straight from the formulas, sharing no code.

One replica and one sequence at a time. Arrays are containers here: every number is computed by
scalar arithmetic, which also runs on complex numbers.
"""

from __future__ import annotations

import cmath
import math

import numpy as np

GELU_SCALE = math.sqrt(2 / math.pi)


def zeros(*shape, like=()):
    """Zeros of a type that holds the entries of all arrays in `like`."""
    return np.zeros(shape, np.result_type(float, *like))


def matmul(a, b):
    out = zeros(len(a), len(b[0]), like=(a, b))
    for i in range(len(a)):
        for k in range(len(b[0])):
            for j in range(len(b)):
                out[i, k] += a[i, j] * b[j, k]
    return out


def affine(x, W, b=None):
    y = matmul(x, W)
    if b is not None:
        for i in range(len(y)):
            for k in range(len(b)):
                y[i, k] += b[k]
    return y


def masked_softmax(scores, allowed):
    """Softmax of each row over its allowed entries; zeros elsewhere and in empty rows."""
    A = zeros(*scores.shape, like=(scores,))
    for i, row in enumerate(scores):
        keys = [j for j in range(len(row)) if allowed[i, j]]
        if not keys:
            continue
        top = max(row[j].real for j in keys)
        total = sum(cmath.exp(row[j] - top) for j in keys)
        for j in keys:
            value = cmath.exp(row[j] - top) / total
            A[i, j] = value if np.iscomplexobj(A) else value.real
    return A


def attention(p, x, allowed, kind):
    """Output y (N, d) and, a head each, the weights A, queries, keys, values and outputs."""
    N, d = x.shape
    heads, h = p["W_q"].shape[1:]
    y = zeros(N, d, like=(x, *p.values()))
    parts = []
    for head in range(heads):
        q, k, v = (
            affine(x, p[f"W_{n}"][:, head], p[f"b_{n}"][head] if f"b_{n}" in p else None)
            for n in "qkv"
        )
        z = zeros(N, N, like=(q, k))
        for i in range(N):
            for j in range(N):
                if allowed[i, j]:
                    z[i, j] = sum(q[i, a] * k[j, a] for a in range(h)) / math.sqrt(h)
        A = masked_softmax(z, allowed) if kind == "softmax" else z
        o = matmul(A, v)
        parts.append({"q": q, "k": k, "v": v, "A": A, "o": o})
        y += matmul(o, p["W_o"][head])
    if "b_o" in p:
        for i in range(N):
            y[i] += p["b_o"]
    return y, parts


def attention_backward(p, x, allowed, kind, dy):
    """Gradients of x and the parameters, index by index; and each head's G = dL/do."""
    N, d = x.shape
    heads, h = p["W_q"].shape[1:]
    _, parts = attention(p, x, allowed, kind)
    dx = zeros(N, d)
    grads = {name: np.zeros(value.shape) for name, value in p.items()}
    G = []
    for head in range(heads):
        q, k, v, A, o = (parts[head][name] for name in ("q", "k", "v", "A", "o"))
        do = matmul(dy, p["W_o"][head].T)
        G.append(do)
        dz = score_gradient(A, do, v, allowed, kind)
        dq, dk, dv = zeros(N, h), zeros(N, h), zeros(N, h)
        for i in range(N):
            for j in range(N):
                for a in range(h):
                    dq[i, a] += dz[i, j] * k[j, a] / math.sqrt(h)
                    dk[j, a] += dz[i, j] * q[i, a] / math.sqrt(h)
                    dv[j, a] += A[i, j] * do[i, a]
        grads["W_o"][head] = matmul(o.T, dy)
        for name, gradient in (("q", dq), ("k", dk), ("v", dv)):
            grads[f"W_{name}"][:, head] = matmul(x.T, gradient)
            dx += matmul(gradient, p[f"W_{name}"][:, head].T)
            if f"b_{name}" in p:
                grads[f"b_{name}"][head] = column_sums(gradient)
    if "b_o" in p:
        grads["b_o"] = column_sums(dy)
    return dx, grads, G


def column_sums(rows):
    return np.array([sum(row[c] for row in rows) for c in range(len(rows[0]))])


def score_gradient(A, G, v, allowed, kind):
    """g_ij = dL/dz_ij: A_ij (e_ij - sum_k A_ik e_ik), or e_ij on the allowed pairs."""
    N, h = v.shape
    g = zeros(N, N)
    for i in range(N):
        e = [sum(G[i, a] * v[j, a] for a in range(h)) for j in range(N)]
        mean = sum(A[i, k] * e[k] for k in range(N))
        for j in range(N):
            if allowed[i, j]:
                g[i, j] = A[i, j] * (e[j] - mean) if kind == "softmax" else e[j]
    return g


def beta(A, G, v, allowed, kind):
    """Coefficients of the implicit update: -g_ij / sqrt(h)."""
    return -score_gradient(A, G, v, allowed, kind) / math.sqrt(v.shape[1])


def outer_sum(x, coefficients):
    """Sum of beta_ij x_i^T x_j over all pairs, entry by entry."""
    N, d = x.shape
    total = zeros(d, d)
    for i in range(N):
        for j in range(N):
            for m in range(d):
                for n in range(d):
                    total[m, n] += coefficients[i, j] * x[i, m] * x[j, n]
    return total


def layer_norm(x, gain, shift, epsilon=1e-5):
    y = zeros(*x.shape, like=(x, gain, shift))
    for i, row in enumerate(x):
        mean = sum(row) / len(row)
        variance = sum((entry - mean) ** 2 for entry in row) / len(row)
        for c, entry in enumerate(row):
            y[i, c] = gain[c] * (entry - mean) / (variance + epsilon) ** 0.5 + shift[c]
    return y


def layer_norm_backward(x, gain, dy, epsilon=1e-5):
    """Gradients of x, gain and shift, through the Jacobian of each row, entry by entry."""
    T, d = x.shape
    dx, dgain, dshift = zeros(T, d), zeros(d), zeros(d)
    for t in range(T):
        mean = sum(x[t]) / d
        s = math.sqrt(sum((entry - mean) ** 2 for entry in x[t]) / d + epsilon)
        n = [(entry - mean) / s for entry in x[t]]
        for a in range(d):
            dgain[a] += dy[t, a] * n[a]
            dshift[a] += dy[t, a]
            for c in range(d):
                jacobian = ((a == c) - 1 / d - n[a] * n[c] / d) / s  # dn_a / dx_c
                dx[t, c] += dy[t, a] * gain[a] * jacobian
    return dx, dgain, dshift


def gelu(u):
    return 0.5 * u * (1 + cmath.tanh(GELU_SCALE * (u + 0.044715 * u**3)))


def feed_forward(p, x):
    u = affine(x, p["W_in"], p.get("b_in"))
    active = zeros(*u.shape, like=(u,))
    for i in range(len(u)):
        for c in range(len(u[i])):
            value = gelu(u[i, c])
            active[i, c] = value if np.iscomplexobj(active) else value.real
    return affine(active, p["W_out"], p.get("b_out"))


def cross_entropy(logits, target):
    """Minus the logarithm of the target's probability, for one row of logits."""
    top = max(entry.real for entry in logits)
    total = sum(cmath.exp(entry - top) for entry in logits)
    value = cmath.log(total) + top - logits[target]
    return value if np.iscomplexobj(logits) else value.real


def pairs(mask, N):
    """The allowed pairs (N, N) of a mask."""
    rules = {
        "causal": lambda i, j: j <= i,
        "strictly_causal": lambda i, j: j < i,
        "bidirectional": lambda i, j: True,
    }
    if not isinstance(mask, str):
        return mask
    return np.array([[rules[mask](i, j) for j in range(N)] for i in range(N)])


def logits(config, p, tokens, mask):
    """Logits (N, V) of a model of one replica (no leading axis) for one sequence."""
    allowed = pairs(mask, len(tokens))
    x = np.array([p["token_embedding"][token] for token in tokens])
    if config.positions:
        x = np.array([x[i] + p["position_embedding"][i] for i in range(len(tokens))])
    for layer in range(config.layers):
        x = block(config, layer_of(p, layer), x, allowed)
    if config.norm == "pre":
        x = layer_norm(x, p["norm_final.gain"], p["norm_final.shift"])
    return matmul(x, p["unembedding"])


def layer_of(p, layer):
    start = f"layers.{layer}."
    return {name[len(start) :]: value for name, value in p.items() if name.startswith(start)}


def block(config, p, x, allowed):
    """One layer: attention, then the feed-forward part if there is one."""

    def norm(x, where, name):
        if config.norm != where:
            return x
        return layer_norm(x, p[f"norm_{name}.gain"], p[f"norm_{name}.shift"])

    y, _ = attention(p, norm(x, "pre", "attention"), allowed, config.attention)
    x = norm(x + y, "post", "attention")
    if config.feed_forward:
        y = feed_forward(p, norm(x, "pre", "feed_forward"))
        x = norm(x + y, "post", "feed_forward")
    return x


def loss(config, p, inputs, targets, weights, mask):
    """Weighted mean cross-entropy of one replica; inputs, targets and weights (B, N)."""
    total, norm = 0.0, 0.0
    for b in range(len(inputs)):
        rows = logits(config, p, inputs[b], mask)
        for t in range(len(inputs[b])):
            if weights[b, t] > 0:
                total += weights[b, t] * cross_entropy(rows[t], targets[b, t])
                norm += weights[b, t]
    return total / norm if norm else 0.0


def gradient(f, arrays, step=1e-30):
    """Gradients of a scalar f(arrays), by one complex step an entry."""
    found = {}
    for name, array in arrays.items():
        found[name] = np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            moved = {n: value.astype(complex) for n, value in arrays.items()}
            moved[name][index] += 1j * step
            found[name][index] = f(moved).imag / step
    return found


def replica(arrays, r):
    """The parameters of replica r, without the leading axis."""
    return {name: value[r] for name, value in arrays.items()}

"""Multi-head self-attention and its backward, by hand.

    q = x W_q + b_q,   k = x W_k + b_k,   v = x W_v + b_v
    S_ij = q_i . k_j  =  x_i W_qk x_j^T  with  W_qk = W_q W_k^T  (without biases)
    A = softmax(S / sqrt(h)) over the allowed keys     (linear attention: S / sqrt(h) itself)
    o_i = sum_j A_ij v_j,   y = [o of all heads] W_o + b_o

Backward, from G = dL/do: e_ij = G_i . v_j = dL/dA_ij and

    dL/dS_ij = A_ij (e_ij - sum_k A_ik e_ik) / sqrt(h)     (linear: e_ij / sqrt(h))

which is -beta_ij of the theory; then dq = dS k, dk = dS^T q, dv = A^T G.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minattn.arrays import Array, Params
from minattn.engines import Reference
from minattn.layers import linear

PROJECTIONS = ("q", "k", "v")


@dataclass
class AttentionTape:
    """What `backward` and the account of the update need.

    R replicas, B sequences of N positions, H heads of width h, model width d.
    """

    x: Array  # (R, B N, d), what W_q, W_k and W_v multiply
    q: Array  # (R, B, H, N, h)
    k: Array  # (R, B, H, N, h), zero at keys that no query may see
    v: Array  # (R, B, H, N, h), likewise
    A: Array  # (R, B, H, N, N)
    o: Array  # (R, B N, H h)
    output_gradient: Array | None = None  # G (R, B, H, N, h), set by backward
    score_gradient: Array | None = None  # dL/dS = -beta (R, B, H, N, N), likewise


def joined(p: Params, xp: Any = np) -> Params:
    """Return a layer's parameters with W_qkv (R, d, 3 H h) and b_qkv (R, 3 H h) beside them.

    One product with [W_q W_k W_v] is faster than three. `xp` is the module of their arrays.
    """
    p = dict(p)
    join(p, xp)
    return p


def join(p: Params, xp: Any = np) -> None:
    """Set W_qkv and b_qkv; where they are there already, write them over."""
    for letter in ("W", "b"):
        if f"{letter}_q" in p:
            parts = [p[f"{letter}_{name}"] for name in PROJECTIONS]
            rows = [part.reshape(*part.shape[:-2], -1) for part in parts]
            whole = f"{letter}_qkv"
            p[whole] = xp.concatenate(rows, axis=-1, out=p.get(whole))


def forward(
    engine: Reference,
    p: Params,
    x: Array,
    allowed: Array,
    attention: str,
    W_qk_offset: Array | None = None,
) -> tuple[Array, AttentionTape]:
    """Return y (R, B N, d) and the tape, given the layer's parameters as `joined` returns them.

    `W_qk_offset` (R, H, d, d) is added to each head's W_qk where it enters the scores; it need not
    be reachable through W_q and W_k.
    """
    d, heads, h = p["W_q"].shape[1:]
    qkv = linear.forward(engine, x, p["W_qkv"], p.get("b_qkv"))  # 1
    q, k, v = _by_head(qkv, len(allowed), heads)
    k, v = _hide_unseen(engine, k, v, allowed)
    S = engine.pair_products(q, k, allowed)  # 2
    if W_qk_offset is not None:
        S = S + _bilinear(x, W_qk_offset, len(allowed))
    o, A = attend(engine, S, v, allowed, attention)  # 3
    y = linear.forward(engine, o, p["W_o"].reshape(len(o), heads * h, d), p.get("b_o"))  # 4
    return y, AttentionTape(x, q, k, v, A, o)


def attend(
    engine: Reference, S: Array, v: Array, allowed: Array, attention: str
) -> tuple[Array, Array]:
    """Return o (R, B N, H h) and A (R, B, H, N, N), given raw scores S, which A overwrites."""
    R, B, heads, N, h = v.shape
    weigh = engine.masked_softmax if attention == "softmax" else engine.masked_scale
    A = weigh(S, allowed, h**-0.5, out=S)
    o = engine.empty((R, B, N, heads, h), v.dtype)
    engine.key_sums(A, v, allowed, out=o.swapaxes(2, 3))
    return o.reshape(R, B * N, heads * h), A


def backward(
    engine: Reference, p: Params, tape: AttentionTape, dy: Array, allowed: Array, attention: str
) -> tuple[Array, Params]:
    """Return dx (R, B N, d) and the gradients by short name; complete the tape."""
    R, B, heads, N, h = tape.v.shape
    d = tape.x.shape[-1]
    W_o = p["W_o"].reshape(R, heads * h, d)
    do, dW_o = linear.backward(engine, tape.o, W_o, dy)  # 4
    G = tape.output_gradient = do.reshape(R, B, N, heads, h).swapaxes(2, 3)
    e = engine.pair_products(G, tape.v, allowed)  # 3
    dqkv = engine.empty((R, B * N, 3 * heads * h), dy.dtype)
    dq, dk, dv = _by_head(dqkv, N, heads)
    engine.query_sums(tape.A, G, allowed, out=dv)
    if attention == "softmax":
        dS = engine.masked_softmax_backward(tape.A, e, allowed, h**-0.5, out=e)
    else:
        dS = engine.masked_scale(e, allowed, h**-0.5, out=e)
    tape.score_gradient = dS
    engine.key_sums(dS, tape.k, allowed, out=dq)  # 2
    engine.query_sums(dS, tape.q, allowed, out=dk)
    dx, dW = linear.backward(engine, tape.x, p["W_qkv"], dqkv)  # 1
    grads = {"W_o": dW_o.reshape(R, heads, h, d)} | _parted("W", dW.reshape(R, d, 3, heads, h))
    if "b_q" in p:
        db = linear.bias_gradient(engine, dqkv).reshape(R, 3, heads, h)
        grads |= _parted("b", db) | {"b_o": linear.bias_gradient(engine, dy)}
    return dx, grads


def _parted(letter: str, joined: Array) -> Params:
    """Undo `joined` for a gradient (..., 3, H, h)."""
    return {f"{letter}_{name}": joined[..., i, :, :] for i, name in enumerate(PROJECTIONS)}


def _by_head(qkv: Array, N: int, heads: int) -> tuple[Array, Array, Array]:
    """View (R, B N, 3 H h) as q, k and v, each (R, B, H, N, h)."""
    R, T, columns = qkv.shape
    views = qkv.reshape(R, T // N, N, 3, heads, columns // (3 * heads))
    q, k, v = (views[:, :, :, i].swapaxes(2, 3) for i in range(3))
    return q, k, v


def _hide_unseen(engine: Reference, k: Array, v: Array, allowed: Array) -> tuple[Array, Array]:
    """Set keys and values that no query may see to zero: zero times NaN would not be zero."""
    seen = np.asarray(allowed.any(axis=0))
    if seen.all():
        return k, v
    return engine.only_where(seen[:, None], k), engine.only_where(seen[:, None], v)


def _bilinear(x: Array, M: Array, N: int) -> Array:
    """Return x_i M x_j^T for every head: x (R, B N, d), M (R, H, d, d) -> (R, B, H, N, N)."""
    rows = x.reshape(x.shape[0], -1, 1, N, x.shape[-1])
    return rows @ M[:, None] @ rows.swapaxes(-2, -1)

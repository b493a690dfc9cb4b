"""Tokens and positions to rows: x = E[token] + P[position]."""

from __future__ import annotations

import numpy as np

from minattn.arrays import Array, Params
from minattn.engines import Reference


def forward(engine: Reference, p: Params, tokens: Array) -> Array:
    """Return x (R, B N, d); tokens (R, B, N)."""
    E = p["token_embedding"]
    replicas, rows, d = E.shape
    _, B, N = tokens.shape
    x = engine.empty((replicas, B, N, d), E.dtype)
    places = tokens + rows * np.arange(replicas)[:, None, None]  # in all tables, one after another
    np.take(E.reshape(-1, d), places, axis=0, out=x, mode="clip")  # 1
    if "position_embedding" in p:
        x += p["position_embedding"][:, None, :N]  # 2
    return x.reshape(replicas, B * N, d)


def backward(engine: Reference, p: Params, tokens: Array, dx: Array) -> Params:
    """Return the gradients of the embeddings, given dx (R, B N, d)."""
    replicas, rows, d = p["token_embedding"].shape
    _, B, N = tokens.shape
    grads = {}
    if "position_embedding" in p:  # 2
        dP = engine.empty(p["position_embedding"].shape, dx.dtype)
        dP[:, N:] = 0
        dx.reshape(replicas, B, N, d).sum(axis=1, out=dP[:, :N])
        grads["position_embedding"] = dP
    grads["token_embedding"] = engine.embedding_gradient(
        tokens.reshape(replicas, -1), dx, rows
    )  # 1
    return grads

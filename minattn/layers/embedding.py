"""Tokens and positions to rows: x = E[token] + P[position]."""

from __future__ import annotations

from minattn.arrays import Array, Params
from minattn.engines import Reference


def forward(engine: Reference, p: Params, tokens: Array) -> Array:
    """Return x (R, B N, d); tokens (R, B, N)."""
    E = p["token_embedding"]
    replicas, _, d = E.shape
    _, B, N = tokens.shape
    x = engine.embedding(E, tokens.reshape(replicas, B * N)).reshape(replicas, B, N, d)  # 1
    if "position_embedding" in p:
        engine.add(x, p["position_embedding"][:, None, :N])  # 2
    return x.reshape(replicas, B * N, d)


def backward(engine: Reference, p: Params, tokens: Array, dx: Array) -> Params:
    """Return the gradients of the embeddings, given dx (R, B N, d)."""
    replicas, rows, d = p["token_embedding"].shape
    _, B, N = tokens.shape
    grads = {}
    if "position_embedding" in p:  # 2
        dP = engine.empty(p["position_embedding"].shape, dx.dtype)
        engine.assign(dP[:, N:], 0)
        engine.assign(dP[:, :N], engine.row_sums(dx.reshape(replicas, B, N, d)))
        grads["position_embedding"] = dP
    grads["token_embedding"] = engine.embedding_gradient(
        tokens.reshape(replicas, B * N), dx, rows
    )  # 1
    return grads

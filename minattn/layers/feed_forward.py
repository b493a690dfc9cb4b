"""The feed-forward part: y = gelu(x W_in + b_in) W_out + b_out."""

from __future__ import annotations

from dataclasses import dataclass

from minattn.arrays import Array, Params
from minattn.engines import Reference
from minattn.layers import linear


@dataclass
class FeedForwardTape:
    """What `backward` needs: x (R, T, d), u = x W_in + b_in and gelu(u), both (R, T, f)."""

    x: Array
    u: Array
    active: Array


def forward(engine: Reference, p: Params, x: Array) -> tuple[Array, FeedForwardTape]:
    """Return y (R, T, d) and the tape."""
    u = linear.forward(engine, x, p["W_in"], p.get("b_in"))  # 1
    active = engine.gelu(u)  # 2
    y = linear.forward(engine, active, p["W_out"], p.get("b_out"))  # 3
    return y, FeedForwardTape(x, u, active)


def backward(
    engine: Reference, p: Params, tape: FeedForwardTape, dy: Array
) -> tuple[Array, Params]:
    """Return dx (R, T, d) and the gradients by short name."""
    grads = {}
    d_active, grads["W_out"] = linear.backward(engine, tape.active, p["W_out"], dy)  # 3
    du = engine.gelu_backward(tape.u, d_active)  # 2
    dx, grads["W_in"] = linear.backward(engine, tape.x, p["W_in"], du)  # 1
    if "b_in" in p:
        grads["b_out"] = linear.bias_gradient(engine, dy)
        grads["b_in"] = linear.bias_gradient(engine, du)
    return dx, grads

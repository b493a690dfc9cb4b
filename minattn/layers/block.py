"""One layer of the stack: attention, then the feed-forward part, each with residual and norm.

norm="pre":  x <- x + part(norm(x))     "post": x <- norm(x + part(x))     "none": x <- x + part(x)
"""

from __future__ import annotations

from dataclasses import dataclass

from minattn.arrays import Array, Params
from minattn.config import TransformerConfig
from minattn.engines import Reference
from minattn.layers import attention, feed_forward, norm
from minattn.layers.attention import AttentionTape
from minattn.layers.feed_forward import FeedForwardTape
from minattn.layers.norm import NormTape


@dataclass
class BlockTape:
    """The tapes of a layer's parts; None for those it does not have."""

    attention: AttentionTape
    norm_attention: NormTape | None
    feed_forward: FeedForwardTape | None = None
    norm_feed_forward: NormTape | None = None


def forward(
    engine: Reference,
    config: TransformerConfig,
    p: Params,
    x: Array,
    allowed: Array,
    W_qk_offset: Array | None = None,
) -> tuple[Array, BlockTape]:
    """Return the layer's output (R, T, d) and its tape."""
    inner, before = _norm(engine, config, "pre", p, "norm_attention", x)  # 1
    y, taped = attention.forward(engine, p, inner, allowed, config.attention, W_qk_offset)  # 2
    engine.add(y, x)  # 3
    x, after = _norm(engine, config, "post", p, "norm_attention", y)  # 4
    tape = BlockTape(taped, before or after)
    if config.feed_forward:
        inner, before = _norm(engine, config, "pre", p, "norm_feed_forward", x)  # 5
        y, tape.feed_forward = feed_forward.forward(engine, p, inner)  # 6
        engine.add(y, x)  # 7
        x, after = _norm(engine, config, "post", p, "norm_feed_forward", y)  # 8
        tape.norm_feed_forward = before or after
    return x, tape


def backward(
    engine: Reference,
    config: TransformerConfig,
    p: Params,
    tape: BlockTape,
    dx: Array,
    allowed: Array,
) -> tuple[Array, Params]:
    """Return the gradient of the layer's input and the gradients by short name."""
    grads: Params = {}
    if tape.feed_forward is not None:
        name = "norm_feed_forward"
        dy = _norm_backward(engine, config, "post", p, name, tape.norm_feed_forward, dx, grads)  # 8
        d_inner, found = feed_forward.backward(engine, p, tape.feed_forward, dy)  # 6
        dx = _norm_backward(
            engine, config, "pre", p, name, tape.norm_feed_forward, d_inner, grads
        )  # 5
        engine.add(dx, dy)  # 7
        grads |= found
    name = "norm_attention"
    dy = _norm_backward(engine, config, "post", p, name, tape.norm_attention, dx, grads)  # 4
    d_inner, found = attention.backward(
        engine, p, tape.attention, dy, allowed, config.attention
    )  # 2
    dx = _norm_backward(engine, config, "pre", p, name, tape.norm_attention, d_inner, grads)  # 1
    engine.add(dx, dy)  # 3
    return dx, grads | found


def _norm(
    engine: Reference, config: TransformerConfig, where: str, p: Params, name: str, x: Array
) -> tuple[Array, NormTape | None]:
    """Normalise x if the model has its norms `where`; otherwise pass it on."""
    if config.norm != where:
        return x, None
    return norm.forward(engine, p[name + ".gain"], p[name + ".shift"], x)


def _norm_backward(
    engine: Reference,
    config: TransformerConfig,
    where: str,
    p: Params,
    name: str,
    tape: NormTape | None,
    dy: Array,
    grads: Params,
) -> Array:
    """Undo `_norm`: return dx and put the norm's own gradients into `grads`."""
    if config.norm != where or tape is None:
        return dy
    gain = name + ".gain"
    dx, grads[gain], grads[name + ".shift"] = norm.backward(engine, p[gain], tape, dy)
    return dx

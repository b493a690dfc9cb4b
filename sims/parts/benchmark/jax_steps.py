"""The peer JAX: the same step, written for it. Imported only where jax is wanted."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from parts.benchmark.contestants import Maker, Stepper, pack, unpack
from parts.benchmark.settings import Setting

from minattn.arrays import Params
from minattn.engines.reference import NORM_EPSILON
from minattn.objectives import Batch


def makers() -> dict[str, Maker]:
    """Return what makes JAX's step; its threads are as many as there are cores to run on."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    return {"jax": _step}


def _step(setting: Setting, params: Params, batch: Batch) -> Stepper:
    arrays = {name: jnp.asarray(value) for name, value in pack(params).items()}
    tokens, targets = jnp.asarray(batch.inputs), jnp.asarray(batch.targets)
    step = jax.value_and_grad(partial(_loss, setting))
    if setting.replicas == 1:
        tokens, targets = tokens[0], targets[0]
    else:
        step = jax.vmap(step)
    compiled = jax.jit(step)

    def read(found: tuple[Any, dict[str, jax.Array]]) -> Params:
        return unpack({name: np.asarray(value) for name, value in found[1].items()}, params)

    return Stepper(
        name="jax",
        step=lambda: jax.block_until_ready(compiled(arrays, tokens, targets)),
        read=read,
    )


def _loss(
    setting: Setting, p: dict[str, jax.Array], tokens: jax.Array, targets: jax.Array
) -> jax.Array:
    """Return the loss of one replica; tokens and targets (B, N)."""
    d, N, H = setting.width, setting.length, setting.heads
    h = d // H
    x = p["token_embedding"][tokens] + p["position_embedding"]
    allowed = jnp.tri(N, dtype=bool)
    for layer in range(setting.layers):
        names = f"layers.{layer}."
        qkv = _norm(p, names + "norm_attention", x) @ p[names + "W_qkv"]
        q, k, v = jnp.moveaxis(qkv.reshape(-1, N, 3, H, h), 2, 0)
        S = jnp.einsum("bihc,bjhc->bhij", q * h**-0.5, k)
        A = jax.nn.softmax(jnp.where(allowed, S, -jnp.inf))
        o = jnp.einsum("bhij,bjhc->bihc", A, v)
        x = x + o.reshape(x.shape) @ p[names + "W_o"]
        if setting.feed_forward:
            u = _norm(p, names + "norm_feed_forward", x) @ p[names + "W_in"]
            x = x + jax.nn.gelu(u, approximate=True) @ p[names + "W_out"]
    logits = _norm(p, "norm_final", x) @ p["unembedding"]
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - chosen).mean()


def _norm(p: dict[str, jax.Array], name: str, x: jax.Array) -> jax.Array:
    if name + ".gain" not in p:
        return x
    mean = x.mean(axis=-1, keepdims=True)
    centred = x - mean
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    normed = centred * jax.lax.rsqrt(variance + NORM_EPSILON)
    return normed * p[name + ".gain"] + p[name + ".shift"]

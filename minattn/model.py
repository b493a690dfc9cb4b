"""The model: layers stacked, run forward and backward.

    x = embedding(tokens);  x = layer(x) for every layer;  [x = norm(x)];  logits = x unembedding

A model is a `TransformerConfig` and a flat dict of arrays, each led by an axis of R replicas:
independent runs side by side, which no layer mixes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np

from minattn import checks
from minattn.arrays import Array, Params
from minattn.config import TransformerConfig
from minattn.engines import Reference, choose
from minattn.layers import attention, block, embedding, linear, norm
from minattn.layers.block import BlockTape
from minattn.layers.norm import NormTape
from minattn.masks import Mask, allowed_pairs
from minattn.params import below, check_params, prefixed


@dataclass
class Tape:
    """Everything that a forward pass leaves for the backward pass, and what that adds.

    `inputs` (R, B, N), `allowed` (N, N), a `BlockTape` a layer, the rows that the unembedding
    multiplies (R, B N, d), the tape of the final norm, and the engine. `grads`, and
    gradients in each layer's ``attention``, are None until the backward pass has set them.
    """

    inputs: Array
    allowed: Array
    layers: list[BlockTape]
    final: Array
    norm_final: NormTape | None
    engine: Reference
    grads: Params | None = None


@overload
def forward(
    config: TransformerConfig,
    params: Params,
    tokens: Array,
    mask: Mask = ...,
    engine: str | Reference = ...,
    tape: Literal[False] = ...,
) -> Array: ...
@overload
def forward(
    config: TransformerConfig,
    params: Params,
    tokens: Array,
    mask: Mask = ...,
    engine: str | Reference = ...,
    *,
    tape: Literal[True],
) -> tuple[Array, Tape]: ...
def forward(
    config: TransformerConfig,
    params: Params,
    tokens: Array,
    mask: Mask = "causal",
    engine: str | Reference = "auto",
    tape: bool = False,
) -> Array | tuple[Array, Tape]:
    """Return the logits (R, B, N, V), and with ``tape=True`` also the tape for `backward`.

    Parameters
    ----------
    config : TransformerConfig
    params : dict of arrays, as `init_params` makes it
        float64, float32, or (engine "numpy") complex128 for complex steps.
    tokens : (B, N) or (R, B, N) int array
        Symbols 0..V-1 and the mask symbol V. Two axes: the same for every replica.
    mask : {"causal", "strictly_causal", "bidirectional"} or (N, N) bool array
    engine : {"auto", "numba", "numpy", "cupy"}

    Raises
    ------
    ValueError
        If parameters, tokens, mask or engine do not fit, before anything is computed.
    FloatingPointError
        If a logit is infinite or NaN: it names the replica.
    """
    replicas, dtype = check_params(config, params)
    checks.flag("tape", tape)
    inputs = check_tokens(config, tokens, replicas)
    allowed = allowed_pairs(mask, inputs.shape[-1])
    ready = choose(engine, dtype)
    weights = by_layer(ready, config, ready.put(params))
    with np.errstate(all="ignore"):  # see _check_finite
        logits, taped = ready.get(run_forward(ready, config, weights, ready.put(inputs), allowed))
    _check_finite("forward", {"the logits": logits})
    logits = logits.reshape(*inputs.shape, config.vocab_size)
    return (logits, taped) if tape else logits


def backward(config: TransformerConfig, params: Params, tape: Tape, dlogits: Array) -> Params:
    """Return the gradients of a loss of one's own, and complete the tape for `implicit_update`.

    Parameters
    ----------
    config, params
        Those of the forward pass.
    tape : Tape
        From ``forward(..., tape=True)``.
    dlogits : (R, B, N, V) array
        The gradient of the loss with respect to the logits.

    Raises
    ------
    ValueError
        If the tape or dlogits do not fit.
    FloatingPointError
        If a gradient is infinite or NaN: it names parameter and replica.
    """
    dtype = check_tape(config, params, tape)
    shape = (*tape.inputs.shape, config.vocab_size)
    needs = f"{dtype} of shape {shape}"
    dlogits = checks.array("dlogits", dlogits, "fciu" if dtype.kind == "c" else "fiu", needs)
    if dlogits.shape != shape:
        checks.fail("dlogits", f"{dlogits.dtype} of shape {dlogits.shape}", needs)
    rows = dlogits.astype(dtype, copy=False).reshape(shape[0], -1, shape[-1])
    engine = tape.engine
    params, there, rows = engine.put((params, tape, rows))
    grads: Params = {}
    with np.errstate(all="ignore"):
        for part in run_backward(engine, config, by_layer(engine, config, params), there, rows):
            grads |= engine.get(part)
    _check_finite("backward", {f"the gradient of {name}": grads[name] for name in params})
    tape.layers = engine.get(there.layers)
    tape.grads = {name: np.ascontiguousarray(grads[name]) for name in params}
    return dict(tape.grads)


@dataclass(frozen=True)
class Weights:
    """Parameters as a pass over the stack wants them: each layer's also under short names."""

    params: Params
    layers: list[Params]

    def join(self, xp: Any) -> None:
        """Join projections anew, after a change of the parameters; `xp` is their array module."""
        for layer in self.layers:
            attention.join(layer, xp)

    def of(self, replicas: slice) -> Weights:
        """Return those of some replicas."""
        params, *layers = (
            {name: value[replicas] for name, value in part.items()}
            for part in (self.params, *self.layers)
        )
        return Weights(params, layers)


def by_layer(engine: Reference, config: TransformerConfig, params: Params) -> Weights:
    """Sort checked parameters by layer."""
    numbers = range(config.layers)
    layers = [attention.joined(below(params, f"layers.{i}."), engine.xp) for i in numbers]
    return Weights(params, layers)


def run_forward(
    engine: Reference,
    config: TransformerConfig,
    weights: Weights,
    inputs: Array,
    allowed: Array,
    W_qk_offsets: dict[int, Array] | None = None,
) -> tuple[Array, Tape]:
    """Run the stack on checked arguments: logits (R, B N, V) and the tape.

    `W_qk_offsets` maps a layer to an array (R, H, d, d) that is added to its W_qk in the scores.
    """
    params = weights.params
    x = embedding.forward(engine, params, inputs)  # 1
    layers = []
    for number, p in enumerate(weights.layers):
        offset = (W_qk_offsets or {}).get(number)
        x, layer = block.forward(engine, config, p, x, allowed, offset)  # 2
        layers.append(layer)
    norm_final = None
    if config.norm == "pre":
        gain, shift = params["norm_final.gain"], params["norm_final.shift"]
        x, norm_final = norm.forward(engine, gain, shift, x)  # 3
    logits = linear.forward(engine, x, params["unembedding"])  # 4
    return logits, Tape(inputs, allowed, layers, x, norm_final, engine.using(None))


def run_backward(
    engine: Reference, config: TransformerConfig, weights: Weights, tape: Tape, dlogits: Array
) -> Iterator[Params]:
    """Run the stack in reverse, given dlogits (R, B N, V): yield gradients by name, part by part.

    A part's arrays may be used again once the next part is asked for.
    """
    params = weights.params
    dx, d_unembedding = linear.backward(engine, tape.final, params["unembedding"], dlogits)  # 4
    yield {"unembedding": d_unembedding}
    if tape.norm_final is not None:
        gain = params["norm_final.gain"]
        dx, d_gain, d_shift = norm.backward(engine, gain, tape.norm_final, dx)  # 3
        yield {"norm_final.gain": d_gain, "norm_final.shift": d_shift}
    for number in reversed(range(config.layers)):
        p, layer = weights.layers[number], tape.layers[number]
        with engine.scratch():
            d_inner, found = block.backward(engine, config, p, layer, dx, tape.allowed)  # 2
            yield prefixed(f"layers.{number}.", found)
            engine.assign(dx, d_inner)
    yield embedding.backward(engine, params, tape.inputs, dx)  # 1


def _check_finite(where: str, found: Params) -> None:
    for name, value in found.items():
        for replica, values in enumerate(value):
            if not np.isfinite(values).all():
                raise FloatingPointError(f"{where}: non-finite value in {name}, replica {replica}")


def check_tape(config: TransformerConfig, params: Params, tape: Tape) -> np.dtype:
    """Return the dtype of a tape and the parameters that it is of, or fail.

    Raises
    ------
    ValueError
        If the tape is none, or of a model with other layers, replicas or dtype.
    """
    replicas, dtype = check_params(config, params)
    check_depth(config, tape, "the tape of a forward pass of this model")
    if len(tape.inputs) != replicas or tape.final.dtype != dtype:
        got = f"one of {len(tape.inputs)} replicas of {tape.final.dtype}"
        checks.fail("tape", got, f"one of {replicas} replicas of {dtype}, as params have")
    return dtype


def check_depth(config: TransformerConfig, tape: Tape, needs: str) -> None:
    """Fail unless it is a tape, of as many layers as the model has; `needs` says which tape."""
    checks.instance("tape", tape, Tape, needs)
    if len(tape.layers) != config.layers:
        checks.fail("tape", f"{len(tape.layers)} layers", f"{config.layers}, as config has")


def check_tokens(
    config: TransformerConfig, tokens: Array, replicas: int, name: str = "tokens"
) -> Array:
    """Return tokens as (R, B, N), or fail naming what does not fit.

    Errors call the argument `name`.

    Raises
    ------
    ValueError
        If tokens are out of 0..V, too long, or of another shape.
    """
    tokens = checks.integers(name, tokens, config.vocab_size, mask_symbol=True)
    if tokens.ndim == 2:
        tokens = np.broadcast_to(tokens, (replicas, *tokens.shape))
    if tokens.ndim != 3 or len(tokens) != replicas or 0 in tokens.shape:
        needs = f"shape (B, N) or ({replicas}, B, N), none of them 0"
        checks.fail(name, f"shape {tokens.shape}", needs)
    if tokens.shape[-1] > config.max_length:
        checks.fail(name, f"length {tokens.shape[-1]}", f"at most max_length {config.max_length}")
    return tokens

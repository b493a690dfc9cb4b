"""Parameters: their names, shapes and initial values."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from minattn import checks
from minattn.arrays import Array, Params, ratio
from minattn.config import TransformerConfig
from minattn.randomness import generator, replica_numbers

QK_INITS = ("random", "symmetric", "random_matched", "symmetric_matched")
DTYPES = ("float64", "float32")


def parameter_shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every parameter, without the leading replica axis.

    Raises
    ------
    ValueError
        If `config` is none.
    """
    checks.instance("config", config, TransformerConfig)
    d, f, vocabulary = config.width, config.feed_forward, config.vocab_size
    heads, h = config.heads, config.h
    shapes: dict[str, tuple[int, ...]] = {"token_embedding": (vocabulary + 1, d)}
    if config.positions:
        shapes["position_embedding"] = (config.max_length, d)
    for layer in range(config.layers):
        part: dict[str, tuple[int, ...]] = dict.fromkeys(("W_q", "W_k", "W_v"), (d, heads, h))
        part["W_o"] = (heads, h, d)
        if config.bias:
            part |= dict.fromkeys(("b_q", "b_k", "b_v"), (heads, h)) | {"b_o": (d,)}
        if config.norm != "none":
            part |= {"norm_attention.gain": (d,), "norm_attention.shift": (d,)}
        if f:
            part |= {"W_in": (d, f), "W_out": (f, d)}
            if config.bias:
                part |= {"b_in": (f,), "b_out": (d,)}
            if config.norm != "none":
                part |= {"norm_feed_forward.gain": (d,), "norm_feed_forward.shift": (d,)}
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in part.items()}
    if config.norm == "pre":
        shapes |= {"norm_final.gain": (d,), "norm_final.shift": (d,)}
    return shapes | {"unembedding": (d, vocabulary)}


def init_params(
    config: TransformerConfig,
    replicas: int | Iterable[int] = 1,
    seed: int = 0,
    qk_init: str = "random",
    embedding_scale: float = 1.0,
    qk_scale: float = 1.0,
    dtype: str = "float64",
) -> Params:
    """Draw initial parameters: a flat dict of arrays, each with a leading axis of R replicas.

    Weights are normal with mean 0; embeddings have standard deviation ``embedding_scale /
    sqrt(d)``, W_q and W_k ``qk_scale / sqrt(d)``, W_o ``1 / sqrt(H h)``, W_out ``1 / sqrt(f)``, all
    others ``1 / sqrt(d)``. Biases and norm shifts are 0, norm gains 1.

    Parameters
    ----------
    config : TransformerConfig
    replicas : int or list of int
        How many replicas, or their numbers: replica r has the same values in either case.
    seed : int
    qk_init : {"random", "symmetric", "random_matched", "symmetric_matched"}
        "symmetric" sets W_k = W_q. That raises the root mean square of the Frobenius norm of each
        head's W_qk from ``qk_scale^2 sqrt(h)`` to ``qk_scale^2 sqrt(h (1 + (h + 1) / d))``. The
        matched kinds rescale each head's W_qk to the norm that the other kind has: so
        "random_matched" has the norm of "symmetric", "symmetric_matched" that of "random".
    embedding_scale, qk_scale : float
        Non-negative.
    dtype : {"float64", "float32"}
        Values are drawn in float64 and rounded, so both precisions start from the same draws.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    checks.one_of("qk_init", qk_init, QK_INITS)
    embedding_scale = checks.real("embedding_scale", embedding_scale, minimum=0)
    qk_scale = checks.real("qk_scale", qk_scale, minimum=0)
    kind = np.dtype(checks.one_of("dtype", dtype, DTYPES))
    numbers = replica_numbers(replicas)
    drawn = [
        _init_replica(config, generator(seed, "parameters", number), embedding_scale, qk_scale)
        for number in numbers
    ]
    params = {name: np.stack([replica[name] for replica in drawn]) for name in drawn[0]}
    for layer in range(config.layers):
        _relate_query_to_key(params, f"layers.{layer}.", qk_init, qk_scale)
    return {name: value.astype(kind) for name, value in params.items()}


def _init_replica(
    config: TransformerConfig, rng: np.random.Generator, embedding_scale: float, qk_scale: float
) -> Params:
    values = {}
    for name, shape in parameter_shapes(config).items():
        std = _standard_deviation(config, name.split(".")[-1], embedding_scale, qk_scale)
        if std is None:
            values[name] = np.full(shape, 1.0 if name.endswith("gain") else 0.0)
        else:
            values[name] = std * rng.standard_normal(shape)
    return values


def _standard_deviation(
    config: TransformerConfig, name: str, embedding_scale: float, qk_scale: float
) -> float | None:
    """Return the standard deviation of a weight by its last name; None for what starts constant."""
    if name.startswith("b_") or name in ("gain", "shift"):
        return None
    if name.endswith("_embedding"):
        return float(embedding_scale / config.width**0.5)
    if name in ("W_q", "W_k"):
        return float(qk_scale / config.width**0.5)
    fan_in = {"W_o": config.heads * config.h, "W_out": config.feed_forward}
    return float(fan_in.get(name, config.width) ** -0.5)


def _relate_query_to_key(params: Params, prefix: str, qk_init: str, qk_scale: float) -> None:
    """Give one layer's W_q and W_k (R, d, H, h) the relation that `qk_init` names, in place."""
    W_q, W_k = params[prefix + "W_q"], params[prefix + "W_k"]
    d, h = W_q.shape[1], W_q.shape[3]
    if qk_init.startswith("symmetric"):
        W_k = W_q
    if qk_init.endswith("matched"):
        other_is_symmetric = qk_init == "random_matched"
        target = qk_scale**2 * (h * (1 + (h + 1) / d) if other_is_symmetric else h) ** 0.5
        norm = np.sqrt((_gram(W_q) * _gram(W_k)).sum(axis=(-2, -1)))  # |W_q W_k^T| of each head
        factor = np.sqrt(ratio(target, norm))[:, None, :, None]
        W_q, W_k = factor * W_q, factor * W_k
    params[prefix + "W_q"], params[prefix + "W_k"] = W_q, W_k


def W_qk(params: Params, layer: int = 0, per_head: bool = False) -> Array:
    """Return W_qk = W_q W_k^T of a layer: (R, d, d) summed over heads, or (R, H, d, d) per head.

    Rows are the query side, columns the key side. The sum over heads is what the paper scores
    (Remark A.5); each head by itself is what a gradient moves.

    Raises
    ------
    ValueError
        If `params` has no such layer.
    """
    checks.flag("per_head", per_head)
    W_q, W_k = factors(params, layer)
    if per_head:
        return W_q @ W_k.mT
    # All heads side by side: their products add up in one.
    W_q, W_k = (W.swapaxes(1, 2).reshape(len(W), W.shape[2], -1) for W in (W_q, W_k))
    return W_q @ W_k.mT


def factors(params: Params, layer: int) -> tuple[Array, Array]:
    """Return W_q and W_k of a layer by head, or their gradients: (R, H, d, h) each.

    Raises
    ------
    ValueError
        If `params` has no such layer.
    """
    layer = checks.integer("layer", layer, minimum=0)
    if f"layers.{layer}.W_q" not in checks.arrays("params", params):
        layers = sum(str(name).endswith(".W_q") for name in params)
        needs = f"a layer within 0..{layers - 1}" if layers else "params with layers"
        checks.fail("layer", layer, needs)
    W_q, W_k = (params[f"layers.{layer}.{name}"].swapaxes(1, 2) for name in ("W_q", "W_k"))
    return W_q, W_k


def _gram(W: Array) -> Array:
    """W^T W of each head: (R, d, H, h) -> (R, H, h, h)."""
    heads = W.swapaxes(1, 2)
    return heads.mT @ heads


def check_params(
    config: TransformerConfig, params: Params, name: str = "params"
) -> tuple[int, np.dtype]:
    """Return the number of replicas and the dtype, or fail naming the array that does not fit.

    Errors call the argument `name`.

    Raises
    ------
    ValueError
        If it is no dict, a name is missing or unknown, or shape, dtype or replica count do not fit.
    """
    shapes = parameter_shapes(config)
    checks.named(name, params, shapes, "those of parameter_shapes(config)")
    first = params["token_embedding"]
    for key, shape in shapes.items():
        array = params[key]
        checks.on_host(f"{name}[{key!r}]", array)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fc":
            got_type = getattr(array, "dtype", type(array).__name__)
            checks.fail(f"{name}[{key!r}]", got_type, "a NumPy array of floats")
        if not array.dtype.isnative:
            checks.fail(f"{name}[{key!r}]", array.dtype, "floats in this machine's byte order")
        if array.ndim == 0 or array.shape[0] == 0 or array.shape[1:] != shape:
            needs = f"shape (R, {', '.join(map(str, shape))})"
            checks.fail(f"{name}[{key!r}]", f"shape {array.shape}", needs)
        if array.shape[0] != first.shape[0] or array.dtype != first.dtype:
            got_both = f"{array.shape[0]} replicas of {array.dtype}"
            needs = f"{first.shape[0]} of {first.dtype}, as token_embedding has"
            checks.fail(f"{name}[{key!r}]", got_both, needs)
    return first.shape[0], first.dtype


def below(params: Params, prefix: str) -> Params:
    """Return the arrays whose names begin with `prefix`, under what follows it."""
    return {n[len(prefix) :]: value for n, value in params.items() if n.startswith(prefix)}


def prefixed(prefix: str, arrays: Params) -> Params:
    """Return the arrays under their full names again."""
    return {prefix + name: value for name, value in arrays.items()}

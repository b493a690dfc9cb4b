"""Is the engine "cupy" right? Against the engine "numpy", from primitives to training.

Needs NumPy and CuPy alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from minattn.arrays import Array, Params
from minattn.config import TransformerConfig
from minattn.engines import Reference, choose
from minattn.objectives import next_token
from minattn.params import init_params
from minattn.step import loss_and_grad
from minattn.training import fit

LIMITS = {"float64": 1e-10, "float32": 1e-4}
R, T, D, N, SCALE = 3, 300, 150, 140, 0.7
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pre-norm, feed-forward, bias": {"norm": "pre", "feed_forward": 96, "bias": True},
    "post-norm, linear": {"norm": "post", "attention": "linear"},
}
SIZES = {"width": 48, "layers": 2, "heads": 2, "max_length": 32}
BATCH = 8
TRAINED = "plain"  # without b_k, whose gradient is rounding that AdamW makes steps of
STEPS = 20


class Walk:
    """A source that needs no compiler: every token is one or two symbols on from the last."""

    n_symbols = 40

    def sample(self, B: int, N: int, rng: np.random.Generator) -> Array:
        """Return tokens (B, N)."""
        return np.cumsum(rng.integers(1, 3, size=(B, N)), axis=1) % self.n_symbols


class Check(NamedTuple):
    """What was compared, how far it is off relative to the largest entry, and what is allowed."""

    name: str
    error: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether it is near enough; NaN is not."""
        return self.error <= self.limit


def checks() -> Iterator[Check]:
    """Compare the engine with the reference, primitive by primitive, step by step."""
    for dtype, limit in LIMITS.items():
        for name, call in PRIMITIVES.items():
            yield Check(f"{name}, {dtype}", primitive_error(call, dtype), limit)
        for name, options in MODELS.items():
            for mask in ("causal", "bidirectional", "strictly_causal"):
                error = step_error(options, mask, dtype)
                yield Check(f"step: {name}, {mask}, {dtype}", error, limit)
    runs = [train(engine) for engine in ("cupy", "cupy", "numpy")]
    yield Check(f"{STEPS} steps of training, float64", relative_error(runs[0], runs[2]), 1e-8)
    yield Check("the same training again, bit for bit", difference(runs[0], runs[1]), 0)


def replica_alone() -> float:
    """Return by how much replica 1 differs if it is trained alone.

    On a device the products of a batch may round in another way than those of one matrix.
    """
    together = {name: value[1:2] for name, value in train("cupy").items()}
    return difference(train("cupy", [1]), together)


def train(engine: str, replicas: Any = 3) -> Params:
    """Return the parameters after a short training."""
    config = model(MODELS[TRAINED])
    numbers = range(replicas) if isinstance(replicas, int) else replicas
    options = {"steps": STEPS, "batch_size": BATCH, "length": 32, "replicas": numbers}
    params = init_params(config, numbers)
    return fit(config, params, Walk(), next_token, engine=engine, **options).params  # type: ignore[arg-type]


def model(options: dict[str, Any]) -> TransformerConfig:
    """Return a small model."""
    return TransformerConfig(vocab_size=Walk.n_symbols, **SIZES, **options)


def step_error(options: dict[str, Any], mask: str, dtype: str) -> float:
    """Return the largest error of loss and gradients."""
    config = model(options)
    params = init_params(config, 3, dtype=dtype)
    tokens = np.random.default_rng(0).integers(config.vocab_size, size=(3, BATCH, 32))
    batch = next_token(tokens, mask=mask)
    found, expected = (loss_and_grad(config, params, batch, engine) for engine in ("cupy", "numpy"))
    return relative_error({"loss": found[0], **found[1]}, {"loss": expected[0], **expected[1]})


def primitive_error(call: Callable[..., Any], dtype: str) -> float:
    """Return the largest error of a primitive's results."""
    arrays = {n: a.astype(dtype) if a.dtype.kind == "f" else a for n, a in ARRAYS.items()}
    engine, exact = choose("cupy", dtype), Reference()
    found = engine.get(_listed(call(engine, **engine.put(arrays))))
    expected = _listed(call(exact, **{name: array.copy() for name, array in arrays.items()}))
    return relative_error(dict(enumerate(found)), dict(enumerate(expected)))


def relative_error(found: dict[Any, Array], expected: dict[Any, Array]) -> float:
    """Return the largest difference, relative to the largest entry of each array.

    Or to a thousandth of the largest of all: the gradient of b_k is zero, and computed as rounding.
    """
    largest = max(np.abs(value).max() for value in expected.values())
    errors = [
        np.abs(found[name] - value).max() / max(np.abs(value).max(), 1e-3 * largest)
        for name, value in expected.items()
    ]
    return float(np.max(errors))  # NaN if one is


def difference(found: Params, expected: Params) -> float:
    """Return the largest difference."""
    return float(np.max([np.abs(found[name] - value).max() for name, value in expected.items()]))


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


def _arrays() -> Params:
    rng = np.random.default_rng(0)
    allowed = rng.random((N, N)) < 0.6
    allowed[N // 2] = False
    rows, scores = rng.normal(size=(4, R, T, D)), rng.normal(size=(2, R, 2, N, N))
    return {
        "x": rows[0],
        "y": rows[1],
        "mean": rows[2],
        "square": rows[3] ** 2,
        "S": scores[0],
        "dA": scores[1],
        "A": Reference().masked_softmax(scores[0], allowed, SCALE),
        "q": rng.normal(size=(R, N, 2, 8)).swapaxes(1, 2),
        "allowed": allowed,
        "gain": rng.normal(size=(R, D)),
        "tokens": rng.integers(D, size=(R, T)),
        "weights": rng.random((R, T)) * (rng.random((R, T)) < 0.7) / T,
        "table": rng.normal(size=(R, D, 24)),
    }


def _adamw(engine: Reference, x: Array, y: Array, mean: Array, square: Array, **_: Array) -> Any:
    engine.adamw_update(x, y, mean, square, 0.9, 0.99, 0.05, 1 / (1 - 0.99**3), 1e-8, 0.98)
    return x, mean, square


def _sgd(engine: Reference, x: Array, y: Array, mean: Array, **_: Array) -> Any:
    engine.sgd_update(x, y, mean, 0.1, 0.8)
    return x, mean


def _norm_backward(engine: Reference, x: Array, y: Array, gain: Array, **_: Array) -> Any:
    _, normed, inverse = engine.layer_norm(x, gain, gain)
    return engine.layer_norm_backward(y, gain, normed, inverse)


ARRAYS = _arrays()
PRIMITIVES: dict[str, Callable[..., Any]] = {
    "masked_softmax": lambda e, S, allowed, **_: e.masked_softmax(S, allowed, SCALE),
    "masked_softmax_backward": lambda e, A, dA, allowed, **_: e.masked_softmax_backward(
        A, dA, allowed, SCALE
    ),
    "masked_scale": lambda e, S, allowed, **_: e.masked_scale(S, allowed, SCALE),
    "pair_products": lambda e, q, allowed, **_: e.pair_products(q, q, allowed),
    "key_sums": lambda e, A, q, allowed, **_: e.key_sums(A, q, allowed),
    "query_sums": lambda e, A, q, allowed, **_: e.query_sums(A, q, allowed),
    "cross_entropy": lambda e, x, tokens, weights, **_: e.cross_entropy(x, tokens, weights),
    "embedding": lambda e, table, tokens, **_: e.embedding(table, tokens),
    "embedding_gradient": lambda e, tokens, x, **_: e.embedding_gradient(tokens, x, D),
    "layer_norm": lambda e, x, gain, **_: e.layer_norm(x, gain, gain),
    "layer_norm_backward": _norm_backward,
    "gelu": lambda e, x, **_: e.gelu(x),
    "gelu_backward": lambda e, x, y, **_: e.gelu_backward(x, y),
    "adamw_update": _adamw,
    "sgd_update": _sgd,
}

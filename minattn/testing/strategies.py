"""Hypothesis strategies for configurations, masks, tokens, batches and whole cases.

They draw a seed and small sizes rather than arrays: examples are cheap, shrink to few layers,
heads and tokens, and are printed as the call that makes them again. Tests need
``settings(deadline=None)``: the first call of a compiled kernel compiles it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from minattn import checks
from minattn.arrays import Array, Params
from minattn.config import ATTENTIONS, NORMS, TransformerConfig
from minattn.data.markov import MarkovChain
from minattn.masks import NAMES, Mask, check_mask
from minattn.objectives import Batch
from minattn.params import init_params

try:
    from hypothesis import strategies as st
    from hypothesis.extra.numpy import arrays
    from hypothesis.strategies import SearchStrategy
except ImportError as error:
    message = "minattn.testing.strategies needs hypothesis: pip install 'minattn[test]'"
    raise ImportError(message) from error

__all__ = [
    "Case",
    "batches",
    "build_batch",
    "build_case",
    "build_params",
    "cases",
    "configs",
    "markov_chains",
    "masks",
    "params",
    "tokens",
]

_SEEDS = st.integers(0, 2**32 - 1)


class Case(NamedTuple):
    """A model and a batch: the arguments of `loss_and_grad`, in its order."""

    config: TransformerConfig
    params: Params
    batch: Batch

    def __repr__(self) -> str:
        replicas = len(self.params["token_embedding"])
        B, N = self.batch.inputs.shape[-2:]
        return f"<Case {self.config}, replicas={replicas}, batch_size={B}, length={N}>"


def build_params(config: TransformerConfig, replicas: int = 1, seed: int = 0) -> Params:
    """Return parameters at which no gradient vanishes by accident.

    Those of `init_params` with normal noise on what starts constant (biases, gains, shifts), with
    scores large enough that softmax attention is far from uniform, and with outputs small enough
    that deep linear attention, which cubes its input, does not saturate the loss.

    Raises
    ------
    ValueError
        If an argument does not fit.
    """
    checks.instance("config", config, TransformerConfig)
    scales = {"softmax": (1.0, 2.0), "linear": (0.5, 1.0)}[config.attention]
    values = init_params(config, replicas, seed, embedding_scale=scales[0], qk_scale=scales[1])
    rng = np.random.default_rng(seed)
    for name, value in values.items():
        if name.split(".")[-1].startswith(("b_", "gain", "shift")):
            values[name] = value + 0.5 * rng.standard_normal(value.shape)
        elif name.endswith(("W_o", "W_out")):
            values[name] = 0.5 * value
    return values


def build_batch(
    config: TransformerConfig,
    replicas: int | None = 1,
    batch_size: int = 1,
    length: int = 1,
    mask: Mask = "causal",
    seed: int = 0,
) -> Batch:
    """Return a random batch, (R, B, N) or, with ``replicas=None``, (B, N).

    Inputs hold the mask symbol too. A third of the weights are zero, never all of a replica.

    Raises
    ------
    ValueError
        If an argument does not fit.
    """
    checks.instance("config", config, TransformerConfig)
    sizes = {"batch_size": batch_size, "length": length}
    if replicas is not None:
        sizes = {"replicas": replicas} | sizes
    shape = tuple(checks.integer(name, size, minimum=1) for name, size in sizes.items())
    if length > config.max_length:
        checks.fail("length", length, f"at most max_length {config.max_length}")
    rng = np.random.default_rng(checks.seed("seed", seed))
    inputs = rng.integers(config.vocab_size + 1, size=shape)
    targets = rng.integers(config.vocab_size, size=shape)
    weights = rng.uniform(0.1, 1.0, shape) * (rng.random(shape) > 1 / 3)
    weights[..., -1, -1] += 0.5
    return Batch(inputs=inputs, targets=targets, weights=weights, mask=mask)


def build_case(
    config: TransformerConfig,
    replicas: int = 1,
    batch_size: int = 1,
    length: int = 1,
    mask: Mask = "causal",
    seed: int = 0,
) -> Case:
    """Return the case that a failing example prints: see `build_params` and `build_batch`.

    Raises
    ------
    ValueError
        If an argument does not fit.
    """
    batch = build_batch(config, replicas, batch_size, length, mask, seed)
    return Case(config, build_params(config, replicas, seed), batch)


def configs(**fixed: Any) -> SearchStrategy[TransformerConfig]:
    """Draw small configurations; keywords fix fields, to a value or a strategy.

    Raises
    ------
    ValueError
        If a keyword is no field of `TransformerConfig`.
    """
    for name in fixed:
        checks.one_of("configs", name, [field.name for field in fields(TransformerConfig)])
    return _configs(fixed)


@st.composite
def _configs(draw: Any, fixed: dict[str, Any]) -> TransformerConfig:
    given = {n: draw(v) if isinstance(v, SearchStrategy) else v for n, v in fixed.items()}
    norm = given["norm"] if "norm" in given else draw(st.sampled_from(NORMS))
    free = {
        "layers": st.integers(1, 3),
        "heads": st.integers(1, 3),
        "head_width": st.integers(1, 4),
        # Normalised rows of one or two entries are constant: their gradients are mere rounding.
        "width": st.integers(2 if norm == "none" else 3, 6),
        "vocab_size": st.integers(2, 6),
        "max_length": st.integers(1, 6),
        "attention": st.sampled_from(ATTENTIONS),
        "feed_forward": st.integers(0, 5),
        "positions": st.booleans(),
        "bias": st.booleans(),
    }
    drawn = {name: draw(strategy) for name, strategy in free.items() if name not in given}
    return TransformerConfig(**({"norm": norm} | drawn | given))


def masks(length: int) -> SearchStrategy[Mask]:
    """Draw the names of masks, and boolean (N, N) arrays, some with empty rows and columns."""
    shape = (checks.integer("length", length, minimum=1),) * 2
    return st.sampled_from(NAMES) | arrays(np.bool_, shape, elements=st.booleans())


def tokens(
    config: TransformerConfig, replicas: int | None = None, max_batch: int = 3
) -> SearchStrategy[Array]:
    """Draw inputs of a model, (B, N) or, given `replicas`, (R, B, N): symbols 0..V.

    Raises
    ------
    ValueError
        If an argument does not fit.
    """
    return batches(config, replicas, max_batch).map(lambda batch: batch.inputs)


def params(config: TransformerConfig, replicas: int = 1) -> SearchStrategy[Params]:
    """Draw parameters at which no gradient vanishes by accident.

    Raises
    ------
    ValueError
        If an argument does not fit.
    """
    checks.instance("config", config, TransformerConfig)
    checks.integer("replicas", replicas, minimum=1)
    return st.builds(build_params, st.just(config), st.just(replicas), _SEEDS)


def batches(
    config: TransformerConfig, replicas: int | None = 1, max_batch: int = 3
) -> SearchStrategy[Batch]:
    """Draw batches for a model, (R, B, N) or, with ``replicas=None``, (B, N).

    Raises
    ------
    ValueError
        If an argument does not fit.
    """
    checks.instance("config", config, TransformerConfig)
    if replicas is not None:
        checks.integer("replicas", replicas, minimum=1)
    checks.integer("max_batch", max_batch, minimum=1)
    return st.integers(1, config.max_length).flatmap(
        lambda length: st.builds(
            build_batch,
            config=st.just(config),
            replicas=st.just(replicas),
            batch_size=st.integers(1, max_batch),
            length=st.just(length),
            mask=masks(length),
            seed=_SEEDS,
        )
    )


def cases(
    max_replicas: int = 3, max_batch: int = 3, mask: Mask | None = None, **fixed: Any
) -> SearchStrategy[Case]:
    """Draw a model and a batch that fit; keywords fix fields of the configuration.

    ``loss_and_grad(*case)`` takes what is drawn. Without `mask` it is drawn too.

    Raises
    ------
    ValueError
        If an argument does not fit.
    """
    checks.integer("max_replicas", max_replicas, minimum=1)
    checks.integer("max_batch", max_batch, minimum=1)
    if mask is not None:
        check_mask(mask)

    def of(drawn: tuple[TransformerConfig, int]) -> SearchStrategy[Case]:
        config, length = drawn
        return st.builds(
            build_case,
            config=st.just(config),
            replicas=st.integers(1, max_replicas),
            batch_size=st.integers(1, max_batch),
            length=st.just(length),
            mask=masks(length) if mask is None else st.just(mask),
            seed=_SEEDS,
        )

    return configs(**fixed).flatmap(
        lambda config: st.tuples(st.just(config), st.integers(1, config.max_length)).flatmap(of)
    )


def markov_chains(max_symbols: int = 6, max_lag: int = 3) -> SearchStrategy[MarkovChain]:
    """Draw Markov chains of 2 symbols or more, from nearly deterministic to nearly uniform.

    Raises
    ------
    ValueError
        If an argument does not fit.
    """
    checks.integer("max_symbols", max_symbols, minimum=2)
    checks.integer("max_lag", max_lag, minimum=1)
    return st.builds(
        MarkovChain.random,
        n_symbols=st.integers(2, max_symbols),
        concentration=st.sampled_from((1.0, 0.1, 10.0)),
        lag=st.integers(1, max_lag),
        reversible=st.booleans(),
        seed=_SEEDS,
    )

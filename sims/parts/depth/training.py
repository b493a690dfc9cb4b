"""The models of `depth.py`: deep ones trained on text, and what is watched in each layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from minattn.arrays import Array, Params, ratio
from minattn.comparison import ARMS, frequency_loss, held_out_batches
from minattn.config import TransformerConfig
from minattn.data import load_text
from minattn.descent import cosine, product_change
from minattn.engines import Reference
from minattn.model import Tape
from minattn.objectives import Batch, stack
from minattn.observers import account, held_out_loss
from minattn.optim import SGD, AdamW, Optimizer
from minattn.params import W_qk, init_params
from minattn.step import loss_and_grad
from minattn.terms import weighted_outer_sum
from minattn.training import fit
from minattn.update import coefficients, implicit_update

OPTIMIZERS = ("adamw", "sgd")
OBJECTIVES = ("masked_bidirectional", "next_causal")  # of minattn.comparison.ARMS
# Chosen on seed 1000 by held-out loss and nothing else.
LEARNING_RATES = {"adamw": 3e-3, "sgd": 0.5}
HELD_OUT_WINDOWS = 64
PATH_WINDOWS = 4  # of the held-out ones, on which paths are told apart
PATH_RECORDS = 4  # paths are told apart at every fourth record: they cost as much as many steps


@dataclass(frozen=True)
class Setting:
    """One depth, objective and optimiser, trained in R replicas."""

    layers: int
    objective: str
    optimizer: str
    seed: int
    replicas: int
    steps: int
    width: int
    heads: int
    length: int
    batch_size: int
    record_every: int
    engine: str
    text: str | None = None
    sha256: str = ""  # of the text, so that --resume takes no result of another


Results = dict[Setting, dict[str, Array]]


@dataclass(frozen=True)
class Watched(Optimizer):
    """An optimiser that notes what its steps do to every head's W_qk."""

    inner: Optimizer
    every: int
    moved: dict[int, Array] = field(default_factory=dict)  # by step, (L, R, H, d, d)

    def apply(self, engine: Reference, params: Params, grads: Params, state: Params) -> None:
        """Make one step in place; every so many steps, keep the change of W_qk."""
        step = int(state["step"])
        if step % self.every:
            self.inner.apply(engine, params, grads, state)
            return
        before = heads(params)
        self.inner.apply(engine, params, grads, state)
        self.moved[step] = heads(params) - before

    def _moments(self) -> tuple[str, ...]:
        return self.inner._moments()

    def _update(self, *arguments: Any) -> None:
        self.inner._update(*arguments)


def heads(params: Params) -> Array:
    """Return W_qk of every layer and head, (L, R, H, d, d)."""
    layers = sum(name.endswith(".W_q") for name in params)
    return np.stack([W_qk(params, layer, per_head=True) for layer in range(layers)])


@dataclass
class Layers:
    """An observer of how each layer's update relates to the theory's; see `depth.py`."""

    config: TransformerConfig
    paths: Batch
    every: int
    directions: dict[int, tuple[Array, Array]] = field(default_factory=dict)

    def __call__(self, step: int, params: Params, grads: Params, tape: Tape) -> dict[str, Any]:
        """Keep Ghat and E4's first order for later; return the shares of the paths."""
        found = []
        for layer in range(self.config.layers):
            update = implicit_update(self.config, params, tape, layer)
            found.append((update.total, product_change(params, update, 1.0).first_order))
        totals, first_orders = zip(*found, strict=True)
        self.directions[step] = np.stack(totals), np.stack(first_orders)
        if step % self.every == 0:
            return path_shares(self.config, params, self.paths, tape.engine)
        nothing = np.full((self.config.layers, len(tape.inputs)), np.nan)
        return {"share_through_others": nothing, "cosine_of_own": nothing}

    def cosines(self, moved: dict[int, Array]) -> dict[str, Array]:
        """Return cosines (records, L, R), means over heads, of real changes with directions."""
        steps = sorted(moved)
        found: dict[str, list[Array]] = {"cosine_with_update": [], "cosine_with_first_order": []}
        for step in steps:
            for name, direction in zip(found, self.directions[step], strict=True):
                found[name].append(cosine(moved[step], direction).mean(axis=-1))
        return {name: np.stack(values) for name, values in found.items()}


def path_shares(
    config: TransformerConfig, params: Params, batch: Batch, engine: str | Reference
) -> dict[str, Array]:
    """Part the update by whose loss it comes from, the query's own position or others: (L, R).

    G_i, the gradient at position i's head output, is a sum over the positions p whose losses reach
    it. Each window is run N times, a copy keeping the loss of one position: so that G_i of copy p
    is that part of G_i, and p = i is the own one. beta is linear in G and parts alike.

    "share_through_others": |Ghat_other|^2 / (|Ghat_own|^2 + |Ghat_other|^2), heads taken together;
    "cosine_of_own": of Ghat_own with Ghat, the mean over heads. NaN where there is no gradient.
    """
    B, N = batch.inputs.shape[-2:]
    _, _, tape = loss_and_grad(config, params, one_loss_a_copy(batch), engine)
    shares, cosines = [], []
    for layer in tape.layers:
        taped = layer.attention
        assert taped.output_gradient is not None
        R, _, H, _, h = taped.output_gradient.shape
        parts = taped.output_gradient.reshape(R, B, N, H, N, h)  # copies p, then positions i
        own = np.einsum("rbihid->rbhid", parts)
        x = taped.x.reshape(R, B, N, N, -1)[:, :, 0]  # every copy has the same
        A, v = (a.reshape(R, B, N, *a.shape[2:])[:, :, 0] for a in (taped.A, taped.v))
        total, mine = (
            weighted_outer_sum(x, coefficients(A, G, v, tape.allowed, config.attention))
            for G in (parts.sum(axis=2), own)
        )
        energies = [(M**2).sum(axis=(1, 2, 3)) for M in (total - mine, mine)]
        shares.append(ratio(energies[0], energies[0] + energies[1], empty=np.nan))
        cosines.append(cosine(mine, total).mean(axis=-1))
    return {"share_through_others": np.stack(shares), "cosine_of_own": np.stack(cosines)}


def one_loss_a_copy(batch: Batch) -> Batch:
    """Repeat each window N times (R, B N, N), each copy keeping one position's loss."""
    N = batch.inputs.shape[-1]
    inputs, targets, weights = (
        np.repeat(array, N, axis=-2) for array in (batch.inputs, batch.targets, batch.weights)
    )
    kept = np.tile(np.eye(N), (weights.shape[-2] // N, 1))
    return Batch(inputs=inputs, targets=targets, weights=weights * kept, mask=batch.mask)


def train(setting: Setting) -> dict[str, Array]:
    """Train one setting; return what was measured, (records, L, R), and the loss (2, R)."""
    corpus = load_text(setting.text and Path(setting.text))
    objective = ARMS[setting.objective].objective(corpus.n_symbols)
    config = TransformerConfig(
        vocab_size=corpus.n_symbols,
        width=setting.width,
        layers=setting.layers,
        heads=setting.heads,
        max_length=setting.length,
        norm="pre",
        feed_forward=2 * setting.width,
    )
    initial = init_params(config, setting.replicas, setting.seed, dtype="float32")
    sources = [corpus.validation] * setting.replicas
    sizes = (HELD_OUT_WINDOWS, setting.length)
    test = stack(held_out_batches(sources, objective, *sizes, setting.seed))
    paths = test.sequences(slice(PATH_WINDOWS))
    layers = Layers(config, paths, PATH_RECORDS * setting.record_every)
    lr = LEARNING_RATES[setting.optimizer]
    inner = AdamW(lr) if setting.optimizer == "adamw" else SGD(lr)
    optimizer = Watched(lr, inner, setting.record_every)
    loss = held_out_loss(config, test, engine=setting.engine)
    history = fit(
        config,
        initial,
        corpus.train,
        objective,
        steps=setting.steps,
        batch_size=setting.batch_size,
        length=setting.length,
        optimizer=optimizer,
        seed=setting.seed,
        engine=setting.engine,
        record_every=setting.record_every,
        observe=(account(config, initial), loss, layers),
    )
    result = {name: values for name, values in history.metrics.items() if values.ndim == 3}
    result |= layers.cosines(optimizer.moved)
    result |= {"steps": history.steps, "steps_made": np.array(sorted(optimizer.moved))}
    losses = {"loss": history.metrics["held_out_loss"][[0, -1]]}
    return result | losses | {"goal": frequency_loss(corpus.train.tokens, corpus.n_symbols, test)}

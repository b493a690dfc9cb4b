"""The models of `column_dominance.py`: one setting trained, and what each candidate predicts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minattn.arrays import Array, Params
from minattn.comparison import held_out_batches
from minattn.config import TransformerConfig
from minattn.data import DriftingChain, MarkovChain, count_ratio, load_text
from minattn.loop import Observer
from minattn.masks import allowed_pairs
from minattn.model import Tape
from minattn.objectives import Batch, next_token, stack
from minattn.observers import account, held_out_loss
from minattn.optim import SGD, AdamW
from minattn.params import W_qk, init_params
from minattn.randomness import generator
from minattn.scores import scores
from minattn.training import fit
from minattn.update import implicit_update

OPTIMIZERS = ("adamw", "sgd")
ATTENTIONS = ("softmax", "linear")
TRAINED = ("factors", "W_qk")
# Of the first four the two sides of the update are known, of the others the whole matrix.
SIDES = ("positions", "squares", "partners", "rows")
CANDIDATES = (*SIDES, "descent", "consistency")
# Knob 1: from the first position to the last, the earliest symbol's weight falls by a factor e^6
# and the latest symbol's grows by it; the favoured symbol weighs e times the most disfavoured one.
DRIFT, BONUS = 3.0, 1.0
# Chosen on seeds 1000 and 1001 so that training removes as much of the excess loss as it does
# without diverging, and by nothing else.
LEARNING_RATES = {
    ("drifting", "adamw", "softmax"): 6e-3,
    ("drifting", "adamw", "linear"): 6e-3,
    ("drifting", "sgd", "softmax"): 1.5,
    ("drifting", "sgd", "linear"): 0.7,
    ("text", "adamw", "softmax"): 6e-3,
    ("text", "adamw", "linear"): 6e-3,
    ("text", "sgd", "softmax"): 0.7,
    ("text", "sgd", "linear"): 0.3,
}
HELD_OUT_WINDOWS = 64
COUNTED_WINDOWS = 4000


@dataclass(frozen=True)
class Setting:
    """One condition, trained in R replicas."""

    source: str  # "drifting" or "text"
    knob: float
    optimizer: str
    attention: str
    trained: str
    spread: str  # whose embeddings are uneven by hand, and frozen: "none", "keys" or "queries"
    seed: int
    replicas: int
    steps: int
    width: int
    n_symbols: int
    length: int
    record_every: int
    engine: str
    text: str | None = None
    sha256: str = ""  # of the text, so that --resume takes no result of another

    @property
    def condition(self) -> tuple[str, str, str]:
        """Optimiser, attention and what is trained."""
        return self.optimizer, self.attention, self.trained


Results = dict[Setting, dict[str, Array]]


def train(setting: Setting) -> dict[str, Array]:
    """Train one setting; return scores, losses and predictions, mostly (R,)."""
    train_on, test_on = sources(setting)
    config = TransformerConfig(
        vocab_size=train_on[0].n_symbols,
        width=setting.width,
        layers=1,
        heads=1,
        max_length=setting.length,
        attention=setting.attention,
    )
    initial, frozen = start(config, train_on, setting)
    sizes = (HELD_OUT_WINDOWS, setting.length)
    batches = held_out_batches(test_on, next_token, *sizes, setting.seed)
    lr = LEARNING_RATES[setting.source, setting.optimizer, setting.attention]
    history = fit(
        config,
        initial,
        train_on,
        next_token,
        steps=setting.steps,
        batch_size=16,
        length=setting.length,
        optimizer=AdamW(lr) if setting.optimizer == "adamw" else SGD(lr),
        seed=setting.seed,
        engine=setting.engine,
        record_every=setting.record_every,
        observe=(
            account(config, initial),
            held_out_loss(config, stack(batches), engine=setting.engine),
            sides(config),
        ),
        frozen=frozen,
    )
    metrics = history.metrics
    result = {name: metrics[name][-1, 0] for name in metrics if name.startswith("change_")}
    result["dispersion_over_training"] = metrics["change_dispersion"][:, 0]
    result["steps"] = history.steps
    result["untrained_dispersion"] = np.asarray(scores(W_qk(initial)).dispersion)
    result["loss"] = metrics["held_out_loss"][[0, -1]]
    result["goal"] = goal(train_on, batches, setting)
    return result | predictions(metrics, setting) | counts(train_on, setting)


def sources(setting: Setting) -> tuple[list[Any], list[Any]]:
    """Return what each replica learns from, and what it is tested on."""
    if setting.source == "text":
        corpus = load_text(setting.text and Path(setting.text))
        return [corpus.train] * setting.replicas, [corpus.validation] * setting.replicas
    chains = [drifting_chain(setting, replica) for replica in range(setting.replicas)]
    return chains, chains


def drifting_chain(setting: Setting, replica: int) -> DriftingChain:
    """Return a replica's chain: its steps and the order of its symbols do not know the knob."""
    rng = generator(setting.seed, "source", replica)
    chain = MarkovChain.random(setting.n_symbols, 0.3, lag=2, seed=int(rng.integers(2**32)))
    ranks = np.linspace(-1, 1, setting.n_symbols)
    earliness, favour = rng.permutation(ranks), rng.permutation(ranks)
    bonus = BONUS * setting.knob * favour / 2
    return DriftingChain(chain, setting.length, earliness, DRIFT * setting.knob, bonus)


def start(
    config: TransformerConfig, train_on: list[Any], setting: Setting
) -> tuple[Params, tuple[str, ...]]:
    """Return initial parameters and the names of those that stay as they are."""
    initial = init_params(config, setting.replicas, setting.seed)
    frozen: tuple[str, ...] = ()
    if setting.trained == "W_qk":
        initial["layers.0.W_k"][...] = np.eye(setting.width)[:, None]
        frozen = ("layers.0.W_k",)
    if setting.spread != "none":
        make_uneven(initial, train_on, setting)
        frozen += ("*_embedding",)  # training would soon hide what was put there
    return initial, frozen


def make_uneven(params: Params, train_on: list[Any], setting: Setting) -> None:
    """Stretch the coordinates of one side's embeddings, in place.

    Keys: symbols that come early and the first half of the positions, which are keys more often
    than queries; queries: the others. Factors are log-normal(0, 1), scaled to mean square 1.
    """
    half = setting.length // 2
    for replica, source in enumerate(train_on):
        rng = generator(setting.seed, "source", setting.replicas + replica)
        factors = rng.lognormal(size=setting.width)
        factors /= np.sqrt(np.mean(factors**2))
        early = source.tilt[0] > source.tilt[-1]
        of_keys = setting.spread == "keys"
        symbols = np.flatnonzero(early if of_keys else ~early)
        places = np.arange(half) if of_keys else np.arange(half, setting.length)
        params["token_embedding"][replica, symbols] *= factors
        params["position_embedding"][replica, places] *= factors


def goal(train_on: list[Any], batches: list[Batch], setting: Setting) -> Array:
    """Return each replica's best reachable loss; on text, that of symbol frequencies alone."""
    if setting.source == "drifting":
        return np.array([source.next_token_optimum(setting.length) for source in train_on])
    losses = []
    for source, batch in zip(train_on, batches, strict=True):
        seen = np.bincount(source.tokens, minlength=source.n_symbols) + 1  # none has probability 0
        losses.append(-np.log(seen / seen.sum())[batch.targets].mean())
    return np.array(losses)


def counts(train_on: list[Any], setting: Setting) -> dict[str, Array]:
    """Compare the two counts of each symbol, over drawn windows, with their closed form.

    "count_error" (R,): mean over symbols, weighted by frequency, of |log counted ratio - log closed
    form|; "count_spread" (R,): the same mean of |log closed form|, how far the knob goes.
    """
    if setting.source == "text":
        return {}
    allowed = allowed_pairs("causal", setting.length)
    errors, spreads = [], []
    for replica, source in enumerate(train_on):
        rng = generator(setting.seed, "data", replica)
        tokens = source.sample(COUNTED_WINDOWS, setting.length, rng)
        roles = [np.zeros(setting.n_symbols), np.zeros(setting.n_symbols)]
        for axis, role in enumerate(roles):  # pairs as key, pairs as query
            np.add.at(role, tokens, np.broadcast_to(allowed.sum(axis=axis), tokens.shape))
        law = source.position_law(setting.length)
        share = law.sum(axis=0) / law.sum()
        closed = np.log(count_ratio(law, diagonal=True))
        seen = roles[1] > 0
        error = abs(np.log(roles[0][seen] / roles[1][seen]) - closed[seen])
        errors.append(float(share[seen] @ error))
        spreads.append(float(share @ abs(closed)))
    return {"count_error": np.array(errors), "count_spread": np.array(spreads)}


def sides(config: TransformerConfig) -> Observer:
    """Return an observer of all that the candidates use; see `column_dominance.py`."""

    def observe(step: int, params: Params, grads: Params, tape: Tape) -> dict[str, Array]:
        update = implicit_update(config, params, tape)
        squares = update.beta[:, :, 0] ** 2  # (R, B, N, N), one head
        partners = {"keys": update.query_sums[:, 0], "queries": update.key_sums[:, 0]}
        energy = update.x**2
        row: dict[str, Array] = {}
        for axis, side in ((0, "keys"), (1, "queries")):
            weights = {
                "positions": np.broadcast_to(update.allowed.sum(axis=axis), energy.shape[:-1]),
                "squares": squares.sum(axis=axis + 2),
                "partners": (partners[side] ** 2).sum(axis=-1),
            }
            for name, weight in weights.items():
                row[f"{name}.{side}"] = np.einsum("rbn,rbnd->rd", weight, energy)
            row[f"rows.{side}"] = by_embedding(partners[side], update.tokens, config)
        tables = [params["token_embedding"], params["position_embedding"]]
        row["embeddings"] = np.concatenate(tables, axis=1)
        for name in ("W_q", "W_k"):
            row[name] = params[f"layers.0.{name}"][:, :, 0]
            row[f"gradient.{name}"] = grads[f"layers.0.{name}"][:, :, 0]
        return row

    return observe


def by_embedding(partners: Array, tokens: Array, config: TransformerConfig) -> Array:
    """Sum partners (R, B, N, d) over the occurrences of each symbol and position: (R, V+1+N, d).

    As x = E[token] + P[position], the update is a sum of one rank-one term for each row of E and P,
    whose factor on this side is that row.
    """
    R, _, N, d = partners.shape
    is_symbol = tokens.reshape(R, -1, 1) == np.arange(config.vocab_size + 1)
    of_symbols = is_symbol.swapaxes(1, 2).astype(partners.dtype) @ partners.reshape(R, -1, d)
    of_positions = np.zeros((R, config.max_length, d))
    of_positions[:, :N] = partners.sum(axis=1)
    return np.concatenate([of_symbols, of_positions], axis=1)


def predictions(metrics: dict[str, Array], setting: Setting) -> dict[str, Array]:
    """Return each candidate's predicted dispersion (R,), of sums over the records of training."""
    found = {}
    for name in SIDES:
        spread = []
        for side in ("keys", "queries"):
            total = metrics[f"{name}.{side}"].mean(axis=0)
            if name == "rows":
                energy = metrics["embeddings"].mean(axis=0) ** 2
                total = np.einsum("rs,rsd->rd", (total**2).sum(axis=-1), energy)
            spread.append(total.var(axis=-1) / total.mean(axis=-1) ** 2)
        found[name] = np.log(spread[0] / spread[1])
    W_q, W_k = metrics["W_q"], metrics["W_k"]
    gradients = [metrics["gradient.W_q"], metrics["gradient.W_k"]]
    if setting.trained == "W_qk":
        gradients[1] = np.zeros_like(gradients[1])  # W_k is frozen
    for name in ("descent", "consistency"):
        if name == "consistency" and setting.optimizer == "adamw":
            gradients = [over_own_size(gradient) for gradient in gradients]
        moved = gradients[0] @ W_k.swapaxes(-2, -1) + W_q @ gradients[1].swapaxes(-2, -1)
        found[name] = np.asarray(scores(moved.sum(axis=0)).dispersion)
    return found


def over_own_size(gradient: Array) -> Array:
    """Divide each entry by its root mean square over the records (first axis), as AdamW does."""
    size = np.sqrt((gradient**2).mean(axis=0))
    return gradient / np.where(size > 0, size, 1)

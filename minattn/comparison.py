"""Arms and tasks: the same initial parameters and tokens, trained under different objectives.

Three arms separate what is usually confounded: next token under the causal mask, masked token under
the bidirectional mask, and masked token under the causal mask. The last two differ in the mask
alone. Each replica of a task has a source of its own, shared by all arms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from minattn import checks
from minattn.arrays import Array, Params
from minattn.config import TransformerConfig
from minattn.data import Corpus, MarkovChain, TextSource, optimal_loss
from minattn.data.stationary import entropies
from minattn.loop import Objective, Observer, Source
from minattn.objectives import MASKED, Batch, MaskedToken, next_token, stack
from minattn.observers import account, held_out_loss
from minattn.optim import Optimizer
from minattn.params import init_params
from minattn.randomness import generator
from minattn.training import History, fit
from minattn.update import prove_update

PROOF_WINDOWS = 16


@dataclass(frozen=True)
class Arm:
    """An objective under a mask; `objective` makes it for a number of symbols."""

    title: str
    objective: Callable[[int], Objective]


ARMS = {
    "next_causal": Arm("next token, causal", lambda symbols: next_token),
    "masked_bidirectional": Arm(
        "masked token, bidirectional", lambda symbols: MaskedToken(mask_symbol=symbols)
    ),
    "masked_causal": Arm(
        "masked token, causal", lambda symbols: MaskedToken(mask_symbol=symbols, mask="causal")
    ),
}


@dataclass(frozen=True)
class Task:
    """Sources to learn from, one a replica, and others of the same kind to be tested on."""

    name: str
    title: str
    sources: Sequence[Source]
    held_out: Sequence[Source]
    layers: int
    symbols: tuple[str, ...] | None = None  # how tokens are written; numbers if None

    @property
    def n_symbols(self) -> int:
        """Number of symbols of every source."""
        return self.sources[0].n_symbols

    @property
    def has_optimum(self) -> bool:
        """Whether the best reachable loss is known."""
        return len(self.chains) == len(self.held_out)

    @property
    def context_free_loss(self) -> float:
        """Loss in nats of predicting every token by the symbols' frequencies alone."""
        if isinstance(self.sources[0], TextSource):
            counts = np.bincount(self.sources[0].tokens)
            return float(entropies(counts / counts.sum()))
        return float(np.mean([entropies(chain.stationary) for chain in self.chains]))

    @property
    def chains(self) -> list[MarkovChain]:
        """The Markov chains that the replicas are tested on; none for text."""
        return [source for source in self.held_out if isinstance(source, MarkovChain)]

    def written(self, token: int) -> str:
        """Return how a token is written on an axis; the mask symbol is a black square."""
        if token == self.n_symbols:
            return MASKED
        if self.symbols is None:
            return str(token)
        symbol = self.symbols[token]
        if symbol in (" ", "\n"):
            return {" ": "␣", "\n": "↵"}[symbol]
        return symbol if symbol.isprintable() else ascii(symbol)[1:-1]  # \r, \t, \xa0


def chain_task(
    name: str, replicas: int, n_symbols: int, lag: int | None, layers: int, seed: int
) -> Task:
    """Return a task of random Markov chains, one a replica; lag None: i.i.d. sources.

    Chains of the same seed and replica have the same transition matrix at every lag.
    """
    chains = []
    for replica in range(replicas):
        rng = generator(seed, "source", replica)
        if lag is None:
            chains.append(MarkovChain.independent(rng.dirichlet(np.ones(n_symbols))))
        else:
            chains.append(MarkovChain.random(n_symbols, lag=lag, seed=int(rng.integers(2**32))))
    title = "i.i.d. source" if lag is None else f"lag-{lag} chains"
    return Task(name, title, chains, chains, layers)


def text_task(name: str, replicas: int, corpus: Corpus, layers: int) -> Task:
    """Return a task of one text, from which each replica draws windows of its own."""
    train, validation = [corpus.train] * replicas, [corpus.validation] * replicas
    shown = corpus.name.encode("utf-8", "backslashreplace").decode().replace("$", r"\$")
    return Task(name, f"text ({shown})", train, validation, layers, corpus.symbols)


@dataclass(frozen=True, kw_only=True)
class Training:
    """How every arm of every task is trained."""

    width: int
    heads: int
    length: int
    batch_size: int
    steps: int
    record_every: int
    held_out_windows: int
    optimizer: Optimizer
    seed: int
    engine: str
    dtype: str


@dataclass(frozen=True)
class Run:
    """One arm of one task, trained: R replicas."""

    task: Task
    arm: str
    config: TransformerConfig
    initial: Params
    history: History
    test: Batch  # the held-out batch of all replicas
    optimum: Array | None  # (R,), best reachable loss on the held-out batch, in nats
    proof_residual: Array  # (layers, R)

    @property
    def loss(self) -> Array:
        """Held-out loss (records, R), in nats."""
        return self.history.metrics["held_out_loss"]

    @property
    def excess(self) -> Array:
        """Held-out loss above the best reachable one (records, R), in nats; chains only."""
        if self.optimum is None:
            checks.fail("task", self.task.name, "a task whose best reachable loss is known")
        return self.loss - self.optimum

    @property
    def share_removed(self) -> Array:
        """Share of the initial excess that training had removed at each record (records, R)."""
        share: Array = 1 - self.excess / self.excess[0]
        return share

    def metric(self, name: str) -> Array:
        """Return a metric of the account, the mean over layers: (records, R)."""
        mean: Array = self.history.metrics[name].mean(axis=1)
        return mean


def train(
    task: Task, arm: str, how: Training, progress: Any = None, observe: Sequence[Observer] = ()
) -> Run:
    """Train all replicas of one arm on a task and prove Prop. 2.1 on what came out.

    Parameters
    ----------
    task : Task
    arm : str
        One of `ARMS`.
    how : Training
    progress : optional
        As in `fit`.
    observe : sequence of observers
        Called at each record, after the account and the held-out loss.

    Raises
    ------
    ValueError
        If the settings do not fit, before training.
    """
    objective = ARMS[arm].objective(task.n_symbols)
    replicas = len(task.sources)
    config = TransformerConfig(
        vocab_size=task.n_symbols,
        width=how.width,
        layers=task.layers,
        heads=how.heads,
        max_length=how.length,
    )
    initial = init_params(config, replicas, how.seed, dtype=how.dtype)
    sizes = (how.held_out_windows, how.length)
    batches = held_out_batches(task.held_out, objective, *sizes, how.seed)
    test, optimum = stack(batches), None
    if task.has_optimum:
        pairs = zip(task.chains, batches, strict=True)
        optimum = np.array([optimal_loss(chain, objective, batch) for chain, batch in pairs])
    history = fit(
        config,
        initial,
        list(task.sources),
        objective,
        steps=how.steps,
        batch_size=how.batch_size,
        length=how.length,
        optimizer=how.optimizer,
        seed=how.seed,
        engine=how.engine,
        record_every=how.record_every,
        observe=(
            account(config, initial),
            held_out_loss(config, test, engine=how.engine),
            *observe,
        ),
        progress=progress,
    )
    residual = _proof(config, history.params, test, how)
    return Run(task, arm, config, initial, history, test, optimum, residual)


def frequency_loss(tokens: Array, n_symbols: int, test: Batch) -> Array:
    """Return the loss (R,) in nats of predicting a batch by symbol frequencies alone.

    Those of `tokens`, each count raised by one, so that no symbol has probability 0.
    """
    counts = np.bincount(tokens.ravel(), minlength=n_symbols) + 1
    surprise = -np.log(counts / counts.sum())[test.targets]
    return np.asarray((test.weights * surprise).sum(axis=(1, 2)) / test.weights.sum(axis=(1, 2)))


def held_out_batches(
    sources: Sequence[Source], objective: Objective, windows: int, length: int, seed: int
) -> list[Batch]:
    """Return the batch that each replica is tested on, out of its own source.

    Its tokens are the same for every objective: they are drawn first from the replica's stream.
    """
    rngs = [generator(seed, "held_out", replica) for replica in range(len(sources))]
    pairs = zip(sources, rngs, strict=True)
    return [objective(source.sample(windows, length, rng), rng) for source, rng in pairs]


def _proof(config: TransformerConfig, params: Params, test: Batch, how: Training) -> Array:
    """Residuals (layers, R) of Prop. 2.1 in float64, on a few windows of the held-out batch."""
    exact = {name: value.astype(np.float64) for name, value in params.items()}
    few = test.sequences(slice(PROOF_WINDOWS))
    prove = partial(prove_update, config, exact, few, seed=how.seed, engine=how.engine)
    return np.stack([prove(layer=layer).residual for layer in range(config.layers)])

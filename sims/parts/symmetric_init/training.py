"""How `symmetric_init.py` trains and measures: one source, mask and start, all replicas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minattn.arrays import Array, Params
from minattn.comparison import Task, chain_task, held_out_batches, text_task
from minattn.config import TransformerConfig
from minattn.data import load_text, optimal_loss
from minattn.loop import Observer
from minattn.model import Tape
from minattn.objectives import MaskedToken, stack
from minattn.observers import held_out_loss
from minattn.optim import AdamW
from minattn.params import W_qk, init_params
from minattn.scores import symmetry
from minattn.training import fit

SOURCES = ("text", "lag2")
MASKS = ("bidirectional", "causal")
UNDERTRAINED_BELOW = 0.5
REDRAWN = 1000  # replica numbers of the control start here: other initial draws on the same tokens


@dataclass(frozen=True)
class Start:
    """Where W_q and W_k begin, and whether the loss is penalised."""

    title: str
    qk_init: str = "random"
    penalised: bool = False
    redrawn: bool = False


STARTS = {
    "random": Start("plain"),
    "symmetric": Start("symmetric", "symmetric"),
    "random_matched": Start("plain, at the norm of symmetric", "random_matched"),
    "symmetric_matched": Start("symmetric, at the norm of plain", "symmetric_matched"),
    "penalty": Start("plain, asymmetry penalised", penalised=True),
    "redrawn": Start("control: plain, drawn anew", redrawn=True),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model to train, in all replicas."""

    source: str
    mask: str
    start: str
    replicas: int
    layers: int
    width: int
    heads: int
    feed_forward: int
    n_symbols: int
    length: int
    batch_size: int
    steps: int
    record_every: int
    held_out_windows: int
    learning_rate: float
    penalty_weight: float
    seed: int
    engine: str
    dtype: str
    text: str | None


Key = tuple[str, str, str]  # source, mask, start
Results = dict[Key, dict[str, Array]]


def train(setting: Setting) -> dict[str, Array]:
    """Train and return what was recorded.

    Returns
    -------
    dict of arrays
        "steps" (records,); "loss" (records, R), held out, in nats; "optimum" (R,), the best
        reachable one, NaN on text; "context_free" (), the loss of predicting by the symbols'
        frequencies alone; "symmetry" and "norm" (records, layers, R), of W_qk summed over heads;
        "symmetry_heads" (records, layers, R), the mean over heads of each head's own.
    """
    start, task = STARTS[setting.start], task_of(setting)
    config = TransformerConfig(
        vocab_size=task.n_symbols,
        width=setting.width,
        layers=setting.layers,
        heads=setting.heads,
        max_length=setting.length,
        norm="pre",
        feed_forward=setting.feed_forward,
    )
    objective = MaskedToken(mask_symbol=task.n_symbols, mask=setting.mask)
    first = REDRAWN if start.redrawn else 0
    numbers = range(first, first + setting.replicas)
    params = init_params(config, numbers, setting.seed, start.qk_init, dtype=setting.dtype)
    sizes = (setting.held_out_windows, setting.length)
    tests = held_out_batches(task.held_out, objective, *sizes, setting.seed)
    optimum = np.full(setting.replicas, np.nan)
    if task.has_optimum:
        pairs = zip(task.chains, tests, strict=True)
        optimum = np.array([optimal_loss(chain, objective, batch) for chain, batch in pairs])
    history = fit(
        config,
        params,
        list(task.sources),
        objective,
        steps=setting.steps,
        batch_size=setting.batch_size,
        length=setting.length,
        optimizer=AdamW(setting.learning_rate),
        seed=setting.seed,
        engine=setting.engine,
        record_every=setting.record_every,
        observe=(form_observer(config), held_out_loss(config, stack(tests), "held_out")),
        penalty=Asymmetry(config.layers, setting.penalty_weight) if start.penalised else None,
    )
    metrics = {name: history.metrics[name] for name in ("symmetry", "symmetry_heads", "norm")}
    return metrics | {
        "steps": history.steps,
        "loss": history.metrics["held_out"],
        "optimum": optimum,
        "context_free": np.array(task.context_free_loss),
    }


def task_of(setting: Setting) -> Task:
    """Return the sources that a setting learns from, one a replica."""
    if setting.source == "text":
        return text_task("text", setting.replicas, load_text(setting.text), setting.layers)
    sizes = (setting.replicas, setting.n_symbols)
    return chain_task("lag2", *sizes, 2, setting.layers, setting.seed)


def form_observer(config: TransformerConfig) -> Observer:
    """Return an observer of symmetry and Frobenius norm of every layer's W_qk."""

    def observe(step: int, params: Params, grads: Params, tape: Tape) -> dict[str, Array]:
        heads = np.stack([W_qk(params, layer, per_head=True) for layer in range(config.layers)])
        summed = heads.sum(axis=2)
        return {
            "symmetry": symmetry(summed),
            "symmetry_heads": symmetry(heads).mean(axis=-1),
            "norm": np.linalg.norm(summed, axis=(-2, -1)),
        }

    return observe


@dataclass(frozen=True)
class Asymmetry:
    """A penalty on what is not symmetric: weight * mean over layers of |M| / |M+|.

    M = W_qk of a layer, summed over heads, and M+ its symmetric part; norms are Frobenius norms.
    The ratio is 1 for a symmetric matrix, about sqrt(2) for a random one, and grows without bound
    as M becomes skew.

    Notes
    -----
    With n = |M| and s = |M+|, and since d|M| = <M, dM> / n and d|M+| = <M+, dM> / s,

        d(n / s) = <M / (n s) - n M+ / s^3, dM>

    and, from M = W_q W_k^T with heads side by side, dW_q = dM W_k and dW_k = dM^T W_q.
    """

    layers: int
    weight: float

    def __call__(self, params: Params) -> tuple[Array, Params]:
        """Return the penalty (R,) and its gradients with respect to every W_q and W_k."""
        share = self.weight / self.layers
        value: Array | float = 0.0
        grads: Params = {}
        for layer in range(self.layers):
            names = [f"layers.{layer}.{name}" for name in ("W_q", "W_k")]
            shape = params[names[0]].shape
            W_q, W_k = (params[name].reshape(*shape[:2], -1) for name in names)
            M = W_q @ W_k.swapaxes(-2, -1)
            symmetric = (M + M.swapaxes(-2, -1)) / 2
            # Square roots of sums of squares, not `norm`, which no complex step survives.
            n, s = (np.sqrt((part * part).sum(axis=(-2, -1))) for part in (M, symmetric))
            value = value + share * n / s
            n, s = n[:, None, None], s[:, None, None]
            dM = share * (M / (n * s) - n * symmetric / s**3)
            grads[names[0]] = (dM @ W_k).reshape(shape)
            grads[names[1]] = (dM.swapaxes(-2, -1) @ W_q).reshape(shape)
        return np.asarray(value), grads


def speed_up(one: dict[str, Array], other: dict[str, Array]) -> Array:
    """(T - first step at which `one` reaches the final loss of `other`)/T, (R,); never: 0.

    Between two records the loss is taken to be linear in the step.
    """
    steps, loss, target = one["steps"], one["loss"], other["loss"][-1]
    found = np.zeros(len(target))
    for replica, reached in enumerate((loss <= target).T):
        if reached.any():
            after = int(reached.argmax())
            first = steps[after]
            if after:
                above_it, below_it = loss[after - 1, replica], loss[after, replica]
                share = (above_it - target[replica]) / (above_it - below_it)
                first = steps[after - 1] + share * (steps[after] - steps[after - 1])
            found[replica] = 1 - first / steps[-1]
    return found


def net_speed_up(one: dict[str, Array], other: dict[str, Array]) -> Array:
    """Speed-up of `one` over `other` minus the reverse, (R,): 0 on average between equals."""
    return speed_up(one, other) - speed_up(other, one)


def form_symmetry(result: dict[str, Array], share: float = 1.0) -> Array:
    """Symmetry (R,) of W_qk after this share of training, the mean over layers."""
    record = int(np.searchsorted(result["steps"], share * result["steps"][-1]))
    return result["symmetry"][record].mean(axis=0)


def undertrained(*found: dict[str, Array]) -> bool:
    """Whether training fell short, in any of these runs, of what a verdict needs."""
    for result in found:
        first, last = result["loss"][0].mean(), result["loss"][-1].mean()
        if np.isnan(result["optimum"]).any():
            short = last >= result["context_free"]
        else:
            best = result["optimum"].mean()
            short = (first - last) / (first - best) < UNDERTRAINED_BELOW
        if short:
            return True
    return False

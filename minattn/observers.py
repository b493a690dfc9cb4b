"""Observers for `fit`: the account of what training does to W_qk, and the loss on unseen tokens.

Both are `Summing`: what they need of a step is a sum over the sequences of its batch, so that `fit`
hands them one block of it after another, and need neither join tapes nor copy anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from minattn import checks
from minattn.arrays import Array, Params
from minattn.config import TransformerConfig
from minattn.engines import Reference, choose
from minattn.model import Tape
from minattn.objectives import Batch
from minattn.params import W_qk, check_params
from minattn.scores import scores_from_squares, squares_of
from minattn.squares import Squares
from minattn.step import mean_loss
from minattn.terms import agreement, outer_sum
from minattn.update import taped


class Summing(ABC):
    """An observer whose record is made of sums over sequences."""

    @abstractmethod
    def of_block(self, tape: Tape) -> Params:
        """Return sums over the sequences of a tape, arrays (R, ...); keep and change nothing.

        It is called in the threads that run the step, with tapes whose `grads` are None.
        """

    @abstractmethod
    def record(self, step: int, params: Params, sums: Params) -> dict[str, Any]:
        """Return what is recorded, or what `finish` needs, given the sums over the batch."""

    def finish(self, kept: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return records, given what `record` has returned at one step or at several in a row."""
        return kept

    def __call__(self, step: int, params: Params, grads: Params, tape: Tape) -> dict[str, Any]:
        """Return what is recorded, as any observer."""
        return self.finish([self.record(step, params, self.of_block(tape))])[0]


@dataclass(frozen=True)
class Account(Summing):
    """Observer made by `account`."""

    config: TransformerConfig
    start: Array  # W_qk of every layer (layers, R, d, d) that the change is counted from

    def of_block(self, tape: Tape) -> Params:
        """Return dL/dW_qk (R, layers, H, d, d) and `mutual_sums` of beta (R, layers, 3)."""
        config, engine = self.config, tape.engine.on_host()
        (R, B, N), H, d = tape.inputs.shape, config.heads, config.width
        gradient = np.empty((R, config.layers, H, d, d), tape.final.dtype)
        pairs, rows = np.empty((R, config.layers, 3)), np.empty((R, H, B, N, d), gradient.dtype)
        for layer in range(config.layers):
            *_, x = taped(config, tape, layer)
            # Minus beta, as backprop has it: `implicit_update` has a formula of its own.
            minus_beta = tape.layers[layer].attention.score_gradient
            assert minus_beta is not None
            keys = np.broadcast_to(x[:, :, None], (R, B, H, N, d))
            engine.key_sums(minus_beta, keys, tape.allowed, out=rows.swapaxes(1, 2))
            gradient[:, layer] = outer_sum(x, rows)
            pairs[:, layer] = engine.mutual_sums(minus_beta, tape.allowed)
        return {"gradient": gradient, "pairs": pairs}

    def record(self, step: int, params: Params, sums: Params) -> dict[str, Any]:
        """Return the squares of W_qk, of its change and of the gradient, and what else it takes."""
        now, gradient = _forms(self.config, params), sums["gradient"].swapaxes(0, 1)
        if now.shape != self.start.shape:
            got = f"{self.start.shape[1]} replicas"
            checks.fail("initial", got, f"{now.shape[1]}, as params have")
        change = now - self.start
        matrices = np.concatenate([now[:, :, None], change[:, :, None], gradient], axis=2)
        squares, floor = squares_of(matrices)
        size = np.sqrt(np.einsum("lrmn,lrmn->lr", change, change))
        rest = {"floor": floor, "change_norm": size, "pairs": sums["pairs"].swapaxes(0, 1)}
        return squares._asdict() | rest

    def finish(self, kept: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the metrics that `account` lists.

        Of all steps at once: for few numbers, a call costs more than what it computes.
        """
        every = {name: np.stack([one[name] for one in kept]) for name in kept[0]}
        squares = Squares(*(every[name] for name in Squares._fields))
        found = scores_from_squares(squares, float(every["floor"][0]))
        metrics: dict[str, Array] = {"change_norm": every["change_norm"]}
        for name, values in found._asdict().items():
            metrics |= {name: values[..., 0], "change_" + name: values[..., 1]}
        # Ghat is minus the gradient, and as symmetric.
        metrics["update_symmetry"] = np.asarray(found.symmetry)[..., 2:].mean(axis=-1)
        metrics["agreement"], metrics["agreement_pairs"] = agreement(every["pairs"])
        return [{name: array[t] for name, array in metrics.items()} for t in range(len(kept))]


def account(config: TransformerConfig, initial: Params) -> Account:
    """Return an observer of the scores of every layer's W_qk, of its change, and of its update.

    Each metric is (layers, R) at a record: "symmetry", "directionality",
    "directionality_published" and "dispersion" of W_qk, summed over heads; the same with
    "change_" in front for W_qk - W_qk(0), and "change_norm", its Frobenius norm; "update_symmetry",
    of Ghat, the mean over heads; "agreement" of beta_ij with beta_ji (NaN where undefined) and
    "agreement_pairs", the number of pairs.

    Parameters
    ----------
    config : TransformerConfig
    initial : dict of arrays
        Parameters that the change is counted from.

    Raises
    ------
    ValueError
        If `initial` does not fit the model or, at a record, the parameters beside it.
    """
    check_params(config, initial, "initial")
    return Account(config, _forms(config, initial))


@dataclass(frozen=True)
class HeldOutLoss(Summing):
    """Observer made by `held_out_loss`."""

    config: TransformerConfig
    batch: Batch
    name: str
    engine: str | Reference

    def of_block(self, tape: Tape) -> Params:
        """Need nothing of the step."""
        return {}

    def record(self, step: int, params: Params, sums: Params) -> dict[str, Any]:
        """Return the loss (R,) under its name."""
        return {self.name: mean_loss(self.config, params, self.batch, self.engine)}


def held_out_loss(
    config: TransformerConfig,
    batch: Batch,
    name: str = "held_out_loss",
    engine: str | Reference = "auto",
) -> HeldOutLoss:
    """Return an observer of the loss (R,) on one fixed batch.

    Parameters
    ----------
    config : TransformerConfig
    batch : Batch
    name : str
        What the history calls it.
    engine : {"auto", "numba", "numpy", "cupy"}

    Raises
    ------
    ValueError
        If an argument is of another kind; at the first record, if the batch does not fit the model.
    """
    checks.instance("config", config, TransformerConfig)
    checks.instance("batch", batch, Batch)
    checks.text("name", name)
    choose(engine)
    return HeldOutLoss(config, batch, name, engine)


def _forms(config: TransformerConfig, params: Params) -> Array:
    """Return W_qk of every layer, (layers, R, d, d)."""
    return np.stack([W_qk(params, layer) for layer in range(config.layers)])

"""Observers for `fit`: the account of what training does to W_qk, and the loss on unseen tokens.

Both are `transient`: they keep nothing of what they are given, and change none of it, so that `fit`
need not make copies for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from minattn import checks
from minattn.arrays import Array, Params
from minattn.config import TransformerConfig
from minattn.engines import Reference
from minattn.model import Tape
from minattn.objectives import Batch
from minattn.params import W_qk, check_params
from minattn.scores import scores
from minattn.step import mean_loss
from minattn.update import implicit_update


@dataclass(frozen=True)
class Account:
    """Observer made by `account`."""

    config: TransformerConfig
    start: Array  # W_qk of every layer (layers, R, d, d) that the change is counted from

    transient: ClassVar[bool] = True

    def __call__(self, step: int, params: Params, grads: Params, tape: Tape) -> dict[str, Any]:
        """Return the metrics that `account` lists."""
        config, now = self.config, _forms(self.config, params)
        if now.shape != self.start.shape:
            got = f"{self.start.shape[1]} replicas"
            checks.fail("initial", got, f"{now.shape[1]}, as params have")
        updates = [implicit_update(config, params, tape, layer) for layer in range(config.layers)]
        totals = np.stack([update.total for update in updates])  # (layers, R, H, d, d)
        change = now - self.start
        # One call for all matrices: at small widths, a call costs more than a matrix.
        found = scores(np.concatenate([now[:, :, None], change[:, :, None], totals], axis=2))
        row: dict[str, Any] = {}
        for name, values in found._asdict().items():
            row |= {name: values[..., 0], "change_" + name: values[..., 1]}
        row["change_norm"] = np.linalg.norm(change, axis=(-2, -1))
        row["update_symmetry"] = np.mean(np.asarray(found.symmetry)[..., 2:], axis=-1)
        agreement, pairs = zip(*(update.agreement() for update in updates), strict=True)
        return row | {"agreement": np.stack(agreement), "agreement_pairs": np.stack(pairs)}


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
    check_params(config, initial)
    return Account(config, _forms(config, initial))


@dataclass(frozen=True)
class HeldOutLoss:
    """Observer made by `held_out_loss`."""

    config: TransformerConfig
    batch: Batch
    name: str
    engine: str | Reference

    transient: ClassVar[bool] = True

    def __call__(self, step: int, params: Params, grads: Params, tape: Tape) -> dict[str, Any]:
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
    engine : {"auto", "numba", "numpy"}

    Raises
    ------
    ValueError
        If `batch` is no batch; at the first record, if it does not fit the model.
    """
    if not isinstance(batch, Batch):
        checks.fail("batch", type(batch).__name__, "a minattn.Batch")
    return HeldOutLoss(config, batch, name, engine)


def _forms(config: TransformerConfig, params: Params) -> Array:
    """Return W_qk of every layer, (layers, R, d, d)."""
    return np.stack([W_qk(params, layer) for layer in range(config.layers)])

"""Observers for `fit`: the account of what training does to W_qk, and the loss on unseen tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from minattn.arrays import Array, Params
from minattn.config import TransformerConfig
from minattn.engines import Reference
from minattn.loop import Observer
from minattn.model import Tape
from minattn.objectives import Batch
from minattn.params import W_qk
from minattn.scores import Scores, scores, symmetry
from minattn.step import mean_loss
from minattn.update import implicit_update


def account(config: TransformerConfig, initial: Params) -> Observer:
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
    """
    start = [W_qk(initial, layer) for layer in range(config.layers)]

    def observe(step: int, params: Params, grads: Params, tape: Tape) -> dict[str, Any]:
        rows = []
        for layer in range(config.layers):
            now = W_qk(params, layer)
            change = now - start[layer]
            row = _named("", scores(now)) | _named("change_", scores(change))
            row["change_norm"] = np.linalg.norm(change, axis=(-2, -1))
            update = implicit_update(config, params, tape, layer)
            row["update_symmetry"] = np.mean(symmetry(update.total), axis=-1)
            row["agreement"], row["agreement_pairs"] = update.agreement()
            rows.append(row)
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    return observe


def held_out_loss(
    config: TransformerConfig,
    batch: Batch,
    name: str = "held_out_loss",
    engine: str | Reference = "auto",
) -> Observer:
    """Return an observer of the loss (R,) on one fixed batch."""

    def observe(step: int, params: Params, grads: Params, tape: Tape) -> dict[str, Any]:
        return {name: mean_loss(config, params, batch, engine)}

    return observe


def _named(prefix: str, values: Scores) -> dict[str, Array]:
    return {prefix + name: np.asarray(value) for name, value in values._asdict().items()}

"""The best loss that any predictor can reach on a Markov chain, exactly.

For next-token prediction it is the entropy of the next token given the past. For masked tokens the
exact predictor is the posterior of each hidden symbol given everything that may be seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from minattn import checks
from minattn.arrays import Array
from minattn.data.inference import posterior, supported_mask
from minattn.data.markov import MarkovChain
from minattn.data.stationary import entropies


class ReplicaBatch(Protocol):
    """What one replica's batch has to offer: arrays of shape (B, n), and who sees whom."""

    @property
    def inputs(self) -> Array:
        """Tokens as the model sees them."""

    @property
    def targets(self) -> Array:
        """Tokens to predict."""

    @property
    def weights(self) -> Array:
        """How much each position counts."""

    @property
    def mask(self) -> Any:
        """Who sees whom: a name or a boolean array (n, n)."""


class MaskedObjective(Protocol):
    """How inputs were hidden: selected at `rate`, then masked, redrawn or kept by `replace`."""

    @property
    def rate(self) -> float:
        """Share of the positions selected."""

    @property
    def mask_symbol(self) -> int:
        """The symbol that hides a token."""

    @property
    def replace(self) -> tuple[float, float, float]:
        """Shares of the selected positions that are masked, redrawn and kept."""


def next_token_optimum(chain: MarkovChain, length: int) -> float:
    """Return the expected loss of the exact next-token predictor on windows of a chain.

    Parameters
    ----------
    chain : MarkovChain
    length : int
        Tokens N of a window, at least 2; the loss is the mean over its N - 1 targets.

    Returns
    -------
    float
        In nats. At lag k the first k - 1 targets are independent of all before them and cost the
        entropy of the stationary law each; the others cost the entropy rate.

    Raises
    ------
    ValueError
        If `length` is below 2.
    """
    checks.instance("chain", chain, MarkovChain)
    targets = checks.integer("length", length, minimum=2) - 1
    unforeseen = min(chain.lag - 1, targets)
    loss = unforeseen * float(entropies(chain.stationary))
    return (loss + (targets - unforeseen) * chain.entropy_rate) / targets


def next_token_loss(chain: MarkovChain, batch: ReplicaBatch) -> float:
    """Loss of the exact next-token predictor on one batch.

    Parameters
    ----------
    chain : MarkovChain
    batch : ReplicaBatch
        Of one replica, arrays (B, n): `targets` at t are the tokens that follow `inputs` at t, and
        `weights` say how much each counts. Its mask must be "causal".

    Returns
    -------
    float
        Weighted mean in nats; 0 if no weight is positive, infinite if a forbidden step has weight.

    Raises
    ------
    ValueError
        If the batch is malformed or has another mask.
    """
    checks.instance("chain", chain, MarkovChain)
    _check_parts("batch", batch, ("inputs", "targets", "weights", "mask"))
    supported_mask("batch.mask", batch.mask, ["causal"])
    inputs, targets, weights = _checked_batch(batch, chain.n_symbols)
    law = np.tile(chain.stationary, (*inputs.shape, 1))
    # The target at t is token t + 1, which depends on token t + 1 - lag.
    law[:, chain.lag - 1 :] = chain.transition[inputs[:, : max(0, inputs.shape[1] + 1 - chain.lag)]]
    return _mean_loss(law, targets, weights)


def masked_token_loss(chain: MarkovChain, objective: MaskedObjective, batch: ReplicaBatch) -> float:
    """Loss of the exact masked-token predictor on one batch.

    Parameters
    ----------
    chain : MarkovChain
    objective : MaskedObjective
        Each position is selected with probability `rate`. Of the selected, the shares `replace` =
        (p_mask, p_random, p_keep) become `mask_symbol`, a uniform draw from 0..mask_symbol-1, or
        stay. Only selected positions are scored.
    batch : ReplicaBatch
        Of one replica, arrays (B, n): inputs after hiding, the original tokens as targets, and
        weights that are positive at selected positions only. Its mask is "bidirectional", or
        "causal": then the input at a position and those before it are known.

    Returns
    -------
    float
        Weighted mean in nats; 0 if no weight is positive.

    Raises
    ------
    ValueError
        If an argument is malformed, or a sequence of inputs cannot have come from this chain and
        objective.

    Notes
    -----
    The predictor knows that the position it is asked about was selected, and does not know of any
    other whether it was: a visible token elsewhere may be a random one.
    """
    checks.instance("chain", chain, MarkovChain)
    _check_parts("objective", objective, ("rate", "mask_symbol", "replace"))
    _check_parts("batch", batch, ("inputs", "targets", "weights", "mask"))
    mask = supported_mask("batch.mask", batch.mask)
    anywhere, selected = _input_likelihoods(chain, objective)
    inputs, targets, weights = _checked_batch(batch, chain.n_symbols, objective.mask_symbol)
    law = posterior(chain, anywhere[inputs], mask) * selected[inputs]
    total = law.sum(axis=-1, keepdims=True)
    impossible = ((total[..., 0] == 0) & (weights > 0)).any(axis=1)
    if impossible.any():
        got = f"an impossible input at a scored position of sequence {impossible.argmax()}"
        checks.fail("batch.inputs", got, "inputs that this objective made from this chain")
    return _mean_loss(law / np.where(total == 0, 1.0, total), targets, weights)


def optimal_loss(chain: MarkovChain, objective: Any, batch: ReplicaBatch) -> float:
    """Loss of the exact predictor for an objective on one batch: what training can reach.

    Parameters
    ----------
    chain : MarkovChain
    objective : callable
        What made the batch. With an attribute `rate` it is a masked-token objective, else the
        next-token one.
    batch : ReplicaBatch
        Of one replica, arrays (B, n).

    Returns
    -------
    float
        Weighted mean in nats, see `next_token_loss` and `masked_token_loss`.

    Raises
    ------
    ValueError
        As the two functions do.
    """
    if hasattr(objective, "rate"):
        return masked_token_loss(chain, objective, batch)
    checks.function("objective", objective)
    return next_token_loss(chain, batch)


def _input_likelihoods(chain: MarkovChain, objective: MaskedObjective) -> tuple[Array, Array]:
    """Probability of each input (row) given the token (column): anywhere, and where selected."""
    V = chain.n_symbols
    mask_symbol = checks.integer("objective.mask_symbol", objective.mask_symbol, minimum=V)
    rate = checks.real("objective.rate", objective.rate, 0.0, 1.0)
    p_mask, p_random, p_keep = (
        checks.real("objective.replace", p, 0.0, 1.0) for p in objective.replace
    )
    visible = np.eye(mask_symbol + 1, V)
    selected = p_keep * visible + p_random / mask_symbol
    selected[mask_symbol] = p_mask
    return (1 - rate) * visible + rate * selected, selected


def _check_parts(name: str, value: Any, parts: Iterable[str]) -> None:
    """Fail unless a value that is known by its attributes has them."""
    for part in parts:
        if not hasattr(value, part):
            checks.fail(name, type(value).__name__, f"one with the attribute {part!r}")


def _checked_batch(
    batch: ReplicaBatch, n_symbols: int, mask_symbol: int | None = None
) -> tuple[Array, Array, Array]:
    """Return inputs, targets (0 where they do not count) and weights of one replica, or fail."""
    masked = mask_symbol is not None
    inputs = checks.integers("batch.inputs", batch.inputs, mask_symbol or n_symbols, masked)
    weights = checks.array("batch.weights", batch.weights, "fiub")
    targets = checks.array("batch.targets", batch.targets)
    if inputs.ndim != 2 or inputs.size == 0:
        checks.fail("batch.inputs", f"shape {inputs.shape}", "shape (B, n) of one replica")
    for name, given in ("targets", targets), ("weights", weights):
        if given.shape != inputs.shape:
            checks.fail(
                f"batch.{name}", f"shape {given.shape}", f"shape {inputs.shape}, as inputs have"
            )
    if not (np.isfinite(weights) & (weights >= 0)).all():
        checks.fail("batch.weights", "a negative or non-finite value", "weights of at least 0")
    counted = np.where(weights > 0, targets, 0)
    return inputs, checks.integers("batch.targets", counted, below=n_symbols), weights


def _mean_loss(law: Array, targets: Array, weights: Array) -> float:
    """Weighted mean of -log law at the targets, over the positions of positive weight."""
    counted = weights > 0
    if not counted.any():
        return 0.0
    probability = law[counted, targets[counted]]
    with np.errstate(divide="ignore"):
        return float(np.average(-np.log(probability), weights=weights[counted]))

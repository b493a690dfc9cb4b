"""Objectives: from tokens to what is shown, what is asked, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minattn import checks
from minattn.arrays import Array
from minattn.masks import Mask, allowed_pairs, check_mask, describe, same_mask

MASKED = "■"  # how figures write the mask symbol


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What a model sees and what it is asked.

    Parameters
    ----------
    inputs : (B, N) or (R, B, N) int array
        Tokens, the mask symbol V included. Two axes: the same for every replica.
    targets : (B, N) or (R, B, N) int array
        The symbol asked for at each position; read only where the weight is positive.
    weights : (B, N) or (R, B, N) float array
        Share of each position in the loss: a weighted mean per replica. Non-negative.
    mask : {"causal", "strictly_causal", "bidirectional"} or (N, N) bool array
        Which keys a query may attend to.

    Raises
    ------
    ValueError
        If the arrays differ in shape, weights are negative or not finite, or the mask is none.
    """

    inputs: Array
    targets: Array
    weights: Array
    mask: Mask

    def __post_init__(self) -> None:
        inputs = checks.integers("inputs", self.inputs)
        if inputs.ndim not in (2, 3) or inputs.size == 0:
            needs = "shape (B, N) or (R, B, N), none of them 0"
            checks.fail("inputs", f"shape {inputs.shape}", needs)
        targets = checks.array("targets", self.targets, "iu", "an array of integers")
        weights = checks.array("weights", self.weights, "fiub")
        for name, array in (("targets", targets), ("weights", weights)):
            if array.shape != inputs.shape:
                needs = f"shape {inputs.shape}, as inputs have"
                checks.fail(name, f"shape {array.shape}", needs)
        if not np.isfinite(weights).all() or weights.min() < 0:
            checks.fail("weights", "a negative or non-finite entry", "finite weights of at least 0")
        allowed_pairs(self.mask, inputs.shape[-1])
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "targets", targets)
        object.__setattr__(self, "weights", np.asarray(weights, dtype=np.float64))

    def sequences(self, chosen: slice) -> Batch:
        """Return the batch of some of the B sequences.

        Raises
        ------
        ValueError
            If `chosen` is no slice, or there are none in it.
        """
        checks.instance("chosen", chosen, slice, "a slice of the sequences")
        arrays = (self.inputs, self.targets, self.weights)
        inputs, targets, weights = (array[..., chosen, :] for array in arrays)
        return Batch(inputs=inputs, targets=targets, weights=weights, mask=self.mask)


def stack(batches: Sequence[Batch]) -> Batch:
    """Join one batch (B, N) a replica into one (R, B, N).

    Raises
    ------
    ValueError
        If their masks or shapes differ.
    """
    first = batches[0]
    for batch in batches[1:]:
        if not same_mask(batch.mask, first.mask):
            got = f"{describe(batch.mask)} beside {describe(first.mask)}"
            checks.fail("objective", f"the masks {got}", "one mask for all replicas")
        if batch.inputs.shape != first.inputs.shape:
            got = f"{batch.inputs.shape} beside {first.inputs.shape}"
            checks.fail("objective", f"batches of shape {got}", "one shape for all replicas")
    return Batch(
        inputs=np.stack([batch.inputs for batch in batches]),
        targets=np.stack([batch.targets for batch in batches]),
        weights=np.stack([batch.weights for batch in batches]),
        mask=first.mask,
    )


def next_token(
    tokens: Array, rng: np.random.Generator | None = None, mask: Mask = "causal"
) -> Batch:
    """Ask at each position for the token that follows it.

    Parameters
    ----------
    tokens : (..., B, N) int array
        The first N - 1 of a window are inputs, the last N - 1 targets.
    rng : numpy.random.Generator, optional
        Not used; objectives share one signature.
    mask : mask of the N - 1 inputs

    Raises
    ------
    ValueError
        If a window has fewer than two tokens, or the mask does not fit.
    """
    tokens = _windows(tokens, minimum=2)
    return Batch(
        inputs=tokens[..., :-1],
        targets=tokens[..., 1:],
        weights=np.ones(tokens[..., 1:].shape),
        mask=mask,
    )


@dataclass(frozen=True, kw_only=True)
class MaskedToken:
    """Hide some tokens and ask for them: ``MaskedToken(mask_symbol=V)(tokens, rng)``.

    Parameters
    ----------
    rate : float
        Probability that a position is selected, each independently. A batch with none selected has
        loss 0 and gradient 0.
    mask_symbol : int
        The token that hides another; the number of symbols V, as the symbols are 0..V-1.
    mask : {"causal", "strictly_causal", "bidirectional"} or (N, N) bool array
    replace : (float, float, float)
        Probabilities that a selected token is shown as the mask symbol, as a symbol drawn
        uniformly from all V, or as itself; (0.8, 0.1, 0.1) is BERT's.

    Raises
    ------
    ValueError
        If a probability is outside [0, 1], `replace` does not sum to 1, or the mask is none.
    """

    rate: float = 0.15
    mask_symbol: int
    mask: Mask = "bidirectional"
    replace: tuple[float, float, float] = (1.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        checks.real("rate", self.rate, 0, 1)
        checks.integer("mask_symbol", self.mask_symbol, minimum=1)
        shares = checks.array("replace", self.replace)
        if shares.shape != (3,) or not (shares >= 0).all() or not abs(shares.sum() - 1) <= 1e-9:
            checks.fail("replace", self.replace, "three probabilities that sum to 1")
        check_mask(self.mask)

    def __call__(self, tokens: Array, rng: np.random.Generator) -> Batch:
        """Return the batch for windows `tokens` (..., B, N)."""
        checks.generator("rng", rng)
        tokens = _windows(tokens, minimum=1)
        if tokens.max() >= self.mask_symbol:
            needs = f"at least the number of symbols, as there is a symbol {tokens.max()}"
            checks.fail("mask_symbol", self.mask_symbol, needs)
        selected = np.asarray(rng.random(tokens.shape) < self.rate)
        shown: Array | int = self.mask_symbol
        masked, random, _ = self.replace
        if masked < 1:
            fate = rng.random(tokens.shape)
            drawn = rng.integers(self.mask_symbol, size=tokens.shape)
            shown = np.where(fate < masked + random, drawn, tokens)
            shown = np.where(fate < masked, self.mask_symbol, shown)
        return Batch(
            inputs=np.where(selected, shown, tokens),
            targets=tokens,
            weights=selected,
            mask=self.mask,
        )


def _windows(tokens: Array, minimum: int) -> Array:
    tokens = checks.integers("tokens", tokens)
    if tokens.ndim < 2 or tokens.shape[-1] < minimum or 0 in tokens.shape:
        needs = f"shape (B, N) or (R, B, N) with N of at least {minimum}"
        checks.fail("tokens", f"shape {tokens.shape}", needs)
    return tokens

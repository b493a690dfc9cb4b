"""What observations say about the hidden tokens of a Markov chain, exactly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from minattn import checks
from minattn.arrays import Array
from minattn.data.markov import MarkovChain

MASKS = ("bidirectional", "causal")
"""Who may see whom: a position all others, or those before it."""


def supported_mask(name: str, mask: Any, supported: Iterable[str] = MASKS) -> str:
    """Return `mask` if it is one of the names that are supported, or fail in one line."""
    return checks.one_of(name, mask if isinstance(mask, str) else type(mask).__name__, supported)


def posterior(chain: MarkovChain, evidence: Any, mask: str = "bidirectional") -> Array:
    """Law of each token given what was observed at the other positions.

    Parameters
    ----------
    chain : MarkovChain
    evidence : (B, N, V) array-like
        Likelihood of what was observed at each position given each symbol there, up to a factor a
        position: one-hot where the token is visible, all ones where it is hidden.
    mask : {"bidirectional", "causal"}
        Whether a position knows of all others, or of those before it.

    Returns
    -------
    (B, N, V) array of float64
        Sums to 1 over symbols. A position's own evidence does not enter: multiply it in and
        normalise for the law that includes it.

    Raises
    ------
    ValueError
        If an argument is malformed, or if the evidence of a sequence has probability zero as a
        whole, under either mask; the message names the sequence.

    Notes
    -----
    Forward-backward recursion (Baum et al., 1970) over each of the interleaved chains.
    """
    checks.instance("chain", chain, MarkovChain)
    mask = supported_mask("mask", mask)
    streams = _interleaved(_checked_evidence(chain, evidence), chain.lag)
    law = _from_before(chain, streams)
    if mask == "bidirectional":
        law *= _from_after(chain, streams)
        law = _divided(law, law.sum(axis=-1, keepdims=True), chain.lag)
    return _rejoined(law, chain.lag, np.shape(evidence)[1])


def masked_posterior(
    chain: MarkovChain, inputs: Any, mask_symbol: int, mask: str = "bidirectional"
) -> Array:
    """Law of each token given the visible tokens at the other positions.

    Parameters
    ----------
    chain : MarkovChain
    inputs : (B, N) array-like of int
        Symbols of the chain, and `mask_symbol` where the token is hidden.
    mask_symbol : int
        At least V.
    mask : {"bidirectional", "causal"}
        Whether a position knows of all others, or of those before it.

    Returns
    -------
    (B, N, V) array of float64
        Sums to 1 over symbols. At a hidden position, the exact prediction of its token.

    Raises
    ------
    ValueError
        If an argument is malformed, or a sequence is impossible under the chain.
    """
    checks.instance("chain", chain, MarkovChain)
    mask_symbol = checks.integer("mask_symbol", mask_symbol, minimum=chain.n_symbols)
    inputs = checks.integers("inputs", inputs, mask_symbol, mask_symbol=True)
    if inputs.ndim != 2 or inputs.shape[1] == 0:
        checks.fail("inputs", f"shape {inputs.shape}", "shape (B, N) with N > 0")
    likelihood = np.eye(mask_symbol + 1, chain.n_symbols)
    likelihood[mask_symbol] = 1.0
    return posterior(chain, likelihood[inputs], mask)


def _checked_evidence(chain: MarkovChain, evidence: Any) -> Array:
    """Return evidence as float64 with a maximum of 1 at each position, or fail."""
    given = checks.array("evidence", evidence, "fiub", "an array of likelihoods")
    if given.ndim != 3 or given.shape[1] == 0 or given.shape[2] != chain.n_symbols:
        checks.fail(
            "evidence", f"shape {given.shape}", f"shape (B, N, {chain.n_symbols}) with N > 0"
        )
    given = given.astype(np.float64)
    if not (np.isfinite(given) & (given >= 0)).all():
        checks.fail("evidence", "a negative or non-finite value", "likelihoods")
    return _divided(given, given.max(axis=-1, keepdims=True), streams_a_sequence=1)


def _divided(weights: Array, scale: Array, streams_a_sequence: int) -> Array:
    """Divide (S, ..., V) weights by their scale, or fail: a scale of 0 means no possible symbol."""
    if not scale.all():
        stream = np.nonzero(scale == 0)[0][0]
        got = f"probability zero in sequence {stream // streams_a_sequence}"
        checks.fail("evidence", got, "observations that the chain can produce")
    return weights / scale


def _interleaved(evidence: Array, lag: int) -> Array:
    """(B, N, V) -> (B * lag, M, V), the chains of lag 1, filled up with evidence of nothing."""
    B, N, V = evidence.shape
    M = -(-N // lag)
    padded = np.ones((B, M * lag, V))
    padded[:, :N] = evidence
    return padded.reshape(B, M, lag, V).swapaxes(1, 2).reshape(B * lag, M, V)


def _rejoined(streams: Array, lag: int, N: int) -> Array:
    """(B * lag, M, V) -> (B, N, V), undoing `_interleaved`."""
    S, M, V = streams.shape
    joined = streams.reshape(S // lag, lag, M, V).swapaxes(1, 2)
    return joined.reshape(S // lag, M * lag, V)[:, :N].copy()


def _from_before(chain: MarkovChain, evidence: Array) -> Array:
    """(S, M, V) law of x_t given the evidence before t."""
    laws = np.empty_like(evidence)
    law = np.tile(chain.stationary, (len(evidence), 1))
    for t in range(evidence.shape[1]):
        laws[:, t] = law
        seen = law * evidence[:, t]
        law = _divided(seen, seen.sum(axis=-1, keepdims=True), chain.lag) @ chain.transition
    return laws


def _from_after(chain: MarkovChain, evidence: Array) -> Array:
    """(S, M, V) likelihood of the evidence after t given x_t, up to a factor a position."""
    likelihoods = np.empty_like(evidence)
    likelihood = np.ones_like(evidence[:, 0])
    for t in reversed(range(evidence.shape[1])):
        likelihoods[:, t] = likelihood
        seen = (evidence[:, t] * likelihood) @ chain.transition.T
        likelihood = _divided(seen, seen.max(axis=-1, keepdims=True), chain.lag)
    return likelihoods

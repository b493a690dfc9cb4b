"""How often a symbol is key and how often query: Prop. A.9 and Remark A.10, by full enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from minattn.arrays import Array
from minattn.data import MarkovChain
from minattn.masks import Mask, allowed_pairs
from minattn.theorems.registry import Outcome, Trial, statement
from minattn.theorems.verdicts import (
    DOES_NOT_HOLD,
    HOLDS_EXACTLY,
    identity_rule,
    is_exact,
    only_if,
)

# (rng, sequences (V^N, N), V) -> the probability of each sequence (V^N,)
SourceLaw: TypeAlias = Callable[[np.random.Generator, Array, int], Array]
# Pr(t_k = s), (N, V) -> the ratio of the two counts for each symbol (V,)
RatioFormula: TypeAlias = Callable[[Array], Array]


def all_sequences(symbols: int, length: int) -> Array:
    """Return every sequence, (V^N, N)."""
    return np.array(list(itertools.product(range(symbols), repeat=length)))


def any_law(rng: np.random.Generator, sequences: Array, symbols: int) -> Array:
    """Draw a probability for every sequence: no stationarity, no Markov property."""
    return rng.dirichlet(np.full(len(sequences), 0.3))


def stationary_chain(rng: np.random.Generator, sequences: Array, symbols: int) -> Array:
    """Return the law of a stationary, strongly correlated Markov chain of lag 1 or 2."""
    seed, lag = int(rng.integers(2**31)), int(rng.integers(1, 3))
    chain = MarkovChain.random(symbols, concentration=0.3, lag=lag, seed=seed)
    return np.exp(chain.log_likelihood(sequences))


def early_symbol(rng: np.random.Generator, sequences: Array, symbols: int) -> Array:
    """Return the law of independent tokens among which symbol 0 grows rarer with position."""
    length = sequences.shape[1]
    shares = np.linspace(0.8, 0.1, length)
    marginal = np.repeat((1 - shares)[:, None] / max(symbols - 1, 1), symbols, axis=1)
    marginal[:, 0] = shares
    return np.asarray(marginal[np.arange(length), sequences].prod(axis=1))


def late_symbol(rng: np.random.Generator, sequences: Array, symbols: int) -> Array:
    """Return the law of `early_symbol` backwards in time."""
    return early_symbol(rng, sequences[:, ::-1], symbols)


def role_counts(sequences: Array, law: Array, symbols: int, mask: Mask) -> tuple[Array, Array]:
    """Return the expected number of pairs in which each symbol is key, and query: (V,) each.

    Pair by pair, sequence by sequence: position j is key as often as queries may attend to it.
    """
    allowed = allowed_pairs(mask, sequences.shape[1])
    is_symbol = sequences[:, :, None] == np.arange(symbols)
    expected = np.einsum("s,snv->nv", law, is_symbol.astype(np.float64))
    return allowed.sum(axis=0) @ expected, allowed.sum(axis=1) @ expected


def position_law(sequences: Array, law: Array, symbols: int) -> Array:
    """Return Pr(t_k = s), (N, V)."""
    masses = [np.bincount(column, law, minlength=symbols) for column in sequences.T]
    return np.stack(masses)


def position_formula(marginal: Array) -> Array:
    """sum_k (N - k) Pr(t_k = s) / sum_k (k - 1) Pr(t_k = s), positions k = 1..N."""
    k = np.arange(1, len(marginal) + 1)
    return np.asarray(((len(k) - k) @ marginal) / ((k - 1) @ marginal))


def mean_position_formula(marginal: Array) -> Array:
    """(N - mu) / (mu - 1), mu the mean position of the symbol."""
    k = np.arange(1, len(marginal) + 1)
    mu = (k @ marginal) / marginal.sum(axis=0)
    return np.asarray((len(k) - mu) / (mu - 1))


def same(marginal: Array) -> Array:
    """Return 1 for each symbol: what the bidirectional mask is said to give."""
    return np.ones(marginal.shape[1])


@statement(
    "Prop A.9",
    text="next-token training takes a symbol as key and as query in the ratio "
    "sum_k (N-k) Pr(t_k=t*) / sum_k (k-1) Pr(t_k=t*), bidirectional training in the ratio 1",
    source="Prop. A.9",
    assumptions="any joint law of the tokens; a query attends to the tokens before it, not to "
    "itself",
    method="counting",
    predicted="0: relative difference from the ratio counted over all sequences",
    rule="every difference is rounding",
    draws=20,
)
def prop_a9(
    trial: Trial,
    *,
    mask: Mask = "strictly_causal",
    ratio: RatioFormula = position_formula,
    bidirectional_ratio: RatioFormula = same,
    source: SourceLaw = any_law,
    symbols: int = 3,
    length: int = 5,
) -> Outcome:
    """Count all pairs of all sequences of a random source."""
    sequences = all_sequences(symbols, length)
    off, off_self = [], []
    for _ in range(trial.draws):
        law = source(trial.rng, sequences, symbols)
        forms = (mask, ratio), ("bidirectional", bidirectional_ratio)
        off.append([_difference(sequences, law, symbols, *form) for form in forms])
        off_self.append(_difference(sequences, law, symbols, "causal", ratio))
    worst = float(np.max(off))
    found = (
        f"Largest difference {worst:.1e} over {trial.draws} random laws of {symbols} symbols at "
        f"{length} positions; in a causal layer that attends to itself the ratio is "
        "sum (N+1-k) Pr / sum k Pr instead: there the printed one is off by "
        f"{np.min(off_self):.2f} to {np.max(off_self):.2f} of it; example: position 1 weighs "
        f"{length}:1, not {length - 1}:0."
    )
    return Outcome(worst, (float(np.min(off)), worst), identity_rule(off), found)


def _difference(
    sequences: Array, law: Array, symbols: int, mask: Mask, formula: RatioFormula
) -> float:
    """Return the largest relative difference between the counted and the predicted ratio."""
    key, query = role_counts(sequences, law, symbols, mask)
    predicted = formula(position_law(sequences, law, symbols))
    return float(np.max(np.abs(predicted * query - key) / key))


def remark_a10_rule(residuals: Array, stationary: Array, early: Array) -> str:
    """Judge "the ratio is (N - mu)/(mu - 1), so context tokens are keys more often".

    residuals of the formula; the counted ratios under stationary sources, and of symbols that come
    early.
    """
    if not is_exact(residuals) or not np.all(early > 1):
        return DOES_NOT_HOLD
    if np.all(stationary > 1 + 1e-9):
        return HOLDS_EXACTLY
    return only_if("the symbol's mean position lies before the middle, mu < (N + 1)/2")


@statement(
    "Remark A.10",
    text="the ratio of Prop. A.9 is (N - mu)/(mu - 1) with mu the mean position of t*, so that "
    "symbols which predict others are keys more often than queries",
    source="Remark A.10",
    assumptions="as in Prop. A.9; correlated tokens are taken from stationary Markov chains",
    method="counting",
    predicted="> 1: ratio of the counts as key and as query, under stationary correlated sources",
    rule="the formula is exact and the ratio exceeds 1; if it does so for early symbols only, the "
    "remark is conditional",
    draws=20,
)
def remark_a10(
    trial: Trial,
    *,
    ratio: RatioFormula = mean_position_formula,
    source: SourceLaw = stationary_chain,
    early: SourceLaw = early_symbol,
    symbols: int = 3,
    length: int = 5,
) -> Outcome:
    """Count under correlated stationary sources, and under a source in which symbol 0 is early."""
    sequences = all_sequences(symbols, length)
    residuals, counted, totals = [], [], []
    for _ in range(trial.draws):
        law = source(trial.rng, sequences, symbols)
        residuals.append(_difference(sequences, law, symbols, "strictly_causal", ratio))
        key, query = role_counts(sequences, law, symbols, "strictly_causal")
        counted.append(key[0] / query[0])
        totals.append(abs(key.sum() - query.sum()))
    law = early(trial.rng, sequences, symbols)
    residuals.append(_difference(sequences, law, symbols, "strictly_causal", ratio))
    key, query = role_counts(sequences, law, symbols, "strictly_causal")
    first = key[0] / query[0]
    verdict = remark_a10_rule(np.array(residuals), np.array(counted), np.array([first]))
    found = (
        f"The formula is off by at most {max(residuals):.1e}; {trial.draws} sources give ratios "
        f"from {min(counted):.6f} to {max(counted):.6f}, a symbol that grows rarer with position "
        f"{first:.2f}; summed over the vocabulary the two counts differ by {max(totals):.1e}."
    )
    ends = (float(min(counted)), float(max(counted)))
    return Outcome(float(np.mean(counted)), ends, verdict, found)

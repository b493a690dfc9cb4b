"""Markov chains: sources of tokens whose best reachable loss is known exactly."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minattn import checks
from minattn.arrays import Array
from minattn.data.stationary import entropies, stationary_law
from minattn.engines.compiling import compiled

# Rows given in float32 sum to 1 within a few 1e-7; a forgotten digit is off by far more.
_ROW_TOLERANCE = 1e-5

# Far below what any sample could show, and far enough above the smallest float64 that products of
# two such probabilities stay positive.
_RAREST_STEP = 1e-100


@dataclass(frozen=True, eq=False, repr=False, init=False)
class MarkovChain:
    """A stationary Markov chain in which token x_t depends on x_{t - lag} alone.

    At lag k the sequence is k interleaved independent copies of the chain of lag 1, each started
    from the stationary law.

    Parameters
    ----------
    transition : (V, V) array-like
        Row: symbol now. Column: symbol `lag` positions later. Rows are probabilities that sum to 1
        within 1e-5 and are normalised in float64.
    lag : int
        How many positions back the symbol lies that the next one depends on; at least 1.

    Attributes
    ----------
    transition : (V, V) array of float64, read-only
    lag : int
    stationary : (V,) array of float64, read-only
        The law of every single token: the one pi with pi P = pi.

    Raises
    ------
    ValueError
        If a row is no law (the message gives its number), or if the stationary law is not unique
        (the message gives the closed classes). Periodic chains are fine.
    """

    transition: Array
    lag: int
    stationary: Array

    def __init__(self, transition: Any, lag: int = 1) -> None:
        rows = _probability_rows("transition", transition)
        if rows.shape[0] != rows.shape[1]:
            checks.fail("transition", f"shape {rows.shape}", "a square matrix")
        object.__setattr__(self, "transition", _read_only(rows))
        object.__setattr__(self, "lag", checks.integer("lag", lag, minimum=1))
        object.__setattr__(self, "stationary", _read_only(stationary_law(rows)))

    def __repr__(self) -> str:
        return f"MarkovChain(n_symbols={self.n_symbols}, lag={self.lag})"

    @classmethod
    def random(
        cls,
        n_symbols: int,
        concentration: float = 0.1,
        lag: int = 1,
        reversible: bool = False,
        seed: int = 0,
    ) -> MarkovChain:
        """Draw a chain whose every row follows the symmetric Dirichlet law.

        Parameters
        ----------
        n_symbols : int
            V, at least 1.
        concentration : float
            Parameter of the Dirichlet law, in [1e-9, 1e9]. Small: rows close to a single symbol,
            and, well below 1 / V, a chain of nearly separate classes. Large: rows close to uniform.
        lag : int
            As for the class.
        reversible : bool
            False: independent rows. True: flows F_ij = F_ji, independent Gamma(concentration)
            variables for i <= j, and P_ij = F_ij / sum_k F_ik. Each row then has the same
            Dirichlet law, but the chain looks the same in both directions of time.
        seed : int
            At least 0. The same arguments give the same chain.

        Returns
        -------
        MarkovChain
            Every step has a probability of 1e-100 at least, rarer ones are raised to it: the
            stationary law is unique at any concentration.

        Raises
        ------
        ValueError
            If an argument is out of range.
        """
        n_symbols = checks.integer("n_symbols", n_symbols, minimum=1)
        shape = checks.real("concentration", concentration, 1e-9, 1e9)
        rng = np.random.default_rng(checks.seed("seed", seed))
        size = (n_symbols, n_symbols)
        # In logarithms, Gamma(a) = Gamma(a + 1) U^(1 / a): at a small concentration the variables
        # themselves underflow, whole rows at a time.
        log_flow = np.log(rng.standard_gamma(shape + 1.0, size))
        log_flow -= rng.standard_exponential(size) / shape
        if checks.flag("reversible", reversible):
            log_flow = np.triu(log_flow) + np.triu(log_flow, 1).T
        log_flow -= log_flow.max(axis=1, keepdims=True)
        flow = np.exp(np.maximum(log_flow, np.log(_RAREST_STEP * n_symbols)))
        return cls(flow / flow.sum(axis=1, keepdims=True), lag)

    @classmethod
    def independent(cls, probabilities: Any) -> MarkovChain:
        """Make the source of independent, identically distributed tokens.

        Parameters
        ----------
        probabilities : (V,) array-like
            The law of each token.

        Returns
        -------
        MarkovChain
            All rows are the given law.

        Raises
        ------
        ValueError
            If `probabilities` is not a law.
        """
        law = checks.array("probabilities", probabilities)
        if law.ndim != 1:
            checks.fail("probabilities", f"{law.ndim} axes", "one axis")
        row = _probability_rows("probabilities", law[None])
        return cls(np.repeat(row, row.shape[1], axis=0))

    @property
    def n_symbols(self) -> int:
        """Number of symbols V."""
        return len(self.transition)

    @property
    def row_entropies(self) -> Array:
        """(V,) entropies in nats of the next symbol given each symbol, with 0 log 0 = 0."""
        return entropies(self.transition)

    @property
    def entropy_rate(self) -> float:
        """Nats per token that remain when the past is known: the best loss of a long sequence."""
        return float(self.stationary @ self.row_entropies)

    @property
    def net_flux(self) -> float:
        """Irreversibility |diag(pi) P - (diag(pi) P)^T|_1 / 2, in [0, 1]; 0: reversible.

        Unlike the entropy production it stays finite where a step has no way back.
        """
        flow = self.stationary[:, None] * self.transition
        return float(np.abs(flow - flow.T).sum() / 2)

    def sample(self, B: int, N: int, rng: np.random.Generator) -> Array:
        """Draw windows of tokens, each from the stationary chain.

        Parameters
        ----------
        B, N : int
            Sequences and tokens a sequence, at least 1.
        rng : numpy.random.Generator
            Advanced by B * N uniform numbers.

        Returns
        -------
        (B, N) array of int64
            Symbols in 0..V-1; no step of probability 0 occurs.

        Raises
        ------
        ValueError
            If a size is below 1 or `rng` is not a generator.
        """
        size = checks.integer("B", B, minimum=1), checks.integer("N", N, minimum=1)
        checks.generator("rng", rng)
        return _compiled_walk()(rng.random(size), self._cumulative, self.lag)

    def log_likelihood(self, tokens: Any) -> Array:
        """Logarithm of the probability of whole sequences.

        Parameters
        ----------
        tokens : (B, N) array-like of int
            Symbols in 0..V-1.

        Returns
        -------
        (B,) array of float64
            In nats; -inf for a sequence that takes a forbidden step.

        Raises
        ------
        ValueError
            If `tokens` has another number of axes, no integers, or symbols out of range.
        """
        tokens = checks.integers("tokens", tokens, below=self.n_symbols)
        if tokens.ndim != 2:
            checks.fail("tokens", f"shape {tokens.shape}", "shape (B, N)")
        now, later = tokens[:, : -self.lag], tokens[:, self.lag :]
        with np.errstate(divide="ignore"):
            start = np.log(self.stationary[tokens[:, : self.lag]])
            steps = np.log(self.transition[now, later])
        logs: Array = start.sum(axis=1) + steps.sum(axis=1)
        return logs

    def reversed(self) -> MarkovChain:
        """Return the chain seen backwards in time: Q_ij = pi_j P_ji / pi_i, at the same lag.

        Rows of symbols that never occur, of which time reversal says nothing, become pi.
        """
        flow = (self.stationary[:, None] * self.transition).T
        flow[flow.sum(axis=1) == 0] = self.stationary
        return MarkovChain(flow / flow.sum(axis=1, keepdims=True), self.lag)

    @functools.cached_property
    def _cumulative(self) -> Array:
        """(V + 1, V) cumulative rows: of each symbol, and last of the stationary law."""
        rows = np.vstack([self.transition, self.stationary])
        cumulative = rows.cumsum(axis=1)
        # A row that rounding ends at 1 - eps would let a draw fall beyond it. All from the last
        # possible symbol on is 1, so that the draw stops there and not at an impossible one.
        last = rows.shape[1] - 1 - np.argmax(rows[:, ::-1] > 0, axis=1)
        cumulative[np.arange(rows.shape[1]) >= last[:, None]] = 1.0
        return cumulative


def walk(uniform: Array, cumulative: Array, lag: int) -> Array:
    """Turn uniform numbers in [0, 1) into steps of a chain, by inversion of cumulative rows.

    uniform (B, N), cumulative (V + 1, V), of which the last row starts a sequence; returns (B, N).
    """
    B, N = uniform.shape
    V = cumulative.shape[1]
    tokens = np.empty((B, N), dtype=np.int64)
    for b in range(B):
        for t in range(N):
            row = tokens[b, t - lag] if t >= lag else V
            low, high = 0, V - 1
            while low < high:  # the first symbol whose cumulative probability exceeds the draw
                middle = (low + high) // 2
                if uniform[b, t] < cumulative[row, middle]:
                    high = middle
                else:
                    low = middle + 1
            tokens[b, t] = low
    return tokens


@functools.cache
def _compiled_walk() -> Callable[[Array, Array, int], Array]:
    """Compile at the first sample: importing this module must not import the compiler."""
    return compiled(walk)


def _probability_rows(name: str, value: Any) -> Array:
    """Return rows of probabilities as normalised float64, or fail by the number of a bad row."""
    rows = checks.array(name, value, needs="an array of probabilities")
    if rows.ndim != 2 or rows.size == 0:
        checks.fail(name, f"shape {rows.shape}", "shape (V, V) with at least one symbol")
    rows = rows.astype(np.float64)
    for number, row in enumerate(rows):
        bad = row[~((row >= 0) & (row <= 1 + _ROW_TOLERANCE))]
        if bad.size:
            checks.fail(name, f"row {number} with the value {bad[0]}", "probabilities")
        if abs(row.sum() - 1) > _ROW_TOLERANCE:
            checks.fail(name, f"row {number} with the sum {row.sum():.6g}", "rows that sum to 1")
    normalised: Array = rows / rows.sum(axis=1, keepdims=True)
    return normalised


def _read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array

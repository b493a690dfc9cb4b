"""A chain whose symbols come early or late: where counts of the two roles of a token differ.

Under a causal mask an early symbol is key more often than query. Every stationary source, however
correlated its tokens, gives both roles to each symbol equally often (Remark A.10); this one need
not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from minattn import checks
from minattn.arrays import Array
from minattn.data.markov import MarkovChain
from minattn.data.stationary import entropies


@dataclass(frozen=True, eq=False, repr=False, init=False)
class DriftingChain:
    """A Markov chain whose steps are tilted towards early symbols first and late ones last.

        Pr(x_t = s | x_{t - lag} = r)  is in proportion to  P_rs exp(tilt_ts)
        tilt_ts = drift earliness_s (1 - 2 t / (length - 1)) + bonus_s,   t = 0 .. length - 1

    The first `lag` tokens come from the chain's stationary law, tilted likewise. Without drift and
    bonus it is `chain`, and stationary.

    Parameters
    ----------
    chain : MarkovChain
        P and lag.
    length : int
        Positions that there are, at least 2; a window begins at the first.
    earliness : (V,) array-like
        Which symbols come early (positive) and which late (negative).
    drift : float
        How strongly.
    bonus : (V,) array-like, optional
        A tilt that is the same at every position: what makes symbols frequent. Default 0.

    Attributes
    ----------
    tilt : (length, V) array, read-only

    Raises
    ------
    ValueError
        If an argument is out of range or of the wrong shape.
    """

    chain: MarkovChain
    length: int
    tilt: Array

    def __init__(
        self,
        chain: MarkovChain,
        length: int,
        earliness: Any,
        drift: float,
        bonus: Any = None,
    ) -> None:
        checks.instance("chain", chain, MarkovChain)
        length = checks.integer("length", length, minimum=2)
        drift = checks.real("drift", drift)
        early = _per_symbol("earliness", earliness, chain.n_symbols)
        always = _per_symbol("bonus", np.zeros(len(early)) if bonus is None else bonus, len(early))
        tilt = drift * np.linspace(1, -1, length)[:, None] * early + always
        tilt.flags.writeable = False
        object.__setattr__(self, "chain", chain)
        object.__setattr__(self, "length", length)
        object.__setattr__(self, "tilt", tilt)

    def __repr__(self) -> str:
        return f"DriftingChain({self.chain!r}, length={self.length})"

    @property
    def n_symbols(self) -> int:
        """Number of symbols V."""
        return self.chain.n_symbols

    def step_law(self, t: int) -> Array:
        """Law of token t (row: the symbol `lag` positions before): (V, V), rows equal at first.

        Raises
        ------
        ValueError
            If `t` is no position.
        """
        t = self._positions(checks.integer("t", t, minimum=0) + 1, "t") - 1
        before = self.chain.transition
        if t < self.chain.lag:
            before = np.broadcast_to(self.chain.stationary, before.shape)
        return _tilted(before, self.tilt[t])

    def position_law(self, N: int) -> Array:
        """Pr(x_t = s) at the first N positions, exactly: (N, V).

        Raises
        ------
        ValueError
            If there are no N positions.
        """
        law = np.empty((self._positions(N), self.n_symbols))
        for t in range(N):
            before = law[t - self.chain.lag] if t >= self.chain.lag else self.chain.stationary
            law[t] = before @ self.step_law(t)
        return law

    def next_token_optimum(self, N: int) -> float:
        """Return the expected loss of the exact next-token predictor on windows of N tokens.

        In nats, the mean over the N - 1 targets of the entropy of each given all before it.

        Raises
        ------
        ValueError
            If `N` is below 2, or there are no N positions.
        """
        N = checks.integer("N", N, minimum=2)
        law = self.position_law(N)
        lag, start = self.chain.lag, self.chain.stationary
        losses = [
            (law[t - lag] if t >= lag else start) @ entropies(self.step_law(t)) for t in range(1, N)
        ]
        return float(np.mean(losses))

    def sample(self, B: int, N: int, rng: np.random.Generator) -> Array:
        """Draw windows from the first position on.

        Parameters
        ----------
        B, N : int
            Windows and tokens a window; N at most `length`.
        rng : numpy.random.Generator

        Returns
        -------
        (B, N) array of int64

        Raises
        ------
        ValueError
            If a size is out of range or `rng` is not a generator.
        """
        B, N = checks.integer("B", B, minimum=1), self._positions(N)
        checks.generator("rng", rng)
        draws = rng.random((B, N))
        tokens = np.zeros((B, N), np.int64)
        for t in range(N):
            before = tokens[:, t - self.chain.lag] if t >= self.chain.lag else tokens[:, 0]
            # Symbols of probability 0 end where the one before them ends: no draw hits them.
            tokens[:, t] = (draws[:, t, None] >= self._edges[t, before]).sum(axis=1)
        return tokens

    @cached_property
    def _edges(self) -> Array:
        """Where each symbol's part of [0, 1) ends, by position and the symbol before."""
        edges = np.stack([self.step_law(t) for t in range(self.length)]).cumsum(axis=-1)
        return np.asarray(edges / edges[..., -1:])

    def _positions(self, N: int, name: str = "N") -> int:
        N = checks.integer(name, N, minimum=1)
        if self.length < N:
            checks.fail(name, N, f"at most the {self.length} positions that there are")
        return N


def count_ratio(position_law: Array, diagonal: bool = False) -> Array:
    """Return the expected number of pairs with each symbol as key over that as query, causal mask.

    Parameters
    ----------
    position_law : (N, V) array
        Pr(x_t = s).
    diagonal : bool
        Whether a token may attend to itself.

    Returns
    -------
    (V,) array
        (N - mu) / (mu - 1), with mu the symbol's mean position counted from 1 (Remark A.10), or
        with the diagonal (N + 1 - mu) / mu. NaN for a symbol that never occurs, infinite for one
        that occurs at the first position alone and may not attend to itself.

    Raises
    ------
    ValueError
        If an argument does not fit.
    """
    diagonal = checks.flag("diagonal", diagonal)
    law = checks.array("position_law", position_law)
    if law.ndim != 2 or law.size == 0 or not (np.isfinite(law) & (law >= 0)).all():
        checks.fail(
            "position_law", f"an array of shape {law.shape}", "probabilities of shape (N, V)"
        )
    mass = law.sum(axis=0)
    positions = np.arange(1, len(law) + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        mu = (positions @ law) / mass
        return np.asarray((len(law) + diagonal - mu) / (mu - 1 + diagonal))


def _tilted(law: Array, tilt: Array) -> Array:
    """Return rows in proportion to law exp(tilt)."""
    weights = law * np.exp(tilt - tilt.max())
    total = weights.sum(axis=-1, keepdims=True)
    if not (total > 0).all():
        checks.fail("drift", "a tilt beyond float64's range", "a smaller drift or bonus")
    return np.asarray(weights / total)


def _per_symbol(name: str, values: Any, n_symbols: int) -> Array:
    found = checks.array(name, values)
    if found.shape != (n_symbols,):
        checks.fail(name, f"the shape {found.shape}", f"{n_symbols} real numbers")
    if not np.isfinite(found).all():
        checks.fail(name, "NaN or infinity", "finite numbers")
    return found.astype(np.float64)

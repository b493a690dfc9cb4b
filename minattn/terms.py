"""The terms of the implicit update of W_qk, factored, and the ways to sum them.

The update is Ghat = sum_ij beta_ij x_i^T x_j. The N^2 rank-one matrices of size d x d are never
made: every sum below is a matrix product of the rows x and the coefficients beta.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from minattn import checks
from minattn.arrays import Array, ratio
from minattn.engines import Reference
from minattn.scores import Scores, scores


class PairTerms(NamedTuple):
    """The terms of unordered pairs i < j, by symmetry; (R, B, H, N, N), zero where i >= j.

    With K = x_i^T x_j and its parts K+ and K-, the pair's two terms are

        beta_ij K + beta_ji K^T = symmetric_ij K+ + skew_ij K-        (S105)

    and the energies are squared Frobenius norms of the two terms on the right. Over pairs, energies
    do not add up to that of the sum, as terms of different pairs are not orthogonal.
    """

    symmetric: Array  # beta_ij + beta_ji
    skew: Array  # beta_ij - beta_ji
    symmetric_energy: Array
    skew_energy: Array


class SymbolTerms(NamedTuple):
    """The update split by the symbol of the key, or of the query (Prop. 2.2): S symbols.

    A symbol's term is sum_j c_j^T x_j as context and sum_i x_i^T c_i as query, over its occurrences
    and with c the sum of the other side's rows, weighted by beta. Where x depends on the symbol
    alone (layer 0 without positions) that is the rank-one matrix of `weighted` and `x`, whose
    columns (rows, as query) are in proportion to x: Eqs. 13-16. Elsewhere it is not, and
    `spread` says how far x is from it.
    """

    occurrences: Array  # (R, S), how often it occurs
    x: Array  # (R, S, d), mean row; zero where the symbol does not occur
    spread: Array  # (R, S), sum |x_j - mean|^2 / sum |x_j|^2, in [0, 1]; 0 to rounding: rank one
    weighted: Array  # (R, H, S, d), sum of c over the occurrences
    energy: Array  # (R, H, S), squared Frobenius norm of the term
    scores: Scores  # each (R, H, S), of the term


@dataclass(frozen=True)
class ImplicitUpdate:
    """The update of one layer's W_qk, kept factored as rows x and coefficients beta.

    R replicas, B sequences of N positions, H heads, width d. Rows (first index i) are queries, the
    paper's predicted tokens; columns (second index j) are keys, its context.

    Attributes
    ----------
    x : (R, B, N, d) array
        What W_q and W_k multiply, after a pre-norm where there is one.
    beta : (R, B, H, N, N) array
        Coefficients of the descent direction of the mean loss.
    tokens : (R, B, N) int array
        The model's inputs, the mask symbol included.
    allowed : (N, N) bool array
        The pairs that the mask allows.
    residual : (R,) array
        Residual of -dL/dW_q = Ghat W_k and -dL/dW_k = Ghat^T W_q (with bias terms where there are
        biases) against backprop's gradients, relative to the larger side, or to 1e-6 of the sum of
        all magnitudes where they cancel to less, as when all keys say the same.
    layer : int
        The layer whose W_qk it is.
    """

    x: Array
    beta: Array
    tokens: Array
    allowed: Array
    residual: Array
    layer: int = 0

    def __repr__(self) -> str:
        return f"ImplicitUpdate(x: {self.x.shape}, beta: {self.beta.shape}, layer={self.layer})"

    @cached_property
    def total(self) -> Array:
        """Ghat (R, H, d, d), the sum of all terms."""
        return outer_sum(self.x, self.key_sums)

    @property
    def symmetric(self) -> Array:
        """Symmetric part of the total, (R, H, d, d)."""
        return (self.total + self.total.mT) / 2

    @property
    def skew(self) -> Array:
        """Skew-symmetric part of the total, (R, H, d, d)."""
        return (self.total - self.total.mT) / 2

    @cached_property
    def key_sums(self) -> Array:
        """sum_j beta_ij x_j (R, H, B, N, d): query i's terms are x_i^T times its row of this."""
        return weighted_rows(self.x, self.beta)

    @cached_property
    def query_sums(self) -> Array:
        """sum_i beta_ij x_i (R, H, B, N, d): key j's terms are its row of this, turned, times x_j.

        The duality of Prop. 2.2: it is `key_sums` of the transpose of beta.
        """
        return weighted_rows(self.x, self.beta.mT)

    def as_context(self, symbol: int) -> Array:
        """Sum of the terms whose key is `symbol`: (R, H, d, d). Prop. 2.2.

        Raises
        ------
        ValueError
            If `symbol` is negative.
        """
        return outer_sum(self._only(symbol), self.query_sums).mT

    def as_query(self, symbol: int) -> Array:
        """Sum of the terms whose query is `symbol`: (R, H, d, d). Prop. 2.2.

        Raises
        ------
        ValueError
            If `symbol` is negative.
        """
        return outer_sum(self._only(symbol), self.key_sums)

    def context_terms(self, n_symbols: int | None = None) -> SymbolTerms:
        """Split the update by the symbol of the key (Prop. 2.2), for all symbols at once.

        It costs about one more product of the size of the total; one symbol's d x d matrix exists
        at a time.

        Parameters
        ----------
        n_symbols : int, optional
            S, the mask symbol counted; one more than the largest token if not given.

        Raises
        ------
        ValueError
            If a token is beyond `n_symbols`.
        """
        return self._by_symbol(self.query_sums, n_symbols, transposed=True)

    def query_terms(self, n_symbols: int | None = None) -> SymbolTerms:
        """Split the update by the symbol of the query; otherwise as `context_terms`."""
        return self._by_symbol(self.key_sums, n_symbols, transposed=False)

    def pair_terms(self) -> PairTerms:
        """Coefficients and energies of each pair's symmetric and skew part (S105).

        |K+|^2 = (|x_i|^2 |x_j|^2 + (x_i . x_j)^2) / 2, and |K-|^2 the same with a minus.
        """
        gram = (self.x @ self.x.mT)[:, :, None]
        squares = np.diagonal(gram, axis1=-2, axis2=-1)
        product, overlap = squares[..., :, None] * squares[..., None, :], gram * gram
        transposed = self.beta.mT
        parts = (self.beta + transposed, self.beta - transposed)
        symmetric, skew = (np.triu(part, k=1) for part in parts)
        # Parallel rows: what rounding leaves of the difference may be negative.
        apart = np.maximum(product - overlap, 0) / 2
        return PairTerms(symmetric, skew, symmetric**2 * (product + overlap) / 2, skew**2 * apart)

    def agreement(self) -> tuple[Array, Array]:
        """How nearly beta_ij equals beta_ji, and the number of pairs (Thm. 2.4's assumption).

        Returns
        -------
        value : (R,) array
            2 sum beta_ij beta_ji / sum (beta_ij^2 + beta_ji^2) over pairs i < j in which both can
            be non-zero: the mask allows both, and both queries receive a gradient. In [-1, 1];
            NaN where there is no such pair or all their coefficients vanish.
        pairs : (R,) int array
        """
        value, pairs = agreement(Reference().mutual_sums(self.beta, self.allowed))
        return value.astype(self.beta.dtype), pairs

    def _only(self, symbol: int) -> Array:
        """Return x with all rows but the symbol's set to zero."""
        chosen = self.tokens == checks.integer("symbol", symbol, minimum=0)
        return np.where(chosen[..., None], self.x, 0)

    def _by_symbol(self, sums: Array, n_symbols: int | None, transposed: bool) -> SymbolTerms:
        R, H, d = len(sums), sums.shape[1], sums.shape[-1]
        S = int(self.tokens.max()) + 1
        if n_symbols is not None:
            S = checks.integer("n_symbols", n_symbols, minimum=S)
        x, sums = self.x.reshape(R, -1, d), sums.reshape(R, H, -1, d)
        occurrences, spread = np.zeros((R, S), int), np.zeros((R, S), x.dtype)
        mean, weighted = np.zeros((R, S, d), x.dtype), np.zeros((R, H, S, d), x.dtype)
        energy, found = np.zeros((R, H, S), x.dtype), np.zeros((4, R, H, S))
        for r, symbol in np.ndindex(R, S):
            rows = np.flatnonzero(self.tokens[r] == symbol)
            if rows.size:
                own, other = x[r, rows], sums[r][:, rows]
                occurrences[r, symbol], mean[r, symbol] = rows.size, own.mean(axis=0)
                spread[r, symbol] = _share(own - mean[r, symbol], own)
                weighted[r, :, symbol] = other.sum(axis=1)
                term = own.T @ other  # (H, d, d)
                energy[r, :, symbol] = (term * term).sum(axis=(-2, -1))
                found[:, r, :, symbol] = scores(term.mT if transposed else term)
        return SymbolTerms(occurrences, mean, spread, weighted, energy, Scores(*found))


def weighted_outer_sum(x: Array, beta: Array) -> Array:
    """Return X^T beta X summed over sequences: x (R, B, N, d), beta (R, B, H, N, N)."""
    return outer_sum(x, weighted_rows(x, beta))


def weighted_rows(x: Array, beta: Array) -> Array:
    """Return sum_j beta_ij x_j (R, H, B, N, d): x (R, B, N, d), beta (R, B, H, N, N)."""
    R, B, N, d = x.shape
    rows = np.empty((R, beta.shape[2], B, N, d), np.result_type(x, beta))
    np.matmul(beta, x[:, :, None], out=rows.swapaxes(1, 2))
    return rows


def outer_sum(x: Array, rows: Array) -> Array:
    """Return sum_i x_i^T rows_i over all positions: x (R, B, N, d), rows (R, H, B, N, d)."""
    R, B, N, d = x.shape
    return x.reshape(R, 1, B * N, d).mT @ rows.reshape(R, -1, B * N, d)


def agreement(sums: Array) -> tuple[Array, Array]:
    """Return `ImplicitUpdate.agreement` out of an engine's `mutual_sums` (..., 3), summed up."""
    product, energy, entries = sums[..., 0], sums[..., 1], sums[..., 2]
    return ratio(product, energy, empty=np.nan), entries.astype(int) // 2


def _share(part: Array, whole: Array) -> float:
    """Squared norm of a part over that of the whole; 0 if the whole is zero."""
    return float(ratio(np.vdot(part, part), np.vdot(whole, whole)))

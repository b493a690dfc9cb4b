"""Where W_qk keeps its symmetry: between tokens, between positions, or across the two.

In layer 0, x = E[token] + P[position]: the score of a pair is a sum of four, and a form M on x is a
form on the rows of E and P stacked,

    [E] M [E]^T  =  [E M E^T   E M P^T]      queries' side: rows
    [P]   [P]       [P M E^T   P M P^T]      keys' side: columns

That takes an x which is that sum: a layer further up, or a norm before the first, mixes the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from minattn import checks
from minattn.arrays import Array, Params, ratio
from minattn.config import TransformerConfig
from minattn.params import W_qk, check_params
from minattn.scores import symmetry
from minattn.terms import ImplicitUpdate

PARTS = ("token", "position", "cross")


@dataclass(frozen=True)
class Blocks:
    """A form on tokens and positions, by block; S symbols (the mask symbol last), N positions.

    Attributes
    ----------
    token_token : (..., S, S) array
        E M E^T.
    token_position : (..., S, N) array
        E M P^T: a token asks, a position is asked.
    position_token : (..., N, S) array
        P M E^T.
    position_position : (..., N, N) array
        P M P^T.
    """

    token_token: Array
    token_position: Array
    position_token: Array
    position_position: Array

    @cached_property
    def energy(self) -> dict[str, Array]:
        """Squared Frobenius norm by part, each (...): "token", "position", and "cross" for both."""
        return {
            "token": _energy(self.token_token),
            "position": _energy(self.position_position),
            "cross": _energy(self.token_position) + _energy(self.position_token),
        }

    @property
    def share(self) -> dict[str, Array]:
        """Each part's share of the energy, (...); they sum to 1, or are 0 for the zero form."""
        whole = np.sum(list(self.energy.values()), axis=0)
        return {name: ratio(value, whole) for name, value in self.energy.items()}

    @property
    def symmetry(self) -> dict[str, Array]:
        """Symmetry (Def. 3.1) of each part by itself and of the "whole", (...).

        "cross" takes both off-diagonal blocks as one square matrix with zeros elsewhere: 1 if E M
        P^T is the transpose of P M E^T. The whole is the mean of the three, weighted by `share`.
        """
        across = 2 * (self.token_position * self.position_token.mT).sum(axis=(-2, -1))
        found = {
            "token": np.asarray(symmetry(self.token_token)),
            "position": np.asarray(symmetry(self.position_position)),
            "cross": ratio(across, self.energy["cross"]),
        }
        share = self.share
        return found | {"whole": np.sum([share[name] * found[name] for name in PARTS], axis=0)}


def form_blocks(
    config: TransformerConfig,
    params: Params,
    layer: int = 0,
    initial: Params | None = None,
    length: int | None = None,
) -> Blocks:
    """Return the blocks of W_qk, summed over heads, or of its change: arrays (R, ...).

    Parameters
    ----------
    config : TransformerConfig
    params : dict of arrays
        Their embeddings are taken, for the change too.
    layer : int
        0: it is asked for so that a loop over layers meets an error.
    initial : dict of arrays, optional
        Given these, the form is W_qk - W_qk(0).
    length : int, optional
        N, the positions taken: ``config.max_length`` if not given.

    Raises
    ------
    ValueError
        If x is not token plus position embedding there (a layer beyond 0, norm "pre", no
        positions), or the arguments do not fit.
    """
    check_params(config, params)
    M = W_qk(params, _check_sum(config, layer))
    if initial is not None:
        check_params(config, initial, "initial")
        start = W_qk(initial, layer)
        if start.shape != M.shape:
            checks.fail("initial", f"{len(start)} replicas", f"{len(M)}, as params have")
        M = M - start
    E, P = _embeddings(config, params, length)
    return _blocks(E, P, M)


def update_blocks(
    config: TransformerConfig, params: Params, update: ImplicitUpdate, length: int | None = None
) -> Blocks:
    """Return the blocks of Ghat, per head: arrays (R, H, ...). Otherwise as `form_blocks`.

    It is the form Ghat on the embeddings, to be compared with that of W_qk: for what tokens and
    positions contribute to Ghat see `grouped_coefficients`.

    Parameters
    ----------
    config, params
        Those that the update is of.
    update : ImplicitUpdate
        Of layer 0.
    length : int, optional
        As in `form_blocks`.

    Raises
    ------
    ValueError
        As in `form_blocks`.
    """
    _check_update(config, update)
    check_params(config, params)
    E, P = _embeddings(config, params, length)
    if len(E) != len(update.x):
        checks.fail("update", f"{len(update.x)} replicas", f"{len(E)}, as params have")
    return _blocks(E[:, None], P[:, None], update.total)


def grouped_coefficients(config: TransformerConfig, update: ImplicitUpdate) -> Blocks:
    """Return beta summed by symbol and position of query and key: arrays (R, H, ...).

    B_uv = sum_ij beta_ij [t_i = u] [t_j = v], and likewise for positions. With F = [E; P] stacked,
    Ghat = F^T B F: the four products E^T B E, E^T B P, P^T B E and P^T B P are what tokens and
    positions contribute to it. Where rows of F are orthonormal, the symmetry of Ghat is that of B.

    Parameters
    ----------
    config : TransformerConfig
    update : ImplicitUpdate
        Of layer 0.

    Raises
    ------
    ValueError
        As in `form_blocks`.
    """
    _check_update(config, update)
    S = config.vocab_size + 1
    N = update.tokens.shape[-1]
    symbols, positions = update.tokens, np.broadcast_to(np.arange(N), update.tokens.shape)
    sides = ((symbols, S), (positions, N))
    return Blocks(*(_grouped(update.beta, *query, *key) for query in sides for key in sides))


def _blocks(E: Array, P: Array, M: Array) -> Blocks:
    E_T, P_T = E.mT, P.mT
    tokens, positions = E @ M, P @ M
    return Blocks(tokens @ E_T, tokens @ P_T, positions @ E_T, positions @ P_T)


def _grouped(beta: Array, query: Array, rows: int, key: Array, columns: int) -> Array:
    """Sum beta (R, B, H, N, N) by labels (R, B, N) of queries and keys: (R, H, rows, columns)."""
    R, _, H = beta.shape[:3]
    place = (query[..., :, None] * columns + key[..., None, :]).reshape(R, -1)
    sums = np.empty((R, H, rows * columns), beta.dtype)
    for r, head in np.ndindex(R, H):
        sums[r, head] = np.bincount(place[r], beta[r, :, head].ravel(), rows * columns)
    return sums.reshape(R, H, rows, columns)


def _embeddings(
    config: TransformerConfig, params: Params, length: int | None
) -> tuple[Array, Array]:
    """Return E (R, S, d) and the first `length` rows of P (R, N, d)."""
    longest = config.max_length
    taken = longest if length is None else checks.integer("length", length, minimum=1)
    if taken > longest:
        checks.fail("length", taken, f"at most max_length {longest}")
    return params["token_embedding"], params["position_embedding"][:, :taken]


def _check_update(config: TransformerConfig, update: ImplicitUpdate) -> None:
    checks.instance("config", config, TransformerConfig)
    checks.instance("update", update, ImplicitUpdate)
    _check_sum(config, update.layer)
    d, largest = update.x.shape[-1], int(update.tokens.max())
    if d != config.width or largest > config.vocab_size:
        needs = f"{config.width} and at most {config.vocab_size}, as config has"
        checks.fail("update", f"width {d} and the token {largest}", needs)


def _check_sum(config: TransformerConfig, layer: int) -> int:
    """Return the layer if its x is E[token] + P[position], or fail."""
    layer = checks.integer("layer", layer, minimum=0)
    if layer != 0:
        checks.fail("layer", layer, "0: above it x is no sum of token and position embedding")
    if config.norm == "pre":
        checks.fail("norm", "'pre'", "'none' or 'post': a norm before layer 0 mixes the two")
    if not config.positions:
        checks.fail("positions", False, "a model with position embeddings")
    return layer


def _energy(M: Array) -> Array:
    return np.asarray((M * M).sum(axis=(-2, -1)))

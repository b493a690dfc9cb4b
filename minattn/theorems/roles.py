"""What one token t* leaves in the update of W_qk, as key and as query, when tokens are random.

In the role of a key, x_* is the second factor of every term; in the role of a query, the first:

    sum_i beta_i x_i^T x_*                     sum_j beta_j x_*^T x_j

Both are rank 1 and depend on the other tokens through w = sum beta x alone. Row index: query side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from minattn.arrays import Array

Law: TypeAlias = Callable[[np.random.Generator, tuple[int, ...]], Array]
Assemble: TypeAlias = Callable[[Array, Array], Array]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw independent numbers of mean 0 and variance 1."""
    return rng.standard_normal(shape)


def as_key(w: Array, x_star: Array) -> Array:
    """Return w^T x_* for w = sum_i beta_i x_i, both (..., d): the terms whose key is t*."""
    return w[..., :, None] * x_star[..., None, :]


def as_query(w: Array, x_star: Array) -> Array:
    """Return x_*^T w for w = sum_j beta_j x_j, both (..., d): the terms whose query is t*."""
    return x_star[..., :, None] * w[..., None, :]


def weighted_sums(
    rng: np.random.Generator, draws: int, beta: Array, root: Array, law: Law
) -> Array:
    """Draw w = sum_i beta_i x_i, (draws, d), of tokens x_i = z_i root^T of covariance root root^T.

    beta (n,) fixed, root (d, d); z_i has independent entries of the given law.
    """
    z = law(rng, (draws, len(beta), len(root)))
    sums: Array = np.einsum("i,nij->nj", beta, z) @ root.T
    return sums


def squared_norms(M: Array) -> tuple[Array, Array]:
    """Return |row_m|^2 and |col_k|^2 of matrices (..., d, d), each (..., d)."""
    squares = M * M
    return squares.sum(axis=-1), squares.sum(axis=-2)


def both_roles(
    rng: np.random.Generator,
    draws: int,
    variances: Array,
    query_share: float,
    terms: int = 5,
    law: Law = normal,
    key: Assemble = as_key,
    query: Assemble = as_query,
) -> Array:
    """Draw the sum of the two roles of one t*, (draws, d, d), with B_query / B_key = query_share.

    Tokens have independent coordinates of the given variances, x_* of their mean tau; as key and as
    query t* meets different tokens. B_key, the sum of the squared beta of the key role, is 1.
    """
    root = np.diag(np.sqrt(variances))
    betas = rng.standard_normal((2, terms))
    betas /= np.linalg.norm(betas, axis=1, keepdims=True)
    x_star = np.sqrt(np.mean(variances)) * law(rng, (draws, len(variances)))
    M = key(weighted_sums(rng, draws, betas[0], root, law), x_star)
    if query_share > 0:
        beta = np.sqrt(query_share) * betas[1]
        M = M + query(weighted_sums(rng, draws, beta, root, law), x_star)
    return M

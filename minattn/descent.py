"""What one plain SGD step on W_q and W_k does to their product W_qk, exactly.

The step changes the factors by eta Ghat W_k and eta Ghat^T W_q, and so the product by

    eta (Ghat W_k W_k^T + W_q W_q^T Ghat) + eta^2 Ghat W_k W_q^T Ghat

Remark A.6 calls that proportional to Ghat: it drops the last term, and then the factors, which turn
the direction. What such steps keep, to first order in eta, is W_q^T W_q - W_k^T W_k.

With biases all of this holds for the augmented matrices: a 1 appended to x, the bias as last row of
W. They are made here, and the results are of the weights' own d x d form again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minattn import checks
from minattn.arrays import Array, Params, ratio
from minattn.params import factors
from minattn.terms import ImplicitUpdate, weighted_outer_sum


@dataclass(frozen=True)
class ProductChange:
    """The change of each head's W_qk in one SGD step, by order in eta; arrays (R, H, d, d).

    Attributes
    ----------
    first_order : array
        eta (Ghat W_k W_k^T + W_q W_q^T Ghat).
    second_order : array
        eta^2 Ghat W_k W_q^T Ghat.
    update : array
        Ghat itself, to which Remark A.6 says that the change is proportional.
    """

    first_order: Array
    second_order: Array
    update: Array

    @property
    def total(self) -> Array:
        """The exact change (R, H, d, d)."""
        return self.first_order + self.second_order

    @property
    def dropped(self) -> Array:
        """Frobenius norm of the second-order term over that of the change (R, H); NaN for 0 / 0."""
        part, whole = (np.linalg.norm(M, axis=(-2, -1)) for M in (self.second_order, self.total))
        share: Array = ratio(part, whole, empty=np.nan)
        return share

    @property
    def cosine_to_first_order(self) -> Array:
        """Cosine (R, H) between the change and its first-order term."""
        return cosine(self.total, self.first_order)

    @property
    def cosine_to_update(self) -> Array:
        """Cosine (R, H) between the change and Ghat: 1 if Remark A.6 were exact."""
        return cosine(self.total, self.update)

    @property
    def first_order_to_update(self) -> Array:
        """Cosine (R, H) between the first-order term and Ghat: what small steps do not mend."""
        return cosine(self.first_order, self.update)


def product_change(params: Params, update: ImplicitUpdate, eta: float) -> ProductChange:
    """Return the exact change of W_qk = W_q W_k^T in one SGD step on W_q, W_k and their biases.

    Parameters
    ----------
    params : dict of arrays
        Before the step; those that the update is of.
    update : ImplicitUpdate
    eta : float
        Learning rate, at least 0; no momentum.

    Raises
    ------
    ValueError
        If the update is not of these parameters' shapes, or eta is negative or not finite.

    Notes
    -----
    The exact form of Remark A.6. Take eta near 1 or float64 to see the second-order term: at
    eta = 1e-3 in float32 it is rounding.
    """
    eta = checks.real("eta", eta, minimum=0.0)
    W_q, W_k, G = _augmented(params, update)
    G_W_k, G_T_W_q = G @ W_k, G.mT @ W_q  # what eta moves W_q and W_k by
    first = eta * (G_W_k @ W_k.mT + W_q @ G_T_W_q.mT)
    second = eta**2 * (G_W_k @ G_T_W_q.mT)
    d = update.x.shape[-1]
    return ProductChange(first[..., :d, :d], second[..., :d, :d], G[..., :d, :d])


def conserved(params: Params, layer: int = 0) -> Array:
    """Return W_q^T W_q - W_k^T W_k of each head, (R, H, h, h), which gradient flow conserves.

    With biases + b_q^T b_q - b_k^T b_k.

    Parameters
    ----------
    params : dict of arrays
    layer : int

    Raises
    ------
    ValueError
        If `params` has no such layer.
    """
    W_q, W_k = _biased_factors(params, layer)
    difference: Array = W_q.mT @ W_q - W_k.mT @ W_k
    return difference


def conserved_change(params: Params, update: ImplicitUpdate, eta: float) -> Array:
    """Return the exact change (R, H, h, h) of `conserved` in one SGD step: of second order in eta.

    Parameters, errors and the step are those of `product_change`.

    Notes
    -----
    eta^2 [(Ghat W_k)^T (Ghat W_k) - (Ghat^T W_q)^T (Ghat^T W_q)]: the two first-order terms are
    W_q^T Ghat W_k and its transpose on either side, and cancel.
    """
    eta = checks.real("eta", eta, minimum=0.0)
    W_q, W_k, G = _augmented(params, update)
    down_q, down_k = G @ W_k, G.mT @ W_q
    change: Array = eta**2 * (down_q.mT @ down_q - down_k.mT @ down_k)
    return change


def cosine(A: Array, B: Array) -> Array:
    """Return <A, B> / (|A| |B|) over the last two axes, NaN where either is zero.

    For the change of W_qk that an optimiser made against `ImplicitUpdate.total`, for instance.

    Parameters
    ----------
    A, B : (..., d, d) arrays

    Raises
    ------
    ValueError
        If the shapes differ, or have fewer than two axes.
    """
    A = checks.array("A, B", A)
    B = checks.array("A, B", B)
    if A.shape != B.shape or A.ndim < 2:
        checks.fail("A, B", f"the shapes {A.shape} and {B.shape}", "one shape (..., d, d)")
    found: Array = np.clip((_unit(A) * _unit(B)).sum(axis=(-2, -1)), -1, 1)
    return found


def _unit(M: Array) -> Array:
    """Return M over its Frobenius norm, NaN where M is zero."""
    # Scaled first: squares of small updates would leave the range of float32.
    largest = abs(M).max(axis=(-2, -1), keepdims=True)
    scaled = M / np.where(largest > 0, largest, np.nan)
    return np.asarray(scaled / np.linalg.norm(scaled, axis=(-2, -1), keepdims=True))


def _augmented(params: Params, update: ImplicitUpdate) -> tuple[Array, Array, Array]:
    """Return W_q, W_k (R, H, D, h) and Ghat (R, H, D, D); with biases D = d + 1, otherwise d."""
    checks.instance("update", update, ImplicitUpdate)
    W_q, W_k = _biased_factors(params, update.layer)
    R, H, D, _ = W_q.shape
    x = update.x
    biased = f"layers.{update.layer}.b_q" in params
    if (x.shape[0], update.beta.shape[2], x.shape[-1] + biased) != (R, H, D):
        got = f"{x.shape[0]} replicas, {update.beta.shape[2]} heads, width {x.shape[-1]}"
        checks.fail("update", got, f"{R}, {H} and {D - biased}, as params have")
    if not biased:
        return W_q, W_k, update.total
    x = np.concatenate([x, np.ones((*x.shape[:-1], 1), x.dtype)], axis=-1)
    return W_q, W_k, weighted_outer_sum(x, update.beta)


def _biased_factors(params: Params, layer: int) -> tuple[Array, Array]:
    """Return W_q and W_k (R, H, d, h), or with the biases as last rows (R, H, d + 1, h)."""
    W_q, W_k = factors(params, layer)
    if f"layers.{layer}.b_q" in params:
        b_q, b_k = (params[f"layers.{layer}.{name}"][:, :, None] for name in ("b_q", "b_k"))
        W_q, W_k = np.concatenate([W_q, b_q], axis=2), np.concatenate([W_k, b_k], axis=2)
    return W_q, W_k

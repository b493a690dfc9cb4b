"""The implicit update of W_qk = W_q W_k^T, term by term, and its proof.

Gradient descent on W_q and W_k moves their product as if along

    Ghat = -dL/dW_qk = sum_ij beta_ij x_i^T x_j = X^T beta X        (Prop. 2.1, Eq. 8)

with one rank-one term for each query i and key j. Here beta comes from its own formula, out of the
attention weights A, the values v and the gradient G at the head output, not from backprop's own
products: so that comparing the two can fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from minattn import checks
from minattn.arrays import Array, Params
from minattn.config import TransformerConfig
from minattn.engines import Reference
from minattn.model import Tape
from minattn.objectives import Batch
from minattn.params import check_params
from minattn.randomness import generator
from minattn.step import loss_and_grad, mean_loss

COMPLEX_STEP = 1e-30


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
        Relative residual of -dL/dW_q = Ghat W_k and -dL/dW_k = Ghat^T W_q (with bias terms where
        there are biases) against backprop's gradients.
    """

    x: Array
    beta: Array
    tokens: Array
    allowed: Array
    residual: Array

    @cached_property
    def total(self) -> Array:
        """Ghat (R, H, d, d), the sum of all terms."""
        return weighted_outer_sum(self.x, self.beta)

    @property
    def symmetric(self) -> Array:
        """Symmetric part of the total, (R, H, d, d)."""
        return (self.total + self.total.swapaxes(-2, -1)) / 2

    @property
    def skew(self) -> Array:
        """Skew-symmetric part of the total, (R, H, d, d)."""
        return (self.total - self.total.swapaxes(-2, -1)) / 2

    def as_context(self, symbol: int) -> Array:
        """Sum of the terms whose key is `symbol`: (R, H, d, d). Prop. 2.2.

        Raises
        ------
        ValueError
            If `symbol` is negative.
        """
        keys = self._is(symbol)[:, :, None, None, :]
        return weighted_outer_sum(self.x, np.where(keys, self.beta, 0))

    def as_query(self, symbol: int) -> Array:
        """Sum of the terms whose query is `symbol`: (R, H, d, d). Prop. 2.2.

        Raises
        ------
        ValueError
            If `symbol` is negative.
        """
        queries = self._is(symbol)[:, :, None, :, None]
        return weighted_outer_sum(self.x, np.where(queries, self.beta, 0))

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
        both = self.allowed & self.allowed.T & np.triu(np.ones_like(self.allowed), k=1)
        active = (self.beta != 0).any(axis=-1)  # (R, B, H, N)
        pair = both & active[..., :, None] & active[..., None, :]
        one = np.where(pair, self.beta, 0)
        other = np.where(pair, self.beta.swapaxes(-2, -1), 0)
        axes = (1, 2, 3, 4)
        energy = (one * one + other * other).sum(axis=axes)
        product = 2 * (one * other).sum(axis=axes)
        value = np.divide(product, energy, out=np.full_like(energy, np.nan), where=energy > 0)
        return value, pair.sum(axis=axes)

    def _is(self, symbol: int) -> Array:
        return self.tokens == checks.integer("symbol", symbol, minimum=0)


def implicit_update(
    config: TransformerConfig, params: Params, tape: Tape, layer: int = 0
) -> ImplicitUpdate:
    """Return the implicit update of one layer's W_qk (Prop. 2.1).

    Parameters
    ----------
    config, params
        The model that the tape is of.
    tape : Tape
        From `loss_and_grad`, or from ``forward(..., tape=True)`` after `backward`.
    layer : int

    Raises
    ------
    ValueError
        If there is no such layer, or no backward pass has completed the tape.
    """
    check_params(config, params)
    layer = _check_layer(config, layer)
    if not isinstance(tape, Tape) or tape.grads is None:
        needs = "the tape of loss_and_grad, or of forward once backward has completed it"
        checks.fail("tape", "no backward pass", needs)
    attention = tape.layers[layer].attention
    assert attention.output_gradient is not None
    A, G, v = attention.A, attention.output_gradient, attention.v
    x = attention.x.reshape(*tape.inputs.shape, config.width)
    beta = coefficients(A, G, v, tape.allowed, config.attention)
    residual = _factor_residual(params, tape.grads, f"layers.{layer}.", x, beta)
    return ImplicitUpdate(x, beta, tape.inputs, tape.allowed, residual)


def coefficients(A: Array, G: Array, v: Array, allowed: Array, attention: str) -> Array:
    """Return beta (..., N, N) = -dL/dz_ij / sqrt(h), z the scaled scores.

    With e_ij = G_i . v_j: softmax -A_ij (e_ij - sum_k A_ik e_ik) / sqrt(h); linear (S28, S33)
    -e_ij / sqrt(h) on the allowed pairs. A (..., N, N); G and v (..., N, h).
    """
    e = np.where(allowed, G @ v.swapaxes(-2, -1), 0)
    if attention == "softmax":
        e = A * (e - (A * e).sum(axis=-1, keepdims=True))
    return -e / v.shape[-1] ** 0.5


def weighted_outer_sum(x: Array, beta: Array) -> Array:
    """Return X^T beta X summed over sequences: x (R, B, N, d), beta (R, B, H, N, N)."""
    R, B, N, d = x.shape
    keys = (beta @ x[:, :, None]).swapaxes(1, 2)  # (R, H, B, N, d): sum_j beta_ij x_j
    return x.reshape(R, 1, B * N, d).swapaxes(-2, -1) @ keys.reshape(R, -1, B * N, d)


def _factor_residual(params: Params, grads: Params, prefix: str, x: Array, beta: Array) -> Array:
    """Relative residual (R,) of -dW_q = Ghat W_k and -dW_k = Ghat^T W_q, bias terms added."""
    total = weighted_outer_sum(x, beta)
    W_q, W_k = (params[prefix + name].swapaxes(1, 2) for name in ("W_q", "W_k"))  # (R, H, d, h)
    down_q, down_k = total @ W_k, total.swapaxes(-2, -1) @ W_q
    if prefix + "b_q" in params:
        queries = np.einsum("rbhij,rbid->rhd", beta, x)  # sum_ij beta_ij x_i
        keys = np.einsum("rbhij,rbjd->rhd", beta, x)
        down_q = down_q + queries[..., None] * params[prefix + "b_k"][:, :, None]
        down_k = down_k + keys[..., None] * params[prefix + "b_q"][:, :, None]
    found = [-grads[prefix + name].swapaxes(1, 2) for name in ("W_q", "W_k")]
    expected = [down_q, down_k]
    return _relative([e - f for e, f in zip(expected, found, strict=True)], expected, found)


def _relative(difference: list[Array], *sides: list[Array]) -> Array:
    """Norm of the difference over that of the larger side, per replica; 0 if all are zero."""
    error = _norm(difference)
    scale = np.max([_norm(side) for side in sides], axis=0)
    return np.divide(error, scale, out=np.zeros_like(error), where=scale > 0)


def _norm(arrays: list[Array]) -> Array:
    rows = [array.reshape(len(array), -1) for array in arrays]
    return np.linalg.norm(np.concatenate(rows, axis=1), axis=1)


@dataclass(frozen=True)
class Proof:
    """<Ghat, D> against minus the loss's derivative along D, both (R,), and their residual (R,)."""

    residual: Array
    predicted: Array
    measured: Array
    direction: Array  # D (R, H, d, d)


def prove_update(
    config: TransformerConfig,
    params: Params,
    batch: Batch,
    layer: int = 0,
    seed: int = 0,
    engine: str | Reference = "auto",
) -> Proof:
    """Prove Prop. 2.1 along one random direction: <Ghat, D> = -dL/dD.

    The left side is `implicit_update`'s; the right side is a complex step through the reference
    engine's forward pass alone, with i D added to each head's W_qk inside the scores. D is a random
    matrix of full rank, one a head and replica, which need not be reachable through W_q and W_k.

    Parameters
    ----------
    config : TransformerConfig
    params : dict of arrays
    batch : Batch
    layer, seed : int
    engine : {"auto", "numba", "numpy"}
        For the left side.

    Raises
    ------
    ValueError
        If the arguments do not fit.
    """
    layer = _check_layer(config, layer)
    _, _, tape = loss_and_grad(config, params, batch, engine)
    total = implicit_update(config, params, tape, layer).total
    draws = [generator(seed, "proof", replica) for replica in range(len(total))]
    direction = np.stack([rng.standard_normal(total.shape[1:]) for rng in draws])
    predicted = (total * direction).sum(axis=(1, 2, 3))
    measured = -_loss_derivative(config, params, batch, layer, direction)
    difference, scale = abs(predicted - measured), np.maximum(abs(predicted), abs(measured))
    residual = np.divide(difference, scale, out=np.zeros_like(difference), where=scale > 0)
    return Proof(residual, predicted, measured, direction)


def _loss_derivative(
    config: TransformerConfig, params: Params, batch: Batch, layer: int, direction: Array
) -> Array:
    """Derivative (R,) of the loss along a change of one layer's W_qk, by complex step."""
    exact = {name: value.astype(np.complex128) for name, value in params.items()}
    offsets = {layer: COMPLEX_STEP * 1j * direction}
    return mean_loss(config, exact, batch, "numpy", offsets).imag / COMPLEX_STEP


def _check_layer(config: TransformerConfig, layer: int) -> int:
    layer = checks.integer("layer", layer, minimum=0)
    if layer >= config.layers:
        checks.fail("layer", layer, f"a layer within 0..{config.layers - 1}")
    return layer

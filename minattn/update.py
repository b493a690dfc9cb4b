"""The implicit update of W_qk = W_q W_k^T, term by term, and its proof.

Gradient descent on W_q and W_k moves their product as if along

    Ghat = -dL/dW_qk = sum_ij beta_ij x_i^T x_j = X^T beta X        (Prop. 2.1, Eq. 8)

with one rank-one term for each query i and key j. Here beta comes from its own formula, out of the
attention weights A, the values v and the gradient G at the head output, not from backprop's own
products: so that comparing the two can fail.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minattn import checks
from minattn.arrays import Array, Params, ratio
from minattn.config import TransformerConfig
from minattn.engines import Reference
from minattn.model import Tape, check_depth, check_tape
from minattn.objectives import Batch
from minattn.params import check_params, factors
from minattn.randomness import generator
from minattn.step import loss_and_grad, mean_loss
from minattn.terms import ImplicitUpdate

COMPLEX_STEP = 1e-30
# Where less than this share of all magnitudes is left, as when every key says the same, what is
# left is mostly rounding, and a residual relative to it would measure nothing else.
CANCELLATION = 1e-6


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
        If there is no such layer, the tape is not of these parameters, or no backward pass has
        completed it.
    """
    check_tape(config, params, tape)
    layer = _check_layer(config, layer)
    A, G, v, x = taped(config, tape, layer)
    assert tape.grads is not None
    beta = coefficients(A, G, v, tape.allowed, config.attention)
    residual = np.empty(len(beta), beta.dtype)
    update = ImplicitUpdate(x, beta, tape.inputs, tape.allowed, residual, layer)
    residual[:] = _factor_residual(params, tape.grads, update, _uncancelled(config, tape, layer))
    return update


def coefficients(A: Array, G: Array, v: Array, allowed: Array, attention: str) -> Array:
    """Return beta (..., N, N) = -dL/dz_ij / sqrt(h), z the scaled scores.

    With e_ij = G_i . v_j: softmax -A_ij (e_ij - sum_k A_ik e_ik) / sqrt(h); linear (S28, S33)
    -e_ij / sqrt(h) on the allowed pairs. A (..., N, N); G and v (..., N, h).
    """
    G = G * -(v.shape[-1] ** -0.5)
    if attention == "linear":
        return loss_per_weight(G, v, allowed)
    beta = np.asarray(G @ v.mT)  # e first; zero A hide what the mask hides
    beta -= np.einsum("...ij,...ij->...i", A, beta)[..., None]
    beta *= A
    return beta


def loss_per_weight(G: Array, v: Array, allowed: Array) -> Array:
    """Return e_ij = G_i . v_j = dL/dA_ij (..., N, N) on the allowed pairs, zero elsewhere."""
    e = np.asarray(G @ v.mT)
    np.copyto(e, 0, where=~allowed)
    return e


def covariance_rows(config: TransformerConfig, tape: Tape, layer: int = 0) -> Array:
    """Return what multiplies x_i^T in each query's terms, as a covariance: (R, H, B, N, d).

        sum_j beta_ij x_j = -Cov_{j ~ A_i}(e_ij, x_j) / sqrt(h)        (softmax)

    A query moves W_qk by how, among the keys that it looks at, the loss goes along with x: shifting
    all keys by one vector changes nothing. It equals ``implicit_update(...).key_sums``, but is
    computed from A, e and x, without beta.

    Parameters
    ----------
    config : TransformerConfig
    tape : Tape
        As in `implicit_update`.
    layer : int

    Raises
    ------
    ValueError
        If attention is linear, there is no such layer, or no backward pass has completed the tape.
    """
    if config.attention != "softmax":
        needs = "'softmax': weights that do not sum to 1 have no covariance"
        checks.fail("attention", repr(config.attention), needs)
    A, G, v, x = taped(config, tape, _check_layer(config, layer))
    e, keys = loss_per_weight(G, v, tape.allowed), x[:, :, None]
    mean_e = (A * e).sum(axis=-1, keepdims=True)
    covariance = (A * e) @ keys - mean_e * (A @ keys)
    return (covariance * -(config.h**-0.5)).swapaxes(1, 2)


def taped(config: TransformerConfig, tape: Tape, layer: int) -> tuple[Array, Array, Array, Array]:
    """Return A, G, v and x (R, B, N, d) of a layer.

    Raises
    ------
    ValueError
        If the tape is none, of another model, or of no backward pass.
    """
    needs = "the tape of loss_and_grad, or of forward once backward has completed it"
    check_depth(config, tape, needs)
    attention = tape.layers[layer].attention
    if attention.output_gradient is None:
        checks.fail("tape", "no backward pass", needs)
    x = attention.x.reshape(*tape.inputs.shape, config.width)
    return attention.A, attention.output_gradient, attention.v, x


def _factor_residual(
    params: Params, grads: Params, update: ImplicitUpdate, uncancelled: Array
) -> Array:
    """Relative residual (R,) of -dW_q = Ghat W_k and -dW_k = Ghat^T W_q, bias terms added."""
    prefix, total = f"layers.{update.layer}.", update.total
    W_q, W_k = factors(params, update.layer)
    down_q, down_k = total @ W_k, total.mT @ W_q
    multiplied, squares = [W_q, W_k], (update.x**2).sum(axis=-1)
    if prefix + "b_q" in params:
        b_q, b_k = params[prefix + "b_q"], params[prefix + "b_k"]
        queries = np.einsum("rbhi,rbid->rhd", update.beta.sum(axis=-1), update.x)
        keys = update.key_sums.sum(axis=(2, 3))  # sum_ij beta_ij x_j; above, of x_i
        down_q = down_q + queries[..., None] * b_k[:, :, None]
        down_k = down_k + keys[..., None] * b_q[:, :, None]
        multiplied, squares = [*multiplied, b_q, b_k], squares + 1
    found = [-dW for dW in factors(grads, update.layer)]
    expected = [down_q, down_k]
    lengths = np.sqrt(squares)
    terms = np.einsum("rbhij,rbi,rbj->r", uncancelled, lengths, lengths)
    floor = CANCELLATION * terms * _norm(multiplied)
    error = _norm(list(map(np.subtract, expected, found)))
    return _relative(error, _norm(expected), _norm(found), floor)


def _uncancelled(config: TransformerConfig, tape: Tape, layer: int) -> Array:
    """Return what |beta_ij| (R, B, H, N, N) would be if nothing in it cancelled."""
    A, G, v, _ = taped(config, tape, layer)
    e = abs(loss_per_weight(G, v, tape.allowed))
    if config.attention == "softmax":
        e = A * (e + (A * e).sum(axis=-1, keepdims=True))
    return e / config.h**0.5


def _relative(error: Array, *scales: Array) -> Array:
    """Return the error (R,) relative to the largest of the scales; 0 if all are zero."""
    return np.asarray(ratio(error, np.max(scales, axis=0)))


def _norm(arrays: list[Array]) -> Array:
    rows = [array.reshape(len(array), -1) for array in arrays]
    return np.linalg.norm(np.concatenate(rows, axis=1), axis=1)


@dataclass(frozen=True)
class Proof:
    """<Ghat, D> against minus the loss's derivative along D, both (R,), and their residual (R,).

    The residual is relative to the larger of the two, or to 1e-6 of the sum of all magnitudes in
    <Ghat, D> where they cancel to less.
    """

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
    engine : {"auto", "numba", "numpy", "cupy"}
        For the left side.

    Raises
    ------
    ValueError
        If the arguments do not fit.
    """
    check_params(config, params)
    layer = _check_layer(config, layer)
    _, _, tape = loss_and_grad(config, params, batch, engine)
    total = implicit_update(config, params, tape, layer).total
    draws = [generator(seed, "proof", replica) for replica in range(len(total))]
    direction = np.stack([rng.standard_normal(total.shape[1:]) for rng in draws])
    predicted = (total * direction).sum(axis=(1, 2, 3))
    measured = -_loss_derivative(config, params, batch, layer, direction)
    _, _, _, x = taped(config, tape, layer)
    rows = x[:, :, None]
    along = abs(rows @ direction[:, None] @ rows.mT)  # |x_i D x_j^T|
    terms = (_uncancelled(config, tape, layer) * along).sum(axis=(1, 2, 3, 4))
    error = abs(predicted - measured)
    residual = _relative(error, abs(predicted), abs(measured), CANCELLATION * terms)
    return Proof(residual, predicted, measured, direction)


def _loss_derivative(
    config: TransformerConfig, params: Params, batch: Batch, layer: int, direction: Array
) -> Array:
    """Return the derivative (R,) of the loss along a change of a layer's W_qk: a complex step."""
    exact = {name: value.astype(np.complex128) for name, value in params.items()}
    offsets = {layer: COMPLEX_STEP * 1j * direction}
    return mean_loss(config, exact, batch, "numpy", offsets).imag / COMPLEX_STEP


def _check_layer(config: TransformerConfig, layer: int) -> int:
    layer = checks.integer("layer", layer, minimum=0)
    if layer >= config.layers:
        checks.fail("layer", layer, f"a layer within 0..{config.layers - 1}")
    return layer

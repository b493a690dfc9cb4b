"""Two slips in the supplement's chain rule: S25 and S26.

Each check builds the printed line, read as the statement's text describes it, and its correction.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import TypeAlias

import numpy as np

from minattn.arrays import Array, Params
from minattn.config import TransformerConfig
from minattn.engines import choose
from minattn.layers import attention, block, loss
from minattn.masks import Mask
from minattn.objectives import Batch
from minattn.params import below
from minattn.step import loss_and_grad, pose
from minattn.terms import weighted_outer_sum
from minattn.theorems.instances import small_batch, small_model
from minattn.theorems.registry import Outcome, Trial, statement
from minattn.theorems.verdicts import DOES_NOT_HOLD, HOLDS_EXACTLY, is_exact, misprint_rule, only_if
from minattn.update import COMPLEX_STEP, implicit_update, prove_update

Assembly: TypeAlias = Callable[[Array, Array], Array]
# (N d, N d) Jacobians of the layers above, first layer first, and N -> one matrix
Chain: TypeAlias = Callable[[list[Array], int], Array]


def summed_again(x: Array, beta: Array) -> Array:
    """Sum once more over the N positions, on which the term does not depend."""
    total: Array = x.shape[2] * weighted_outer_sum(x, beta)
    return total


@statement(
    "S25",
    text="the derivative of the loss in W_qk sums, over the positions once more, terms that do not "
    "depend on the index of that sum",
    source="Eq. S25",
    assumptions="the spurious sum is read as one over the N positions of the sequence",
    method="counterexample",
    predicted="1: the derivative as printed over that of the loss by complex step",
    rule="the printed form is met to rounding; if only the form without the second sum is, the "
    "statement is conditional",
    draws=8,
)
def s25(
    trial: Trial,
    *,
    printed: Assembly = summed_again,
    mended: Assembly = weighted_outer_sum,
    length: int = 5,
) -> Outcome:
    """Compare both forms with -dL/dD in random models."""
    rng = trial.rng
    drawn = []
    for _ in range(trial.draws):
        config, params = small_model(rng, length=length)
        batch = small_batch(rng, config, "causal")
        proof = prove_update(config, params, batch, 0, seed=int(rng.integers(2**31)))
        update = implicit_update(config, params, loss_and_grad(config, params, batch)[2], 0)
        totals = [form(update.x, update.beta) for form in (printed, mended)]
        drawn.append([(total * proof.direction).sum() / proof.measured[0] for total in totals])
    ratios, without = np.array(drawn).T
    verdict = misprint_rule(ratios - 1, without - 1, "the sum that repeats is dropped")
    found = (
        f"As printed the derivative is {ratios.mean():.6f} times the measured one at N = {length}, "
        f"without the second sum {without.mean():.6f} times."
    )
    ends = (float(ratios.min()), float(ratios.max()))
    return Outcome(float(ratios.mean()), ends, verdict, found)


def own_position(J: Array, N: int) -> Array:
    """Keep the blocks (d, d) of a Jacobian (N d, N d) that lead from a position to itself."""
    d = len(J) // N
    return np.asarray(J * np.kron(np.eye(N), np.ones((d, d))))


def sum_along_position(jacobians: list[Array], N: int) -> Array:
    """Sum the layers' Jacobians along a token's own position."""
    return np.asarray(sum(own_position(J, N) for J in jacobians))


def product_along_position(jacobians: list[Array], N: int) -> Array:
    """Multiply the layers' Jacobians along a token's own position."""
    return full_product([own_position(J, N) for J in jacobians], N)


def full_product(jacobians: list[Array], N: int) -> Array:
    """Multiply the layers' whole Jacobians: all paths."""
    return reduce(np.matmul, jacobians)


def s26_rule(printed: Array, multiplied: Array, full: Array) -> str:
    """Judge by residuals: the printed form, the product along a token's own position, all paths."""
    if is_exact(printed):
        return HOLDS_EXACTLY
    if is_exact(multiplied):
        return only_if("the sum over layers is read as a product")
    if is_exact(full):
        return only_if(
            "the sum over layers is read as a product, and over paths through all positions"
        )
    return DOES_NOT_HOLD


@statement(
    "S26",
    text="the gradient at a layer's output is the gradient at the top times a sum, over the layers "
    "above, of their Jacobians at the token's own position",
    source="Eq. S26",
    assumptions="two layers above, bidirectional, attention with a residual sum",
    method="counterexample",
    predicted="0: relative difference from the derivative of the loss by complex step",
    rule="the printed form is met to rounding; if a product of the Jacobians meets it, along the "
    "own position or over all paths, the statement is conditional",
    draws=6,
)
def s26(
    trial: Trial,
    *,
    printed: Chain = sum_along_position,
    layers_above: int = 2,
    mask: Mask = "bidirectional",
) -> Outcome:
    """Compare the three forms with the gradient by complex step."""
    forms = (printed, product_along_position, full_product)
    off = np.array(
        [_chain_residuals(trial.rng, forms, layers_above, mask) for _ in range(trial.draws)]
    )
    verdict = s26_rule(*off.T)
    found = (
        f"With {layers_above} layers above, the sum along the token's own position is off by "
        f"{off[:, 0].min():.2f} to {off[:, 0].max():.2f} of the gradient, the product there by "
        f"{off[:, 1].min():.2f} to {off[:, 1].max():.2f}, the product over all paths by "
        f"{off[:, 2].max():.1e}."
    )
    ends = (float(off[:, 0].min()), float(off[:, 0].max()))
    return Outcome(float(off[:, 0].mean()), ends, verdict, found)


def _chain_residuals(
    rng: np.random.Generator, forms: tuple[Chain, ...], layers_above: int, mask: Mask
) -> list[float]:
    """Relative errors of the chain rule's forms in one random model, one sequence."""
    config, params = small_model(rng, layers=layers_above, heads=1, width=4, length=4)
    batch = small_batch(rng, config, mask, sequences=1)
    stack = _Stack(config, params, batch)
    x = rng.standard_normal((1, config.max_length, config.width))
    jacobians, rows = [], x
    for layer in range(layers_above):
        jacobians.append(_jacobian(partial(stack.layer, layer), rows))
        rows = stack.layer(layer, rows).real
    top = _jacobian(stack.loss, rows)[:, 0]

    def whole(z: Array) -> Array:
        for layer in range(layers_above):
            z = stack.layer(layer, z)
        return stack.loss(z)

    truth = _jacobian(whole, x)[:, 0]
    guesses = [form(jacobians, config.max_length) @ top for form in forms]
    return [float(np.linalg.norm(guess - truth) / np.linalg.norm(truth)) for guess in guesses]


class _Stack:
    """The layers of a model and its loss as functions of complex rows (M, N, d), one sequence."""

    def __init__(self, config: TransformerConfig, params: Params, batch: Batch):
        self._config = config
        self._params = {name: value.astype(np.complex128) for name, value in params.items()}
        self._problem, dtype = pose(config, self._params, batch)
        self._engine = choose("numpy", dtype)

    def layer(self, number: int, x: Array) -> Array:
        p = attention.joined(below(self._params, f"layers.{number}."))
        p = _repeated(p, len(x))
        allowed = self._problem.allowed
        return block.forward(self._engine, self._config, p, x.astype(complex), allowed)[0]

    def loss(self, x: Array) -> Array:
        logits = x @ self._params["unembedding"]
        shape = logits.shape[:2]
        targets, shares = (
            np.broadcast_to(array.reshape(1, -1), shape)
            for array in (self._problem.targets, self._problem.shares)
        )
        return loss.forward(self._engine, logits, targets, shares)[0][:, None]


def _repeated(params: Params, times: int) -> Params:
    return {name: np.repeat(value, times, axis=0) for name, value in params.items()}


def _jacobian(function: Callable[[Array], Array], x: Array) -> Array:
    """Return d output / d input, (inputs, outputs), at x (1, N, d), by one batch of complex steps.

    Row vectors, as everywhere: the Jacobian of g after f is J_f J_g.
    """
    steps = COMPLEX_STEP * 1j * np.eye(x.size).reshape(x.size, *x.shape[1:])
    return function(x + steps).imag.reshape(x.size, -1) / COMPLEX_STEP

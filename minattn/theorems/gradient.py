"""The implicit update of W_qk and its split by symbol and by head: Props. 2.1, 2.2, Remark A.5."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from minattn.arrays import Array
from minattn.config import ATTENTIONS, NORMS
from minattn.masks import NAMES
from minattn.scores import scores, scores_from_factors
from minattn.step import loss_and_grad
from minattn.terms import ImplicitUpdate, weighted_outer_sum
from minattn.theorems.instances import small_batch, small_model
from minattn.theorems.registry import Outcome, Trial, statement
from minattn.theorems.verdicts import (
    DOES_NOT_HOLD,
    HOLDS_EXACTLY,
    identity_rule,
    is_exact,
    only_if,
)
from minattn.update import implicit_update, prove_update

# (x (R, B, N, d), beta (R, B, H, N, N)) -> (R, H, d, d)
Assembly: TypeAlias = Callable[[Array, Array], Array]
# (update, symbol) -> (R, H, d, d)
Part: TypeAlias = Callable[[ImplicitUpdate, int], Array]


@statement(
    "Prop 2.1",
    text="the descent direction of W_qk is sum_ij beta_ij x_i^T x_j, one rank-one term for each "
    "query i and key j",
    source="Prop. 2.1, Eq. 8",
    assumptions="W_qk of each head taken as a free matrix; any mask, norm, layer and attention",
    method="identity",
    predicted="0: relative difference from the derivative of the loss along a random direction of "
    "W_qk, by complex step",
    rule="every difference is rounding",
    draws=12,
)
def prop_21(trial: Trial, *, assemble: Assembly = weighted_outer_sum) -> Outcome:
    """Compare <sum beta K, D> with -dL/dD in random models of all kinds."""
    rng = trial.rng
    residuals, moved = [], []
    for number in range(trial.draws):
        config, params = small_model(
            rng,
            attention=ATTENTIONS[number % 2],
            norm=NORMS[number % 3],
            bias=bool(rng.integers(2)),
            feed_forward=int(rng.integers(2)) * 5,
        )
        batch = small_batch(rng, config, NAMES[int(rng.integers(3))])
        layer = int(rng.integers(config.layers))
        proof = prove_update(config, params, batch, layer, seed=int(rng.integers(2**31)))
        update = implicit_update(config, params, loss_and_grad(config, params, batch)[2], layer)
        predicted = (assemble(update.x, update.beta) * proof.direction).sum(axis=(1, 2, 3))
        residuals.append(abs(predicted[0] - proof.measured[0]) / abs(proof.measured[0]))
        name = f"layers.{layer}.W_v"
        other = params | {name: params[name][:, ::-1]}
        beta = implicit_update(config, other, loss_and_grad(config, other, batch)[2], layer).beta
        moved.append(np.linalg.norm(beta - update.beta) / np.linalg.norm(update.beta))
    worst = float(max(residuals))
    found = (
        f"Largest difference {worst:.1e} over {trial.draws} models; "
        f"another W_v of the same norm changes beta by {min(moved):.0%} to {max(moved):.0%}."
    )
    return Outcome(worst, (float(min(residuals)), worst), identity_rule(residuals), found)


def as_context(update: ImplicitUpdate, symbol: int) -> Array:
    """Return the terms whose key is `symbol`."""
    return update.as_context(symbol)


def as_query(update: ImplicitUpdate, symbol: int) -> Array:
    """Return the terms whose query is `symbol`."""
    return update.as_query(symbol)


DEPENDS_ON_SYMBOL_ALONE = (
    "each token's x depends on its symbol alone (the first layer, without positions)"
)


def prop_22_rule(sums: Array, alone: Array, otherwise: Array) -> str:
    """Judge the split by residuals.

    sums: of each family against the total; alone, otherwise: share of a symbol's part that is not
    in proportion to x_*, where x depends on the symbol alone and where it does not.
    """
    if not is_exact(sums) or not is_exact(alone):
        return DOES_NOT_HOLD
    if otherwise.size == 0 or is_exact(otherwise):
        return HOLDS_EXACTLY
    return only_if(DEPENDS_ON_SYMBOL_ALONE)


@statement(
    "Prop 2.2",
    text="the update splits by symbol t*, whose terms as key fill columns in proportion to x_* and "
    "whose terms as query fill rows in proportion to x_*",
    source="Prop. 2.2, Eqs. 13-16",
    assumptions="the mask symbol counts as a symbol; the two families are taken one at a time",
    method="identity",
    predicted="0: share of a symbol's terms that is not in proportion to x_*",
    rule="both families sum to the total, and all parts are in proportion to x_*, to rounding; "
    "where that takes an x that depends on the symbol alone, the statement is conditional",
    draws=8,
)
def prop_22(
    trial: Trial,
    *,
    context: Part = as_context,
    query: Part = as_query,
    positions: bool = True,
    layers: int = 2,
) -> Outcome:
    """Sum both families in every layer, and look for what is not in proportion to x_*.

    Where x differs between the occurrences of a symbol, x_* is their mean.
    """
    rng = trial.rng
    sums: list[float] = []
    alone: list[float] = []
    otherwise: list[float] = []
    for _ in range(trial.draws):
        for with_positions in sorted({False, positions}):
            config, params = small_model(rng, layers=layers, positions=with_positions)
            batch = small_batch(rng, config, "bidirectional")
            tape = loss_and_grad(config, params, batch)[2]
            for layer in range(layers):
                update = implicit_update(config, params, tape, layer)
                simple = layer == 0 and not with_positions
                for part, axis in ((context, -1), (query, -2)):
                    parts = np.stack([part(update, t) for t in range(config.vocab_size + 1)])
                    sums.append(_relative(parts.sum(axis=0), update.total))
                    (alone if simple else otherwise).append(_off_symbol(update, parts, axis))
    verdict = prop_22_rule(np.array(sums), np.array(alone), np.array(otherwise))
    found = (
        f"Each family sums to the total within {max(sums):.1e} (both together count it twice); "
        f"not in proportion to x_* is a share of at most {max(alone):.1e} in layer 0 without "
        f"positions, and of {min(otherwise, default=0):.2f} to {max(otherwise, default=0):.2f} "
        "elsewhere."
    )
    measured = max(alone + otherwise)
    return Outcome(measured, (min(alone + otherwise), measured), verdict, found)


def _relative(found: Array, expected: Array) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def _off_symbol(update: ImplicitUpdate, parts: Array, axis: int) -> float:
    """Return the share, by norm, of what is not in proportion to x_* along an axis (-1: columns).

    parts (V + 1, 1, H, d, d), one a symbol.
    """
    x, tokens = update.x[0], update.tokens[0]
    left = []
    for symbol, part in enumerate(parts[:, 0]):
        mean = x[tokens == symbol].mean(axis=0) if (tokens == symbol).any() else x[0, 0]
        unit = mean / np.linalg.norm(mean)
        rows = part if axis == -1 else part.swapaxes(-2, -1)
        left.append(rows - (rows @ unit)[..., None] * unit)
    return float(np.linalg.norm(left) / np.linalg.norm(parts))


def concatenated(W_q: Array, W_k: Array) -> Array:
    """Return the product of factors (d, H, h) joined along the heads, (d, d)."""
    d = len(W_q)
    return np.asarray(W_q.reshape(d, -1) @ W_k.reshape(d, -1).T)


def remark_a5_rule(sums: Array, slopes: Array) -> str:
    """Judge by residuals of the sum over heads, and slopes of the loss that keep that sum.

    A slope that is not 0 says that the loss is no function of the sum.
    """
    if not is_exact(sums):
        return DOES_NOT_HOLD
    if is_exact(slopes):
        return HOLDS_EXACTLY
    return only_if("the sum over heads is a description: the loss is no function of it")


@statement(
    "Remark A.5",
    text="with several heads, W_qk is the sum of the heads' products, which is the product of the "
    "joined factors, and the results carry over to it",
    source="Remark A.5",
    assumptions="each head has its own softmax and values",
    method="identity",
    predicted="0: slope of the loss, relative to the update's norm, when W_qk moves from one head "
    "to another",
    rule="the sum equals the joined product to rounding, and so do its scores; if the loss changes "
    "while the sum does not, the remark is conditional",
    draws=8,
)
def remark_a5(
    trial: Trial, *, heads: int = 2, joined: Callable[[Array, Array], Array] = concatenated
) -> Outcome:
    """Compare sum and joined product; then move W_qk from one head to the next."""
    rng = trial.rng
    sums, slopes = [], []
    for _ in range(trial.draws):
        config, params = small_model(rng, layers=1, heads=heads)
        W_q, W_k = params["layers.0.W_q"][0], params["layers.0.W_k"][0]
        total = np.einsum("dhk,ehk->de", W_q, W_k)
        difference = np.subtract(scores(total), scores_from_factors(W_q, W_k))
        sums += [_relative(joined(W_q, W_k), total), float(np.abs(difference).max())]
        batch = small_batch(rng, config, "causal")
        update = implicit_update(config, params, loss_and_grad(config, params, batch)[2]).total[0]
        direction = rng.standard_normal(update.shape)
        direction -= direction.mean(axis=0)  # adds nothing to the sum over heads
        slopes.append(abs(float((update * direction).sum())) / float(np.linalg.norm(update)))
    found = (
        f"Sum and joined product, and their scores, differ by at most {max(sums):.1e}; with "
        f"{heads} heads, random changes that leave the sum over heads as it is change the loss at "
        f"{min(slopes):.2f} to {max(slopes):.2f} times the norm of the update."
    )
    verdict = remark_a5_rule(np.array(sums), np.array(slopes))
    return Outcome(max(slopes), (min(slopes), max(slopes)), verdict, found)

"""When the product of conditionals is a likelihood: App. A.3, exactly, on a tiny vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from minattn.arrays import Array
from minattn.masks import allowed_pairs
from minattn.theorems.registry import Outcome, Trial, statement
from minattn.theorems.verdicts import DOES_NOT_HOLD, HOLDS_EXACTLY, is_exact

# (rng, V, N) -> a joint law, one axis a position: N axes of V
JointLaw: TypeAlias = Callable[[np.random.Generator, int, int], Array]
# (rng, N) -> (N, N) bool: entry (i, j) says that token i is predicted from token j
Context: TypeAlias = Callable[[np.random.Generator, int], Array]


def any_joint(rng: np.random.Generator, symbols: int, length: int) -> Array:
    """Draw a joint law without structure."""
    return rng.dirichlet(np.ones(symbols**length)).reshape((symbols,) * length)


def independent(rng: np.random.Generator, symbols: int, length: int) -> Array:
    """Draw a joint law of independent tokens."""
    joint: Array = np.ones(())
    for row in rng.dirichlet(np.ones(symbols), size=length):
        joint = joint[..., None] * row
    return joint


def in_some_order(rng: np.random.Generator, length: int) -> Array:
    """Predict each token from those before it, in a random order of the positions."""
    rank = rng.permutation(length)
    return rank[:, None] > rank[None, :]


def some_before(rng: np.random.Generator, length: int) -> Array:
    """Predict each token from some of those before it: acyclic, with less context."""
    return in_some_order(rng, length) & (rng.random((length, length)) < 0.5)


def all_others(rng: np.random.Generator, length: int) -> Array:
    """Predict each token from all others: every two positions form a cycle."""
    return allowed_pairs("bidirectional", length) & ~np.eye(length, dtype=bool)


def product_of_conditionals(joint: Array, context: Array) -> Array:
    """Return prod_i p(t_i | its context) for every sequence, in the shape of the joint law."""
    product: Array = np.ones_like(joint)
    for i, seen in enumerate(context):
        hidden = tuple(j for j in range(joint.ndim) if not seen[j] and j != i)
        together = joint.sum(axis=hidden, keepdims=True)
        product = product * together / together.sum(axis=i, keepdims=True)
    return product


def appendix_a3_rule(full: Array, reduced: Array, cyclic: Array) -> str:
    """Judge "acyclic conditioning gives a likelihood, cyclic only a pseudo-likelihood".

    full: distance of the acyclic product from the joint law; reduced: |total - 1| with part of the
    context; cyclic: |total - 1| when all others are seen, which must never be 0.
    """
    if not is_exact(full) or not is_exact(reduced):
        return DOES_NOT_HOLD
    return HOLDS_EXACTLY if np.min(np.abs(cyclic)) > 1e-6 else DOES_NOT_HOLD


@statement(
    "App. A.3",
    text="predicting each token from earlier ones multiplies to a likelihood, from all others only "
    "to a pseudo-likelihood",
    source="App. A.3",
    assumptions="any joint law, the exact conditionals, and every sequence summed",
    method="identity",
    predicted="sum over all sequences of the product of conditionals: 1 if acyclic, else not 1",
    rule="the acyclic products equal the joint law, or sum to 1 where they use part of the "
    "context, to rounding; the cyclic ones never sum to 1 within 1e-6",
    draws=20,
)
def appendix_a3(
    trial: Trial,
    *,
    acyclic: Context = in_some_order,
    reduced: Context = some_before,
    cyclic: Context = all_others,
    joint_law: JointLaw = any_joint,
    symbols: int = 3,
    length: int = 3,
) -> Outcome:
    """Multiply the exact conditionals of random joint laws."""
    full, part, whole = [], [], []
    for _ in range(trial.draws):
        joint = joint_law(trial.rng, symbols, length)
        product = product_of_conditionals(joint, acyclic(trial.rng, length))
        full.append(float(np.abs(product - joint).max()))
        product = product_of_conditionals(joint, reduced(trial.rng, length))
        part.append(float(product.sum()) - 1)
        product = product_of_conditionals(joint, cyclic(trial.rng, length))
        whole.append(float(product.sum()))
    verdict = appendix_a3_rule(np.array(full), np.array(part), np.array(whole) - 1)
    found = (
        f"Over {trial.draws} joint laws of {symbols} symbols at {length} positions the acyclic "
        f"product differs from the joint law by {max(full):.1e}, with part of the context it still "
        f"sums to 1 within {np.abs(part).max():.1e}; the cyclic product sums to {min(whole):.3f} "
        f"to {max(whole):.3f}."
    )
    return Outcome(float(np.mean(whole)), (min(whole), max(whole)), verdict, found)

"""The stationary law of a transition matrix: whether there is one, and which."""

from __future__ import annotations

import numpy as np

from minattn import checks
from minattn.arrays import Array

_CLASSES_NAMED = 4
_MEMBERS_NAMED = 8


def entropies(rows: Array) -> Array:
    """Entropy of each row of probabilities.

    Parameters
    ----------
    rows : (..., V) array
        Probabilities along the last axis.

    Returns
    -------
    (...) array
        In nats, with 0 log 0 = 0.
    """
    entropy: Array = 0.0 - (rows * np.log(np.where(rows > 0, rows, 1.0))).sum(axis=-1)
    return entropy


def closed_classes(transition: Array) -> list[Array]:
    """Return the closed communicating classes.

    They are the sets of states that reach one another and nothing else.

    Parameters
    ----------
    transition : (V, V) array
        Row: state now. Column: next state. Only which entries are positive matters.

    Returns
    -------
    list of (n,) arrays
        The members of each class, ascending; the classes by their first member. There is at
        least one, and the stationary law is unique exactly when there is one only.
    """
    step = transition > 0
    unseen = np.ones(len(step), dtype=bool)
    classes = []
    while unseen.any():
        state = int(np.argmax(unseen))
        reached, reaching = _reachable(step, state), _reachable(step.T, state)
        if not (reached & ~reaching).any():
            classes.append(np.flatnonzero(reached))
        # What leads to this state belongs to its class or to no closed one.
        unseen &= ~reaching
    return sorted(classes, key=lambda members: int(members[0]))


def stationary_law(transition: Array) -> Array:
    """Return the law pi with pi P = pi, each entry to a relative accuracy near that of the type.

    Parameters
    ----------
    transition : (V, V) array of float64
        Rows of probabilities that sum to 1. Periodic chains are fine.

    Returns
    -------
    (V,) array of float64
        Exactly 0 at transient states.

    Raises
    ------
    ValueError
        If there is more than one closed class (the message says which), or if the law needs
        ratios of probabilities beyond the range of float64.

    Notes
    -----
    Gaussian elimination in the order and form of Grassmann, Taksar and Heyman (Operations
    Research 33, 1985). It never subtracts, so that nearly separate classes, as of rows drawn at a
    small concentration, cost no accuracy.
    """
    classes = closed_classes(transition)
    if len(classes) > 1:
        needs = "exactly one, or the stationary law is not unique"
        checks.fail("transition", f"{len(classes)} closed classes, {_listed(classes)}", needs)
    members = classes[0]
    law = np.zeros(len(transition))
    law[members] = _irreducible_law(transition[np.ix_(members, members)])
    return law


def _reachable(step: Array, start: int) -> Array:
    """Mark the states that some path from `start` visits, `start` among them."""
    seen = np.zeros(len(step), dtype=bool)
    seen[start] = True
    frontier = np.array([start])
    while frontier.size:
        new = step[frontier].any(axis=0) & ~seen
        seen |= new
        frontier = np.flatnonzero(new)
    return seen


def _irreducible_law(transition: Array) -> Array:
    """Stationary law of one communicating class, by elimination without subtraction."""
    P = transition.copy()
    for state in range(len(P) - 1, 0, -1):
        leaving = P[state, :state].sum()
        if leaving < np.finfo(np.float64).tiny:
            checks.fail(
                "transition", "steps too rare for float64", "a stationary law within its range"
            )
        P[:state, state] /= leaving
        P[:state, :state] += np.outer(P[:state, state], P[state, :state])
    law = np.ones(len(P))
    for state in range(1, len(P)):
        law[state] = law[:state] @ P[:state, state]
        law[: state + 1] /= law[: state + 1].sum()
    return law


def _listed(classes: list[Array]) -> str:
    """Write classes as {0, 1} and {3}, cut short where they are many or large."""
    texts = []
    for members in classes[:_CLASSES_NAMED]:
        names = [str(member) for member in members[:_MEMBERS_NAMED]]
        names += ["..."] * (len(members) > _MEMBERS_NAMED)
        texts.append("{" + ", ".join(names) + "}")
    if len(classes) > _CLASSES_NAMED:
        texts.append("others")
    return ", ".join(texts[:-1]) + " and " + texts[-1]

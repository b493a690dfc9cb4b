"""One seed, many independent streams: one for each purpose and replica."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from minattn import checks

STREAMS = ("parameters", "data", "objective", "proof", "source", "held_out")


def generator(seed: int, stream: str, replica: int) -> np.random.Generator:
    """Return the random generator of one purpose and one replica.

    Replica r draws the same numbers whatever the number of replicas, and purposes do not disturb
    each other, so that objectives and engines can be compared on the same draws.

    Raises
    ------
    ValueError
        If `seed` or `replica` is not a non-negative integer, or the stream has no such name.
    """
    seed = checks.seed("seed", seed)
    number = STREAMS.index(checks.one_of("stream", stream, STREAMS))
    replica = checks.integer("replica", replica, minimum=0)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number, replica)))


def replica_numbers(replicas: int | Iterable[int]) -> tuple[int, ...]:
    """Return the replica numbers that a count, or a list of numbers, stands for.

    Raises
    ------
    ValueError
        If there is none, one is negative, or one occurs twice.
    """
    if isinstance(replicas, (str, bytes)):
        checks.fail("replicas", repr(replicas), "a count or a list of replica numbers")
    try:
        listed = iter(replicas)  # type: ignore[arg-type]
    except TypeError:  # a count, np.array(3) among them
        return tuple(range(checks.integer("replicas", replicas, minimum=1)))
    numbers = tuple(checks.integer("replicas", number, minimum=0) for number in listed)
    if not numbers or len(set(numbers)) < len(numbers):
        checks.fail("replicas", list(numbers), "at least one number, none of them twice")
    return numbers

"""Random streams: one for each seed, purpose and replica, and the same for ever."""

from itertools import product

import numpy as np
import pytest

from minattn.randomness import STREAMS, generator, replica_numbers

SEEDS, REPLICAS = (0, 1, 2**40), (0, 1, 7)


def test_every_stream_draws_its_own_numbers():
    draws = [
        tuple(generator(seed, stream, replica).integers(2**32, size=4))
        for seed, stream, replica in product(SEEDS, STREAMS, REPLICAS)
    ]
    assert len(set(draws)) == len(draws) == len(SEEDS) * len(STREAMS) * len(REPLICAS)


def test_streams_are_uncorrelated():
    draws = [
        generator(3, stream, replica).standard_normal(4000)
        for stream, replica in product(STREAMS, REPLICAS)
    ]
    correlations = np.corrcoef(draws)[np.triu_indices(len(draws), 1)]
    assert np.abs(correlations).max() < 5 / 4000**0.5


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ((0, "parameters", 0), [172, 5651, 9094]),
        ((0, "data", 0), [4846, 9453, 9697]),
        ((0, "objective", 5), [5927, 1439, 546]),
        ((123, "proof", 2), [9354, 1156, 5046]),
    ],
)
def test_the_numbers_never_change(arguments, values):
    """Published results rest on these streams."""
    assert generator(*arguments).integers(10_000, size=3).tolist() == values


def test_a_generator_is_new_at_every_call():
    first, second = generator(0, "data", 0), generator(0, "data", 0)
    assert first is not second
    assert first.random() == second.random()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((-1, "data", 0), "seed"),
        ((1.0, "data", 0), "seed"),
        ((True, "data", 0), "seed"),
        ((None, "data", 0), "seed"),
        ((0, "Data", 0), "stream"),
        ((0, 1, 0), "stream"),
        ((0, "data", -1), "replica"),
        ((0, "data", 0.5), "replica"),
    ],
)
def test_a_bad_argument_is_refused_by_name(arguments, name):
    with pytest.raises(ValueError, match=f"^{name}: got"):
        generator(*arguments)


@pytest.mark.parametrize(
    ("replicas", "numbers"),
    [
        (1, (0,)),
        (3, (0, 1, 2)),
        (np.int64(2), (0, 1)),
        ([5], (5,)),
        ((4, 0, 2), (4, 0, 2)),
        (np.array([3, 1]), (3, 1)),
        (range(2, 5), (2, 3, 4)),
        ((n for n in (1, 9)), (1, 9)),
    ],
)
def test_counts_and_lists_of_replicas(replicas, numbers):
    found = replica_numbers(replicas)
    assert found == numbers
    assert all(type(number) is int for number in found)


@pytest.mark.parametrize(
    "bad", [0, -1, 1.0, True, None, "3", b"3", [], [-1], [1, 1], [0.0], ["0"], [True]]
)
def test_bad_replicas(bad):
    with pytest.raises(ValueError, match=r"^replicas: got"):
        replica_numbers(bad)


def test_a_count_may_be_an_array_of_no_axes():
    assert replica_numbers(np.array(3)) == (0, 1, 2)

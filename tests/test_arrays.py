"""What any module may do to arrays."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from minattn.arrays import mapped, ratio


@dataclass
class Pair:
    one: Any
    other: Any


def test_arrays_are_changed_wherever_they_are_held():
    tree = {"list": [np.zeros(2), (np.zeros(1), "text")], "pair": Pair(np.zeros(2), None)}
    found = mapped(lambda array: array + 1, tree)
    assert found.keys() == tree.keys()
    assert found["list"][0].tolist() == found["pair"].one.tolist() == [1, 1]
    assert found["list"][1] == (np.ones(1), "text")
    assert found["pair"].other is None
    assert mapped(lambda array: array + 1, Pair) is Pair
    assert not tree["list"][0].any()


def test_a_ratio_is_empty_where_there_is_nothing_to_divide_by():
    part, whole = np.array([[1.0, -3.0], [5.0, 0.0]]), np.array([[2.0, 4.0], [0.0, 0.0]])
    np.testing.assert_array_equal(ratio(part, whole), [[0.5, -0.75], [0, 0]])
    np.testing.assert_array_equal(ratio(part, whole, np.nan), [[0.5, -0.75], [np.nan, np.nan]])


@pytest.mark.parametrize(
    ("part", "whole", "dtype"),
    [
        (np.float32(1), np.float32([2]), np.float32),
        (1.0, np.float32([2]), np.float32),
        (np.float32([1]), np.float64([2]), np.float64),
        (np.float64([1]), np.float32([2]), np.float64),
        (np.int64([1]), np.int64([2]), np.float64),
    ],
)
def test_a_ratio_keeps_the_precision_of_its_parts(part, whole, dtype):
    found = ratio(part, whole)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, [0.5])


def test_a_ratio_of_numbers_is_a_number():
    assert isinstance(ratio(np.float64(1), np.float64(4)), np.float64)
    assert ratio(np.float64(1), np.float64(4)) == 0.25

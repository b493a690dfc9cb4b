"""What any module may do to arrays."""

import numpy as np
import pytest

from minattn.arrays import ratio


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

"""Which keys a query may see."""

import numpy as np
import pytest

from minattn.masks import NAMES, allowed_pairs, describe, same_mask

THREE = {
    "causal": [[1, 0, 0], [1, 1, 0], [1, 1, 1]],
    "strictly_causal": [[0, 0, 0], [1, 0, 0], [1, 1, 0]],
    "bidirectional": [[1, 1, 1], [1, 1, 1], [1, 1, 1]],
}
custom = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 1]], bool)


@pytest.mark.parametrize("name", THREE)
def test_a_named_mask(name):
    found = allowed_pairs(name, 3)
    assert found.dtype == np.bool_
    np.testing.assert_array_equal(found, THREE[name])


def test_every_name_is_tested():
    assert set(NAMES) == THREE.keys()


@pytest.mark.parametrize(
    ("name", "alone"), [("causal", True), ("strictly_causal", False), ("bidirectional", True)]
)
def test_one_position(name, alone):
    assert allowed_pairs(name, 1).tolist() == [[alone]]


@pytest.mark.parametrize("name", THREE)
def test_a_named_mask_cannot_be_spoilt_for_others(name):
    with pytest.raises(ValueError, match="read-only"):
        allowed_pairs(name, 3)[0, 0] = False


@pytest.mark.parametrize("mask", [custom, custom.tolist(), np.asfortranarray(custom)])
def test_an_array_is_taken_as_it_is(mask):
    found = allowed_pairs(mask, 3)
    np.testing.assert_array_equal(found, custom)
    assert found.flags.c_contiguous
    assert not found.flags.writeable


def test_an_array_for_one_position():
    assert allowed_pairs(np.array([[True]]), 1).tolist() == [[True]]


@pytest.mark.parametrize(
    ("mask", "length", "message"),
    [
        ("Causal", 3, "mask: got 'Causal', needs one of 'causal', 'strictly_causal'"),
        ("", 3, "mask: got ''"),
        (None, 3, "mask: got NoneType"),
        (np.ones((3, 3)), 3, "mask: got an array of float64"),
        (np.ones((3, 3), int), 3, "mask: got an array of int64"),
        (custom, 4, r"mask: got the shape \(3, 3\), needs shape \(4, 4\)"),
        (custom[None], 3, r"mask: got the shape \(1, 3, 3\)"),
        (custom[0], 3, r"mask: got the shape \(3,\)"),
        (custom[:, :2], 3, r"mask: got the shape \(3, 2\)"),
        (custom[:0, :0], 1, r"mask: got the shape \(0, 0\)"),
        ("causal", 0, "length: got 0"),
        ("causal", 2.0, "length: got 2"),
    ],
)
def test_a_bad_mask(mask, length, message):
    with pytest.raises(ValueError, match=message):
        allowed_pairs(mask, length)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("causal", "causal", True),
        ("causal", "bidirectional", False),
        (custom, custom.copy(), True),
        (custom, ~custom, False),
        (custom, custom[:2, :2], False),
        ("causal", np.tri(3, dtype=bool), False),
        (np.tri(3, dtype=bool), "causal", False),
    ],
)
def test_whether_masks_are_the_same(one, other, same):
    assert same_mask(one, other) is same


def test_masks_in_sentences():
    assert describe("causal") == "causal"
    assert describe(custom) == "custom"

"""Argument checks: the value comes back, or an error names argument, value and need."""

from pathlib import Path

import numpy as np
import pytest

from minattn import checks


def test_every_error_has_one_form():
    with pytest.raises(ValueError, match=r"^width: got 3, needs an even number$"):
        checks.fail("width", 3, "an even number")


@pytest.mark.parametrize(
    ("value", "minimum"),
    [(0, None), (-7, None), (3, 3), (np.int32(5), 1), (np.uint64(2**63 - 1), 0), (1 - 2**63, None)],
)
def test_integers_pass_as_plain_ones(value, minimum):
    found = checks.integer("n", value, minimum)
    assert (found, type(found)) == (int(value), int)


@pytest.mark.parametrize(
    ("value", "minimum", "message"),
    [
        (True, None, "n: got True, needs an integer$"),
        (np.False_, 0, "n: got .*False.*, needs an integer of at least 0$"),
        (1.0, None, r"n: got 1\.0, needs an integer$"),
        ("1", None, "n: got '1', needs an integer$"),
        (None, 2, "n: got None, needs an integer of at least 2$"),
        (1, 2, "n: got 1, needs an integer of at least 2$"),
        (np.array([1]), None, "n: got .*, needs an integer$"),
        (2**63, None, "n: got an integer beyond 64 bits, needs an integer$"),
        (-(10**30), None, "n: got an integer beyond 64 bits, needs an integer$"),
    ],
)
def test_a_bad_integer(value, minimum, message):
    with pytest.raises(ValueError, match=message):
        checks.integer("n", value, minimum)


@pytest.mark.parametrize("value", [0, np.uint64(2**63), 10**30])
def test_seeds_may_be_as_large_as_one_likes(value):
    found = checks.seed("seed", value)
    assert (found, type(found)) == (int(value), int)


@pytest.mark.parametrize("value", [-1, True, 0.5, "1", None])
def test_a_bad_seed(value):
    with pytest.raises(ValueError, match=r"seed: got .*, needs an integer of at least 0$"):
        checks.seed("seed", value)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1, np.float32(0.5), np.array(2)])
def test_any_number_passes_as_a_float(value):
    found = checks.number("low", value)
    assert type(found) is float
    np.testing.assert_equal(found, float(value))


@pytest.mark.parametrize("value", [True, "1", None, 1j, [1.0], np.array([1.0]), 10**400])
def test_what_is_no_number(value):
    with pytest.raises(ValueError, match=r"low: got .*, needs a"):
        checks.number("low", value)


@pytest.mark.parametrize("value", [0, -1e-300, np.nan, np.inf])
def test_what_is_not_positive(value):
    with pytest.raises(ValueError, match=r"lr: got .*, needs a"):
        checks.positive("lr", value)


@pytest.mark.parametrize("value", ["a", Path("a")])
def test_paths_pass_as_paths(value):
    assert checks.path("save", value) == Path("a")


@pytest.mark.parametrize("value", ["", "a\0b", None, 3, b"a"])
def test_a_bad_path(value):
    with pytest.raises(ValueError, match=r"save: got .*, needs a path$"):
        checks.path("save", value)


@pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.25), np.int8(1), np.array(0.75)])
def test_numbers_pass_as_floats(value):
    found = checks.real("rate", value, 0, 1)
    assert (found, type(found)) == (float(value), float)


@pytest.mark.parametrize(
    ("value", "limits", "needs"),
    [
        (True, (), "a finite number"),
        ("0.5", (), "a finite number"),
        (None, (), "a finite number"),
        (1j, (), "a finite number"),
        ([0.5], (), "a finite number"),
        (np.nan, (), "a finite number"),
        (np.inf, (), "a finite number"),
        (-np.inf, (0,), r"a finite number in \[0, inf\]"),
        (-1e-9, (0, 1), r"a finite number in \[0, 1\]"),
        (1.0000001, (0, 1), r"a finite number in \[0, 1\]"),
    ],
)
def test_a_bad_number(value, limits, needs):
    with pytest.raises(ValueError, match=f"rate: got .*, needs {needs}$"):
        checks.real("rate", value, *limits)


@pytest.mark.parametrize("value", [True, False, np.True_])
def test_flags_pass_as_plain_ones(value):
    assert checks.flag("bias", value) is bool(value)


@pytest.mark.parametrize("value", [0, 1, "True", None, 1.0, []])
def test_a_bad_flag(value):
    with pytest.raises(ValueError, match=r"bias: got .*, needs True or False$"):
        checks.flag("bias", value)


def test_one_of_several():
    assert checks.one_of("norm", "pre", ("none", "pre")) == "pre"


@pytest.mark.parametrize("value", ["Pre", "", None, 0, ["pre"]])
def test_none_of_several(value):
    with pytest.raises(ValueError, match=r"norm: got .*, needs one of 'none', 'pre'$"):
        checks.one_of("norm", value, iter(("none", "pre")))


@pytest.mark.parametrize(
    "value",
    [[[0, 2], [1, 0]], np.array([2, 0], np.uint8), np.zeros((0, 3), int), np.array(2, np.int32)],
)
def test_arrays_of_integers_pass_as_int64(value):
    found = checks.integers("tokens", value, below=3)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, value)


@pytest.mark.parametrize(
    ("value", "below", "message"),
    [
        ([0.0, 1.0], None, "got an array of float64, needs an array of integers"),
        ([True], None, "got an array of bool, needs"),
        (["a"], None, "got an array of <U1, needs"),
        ([0, -1], None, "got the value -1, needs every value at least 0"),
        ([-2, 7], 5, r"got the value -2, needs every value within 0\.\.4"),
        ([[0, 5]], 5, r"got the value 5, needs every value within 0\.\.4"),
        (np.array([300], np.uint16), 5, "got the value 300"),
        (np.array([2**63], np.uint64), None, "got the value 9223372036854775808"),
    ],
)
def test_a_bad_array_of_integers(value, below, message):
    with pytest.raises(ValueError, match=f"^tokens: {message}"):
        checks.integers("tokens", value, below)


def test_the_mask_symbol_is_no_symbol_and_passes_where_it_may():
    assert checks.integers("tokens", [5, 0], 5, mask_symbol=True).tolist() == [5, 0]
    needs = r"needs every value within 0\.\.4, or the mask symbol 5$"
    with pytest.raises(ValueError, match=rf"^tokens: got the value 6, {needs}"):
        checks.integers("tokens", [6, 0], 5, mask_symbol=True)


@pytest.mark.parametrize(
    "value", [3, lambda tokens: tokens, lambda: None, lambda *, tokens, rng: 0]
)
def test_a_function_is_one_of_the_arguments_that_it_gets(value):
    with pytest.raises(ValueError, match=r"^objective: .* a function of \(tokens, rng\)$"):
        checks.function("objective", value, "tokens", "rng")


@pytest.mark.parametrize("value", [min, lambda *all_of_them: 0, lambda tokens, rng, more=0: 0])
def test_a_function_that_takes_them_passes(value):
    assert checks.function("objective", value, "tokens", "rng") is value


def test_a_function_of_other_arguments_is_called_by_its_name():
    def objective(tokens):
        return tokens

    with pytest.raises(ValueError, match=r"^objective: got objective, needs a function of"):
        checks.function("objective", objective, "tokens", "rng")


def test_a_large_value_in_the_place_of_a_function_is_shown_in_short():
    with pytest.raises(ValueError, match=r"^grad: got array") as error:
        checks.function("grad", np.ones((40, 40)))
    assert len(str(error.value)) < 80


def test_an_array_is_checked_and_not_changed():
    tokens = np.array([[0, 1]])
    tokens.setflags(write=False)
    np.testing.assert_array_equal(checks.integers("tokens", tokens, 2), [[0, 1]])


@pytest.mark.parametrize("bad", [10**400, -(10**400), np.complex128(1), 1j])
def test_real_refuses_what_float64_cannot_hold(bad):
    with pytest.raises(ValueError, match=r"^lr: got .*, needs a finite number"):
        checks.real("lr", bad)

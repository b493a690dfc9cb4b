"""Errors that name the argument, what it got and what it needs."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from minattn.arrays import Array


def fail(name: str, got: object, needs: str) -> NoReturn:
    """Raise the `ValueError` that every bad argument gets."""
    raise ValueError(f"{name}: got {got}, needs {needs}")


def integer(name: str, value: Any, minimum: int | None = None) -> int:
    """Return `value` as an int, or fail: booleans, fractions and values below `minimum` do."""
    needs = "an integer" if minimum is None else f"an integer of at least {minimum}"
    if isinstance(value, (bool, np.bool_)):
        fail(name, repr(value), needs)
    try:
        number = operator.index(value)
    except TypeError:
        fail(name, repr(value), needs)
    if minimum is not None and number < minimum:
        fail(name, number, needs)
    return number


def real(name: str, value: Any, minimum: float = -np.inf, maximum: float = np.inf) -> float:
    """Return `value` as a finite float within [minimum, maximum], or fail."""
    needs = "a finite number"
    if np.isfinite(minimum) or np.isfinite(maximum):
        needs += f" in [{minimum:g}, {maximum:g}]"
    if isinstance(value, (bool, np.bool_, str, bytes, np.complexfloating)):
        fail(name, repr(value), needs)
    try:
        number = float(value)
    except OverflowError:  # an integer beyond float64
        fail(name, "a number beyond float64", needs)
    except (TypeError, ValueError):
        fail(name, repr(value), needs)
    if not np.isfinite(number) or not minimum <= number <= maximum:
        fail(name, number, needs)
    return number


def flag(name: str, value: Any) -> bool:
    """Return `value` if it is True or False, or fail."""
    if not isinstance(value, (bool, np.bool_)):
        fail(name, repr(value), "True or False")
    return bool(value)


def one_of(name: str, value: Any, options: Iterable[str]) -> str:
    """Return `value` if it is among `options`, or fail."""
    options = tuple(options)
    if not isinstance(value, str) or value not in options:
        fail(name, repr(value), "one of " + ", ".join(repr(option) for option in options))
    return value


def on_host(name: str, value: Any) -> None:
    """Fail if `value` is an array on a GPU, which NumPy would refuse in words of its own."""
    if hasattr(value, "__cuda_array_interface__"):
        fail(name, "an array on a GPU", "one on the host, such as cupy.asnumpy returns")


def integers(name: str, value: Any, below: int | None = None) -> Array:
    """Return `value` as an array of int64 in [0, below), or fail naming the first that is not."""
    on_host(name, value)
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        fail(name, f"an array of {array.dtype}", "an array of integers")
    if array.size:
        for extreme in (array.min(), array.max()):
            if extreme < 0 or (below is not None and extreme >= below):
                limit = "at least 0" if below is None else f"within 0..{below - 1}"
                fail(name, f"the value {extreme}", f"every value {limit}")
        if array.max() > np.iinfo(np.int64).max:
            fail(name, f"the value {array.max()}", "64-bit signed integers")
    return array.astype(np.int64, copy=False)

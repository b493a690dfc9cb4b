"""Errors that name the argument, what it got and what it needs."""

from __future__ import annotations

import inspect
import operator
import os
import reprlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from minattn.arrays import Array

Kind = TypeVar("Kind")

LARGEST = 2**63 - 1


def fail(name: str, got: object, needs: str) -> NoReturn:
    """Raise the `ValueError` that every bad argument gets."""
    raise ValueError(f"{name}: got {got}, needs {needs}")


def seed(name: str, value: Any) -> int:
    """Return `value` as an int if it is at least 0, however large, or fail."""
    needs = "an integer of at least 0"
    number = _index(name, value, needs)
    if number < 0:
        fail(name, number, needs)
    return number


def integer(name: str, value: Any, minimum: int | None = None) -> int:
    """Return `value` as an int of 64 bits, or fail: booleans, fractions and lower values do."""
    needs = "an integer" if minimum is None else f"an integer of at least {minimum}"
    number = _index(name, value, needs)
    if abs(number) > LARGEST:
        fail(name, "an integer beyond 64 bits", needs)
    if minimum is not None and number < minimum:
        fail(name, number, needs)
    return number


def _index(name: str, value: Any, needs: str) -> int:
    if isinstance(value, (bool, np.bool_)):
        fail(name, repr(value), needs)
    try:
        return operator.index(value)
    except TypeError:
        fail(name, repr(value), needs)


def number(name: str, value: Any, needs: str = "a number") -> float:
    """Return `value` as a float, which may be NaN or infinite, or fail."""
    if isinstance(value, (bool, np.bool_, str, bytes, np.complexfloating)):
        fail(name, repr(value), needs)
    try:
        if np.ndim(value) == 0:
            return float(value)
    except OverflowError:  # an integer beyond float64
        fail(name, "a number beyond float64", needs)
    except (TypeError, ValueError):
        pass
    fail(name, repr(value), needs)


def real(name: str, value: Any, minimum: float = -np.inf, maximum: float = np.inf) -> float:
    """Return `value` as a finite float within [minimum, maximum], or fail."""
    needs = "a finite number"
    if np.isfinite(minimum) or np.isfinite(maximum):
        needs += f" in [{minimum:g}, {maximum:g}]"
    found = number(name, value, needs)
    if not np.isfinite(found) or not minimum <= found <= maximum:
        fail(name, found, needs)
    return found


def positive(name: str, value: Any) -> float:
    """Return `value` as a finite float above 0, or fail."""
    found = real(name, value)
    if found <= 0:
        fail(name, found, "a positive number")
    return found


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


def instance(name: str, value: Any, kind: type[Kind], needs: str = "") -> Kind:
    """Return `value` if it is of this class, or fail."""
    if not isinstance(value, kind):
        fail(name, type(value).__name__, needs or f"a minattn {kind.__name__}")
    return value


def generator(name: str, value: Any) -> np.random.Generator:
    """Return `value` if it is a random generator, or fail."""
    return instance(name, value, np.random.Generator, "a numpy.random.Generator")


def arrays(name: str, value: Any) -> dict[str, Any]:
    """Return `value` if it is a dict, as parameters are, or fail."""
    return instance(name, value, dict, "a dict of arrays")


def named(name: str, value: Any, expected: Iterable[str], needs: str) -> None:
    """Fail unless `value` is a dict with the expected names and no other."""
    odd = sorted(arrays(name, value).keys() ^ set(expected), key=str)
    if odd:
        fail(name, f"names that differ in {odd}", needs)


def function(name: str, value: Any, *takes: str) -> Any:
    """Return `value` if it can be called, given as many arguments as `takes` has names, or fail."""
    if not callable(value) or (takes and not _can_take(value, len(takes))):
        needs = f"a function of ({', '.join(takes)})" if takes else "a function"
        fail(name, getattr(value, "__name__", reprlib.repr(value)), needs)
    return value


def _can_take(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # some compiled functions do not tell
        return True
    return True


def text(name: str, value: Any) -> str:
    """Return `value` if it is a string, or fail."""
    if not isinstance(value, str):
        fail(name, repr(value), "a string")
    return value


def path(name: str, value: Any) -> Path:
    """Return `value` as a Path if it can be one, or fail."""
    if not isinstance(value, (str, os.PathLike)) or "\0" in str(value) or str(value) == "":
        fail(name, repr(value), "a path")
    return Path(value)


def array(
    name: str, value: Any, kinds: str = "fiu", needs: str = "an array of real numbers"
) -> Array:
    """Return `value` as an array whose dtype is of one of these kinds, or fail."""
    on_host(name, value)
    try:
        found = np.asarray(value)
    except (TypeError, ValueError):  # ragged lists
        fail(name, f"a {type(value).__name__} that is no array", needs)
    if found.dtype == object and found.ndim == 0:  # None, a dict
        fail(name, type(value).__name__, needs)
    if found.dtype.kind not in kinds:
        fail(name, f"an array of {found.dtype}", needs)
    return found


def integers(name: str, value: Any, below: int | None = None, mask_symbol: bool = False) -> Array:
    """Return `value` as an array of int64 in [0, below), or fail naming the first that is not.

    With `mask_symbol`, `below` itself passes too: it is the mask symbol.
    """
    found = array(name, value, "iu", "an array of integers")
    if found.size:
        extremes = found.min(), found.max()
        for extreme in extremes:
            if extreme < 0 or (below is not None and extreme >= below + mask_symbol):
                limit = "at least 0" if below is None else f"within 0..{below - 1}"
                limit += f", or the mask symbol {below}" if mask_symbol else ""
                fail(name, f"the value {extreme}", f"every value {limit}")
        if extremes[1] > LARGEST:
            fail(name, f"the value {extremes[1]}", "64-bit signed integers")
    return found.astype(np.int64, copy=False)

"""What a row of the table is, and the values that no argument of a kind may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

RAGGED = [[1], [1, 2]]
NO_NUMBER = [None, "3", True, np.nan, np.inf, -np.inf, 1j, [1], [], {}, 10**400]

# Kinds of argument, by what they refuse.
SEED = [None, "3", True, np.nan, np.inf, 0.5, -1, [1], {}]
INDEX = SEED
COUNT = [*SEED, 0]
NUMBER = NO_NUMBER
POSITIVE = [*NO_NUMBER, 0, -1.0]
AMOUNT = [*NO_NUMBER, -1e-9]
SHARE = [*NO_NUMBER, -1e-9, 1 + 1e-9]
FLAG = [None, 0, 1, 1.0, "True", np.nan, []]
NAME = [None, 3, "no such name", b"causal", ["causal"], np.nan]
DTYPE = [None, "int64", "float16", "complex128", np.float64, 3]
GENERATOR = [None, 0, np.random.RandomState(0), np.random, "rng"]
FUNCTION = [None, 3, "function", [1]]
TEXT = [None, 3, b"text", ["text"]]
FOLDER = [None, 3, "", "/no/such/path", b"\0", "a\0b"]

# Arrays of numbers of any shape; of integers of any shape.
REALS = [None, "text", ["a"], RAGGED, np.array([None]), [1j], [], [np.nan], [np.inf], {}]
INTEGERS = [None, "text", ["a"], RAGGED, np.array([None]), [[0.5]], [[1j]], [[True]], [[np.nan]]]


class Fresh:
    """An argument that is made anew for each call, as it changes or ends when it is used."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


class Says:
    """A bad value whose error names something else than the argument: what is wrong in it."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value


ANYTHING = object()  # in the place of bad values: the argument is not looked at, or takes all


@dataclass(frozen=True)
class Row:
    """A public function, arguments that it takes, and by argument the values that it refuses."""

    function: Callable[..., Any]
    good: dict[str, Any]
    bad: dict[str, Any]

    def arguments(self, **changes: Any) -> dict[str, Any]:
        found = {**self.good, **changes}
        return {n: v.make() if isinstance(v, Fresh) else v for n, v in found.items()}

    def call(self, arguments: dict[str, Any]) -> Any:
        return self.function(**arguments)

    def refused(self, argument: str) -> list[tuple[str, Any]]:
        """Bad values of an argument, each with the name that its error begins with."""
        values = self.bad[argument]
        found = [] if values is ANYTHING else values
        return [(v.name, v.value) if isinstance(v, Says) else (argument, v) for v in found]

    def __str__(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"


def row(function: Callable[..., Any], good: dict[str, Any] | None = None, **bad: Any) -> Row:
    return Row(function, good or {}, bad)

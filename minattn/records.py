"""What a run has recorded: records are kept as they are made, and finished several at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minattn import checks
from minattn.arrays import Array
from minattn.observers import Summing

RECORDS_KEPT = 16


@dataclass
class Record:
    """What is found at one step; arrays are copies, so that nothing later changes them."""

    step: int
    values: dict[str, Array] = field(default_factory=dict)
    unfinished: dict[int, dict[str, Array]] = field(default_factory=dict)  # by observer's place

    def add(self, found: Any) -> None:
        """Add what an observer has found.

        Raises
        ------
        ValueError
            If that is no dict, or has a name that is taken.
        """
        if not isinstance(found, dict) or found.keys() & self.values.keys():
            got = f"{found!r:.60} beside {sorted(self.values)}"
            checks.fail("observe", got, "functions that return dicts of names of their own")
        self.values |= _copied(found)

    def leave(self, place: int, kept: dict[str, Any]) -> None:
        """Leave to an observer, known by its place, what it is to finish."""
        self.unfinished[place] = _copied(kept)


@dataclass
class Records:
    """The records of a run: metrics by name, one entry a step of `steps`, and those kept."""

    steps: list[int] = field(default_factory=list)
    metrics: dict[str, list[Array]] = field(default_factory=dict)
    kept: list[Record] = field(default_factory=list)

    def keep(self, record: Record, observers: Iterable[object]) -> None:
        """Keep a record; finish all that are kept once they are many, or nothing needs finishing.

        The first is finished at once, so that what is wrong with an observer shows.
        """
        self.kept.append(record)
        many = len(self.kept) == RECORDS_KEPT
        if many or not (record.unfinished and self.steps):
            self.finish(observers)

    def finish(self, observers: Iterable[object]) -> None:
        """Have observers finish the records that are kept, all at once."""
        kept, self.kept = self.kept, []
        for place, observer in enumerate(observers):
            if kept and isinstance(observer, Summing):
                finished = observer.finish([record.unfinished[place] for record in kept])
                for record, found in zip(kept, finished, strict=True):
                    record.add(found)
        for record in kept:
            self._append(record)

    def _append(self, record: Record) -> None:
        if self.steps and record.values.keys() != self.metrics.keys():
            odd = sorted(record.values.keys() ^ self.metrics.keys())
            checks.fail("observe", f"records that differ in {odd}", "the same names every time")
        for name, array in record.values.items():
            if array.dtype.kind not in "fiub":
                checks.fail("observe", f"{name!r} of {array.dtype}", "numbers or arrays of numbers")
            earlier = self.metrics.setdefault(name, [])
            if earlier and earlier[0].shape != array.shape:
                got = f"{name!r} of shape {array.shape}"
                checks.fail("observe", got, f"shape {earlier[0].shape}, as in the first record")
            earlier.append(array)
        self.steps.append(record.step)


def _copied(found: dict[str, Any]) -> dict[str, Array]:
    return {name: np.array(value) for name, value in found.items()}

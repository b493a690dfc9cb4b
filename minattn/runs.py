"""A run of training between two steps, and the file from which it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minattn import checks
from minattn.arrays import Params
from minattn.engines import Reference
from minattn.params import below, prefixed
from minattn.records import Records
from minattn.saving import load_arrays, save_arrays


@dataclass
class Run:
    """The state of a run between two steps: all that a save has to hold."""

    params: Params
    state: Params
    generators: list[tuple[np.random.Generator, np.random.Generator]]  # data, objective
    step: int = 0
    records: Records = field(default_factory=Records)
    whole: bool = True  # False within an update: parameters then belong to no step

    def streams(self) -> list[list[Any]]:
        """Return the states of all generators."""
        return [[rng.bit_generator.state for rng in pair] for pair in self.generators]

    def rewind(self, streams: list[list[Any]]) -> None:
        """Put the generators back to earlier states."""
        for pair, states in zip(self.generators, streams, strict=True):
            for rng, state in zip(pair, states, strict=True):
                rng.bit_generator.state = state


def save_run(path: str | Path, run: Run, engine: Reference, settings: dict[str, Any]) -> None:
    """Write a run, its records finished, and what it was made by to a file, whole or not at all."""
    params, state = engine.get((run.params, run.state))
    arrays = prefixed("params.", params) | prefixed("state.", state)
    arrays |= {f"metrics.{name}": np.stack(values) for name, values in run.records.metrics.items()}
    arrays["steps"] = np.array(run.records.steps, np.int64)
    notes = {"step": run.step, "settings": settings, "generators": run.streams()}
    save_arrays(path, arrays, notes)


def load_run(path: str | Path, run: Run, engine: Reference, settings: dict[str, Any]) -> Run:
    """Bring a run that has not begun to where a saved one is, and return it.

    Raises
    ------
    ValueError
        If the file holds no run, or one with other settings.
    """
    arrays, notes = load_arrays(path, "resume")
    if "settings" not in notes:
        checks.fail("resume", repr(str(path)), "a run that fit has saved")
    saved = notes["settings"]
    for name, ours in settings.items():
        if saved.get(name) != ours:
            checks.fail("resume", f"a run with {name} {saved.get(name)}", f"{ours}")
    for part, into in (("params.", run.params), ("state.", run.state)):
        for name, value in into.items():
            into[name] = engine.put(arrays[part + name])
            if into[name].dtype != value.dtype:
                checks.fail("resume", f"{name} of {into[name].dtype}", f"{value.dtype}")
    run.rewind(notes["generators"])
    run.step = notes["step"]
    metrics = {name: list(values) for name, values in below(arrays, "metrics.").items()}
    run.records = Records(arrays["steps"].tolist(), metrics)
    return run


def described(value: Any) -> Any:
    """Describe an objective or a setting so that a saved run can be compared with this one."""
    if isinstance(value, (int, float, str)):
        return value
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [described(item) for item in value]
    if isinstance(value, partial):
        named = {name: described(item) for name, item in value.keywords.items()}
        return ["partial", described(value.func), described(value.args), named]
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    kind = type(value).__qualname__
    return [kind, {name: described(item) for name, item in vars(value).items()}]

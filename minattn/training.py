"""fit: the training loop, with observers, history, save and resume."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from minattn import checks
from minattn.arrays import Array, Params
from minattn.config import TransformerConfig
from minattn.engines import Reference, Workspace, choose
from minattn.objectives import Batch, stack
from minattn.optim import AdamW, Optimizer
from minattn.params import check_params
from minattn.randomness import generator, replica_numbers
from minattn.saving import load_arrays, save_arrays
from minattn.step import Outcome, check_finite, pose, take


class Source(Protocol):
    """Where tokens come from: anything with `n_symbols` and `sample`."""

    @property
    def n_symbols(self) -> int:
        """Number of symbols; tokens are 0..n_symbols - 1."""

    def sample(self, B: int, N: int, rng: np.random.Generator) -> Array:
        """Return B windows of N tokens, (B, N) ints."""


Objective: TypeAlias = Callable[[Array, np.random.Generator], Batch]
Observer: TypeAlias = Callable[[int, Params, Params, Any], dict[str, Any]]
Penalty: TypeAlias = Callable[[Params], tuple[Array, Params]]


@dataclass
class History:
    """What a run recorded.

    Attributes
    ----------
    steps : (records,) int array
        Number of updates made before each record; the last record is of the final parameters.
    metrics : dict of arrays
        "loss" (records, R), in nats, and what observers returned, stacked: layer metrics are
        (records, layers, R).
    params : dict of arrays
        Final parameters.
    engine : str
        The engine that ran.
    """

    steps: Array
    metrics: dict[str, Array]
    params: Params
    engine: str


@dataclass
class _Run:
    """The state of a run between two steps: all that a save has to hold."""

    params: Params
    state: Params
    generators: list[tuple[np.random.Generator, np.random.Generator]]  # data, objective
    step: int = 0
    steps: list[int] = field(default_factory=list)
    metrics: dict[str, list[Array]] = field(default_factory=dict)

    def record(self, values: dict[str, Any]) -> None:
        """Append one record, copied, so that nothing later changes it."""
        if self.steps and values.keys() != self.metrics.keys():
            odd = sorted(values.keys() ^ self.metrics.keys())
            checks.fail("observe", f"records that differ in {odd}", "the same names every time")
        for name, value in values.items():
            array = np.array(value)
            if array.dtype.kind not in "fiub":
                checks.fail("observe", f"{name!r} of {array.dtype}", "numbers or arrays of numbers")
            earlier = self.metrics.setdefault(name, [])
            if earlier and earlier[0].shape != array.shape:
                got = f"{name!r} of shape {array.shape}"
                checks.fail("observe", got, f"shape {earlier[0].shape}, as in the first record")
            earlier.append(array)
        self.steps.append(self.step)


def fit(
    config: TransformerConfig,
    params: Params,
    source: Source | Sequence[Source],
    objective: Objective,
    steps: int = 1000,
    batch_size: int = 32,
    length: int = 32,
    optimizer: Optimizer | None = None,
    seed: int = 0,
    engine: str | Reference = "auto",
    replicas: int | Iterable[int] | None = None,
    record_every: int = 10,
    observe: Iterable[Observer] | Observer = (),
    frozen: Iterable[str] = (),
    penalty: Penalty | None = None,
    save: str | Path | None = None,
    resume: str | Path | None = None,
    save_every: int = 100,
    progress: str | None = None,
) -> History:
    """Train R replicas side by side and return what was recorded.

    Every `record_every` steps, before the update, and once more at the end, the loss and what the
    observers return are recorded. `params` is left as it is.

    Parameters
    ----------
    config : TransformerConfig
    params : dict of arrays, from `init_params`
    source : a source, or a list of R sources
        With `n_symbols` and `sample(B, N, rng)`; one source serves all replicas.
    objective : function (tokens, rng) -> Batch
        `next_token` or a `MaskedToken`; called for one replica at a time.
    steps, batch_size, length : int
        Updates in all; windows a step and replica; tokens a window.
    optimizer : SGD or AdamW
        ``AdamW()`` if not given.
    seed : int
        Together with the replica's number it fixes all draws.
    engine : {"auto", "numba", "numpy"}
    replicas : int or list of int, optional
        Numbers of the replicas, 0..R-1 if not given: they fix their random streams, so that
        replica 5 can be run again alone.
    record_every : int
    observe : functions (step, params, grads, tape) -> dict of numbers or arrays
        They may keep what they are given.
    frozen : names
        Parameters that are not updated; shell patterns such as "layers.*.W_k" are understood.
    penalty : function params -> (value (R,), grads), optional
        Added to the loss that is minimised; recorded as "penalty", not part of "loss".
    save : path, optional
        The run is saved here every `save_every` steps, at the end and on an interrupt.
    resume : path, optional
        A saved run to go on with, up to `steps`: bit for bit what a run that never stopped gives
        on the same engine and number of threads.
    save_every : int
    progress : str, optional
        Shows a progress bar with this label.

    Raises
    ------
    ValueError
        If an argument does not fit, before any training.
    FloatingPointError
        If a value becomes infinite or NaN: it names step, layer and replica.
    KeyboardInterrupt
        Passed on, after saving.
    """
    optimizer = AdamW() if optimizer is None else optimizer
    if not isinstance(optimizer, Optimizer):
        checks.fail("optimizer", type(optimizer).__name__, "SGD, AdamW or another Optimizer")
    count, dtype = check_params(config, params)
    numbers = replica_numbers(count if replicas is None else replicas)
    if len(numbers) != count:
        checks.fail("replicas", f"{len(numbers)} of them", f"{count}, as params have")
    loop = _Loop(
        config=config,
        engine=choose(engine, dtype),
        sources=_sources(config, source, count),
        objective=objective,
        batch_size=checks.integer("batch_size", batch_size, minimum=1),
        length=checks.integer("length", length, minimum=1),
        optimizer=optimizer,
        seed=checks.integer("seed", seed, minimum=0),
        numbers=numbers,
        record_every=checks.integer("record_every", record_every, minimum=1),
        observers=(observe,) if callable(observe) else tuple(observe),
        trained=_trained(params, frozen),
        penalty=penalty,
    )
    steps = checks.integer("steps", steps, minimum=1)
    save_every = checks.integer("save_every", save_every, minimum=1)
    run = loop.start(params) if resume is None else loop.load(resume, params)
    if run.step > steps:
        checks.fail("steps", steps, f"at least the {run.step} that the saved run has made")
    try:
        with _progress(progress, steps, run.step) as bar:
            while run.step < steps:
                loss = loop.advance(run)
                bar(loss)
                if save is not None and run.step % save_every == 0:
                    loop.save(save, run)
    finally:
        if save is not None:
            loop.save(save, run)
    return loop.finish(run)


@dataclass
class _Loop:
    """What stays the same from step to step."""

    config: TransformerConfig
    engine: Reference
    sources: Sequence[Source]
    objective: Objective
    batch_size: int
    length: int
    optimizer: Optimizer
    seed: int
    numbers: tuple[int, ...]
    record_every: int
    observers: tuple[Observer, ...]
    trained: tuple[str, ...]
    penalty: Penalty | None
    workspaces: list[Workspace] = field(default_factory=list)
    grads: Params = field(default_factory=dict)

    def start(self, params: Params) -> _Run:
        params = {name: np.array(value, order="C") for name, value in params.items()}
        state = self.optimizer.init({name: params[name] for name in self.trained})
        generators = [
            (generator(self.seed, "data", number), generator(self.seed, "objective", number))
            for number in self.numbers
        ]
        return _Run(params, state, generators)

    def advance(self, run: _Run) -> Array:
        """Record if it is time, then make one update; return the loss (R,)."""
        recording = run.step % self.record_every == 0
        outcome, extra = self.evaluate(run, fresh=recording)
        if recording:
            run.record(self.observe(run, outcome, extra))
        params = {name: run.params[name] for name in self.trained}
        self.optimizer.apply(self.engine, params, outcome.grads, run.state)
        run.step += 1
        return outcome.loss

    def evaluate(self, run: _Run, fresh: bool) -> tuple[Outcome, Array | None]:
        """Draw a batch; return loss, gradients and tape, and the penalty's value.

        Unless `fresh`, their arrays are used again in the next step.
        """
        problem, _ = pose(self.config, run.params, self.draw(run))
        buffers = () if fresh else (self.workspaces, self.grads)
        outcome = take(self.engine, self.config, run.params, problem, *buffers)
        check_finite(outcome, f"step {run.step}", self.numbers)
        if self.penalty is None:
            return outcome, None
        value, grads = self.penalty(dict(run.params))
        for name, gradient in grads.items():
            if name not in outcome.grads or outcome.grads[name].shape != np.shape(gradient):
                got = f"a gradient of shape {np.shape(gradient)} for {name!r}"
                checks.fail("penalty", got, "names and shapes of params")
            outcome.grads[name] += gradient
        return outcome, np.broadcast_to(value, len(self.numbers))

    def draw(self, run: _Run) -> Batch:
        batches = []
        for source, (data, objective) in zip(self.sources, run.generators, strict=True):
            tokens = source.sample(self.batch_size, self.length, data)
            batches.append(self.objective(tokens, objective))
        return stack(batches)

    def observe(self, run: _Run, outcome: Outcome, penalty: Array | None) -> dict[str, Any]:
        values: dict[str, Any] = {"loss": outcome.loss}
        if penalty is not None:
            values["penalty"] = penalty
        if self.observers:
            params = {name: value.copy() for name, value in run.params.items()}
            tape = outcome.tape()
        for observer in self.observers:
            found = observer(run.step, params, outcome.grads, tape)
            if not isinstance(found, dict) or found.keys() & values.keys():
                got = f"{found!r:.60} beside {sorted(values)}"
                checks.fail("observe", got, "functions that return dicts of names of their own")
            values |= found
        return values

    def finish(self, run: _Run) -> History:
        """Record the final parameters, on the batch that a further step would have seen."""
        last = copy.deepcopy(run)
        last.record(self.observe(last, *self.evaluate(last, fresh=True)))
        metrics = {name: np.stack(values) for name, values in last.metrics.items()}
        return History(np.array(last.steps), metrics, last.params, self.engine.name)

    def settings(self) -> dict[str, Any]:
        """What a saved run and the one that goes on with it must agree in."""
        optimizer = {k: _describe(v) for k, v in vars(self.optimizer).items()}
        return {
            "config": asdict(self.config),
            "objective": _describe(self.objective),
            "batch_size": self.batch_size,
            "length": self.length,
            "optimizer": {"kind": type(self.optimizer).__name__} | optimizer,
            "seed": self.seed,
            "replicas": list(self.numbers),
            "record_every": self.record_every,
            "trained": list(self.trained),
        }

    def save(self, path: str | Path, run: _Run) -> None:
        arrays = {f"params.{name}": value for name, value in run.params.items()}
        arrays |= {f"state.{name}": value for name, value in run.state.items()}
        arrays |= {f"metrics.{name}": np.stack(v) for name, v in run.metrics.items()}
        arrays["steps"] = np.array(run.steps, np.int64)
        streams = [[rng.bit_generator.state for rng in pair] for pair in run.generators]
        notes = {"step": run.step, "settings": self.settings(), "generators": streams}
        save_arrays(path, arrays, notes)

    def load(self, path: str | Path, params: Params) -> _Run:
        arrays, notes = load_arrays(path)
        saved, ours = notes["settings"], self.settings()
        for name in ours:
            if saved.get(name) != ours[name]:
                checks.fail("resume", f"a run with {name} {saved.get(name)}", f"{ours[name]}")
        run = self.start(params)
        for part, into in (("params.", run.params), ("state.", run.state)):
            for name, value in into.items():
                into[name] = arrays[part + name]
                if into[name].dtype != value.dtype:
                    checks.fail("resume", f"{name} of {into[name].dtype}", f"{value.dtype}")
        for pair, states in zip(run.generators, notes["generators"], strict=True):
            for rng, state in zip(pair, states, strict=True):
                rng.bit_generator.state = state
        run.step = notes["step"]
        run.steps = arrays["steps"].tolist()
        run.metrics = {n[8:]: list(a) for n, a in arrays.items() if n.startswith("metrics.")}
        return run


def _sources(config: TransformerConfig, source: Any, replicas: int) -> Sequence[Source]:
    sources = list(source) if isinstance(source, (list, tuple)) else [source] * replicas
    if len(sources) != replicas:
        checks.fail("source", f"{len(sources)} sources", f"one, or {replicas} as params have")
    for one in sources:
        if not hasattr(one, "sample") or not hasattr(one, "n_symbols"):
            checks.fail("source", type(one).__name__, "sample(B, N, rng) and n_symbols")
        if one.n_symbols > config.vocab_size:
            got = f"{one.n_symbols} symbols"
            checks.fail("source", got, f"at most vocab_size {config.vocab_size}")
    return sources


def _trained(params: Params, frozen: Iterable[str]) -> tuple[str, ...]:
    patterns = (frozen,) if isinstance(frozen, str) else tuple(frozen)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in params):
            checks.fail("frozen", repr(pattern), f"a name or pattern among {sorted(params)}")
    kept = [n for n in params if not any(fnmatchcase(n, pattern) for pattern in patterns)]
    return tuple(kept)


def _describe(value: Any) -> Any:
    """Describe an objective or a setting so that a saved run can be compared with this one."""
    if isinstance(value, (int, float, str)):
        return value
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    text = repr(value)
    return type(value).__qualname__ if " at 0x" in text else text


class _progress:  # noqa: N801
    """A progress bar with the mean loss, or nothing at all."""

    def __init__(self, label: str | None, total: int, start: int) -> None:
        self._bar: Any = None
        if label is not None:
            from tqdm import tqdm

            self._bar = tqdm(total=total, initial=start, desc=label, unit="step", leave=False)

    def __enter__(self) -> Callable[[Array], None]:
        return self._tick

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def _tick(self, loss: Array) -> None:
        if self._bar is not None:
            self._bar.set_postfix(loss=f"{loss.mean():.3f}", refresh=False)
            self._bar.update()

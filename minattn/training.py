"""fit: the training loop, with observers, history, save and resume."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from minattn import checks
from minattn.arrays import Array, Params
from minattn.config import TransformerConfig
from minattn.engines import Reference, choose
from minattn.loop import Loop, Objective, Observer, Penalty, Source
from minattn.optim import AdamW, Optimizer
from minattn.params import check_params
from minattn.randomness import replica_numbers
from minattn.runs import Run
from minattn.saving import claimed


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

    def __repr__(self) -> str:
        shapes = {name: np.shape(values) for name, values in self.metrics.items()}
        return f"History({len(self.steps)} records, metrics={shapes}, engine={self.engine!r})"


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
    progress: Any = None,
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
    engine : {"auto", "numba", "numpy", "cupy"}
    replicas : int or list of int, optional
        Numbers of the replicas, 0..R-1 if not given: they fix their random streams, so that
        replica 5 can be run again alone.
    record_every : int
    observe : functions (step, params, grads, tape) -> dict of numbers or arrays
        They may keep and change what they are given. One whose record is made of sums over
        sequences is faster as a `minattn.observers.Summing`, as the package's own are.
    frozen : names
        Parameters that are not updated; shell patterns such as "layers.*.W_k" are understood.
    penalty : function params -> (value (R,), grads), optional
        Added to the loss that is minimised; recorded as "penalty", not part of "loss".
    save : path, optional
        The run is saved here every `save_every` steps, at the end and on an interrupt. No other
        run may save to it meanwhile.
    resume : path, optional
        A saved run to go on with, up to `steps`: bit for bit what a run that never stopped gives
        on the same engine and number of threads.
    save_every : int
    progress : str or tqdm bar, optional
        A label to show a progress bar under, or a bar of one's own to be moved on.

    Raises
    ------
    ValueError
        If an argument does not fit, before any training.
    FloatingPointError
        If a value becomes infinite or NaN: it names step, layer and replica.
    OSError
        If a save cannot be written, as on a full disk; the one before it is then as it was.
    KeyboardInterrupt
        Passed on, after saving.
    """
    optimizer = AdamW() if optimizer is None else optimizer
    checks.instance("optimizer", optimizer, Optimizer)  # type: ignore[type-abstract]
    count, dtype = check_params(config, params)
    numbers = replica_numbers(count if replicas is None else replicas)
    if len(numbers) != count:
        checks.fail("replicas", f"{len(numbers)} of them", f"{count}, as params have")
    loop = Loop(
        config=config,
        engine=choose(engine, dtype),
        sources=_sources(config, source, count),
        objective=objective,
        batch_size=checks.integer("batch_size", batch_size, minimum=1),
        length=checks.integer("length", length, minimum=1),
        optimizer=optimizer,
        seed=checks.seed("seed", seed),
        numbers=numbers,
        record_every=checks.integer("record_every", record_every, minimum=1),
        observers=(observe,) if callable(observe) else _listed("observe", observe),
        trained=_trained(params, frozen),
        penalty=penalty,
    )
    _check_functions(loop)
    if not (progress is None or isinstance(progress, str) or hasattr(progress, "set_postfix")):
        checks.fail("progress", repr(progress), "a label, or a tqdm bar")
    steps = checks.integer("steps", steps, minimum=1)
    save_every = checks.integer("save_every", save_every, minimum=1)
    with nullcontext() if save is None else claimed(_checked_save(save), "save"):
        run = loop.start(params) if resume is None else loop.load(resume, params)
        if run.step > steps:
            checks.fail("steps", steps, f"at least the {run.step} that the saved run has made")
        last = _train(loop, run, steps, save, save_every, progress)
    metrics = {name: np.stack(values) for name, values in last.records.metrics.items()}
    params = loop.engine.get(last.params)
    return History(np.array(last.records.steps), metrics, params, loop.engine.name)


def _train(
    loop: Loop, run: Run, steps: int, save: str | Path | None, save_every: int, progress: Any
) -> Run:
    """Make the updates that are left and the saves between them; return the finished run."""
    with loop.engine.session():
        try:
            with _progress(progress, steps, run.step) as move:
                while run.step < steps:
                    move(loop.advance(run))
                    if save is not None and run.step % save_every == 0:
                        loop.save(save, run)
        except KeyboardInterrupt:
            if save is not None and run.whole:
                loop.save(save, run)
            raise
        if save is not None:
            loop.save(save, run)
        return loop.finish(run)


def _checked_save(path: Any) -> Path:
    needs = "a path of a file, in a folder that can be written"
    found = checks.path("save", path)
    if found.is_dir() or not os.access(found.resolve().parent, os.W_OK):
        checks.fail("save", repr(str(path)), needs)
    return found


def _listed(name: str, value: Any) -> tuple[Any, ...]:
    try:
        return tuple(value)
    except TypeError:
        checks.fail(name, repr(value), "one, or several in a list")


def _check_functions(loop: Loop) -> None:
    checks.function("objective", loop.objective, "tokens", "rng")
    for observer in loop.observers:
        checks.function("observe", observer, "step", "params", "grads", "tape")
    if loop.penalty is not None:
        checks.function("penalty", loop.penalty, "params")


def _sources(config: TransformerConfig, source: Any, replicas: int) -> Sequence[Source]:
    sources = list(source) if isinstance(source, (list, tuple)) else [source] * replicas
    if len(sources) != replicas:
        checks.fail("source", f"{len(sources)} sources", f"one, or {replicas} as params have")
    for one in sources:
        if isinstance(one, type):
            checks.fail("source", f"the class {one.__name__}", "an instance")
        if not hasattr(one, "sample") or not hasattr(one, "n_symbols"):
            checks.fail("source", type(one).__name__, "sample(B, N, rng) and n_symbols")
        if one.n_symbols > config.vocab_size:
            got = f"{one.n_symbols} symbols"
            checks.fail("source", got, f"at most vocab_size {config.vocab_size}")
    return sources


def _trained(params: Params, frozen: Iterable[str]) -> tuple[str, ...]:
    patterns = (frozen,) if isinstance(frozen, str) else _listed("frozen", frozen)
    for pattern in patterns:
        if not isinstance(pattern, str) or not any(fnmatchcase(name, pattern) for name in params):
            checks.fail("frozen", repr(pattern), f"a name or pattern among {sorted(params)}")
    kept = [n for n in params if not any(fnmatchcase(n, pattern) for pattern in patterns)]
    return tuple(kept)


@contextmanager
def _progress(progress: Any, total: int, start: int) -> Iterator[Callable[[Array], None]]:
    """Yield a function of each step's loss that moves a progress bar on, or does nothing."""
    shown: AbstractContextManager[Any] = nullcontext(progress)
    if isinstance(progress, str):
        from tqdm import tqdm

        shown = tqdm(total=total, initial=start, desc=progress, unit="step", leave=False)
    with shown as bar:

        def move(loss: Array) -> None:
            if bar is not None:
                bar.set_postfix(loss=f"{float(loss.mean()):.3f}", refresh=False)
                bar.update()

        yield move

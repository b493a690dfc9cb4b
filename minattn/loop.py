"""The training loop behind `fit`: one step after another, and what is recorded of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from minattn import checks
from minattn.arrays import Array, Params
from minattn.config import TransformerConfig
from minattn.engines import Buffers, Reference
from minattn.model import Tape
from minattn.objectives import Batch, stack
from minattn.observers import Summing
from minattn.optim import Optimizer
from minattn.params import below
from minattn.randomness import generator
from minattn.records import Record
from minattn.runs import Run, described, load_run, save_run
from minattn.step import Outcome, check_finite, pose_for, take


class Source(Protocol):
    """Where tokens come from: anything with `n_symbols` and `sample`."""

    @property
    def n_symbols(self) -> int:
        """Number of symbols; tokens are 0..n_symbols - 1."""

    def sample(self, B: int, N: int, rng: np.random.Generator) -> Array:
        """Return B windows of N tokens, (B, N) ints."""


Objective: TypeAlias = Callable[[Array, np.random.Generator], Batch]
Observer: TypeAlias = Callable[[int, Params, Params, Tape], dict[str, Any]]
Penalty: TypeAlias = Callable[[Params], tuple[Array, Params]]


@dataclass
class Loop:
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
    buffers: Buffers = field(default_factory=Buffers)

    def start(self, params: Params) -> Run:
        """Return a run before its first step."""
        params = {name: np.array(value, order="C") for name, value in params.items()}
        state = self.optimizer.init({name: params[name] for name in self.trained})
        params, state = self.engine.put((params, state))
        generators = [
            (generator(self.seed, "data", number), generator(self.seed, "objective", number))
            for number in self.numbers
        ]
        return Run(params, state, generators)

    def advance(self, run: Run) -> Array:
        """Record if it is time, then make one update; return the loss (R,).

        If it is interrupted before the update, `run` is as it was.
        """
        recording = run.step % self.record_every == 0
        streams = run.streams()
        try:
            outcome, penalty, tape = self.evaluate(run, recording)
            record = self.observe(run, outcome, penalty, tape) if recording else None
        except BaseException:
            run.rewind(streams)
            raise
        run.whole = False
        if record is not None:
            run.records.keep(record, self.observers)
        params = {name: run.params[name] for name in self.trained}
        with np.errstate(over="ignore", invalid="ignore"):  # the next step's check_finite tells
            self.optimizer.apply(self.engine, params, outcome.grads, run.state)
        run.step += 1
        run.whole = True
        return outcome.loss

    def evaluate(self, run: Run, recording: bool) -> tuple[Outcome, Array | None, Tape | None]:
        """Draw a batch; return loss and gradients, the penalty's value, and for records the tape.

        Gradients are those of loss and penalty together, the tape is of the loss alone. Arrays are
        used again in the next step, but for those of a tape, which observers may keep.
        """
        dtype = run.params["token_embedding"].dtype
        problem = pose_for(self.config, len(self.numbers), dtype, self.draw(run))
        again = partial(take, self.engine, self.config, run.params, self.engine.put(problem))
        taped = recording and not all(isinstance(one, Summing) for one in self.observers)
        watch = self.sums if recording and self.observers else None
        outcome = again(None if taped else self.buffers, taped, watch)
        tape = self.engine.get(outcome.tape()) if taped else None
        value = None if self.penalty is None else self.penalise(run, outcome)
        retake = partial(again, taped=True)
        check_finite(self.engine, outcome, f"step {run.step}", self.numbers, retake)
        return outcome, value, tape

    def penalise(self, run: Run, outcome: Outcome) -> Array:
        """Add the penalty's gradients to those of the loss; return its value (R,)."""
        assert self.penalty is not None
        value, grads = self.penalty(self.engine.get(dict(run.params)))
        if np.shape(value) not in ((), (len(self.numbers),)):
            got = f"a value of shape {np.shape(value)}"
            checks.fail("penalty", got, f"one of shape {(len(self.numbers),)}")
        for name, gradient in grads.items():
            gradient = np.asarray(gradient)
            real, plain = gradient.dtype.kind in "fiu", outcome.grads.get(name)
            if plain is None or plain.shape != gradient.shape or not real:
                got = f"a gradient of {gradient.dtype} and shape {gradient.shape} for {name!r}"
                checks.fail("penalty", got, "names and shapes of params, and real numbers")
            outcome.grads[name] = plain + self.engine.put(gradient.astype(plain.dtype))
        return np.broadcast_to(value, len(self.numbers))

    def draw(self, run: Run) -> Batch:
        """Return the next batch of every replica."""
        batches = []
        for source, (data, objective) in zip(self.sources, run.generators, strict=True):
            tokens = source.sample(self.batch_size, self.length, data)
            if np.shape(tokens) != (self.batch_size, self.length):
                needs = f"windows of shape {(self.batch_size, self.length)}"
                checks.fail("source", f"windows of shape {np.shape(tokens)}", needs)
            batch = self.objective(tokens, objective)
            if not isinstance(batch, Batch):
                checks.fail("objective", f"a {type(batch).__name__}", "one that returns a Batch")
            batches.append(batch)
        return stack(batches)

    def sums(self, tape: Tape) -> Params:
        """Return what the summing observers take from a block, by their place and name."""
        tape = self.engine.get(tape)
        return {
            f"{place}.{name}": array
            for place, observer in enumerate(self.observers)
            if isinstance(observer, Summing)
            for name, array in observer.of_block(tape).items()
        }

    def observe(
        self, run: Run, outcome: Outcome, penalty: Array | None, tape: Tape | None
    ) -> Record:
        """Return a record: the loss, the penalty and what the observers find."""
        record = Record(run.step)
        record.add({"loss": self.engine.get(outcome.loss)})
        if penalty is not None:
            record.add({"penalty": penalty})
        if not self.observers:
            return record
        params, grads = self.engine.get((run.params, outcome.grads))
        if tape is not None:  # what an observer does to its arrays must not reach the training
            params = {name: value.copy() for name, value in params.items()}
            grads = {name: value.copy() for name, value in grads.items()}
        for place, observer in enumerate(self.observers):
            if isinstance(observer, Summing):
                sums = below(outcome.sums, f"{place}.")
                record.leave(place, observer.record(run.step, params, sums))
            else:
                assert tape is not None
                record.add(observer(run.step, params, grads, tape))
        return record

    def finish(self, run: Run) -> Run:
        """Return the run with a record of its final parameters.

        The record is of the batch that a further step would have seen; the run itself is left as it
        is, so that a saved one can go on.
        """
        last = copy.deepcopy(run)
        record = self.observe(last, *self.evaluate(last, recording=True))
        last.records.keep(record, self.observers)
        last.records.finish(self.observers)
        return last

    def settings(self) -> dict[str, Any]:
        """Return what a saved run and the one that goes on with it must agree in."""
        optimizer = {k: described(v) for k, v in vars(self.optimizer).items()}
        return {
            "config": asdict(self.config),
            "objective": described(self.objective),
            "batch_size": self.batch_size,
            "length": self.length,
            "optimizer": {"kind": type(self.optimizer).__name__} | optimizer,
            "seed": self.seed,
            "replicas": list(self.numbers),
            "record_every": self.record_every,
            "trained": list(self.trained),
        }

    def save(self, path: str | Path, run: Run) -> None:
        """Write a run to a file, whole or not at all."""
        run.records.finish(self.observers)
        save_run(path, run, self.engine, self.settings())

    def load(self, path: str | Path, params: Params) -> Run:
        """Return a saved run of this loop, ready to go on with; `params` as for `start`.

        Raises
        ------
        ValueError
            If the file holds no run, or one with other settings.
        """
        return load_run(path, self.start(params), self.engine, self.settings())

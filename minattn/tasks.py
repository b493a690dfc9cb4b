"""What one thread does of a step: its share of a batch, block after block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from minattn.arrays import Array, Params
from minattn.config import TransformerConfig
from minattn.engines import Buffers, Reference
from minattn.layers import loss
from minattn.model import Tape, Weights, run_backward, run_forward

Watch: TypeAlias = Callable[[Tape], Params]


@dataclass(frozen=True)
class Problem:
    """A batch checked against a model: tokens (R, B, N), loss shares (R, B, N), allowed (N, N)."""

    inputs: Array
    targets: Array
    shares: Array
    allowed: Array

    def of(self, engine: Reference, replicas: slice, batch: slice = slice(None)) -> Problem:
        """Return the part of some replicas and some sequences."""
        inputs, targets, shares = (
            engine.xp.ascontiguousarray(array[replicas, batch])
            for array in (self.inputs, self.targets, self.shares)
        )
        return Problem(inputs, targets, shares, self.allowed)


class Part(NamedTuple):
    """What a task returns: loss (R,), tapes of its blocks if asked for, and sums of `watch`."""

    loss: Array
    tapes: list[Tape]
    sums: Params


@dataclass(frozen=True)
class Task:
    """What one thread does at a time: some replicas' share of the batch, block after block."""

    engine: Reference
    config: TransformerConfig
    weights: Weights
    problem: Problem
    blocks: list[slice]
    totals: Params  # where the sum of the gradients goes
    buffers: Buffers
    taped_as: int | None  # a name for the tapes; None: they need not last
    watch: Watch | None

    def run(self) -> Part:
        """Run the blocks."""
        losses, tapes, sums = [], [], []
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # see check_finite
            for number, block in enumerate(self.blocks):
                name = None if self.taped_as is None else (self.taped_as, number)
                with self.buffers.workspace(name, complete=self.watch is not None) as workspace:
                    add = np.add if number else _begin
                    value, tape = self.step(self.engine.using(workspace), block, add)
                    losses.append(value)
                    if self.taped_as is not None:
                        tapes.append(tape)
                    if self.watch is not None:
                        sums.append(self.watch(tape))
        return Part(added(losses), tapes, summed(sums))

    def step(
        self, engine: Reference, block: slice, add: Callable[..., object]
    ) -> tuple[Array, Tape]:
        """Run a block forward and backward: loss (R,) and tape; add gradients to the totals."""
        config, weights = self.config, self.weights
        problem = self.problem.of(engine, slice(None), block)
        logits, tape = run_forward(engine, config, weights, problem.inputs, problem.allowed)
        rows = logits.shape[:2]
        arrays = (problem.targets.reshape(rows), problem.shares.reshape(rows))
        value, dlogits = loss.forward(engine, logits, *arrays, out=logits)
        for grads in run_backward(engine, config, weights, tape, dlogits):
            for name, gradient in grads.items():
                add(self.totals[name], gradient, out=self.totals[name])
        return value, tape


def _begin(_: Array, gradient: Array, out: Array) -> None:
    """Begin a sum with its first term."""
    out[...] = gradient


def added(terms: Sequence[Array]) -> Array:
    """Return the sum of arrays, added in their order."""
    return sum(terms[1:], start=terms[0])


def summed(parts: Sequence[Params]) -> Params:
    """Return the sums of arrays by name, added in their order."""
    return {name: added([part[name] for part in parts]) for name in (parts[0] if parts else ())}


def stacked(parts: Sequence[Params]) -> Params:
    """Return arrays by name, joined along the axis of replicas."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

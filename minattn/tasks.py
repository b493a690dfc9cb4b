"""What one thread does of a step: its share of a batch, block after block.

A block's calls are noted when it first runs; from then on they are repeated, on the same memory,
which spares the layers' Python. That is as if they had run again, bit by bit, as all that an engine
with `replays` computes goes through its `call`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from minattn.arrays import Array, Params
from minattn.config import TransformerConfig
from minattn.engines import Buffers, Call, Reference, Workspace
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

    def part(self, replicas: slice, batch: slice) -> tuple[Array, ...]:
        """Return inputs, targets and shares of some replicas and some sequences."""
        return tuple(a[replicas, batch] for a in (self.inputs, self.targets, self.shares))


class Part(NamedTuple):
    """What a task returns: loss (R,), tapes of its blocks if asked for, and sums of `watch`."""

    loss: Array
    tapes: list[Tape]
    sums: Params


@dataclass(frozen=True)
class Block:
    """A block that has run: what it was given, its loss (R,) and tape, and the calls it took."""

    given: tuple[Array, ...]  # as from `Problem.part`
    loss: Array
    tape: Tape
    calls: list[Call] | None

    def run_again(self, given: tuple[Array, ...]) -> None:
        """Run it on other tokens and shares, and on what the parameters hold by now."""
        for own, array in zip(self.given, given, strict=True):
            np.copyto(own, array)
        for call in self.calls or ():
            call()


@dataclass(frozen=True)
class Task:
    """What one thread does at a time: some replicas' share of the batch, block after block."""

    engine: Reference
    config: TransformerConfig
    weights: Weights  # of these replicas
    totals: Params  # where the sum of the gradients goes
    replicas: slice
    blocks: list[slice]
    number: int
    repeats: bool  # whether a block that has run is run again out of its calls

    def run(self, problem: Problem, buffers: Buffers, taped: bool, watch: Watch | None) -> Part:
        """Run the blocks."""
        losses, tapes, sums = [], [], []
        with np.errstate(all="ignore"):  # see check_finite
            for number, batch in enumerate(self.blocks):
                place, complete = (self.number, number), watch is not None
                with buffers.workspace(place if taped else None, complete) as workspace:
                    given = problem.part(self.replicas, batch)
                    block = workspace.kept.get((place, complete))
                    if block is not None:
                        block.run_again(given)
                    else:
                        block = self.first(workspace, given, problem.allowed, begin=not number)
                        if self.repeats:
                            workspace.kept[place, complete] = block
                    losses.append(block.loss.copy())
                    if taped:
                        tapes.append(block.tape)
                    if watch is not None:
                        sums.append(watch(block.tape))
        return Part(added(losses), tapes, summed(sums))

    def first(
        self, workspace: Workspace, given: tuple[Array, ...], allowed: Array, begin: bool
    ) -> Block:
        """Run a block forward and backward; begin the totals with its gradients, or add them."""
        config, weights = self.config, self.weights
        calls: list[Call] | None = [] if self.repeats else None
        engine = self.engine.using(workspace, calls)
        inputs, targets, shares = (engine.xp.array(array, order="C") for array in given)
        logits, tape = run_forward(engine, config, weights, inputs, allowed)
        rows = logits.shape[:2]
        arrays = (targets.reshape(rows), shares.reshape(rows))
        value, dlogits = loss.forward(engine, logits, *arrays, out=logits)
        put = engine.assign if begin else engine.add
        for grads in run_backward(engine, config, weights, tape, dlogits):
            for name, gradient in grads.items():
                put(self.totals[name], gradient)
        return Block((inputs, targets, shares), value, tape, calls)


def added(terms: Sequence[Array]) -> Array:
    """Return the sum of arrays, added in their order."""
    return sum(terms[1:], start=terms[0])


def summed(parts: Sequence[Params]) -> Params:
    """Return the sums of arrays by name, added in their order."""
    return {name: added([part[name] for part in parts]) for name in (parts[0] if parts else ())}


def stacked(parts: Sequence[Params]) -> Params:
    """Return arrays by name, joined along the axis of replicas."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

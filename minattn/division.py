"""How a step is divided into tasks for threads, and tasks into blocks for caches."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from minattn.arrays import Params
from minattn.config import TransformerConfig
from minattn.engines import Reference
from minattn.model import Weights, by_layer
from minattn.tasks import Task

# Sizes are counted in entries of the residual stream, tokens times width.
# A task of fewer costs more in dispatch, and in waiting for the interpreter, than a thread gains.
ENTRIES_PER_TASK = 2**14
# A block goes forward and backward through all layers while what it leaves there is still in cache.
# Small blocks of several replicas are taken together, up to this size.
ENTRIES_PER_BLOCK = 2**15
# Blocks of fewer tokens would spend too much on adding up their gradients.
TOKENS_PER_BLOCK = 512


@dataclass(frozen=True)
class Division:
    """How a step is divided: tasks, for one share of the batch after another of each chunk."""

    weights: Weights
    totals: list[Params]  # gradients by share; the first takes their sum
    tasks: list[Task]


def divide(
    engine: Reference, config: TransformerConfig, params: Params, shape: tuple[int, ...]
) -> Division:
    """Divide the steps on these arrays of parameters and tokens of this shape (R, B, N)."""
    replicas, batch, length = shape
    chunks, shares = [slice(replicas)], [[slice(batch)]]
    if engine.divides:
        chunks, shares = shards(replicas, batch, length, config.width, engine.threads)
    weights = by_layer(engine, config, params)
    totals = [{name: engine.xp.empty_like(p) for name, p in params.items()} for _ in shares]
    # Layers reshape parameters, which would copy others than these: once, not at every step.
    repeats = engine.replays and all(value.flags.c_contiguous for value in params.values())
    tasks: list[Task] = []
    for chunk in chunks:
        for blocks, grads in zip(shares, totals, strict=True):
            own = {name: total[chunk] for name, total in grads.items()}
            place = (chunk, blocks, len(tasks))
            tasks.append(Task(engine, config, weights.of(chunk), own, *place, repeats))
    return Division(weights, totals, tasks)


def shards(
    replicas: int, batch: int, length: int, width: int, threads: int
) -> tuple[list[slice], list[list[slice]]]:
    """Cut the replicas into chunks, and the batch into shares of blocks.

    A chunk and a share are a thread's task, which takes one block after another. The cuts of the
    batch depend on its size and the threads alone, never on the replicas: sums over the batch then
    round in the same way however many replicas run beside each other.
    """
    entries = batch * length * width
    shares = max(1, min(threads, batch, entries // ENTRIES_PER_TASK))
    per_block = max(1, max(ENTRIES_PER_BLOCK // width, TOKENS_PER_BLOCK) // length)
    cuts = []
    for share in _cut(batch, shares):
        size = share.stop - share.start
        parts = _cut(size, -(-size // per_block))
        cuts.append([slice(share.start + part.start, share.start + part.stop) for part in parts])
    longest = max(block.stop - block.start for blocks in cuts for block in blocks)
    chunks = -(-replicas // max(1, ENTRIES_PER_BLOCK // (longest * length * width)))
    # As many for one thread as for another, as far as each then has enough to do.
    even = max(1, min(-(-threads // shares), replicas * entries // (shares * ENTRIES_PER_TASK)))
    return _cut(replicas, min(replicas, -(-chunks // even) * even)), cuts


def _cut(size: int, parts: int) -> list[slice]:
    """Cut range(size) into `parts` slices whose lengths differ by at most one."""
    edges = [size * i // parts for i in range(parts + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]

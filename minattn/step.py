"""One training step: loss and gradients, cut into shards that an engine may run side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from minattn import checks
from minattn.arrays import Array, Params
from minattn.config import TransformerConfig
from minattn.engines import Reference, Workspace, choose
from minattn.layers import loss
from minattn.masks import allowed_pairs
from minattn.model import Tape, check_tokens, run_backward, run_forward
from minattn.objectives import Batch
from minattn.params import check_params

# A piece of a batch below this many tokens costs more in dispatch than a second thread gains.
TOKENS_PER_PIECE = 512
# Replicas are taken together up to about this many tokens, so that a shard stays in cache.
TOKENS_PER_SHARD = 2048


@dataclass(frozen=True)
class Problem:
    """A batch checked against a model: tokens (R, B, N), loss shares (R, B, N), allowed (N, N)."""

    inputs: Array
    targets: Array
    shares: Array
    allowed: Array


@dataclass
class Outcome:
    """What a step gives: loss (R,), gradients by name, and the tapes of its shards."""

    loss: Array
    grads: Params
    tapes: list[list[Tape]]  # by replica chunk, then by piece of the batch

    def tape(self) -> Tape:
        """Return one tape of all shards, with the whole gradients."""
        joined = _join([_join(pieces, axis=1) for pieces in self.tapes], axis=0)
        joined.grads = dict(self.grads)
        return joined


def loss_and_grad(
    config: TransformerConfig, params: Params, batch: Batch, engine: str | Reference = "auto"
) -> tuple[Array, Params, Tape]:
    """Return the loss (R,), its gradients named as `params`, and the tape.

    The loss is the weighted mean cross-entropy in nats over the positions of positive weight, per
    replica; where there is none, loss and gradients are 0.

    Parameters
    ----------
    config : TransformerConfig
    params : dict of arrays
    batch : Batch
    engine : {"auto", "numba", "numpy"}

    Raises
    ------
    ValueError
        If parameters, batch or engine do not fit, before anything is computed.
    FloatingPointError
        If the loss or a gradient is infinite or NaN: it names layer and replica.
    """
    problem, dtype = pose(config, params, batch)
    outcome = take(choose(engine, dtype), config, params, problem)
    check_finite(outcome, "loss_and_grad", range(len(outcome.loss)))
    return outcome.loss, outcome.grads, outcome.tape()


def mean_loss(
    config: TransformerConfig,
    params: Params,
    batch: Batch,
    engine: str | Reference = "auto",
    W_qk_offsets: dict[int, Array] | None = None,
) -> Array:
    """Return the loss (R,) alone; analytic in complex parameters on the engine "numpy".

    Parameters
    ----------
    config : TransformerConfig
    params : dict of arrays
    batch : Batch
    engine : {"auto", "numba", "numpy"}
    W_qk_offsets : dict of (R, H, d, d) arrays, optional
        By layer, what is added to each head's W_qk where it enters the scores.

    Raises
    ------
    ValueError
        If the arguments do not fit, before anything is computed.
    """
    problem, dtype = pose(config, params, batch)
    ready = choose(engine, dtype)
    logits, _ = run_forward(ready, config, params, problem.inputs, problem.allowed, W_qk_offsets)
    rows = logits.shape[:2]
    arrays = (problem.targets.reshape(rows), problem.shares.reshape(rows))
    return loss.forward(ready, logits, *arrays, out=logits)[0]


def pose(config: TransformerConfig, params: Params, batch: Batch) -> tuple[Problem, np.dtype]:
    """Check a batch against a model.

    Raises
    ------
    ValueError
        If they do not fit.
    """
    replicas, dtype = check_params(config, params)
    if not isinstance(batch, Batch):
        checks.fail("batch", type(batch).__name__, "a minattn.Batch")
    inputs = check_tokens(config, batch.inputs, replicas)
    weights = np.broadcast_to(batch.weights, inputs.shape)
    asked = np.where(batch.weights > 0, batch.targets, 0)
    targets = checks.integers("targets", asked, below=config.vocab_size)
    real = np.float32 if dtype == np.float32 else np.float64
    shares = loss.shares(weights).astype(real, copy=False)
    allowed = allowed_pairs(batch.mask, inputs.shape[-1])
    return Problem(inputs, np.broadcast_to(targets, inputs.shape), shares, allowed), dtype


def take(
    engine: Reference,
    config: TransformerConfig,
    params: Params,
    problem: Problem,
    workspaces: list[Workspace] | None = None,
    out: Params | None = None,
) -> Outcome:
    """Run the step's shards and add their gradients in a fixed order.

    With `workspaces` (filled here) and `out`, arrays of earlier steps are used again.
    """
    replicas, batch, length = problem.inputs.shape
    chunks, pieces = shards(replicas, batch, length, engine.threads)
    cuts = [(chunk, piece) for chunk in chunks for piece in pieces]
    if workspaces is not None:
        workspaces.extend(Workspace() for _ in range(len(cuts) - len(workspaces)))
    tasks = []
    for number, (chunk, piece) in enumerate(cuts):
        workspace = None if workspaces is None else workspaces[number]
        tasks.append(partial(_shard, engine, config, params, problem, chunk, piece, workspace))
    results = engine.run(tasks)
    groups = [results[i : i + len(pieces)] for i in range(0, len(results), len(pieces))]
    losses = np.concatenate([sum(part.loss for part in group) for group in groups])
    grads = {} if out is None else out
    for name, value in params.items():
        if name not in grads:
            grads[name] = np.empty(value.shape, value.dtype)
        for chunk, group in zip(chunks, groups, strict=True):
            _add([part.grads[name] for part in group], grads[name][chunk])
    return Outcome(losses, grads, [[part.tapes[0][0] for part in group] for group in groups])


def shards(replicas: int, batch: int, length: int, threads: int) -> tuple[list[slice], list[slice]]:
    """Cut the replicas into chunks and the batch into pieces.

    The pieces depend on the batch and the threads alone, never on the replicas: sums over the batch
    then round in the same way however many replicas run beside each other.
    """
    pieces = max(1, min(threads, batch, batch * length // TOKENS_PER_PIECE))
    per_shard = max(1, TOKENS_PER_SHARD * pieces // (batch * length))
    chunks = max(-(-replicas // per_shard), min(replicas, -(-threads // pieces)))
    return _cut(replicas, chunks), _cut(batch, pieces)


def check_finite(outcome: Outcome, where: str, replicas: Sequence[int]) -> None:
    """Raise an error that names layer and replica if loss or gradients are not finite.

    Raises
    ------
    FloatingPointError
        Likewise.
    """
    # A sum is finite only if its terms are, and needs no second array.
    with np.errstate(over="ignore", invalid="ignore"):
        sums = [np.add.reduce(gradient, axis=None) for gradient in outcome.grads.values()]
    if np.isfinite(outcome.loss).all() and np.isfinite(sums).all():
        return
    for number, values in _in_order(outcome):
        for replica, name in enumerate(replicas):
            if not np.isfinite(values[replica]).all():
                raise FloatingPointError(f"{where}: non-finite value in {number}, replica {name}")


def _in_order(outcome: Outcome) -> Iterator[tuple[str, Array]]:
    """Yield what a step computes, layer by layer forward and then backward, with its place."""
    tape = outcome.tape()
    for number, layer in enumerate(tape.layers):
        yield f"the input of layer {number}", layer.attention.x
        yield f"the attention of layer {number}", layer.attention.o
    yield "the output of the last layer", tape.final
    yield "the loss", outcome.loss[:, None]
    yield "the gradient of unembedding", outcome.grads["unembedding"]
    for name in reversed(list(outcome.grads)):
        place = name.split(".")
        where = f"layer {place[1]} ({name})" if place[0] == "layers" else name
        yield f"the gradient of {where}", outcome.grads[name]


def _cut(size: int, parts: int) -> list[slice]:
    """Cut range(size) into `parts` slices whose lengths differ by at most one."""
    edges = [size * i // parts for i in range(parts + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def _shard(
    engine: Reference,
    config: TransformerConfig,
    params: Params,
    problem: Problem,
    chunk: slice,
    piece: slice,
    workspace: Workspace | None,
) -> Outcome:
    """Run forward, loss and backward for some replicas and a piece of the batch."""
    if workspace is not None:
        workspace.restart()
    engine = engine.using(workspace)
    params = {name: value[chunk] for name, value in params.items()}
    inputs, targets, shares = (
        np.ascontiguousarray(array[chunk, piece])
        for array in (problem.inputs, problem.targets, problem.shares)
    )
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # see check_finite
        logits, tape = run_forward(engine, config, params, inputs, problem.allowed)
        rows = logits.shape[:2]
        arrays = (targets.reshape(rows), shares.reshape(rows))
        value, dlogits = loss.forward(engine, logits, *arrays, out=logits)
        grads = run_backward(engine, config, params, tape, dlogits)
    return Outcome(value, grads, [[tape]])


def _add(parts: Sequence[Array], out: Array) -> None:
    """Write the sum of `parts`, in their order, to `out`."""
    if len(parts) == 1:
        out[...] = parts[0]
        return
    np.add(parts[0], parts[1], out=out)
    for part in parts[2:]:
        out += part


def _join(parts: Sequence[Any], axis: int) -> Any:
    """Join the tapes of shards along an axis, field by field."""
    first = parts[0]
    if len(parts) == 1 or first is None:
        return first
    if isinstance(first, list):
        return [_join(items, axis) for items in zip(*parts, strict=True)]
    if isinstance(first, np.ndarray):
        return np.concatenate(parts, axis=axis)
    joined = {}
    for field in dataclasses.fields(first):
        values = [getattr(part, field.name) for part in parts]
        shared = field.name in ("allowed", "engine")
        joined[field.name] = values[0] if shared else _join(values, axis)
    return type(first)(**joined)

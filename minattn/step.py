"""One training step: loss and gradients, of blocks that an engine may run side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from minattn import checks
from minattn.arrays import Array, Params
from minattn.config import TransformerConfig
from minattn.division import divide
from minattn.engines import Buffers, Reference, choose
from minattn.layers import loss
from minattn.masks import allowed_pairs
from minattn.model import Tape, by_layer, check_tokens, run_forward
from minattn.objectives import Batch
from minattn.params import check_params
from minattn.tasks import Problem, Watch, added, stacked, summed


@dataclass
class Outcome:
    """What a step gives: loss (R,), gradients by name, and of its blocks what was asked for."""

    loss: Array
    grads: Params
    tapes: list[list[Tape]]  # by replica chunk, then by block of the batch
    sums: Params  # what `watch` returned, added over the blocks, (R, ...)

    def tape(self) -> Tape:
        """Return one tape of all blocks, with the whole gradients."""
        joined = _join([_join(blocks, axis=1) for blocks in self.tapes], axis=0)
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
    engine : {"auto", "numba", "numpy", "cupy"}

    Raises
    ------
    ValueError
        If parameters, batch or engine do not fit, before anything is computed.
    FloatingPointError
        If the loss or a gradient is infinite or NaN: it names layer and replica.
    """
    problem, dtype = pose(config, params, batch)
    ready = choose(engine, dtype)
    outcome = take(ready, config, *ready.put((params, problem)), taped=True)
    check_finite(ready, outcome, "loss_and_grad", range(len(outcome.loss)))
    outcome = ready.get(outcome)
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
    engine : {"auto", "numba", "numpy", "cupy"}
    W_qk_offsets : dict of (R, H, d, d) arrays, optional
        By layer, what is added to each head's W_qk where it enters the scores.

    Raises
    ------
    ValueError
        If the arguments do not fit, before anything is computed.
    """
    problem, dtype = pose(config, params, batch)
    offsets = _checked_offsets(config, len(problem.inputs), W_qk_offsets)
    ready = choose(engine, dtype)
    params, problem, offsets = ready.put((params, problem, offsets))
    weights = by_layer(ready, config, params)
    logits, _ = run_forward(ready, config, weights, problem.inputs, problem.allowed, offsets)
    rows = logits.shape[:2]
    arrays = (problem.targets.reshape(rows), problem.shares.reshape(rows))
    return ready.get(loss.forward(ready, logits, *arrays, out=logits)[0])


def _checked_offsets(
    config: TransformerConfig, replicas: int, offsets: dict[int, Array] | None
) -> dict[int, Array]:
    if offsets is None:
        return {}
    layers, shape = range(config.layers), (replicas, config.heads, config.width, config.width)
    needs = f"a dict from layers within 0..{config.layers - 1} to floats of shape {shape}"
    if not isinstance(offsets, dict) or not all(layer in layers for layer in offsets):
        checks.fail("W_qk_offsets", f"{offsets!r:.60}", needs)
    found = {}
    for layer, offset in offsets.items():
        name = f"W_qk_offsets[{layer}]"
        found[layer] = checks.array(name, offset, "fc", needs)
        if found[layer].shape != shape:
            checks.fail(name, f"{found[layer].dtype} of shape {found[layer].shape}", needs)
    return found


def pose(config: TransformerConfig, params: Params, batch: Batch) -> tuple[Problem, np.dtype]:
    """Check a batch against a model.

    Raises
    ------
    ValueError
        If they do not fit.
    """
    replicas, dtype = check_params(config, params)
    return pose_for(config, replicas, dtype, batch), dtype


def pose_for(config: TransformerConfig, replicas: int, dtype: np.dtype, batch: Batch) -> Problem:
    """Check a batch against a model whose parameters have been checked.

    Raises
    ------
    ValueError
        If they do not fit.
    """
    checks.instance("batch", batch, Batch)
    inputs = check_tokens(config, batch.inputs, replicas, "batch.inputs")
    weights = np.broadcast_to(batch.weights, inputs.shape)
    asked = np.where(batch.weights > 0, batch.targets, 0)
    targets = checks.integers("batch.targets", asked, below=config.vocab_size)
    real = np.float32 if dtype == np.float32 else np.float64
    shares = loss.shares(weights).astype(real, copy=False)
    allowed = allowed_pairs(batch.mask, inputs.shape[-1])
    return Problem(inputs, np.broadcast_to(targets, inputs.shape), shares, allowed)


def take(
    engine: Reference,
    config: TransformerConfig,
    params: Params,
    problem: Problem,
    buffers: Buffers | None = None,
    taped: bool = False,
    watch: Watch | None = None,
) -> Outcome:
    """Run the step's blocks and add their gradients in a fixed order.

    With `buffers`, arrays of earlier steps are used again, those of a tape included, and so is what
    was prepared for these arrays of parameters, whatever they hold by now. `watch` is called with
    the complete tape of each block, in the thread that has run it, and must keep nothing of it;
    what it returns is added up.
    """
    buffers = Buffers() if buffers is None else buffers
    pairs = problem.allowed.tobytes()  # an array of one's own is another object at every step
    settings = (engine.name, engine.threads, config, problem.inputs.shape, pairs, *params)
    division = buffers.prepared(
        settings,
        list(params.values()),
        lambda: divide(engine, config, params, problem.inputs.shape),
    )
    division.weights.join(engine.xp)
    tasks = [partial(task.run, problem, buffers, taped, watch) for task in division.tasks]
    results = engine.run(tasks)
    first, *others = division.totals
    groups = [results[i : i + 1 + len(others)] for i in range(0, len(results), 1 + len(others))]
    for name, total in first.items():
        for other in others:
            total += other[name]
    return Outcome(
        loss=engine.xp.concatenate([added([part.loss for part in group]) for group in groups]),
        grads=dict(first),
        tapes=[[tape for part in group for tape in part.tapes] for group in groups]
        if taped
        else [],
        sums=stacked([summed([part.sums for part in group]) for group in groups]),
    )


def check_finite(
    engine: Reference,
    outcome: Outcome,
    where: str,
    replicas: Sequence[int],
    retake: Callable[[], Outcome] | None = None,
) -> None:
    """Raise an error that names layer and replica if loss or gradients are not finite.

    An outcome without tapes needs `retake`, which takes the step again with them.

    Raises
    ------
    FloatingPointError
        Likewise.
    """
    if engine.all_finite([outcome.loss, *outcome.grads.values()]):
        return
    tape = (retake() if retake else outcome).tape()
    for number, values in _in_order(*engine.get((outcome, tape))):
        for replica, name in enumerate(replicas):
            if not np.isfinite(values[replica]).all():
                raise FloatingPointError(f"{where}: non-finite value in {number}, replica {name}")


def _in_order(outcome: Outcome, tape: Tape) -> Iterator[tuple[str, Array]]:
    """Yield what a step computes, layer by layer forward and then backward, with its place."""
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

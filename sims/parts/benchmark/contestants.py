"""Who is timed: minattn's engines and their peers, once their gradients are equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from parts.benchmark.settings import Setting
from parts.benchmark.timing import Contestant

from minattn import checks
from minattn.arrays import Params
from minattn.engines import Buffers, choose
from minattn.objectives import Batch
from minattn.step import loss_and_grad, pose, take

ENGINES = ("numba", "numpy")
NAMES = (*ENGINES, "torch eager", "torch SDPA", "torch compiled", "jax")
TOLERANCE = {"float64": 1e-9, "float32": 1e-4}


@dataclass(frozen=True, kw_only=True)
class Stepper(Contestant):
    """A contestant whose step gives gradients: `read` finds them and names them as minattn does."""

    read: Callable[[Any], Params]


Maker = Callable[[Setting, Params, Batch], Stepper]


def engine_step(name: str, setting: Setting, params: Params, batch: Batch) -> Stepper:
    """Make minattn's step as `fit` makes it: on a checked batch, with the buffers of the last."""
    engine, config = choose(name, setting.dtype), setting.config
    problem, _ = pose(config, params, batch)
    buffers = Buffers()
    return Stepper(
        name=name,
        step=lambda: take(engine, config, params, problem, buffers),
        read=lambda outcome: outcome.grads,
        session=engine.session,
    )


def makers(threads: int) -> tuple[dict[str, Maker], dict[str, str]]:
    """Return what makes each contestant, and why peers are missing, both by name."""
    made: dict[str, Maker] = {}
    missing = {}
    for name in ENGINES:
        made[name] = lambda *problem, name=name: engine_step(name, *problem)
    try:
        from parts.benchmark import torch_steps

        made |= torch_steps.makers(threads)
    except ImportError as error:
        missing["torch"] = f"{error}: pip install 'minattn[bench]'"
    try:
        from parts.benchmark import jax_steps

        made |= jax_steps.makers()
    except ImportError as error:
        missing["jax"] = f"{error}: pip install 'minattn[bench]'"
    return made, missing


def admit(
    made: dict[str, Maker], setting: Setting, seed: int
) -> tuple[list[Stepper], dict[str, str]]:
    """Return the contestants whose gradients are right, and why the others are left out.

    Raises
    ------
    ValueError
        If it is an engine of minattn whose gradients are wrong.
    """
    params, batch = setting.numbers(seed)
    exact = {name: value.astype(np.float64) for name, value in params.items()}
    _, expected, _ = loss_and_grad(setting.config, exact, batch, "numpy")
    admitted, left_out = [], {}
    for name, make in made.items():
        try:
            contestant = make(setting, params, batch)
            check(name, contestant.read(contestant.step()), expected, setting.dtype)
            admitted.append(contestant)
        except Exception as error:  # a compiler that is missing, an operation that is not there
            if name in ENGINES:
                raise
            left_out[name] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return admitted, left_out


def check(name: str, found: Params, expected: Params, dtype: str) -> None:
    """Compare gradients, each relative to its largest entry.

    Raises
    ------
    ValueError
        If one is missing, or too far off.
    """
    for parameter, exact in expected.items():
        if parameter not in found or found[parameter].shape != exact.shape:
            checks.fail(name, f"no gradient of {parameter}", f"one of shape {exact.shape}")
        error = abs(found[parameter] - exact).max() / abs(exact).max()
        if not error <= TOLERANCE[dtype]:
            got = f"a gradient of {parameter} that is off by {error:.1e}"
            checks.fail(name, got, f"at most {TOLERANCE[dtype]:g} in {dtype}")


def pack(params: Params) -> Params:
    """Arrange parameters as a peer would: q, k and v joined, no axis for a single replica."""
    packed = {}
    for name, value in params.items():
        replicas, *shape = value.shape
        if name.endswith("W_q"):
            parts = [params[name[:-1] + letter] for letter in "qkv"]
            parts = [part.reshape(replicas, shape[0], -1) for part in parts]
            packed[name[:-1] + "qkv"] = np.concatenate(parts, axis=-1)
        elif name.endswith("W_o"):
            packed[name] = value.reshape(replicas, -1, shape[-1])
        elif not name.endswith(("W_k", "W_v")):
            packed[name] = value
    return {name: value[0] if len(value) == 1 else value for name, value in packed.items()}


def unpack(grads: Params, like: Params) -> Params:
    """Undo `pack` for gradients."""
    found: Params = {}
    for name, value in grads.items():
        if name.endswith("W_qkv"):
            names = [name[:-3] + letter for letter in "qkv"]
            found |= dict(zip(names, np.split(value, 3, axis=-1), strict=True))
        else:
            found[name] = value
    return {name: value.reshape(like[name].shape) for name, value in found.items()}

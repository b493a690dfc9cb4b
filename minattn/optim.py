"""Optimisers over any flat dict of arrays, and learning-rate schedules."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from minattn import checks
from minattn.arrays import Params
from minattn.engines import Reference

Schedule: TypeAlias = float | Callable[[int], float]


@dataclass(frozen=True)
class Optimizer(ABC):
    """What the optimisers share: a state is a flat dict of arrays, with "step" among them."""

    lr: Schedule

    def __post_init__(self) -> None:
        if not callable(self.lr):
            checks.real("lr", self.lr, minimum=0)

    def init(self, params: Params) -> Params:
        """Return the state before the first step."""
        for name, array in checks.arrays("params", params).items():
            checks.on_host(f"params[{name!r}]", array)
        state = {"step": np.zeros((), np.int64)}
        for moment in self._moments():
            state |= {f"{moment}.{name}": np.zeros_like(p) for name, p in params.items()}
        return state

    def step(self, params: Params, grads: Params, state: Params) -> tuple[Params, Params]:
        """Return parameters and state after one step; the arguments are left as they are.

        Raises
        ------
        ValueError
            If names or shapes of params, grads and state differ.
        """
        expected = self.init(params)
        for name, given, like in (("grads", grads, params), ("state", state, expected)):
            checks.named(name, given, like, "those that fit params")
            for key, value in given.items():
                kinds = "fiuc" if like[key].dtype.kind == "c" else "fiu"
                array = checks.array(f"{name}[{key!r}]", value, kinds)
                if array.shape != like[key].shape:
                    needs = f"shape {like[key].shape}"
                    checks.fail(f"{name}[{key!r}]", f"shape {array.shape}", needs)
        params = {name: np.array(value, order="C") for name, value in params.items()}
        state = {name: np.array(value, order="C") for name, value in state.items()}
        self.apply(Reference(), params, grads, state)
        return params, state

    def apply(self, engine: Reference, params: Params, grads: Params, state: Params) -> None:
        """Make one step in place."""
        step = int(state["step"])
        lr = self.lr(step) if callable(self.lr) else self.lr
        self._update(engine, params, grads, state, checks.real("lr", lr, minimum=0), step)
        state["step"][...] = step + 1

    @abstractmethod
    def _moments(self) -> tuple[str, ...]:
        """Names of what is kept for each array."""

    @abstractmethod
    def _update(
        self,
        engine: Reference,
        params: Params,
        grads: Params,
        state: Params,
        lr: float,
        step: int,
    ) -> None:
        """Update params and moments in place."""


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent: velocity = momentum velocity + gradient, value -= lr velocity.

    Parameters
    ----------
    lr : float, or a function of the step (from 0)
    momentum : float
        In [0, 1).
    """

    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _fraction("momentum", self.momentum)

    def _moments(self) -> tuple[str, ...]:
        return ("velocity",) if self.momentum else ()

    def _update(
        self,
        engine: Reference,
        params: Params,
        grads: Params,
        state: Params,
        lr: float,
        step: int,
    ) -> None:
        for name, value in params.items():
            velocity = state.get(f"velocity.{name}")
            engine.sgd_update(value, grads[name], velocity, lr, self.momentum)


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay and bias correction (Loshchilov and Hutter, 2019).

    Parameters
    ----------
    lr : float, or a function of the step (from 0)
    weight_decay : float
        Each step multiplies every array by ``1 - lr weight_decay`` first.
    beta1, beta2 : float
        Decay of the mean and of the mean square, in [0, 1).
    epsilon : float
        Added to the root of the corrected mean square.
    """

    lr: Schedule = 1e-3
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.real("weight_decay", self.weight_decay, minimum=0)
        checks.positive("epsilon", self.epsilon)  # 0/0 where no gradient ever came
        _fraction("beta1", self.beta1)
        _fraction("beta2", self.beta2)

    def _moments(self) -> tuple[str, ...]:
        return ("mean", "square")

    def _update(
        self,
        engine: Reference,
        params: Params,
        grads: Params,
        state: Params,
        lr: float,
        step: int,
    ) -> None:
        step_size = lr / (1 - self.beta1 ** (step + 1))
        inverse_correction = 1 / (1 - self.beta2 ** (step + 1))
        shrink = 1 - lr * self.weight_decay
        for name, value in params.items():
            engine.adamw_update(
                value,
                grads[name],
                state[f"mean.{name}"],
                state[f"square.{name}"],
                self.beta1,
                self.beta2,
                step_size,
                inverse_correction,
                self.epsilon,
                shrink,
            )


@dataclass(frozen=True)
class LinearDecay:
    """Learning rate that rises to `peak` over `warmup` steps, then falls linearly to 0 at `steps`.

    Raises
    ------
    ValueError
        Unless 0 <= warmup < steps.
    """

    peak: float
    steps: int
    warmup: int = 0

    def __post_init__(self) -> None:
        checks.real("peak", self.peak, minimum=0)
        checks.integer("warmup", self.warmup, minimum=0)
        checks.integer("steps", self.steps, minimum=self.warmup + 1)

    def __call__(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        return self.peak * max(0.0, (self.steps - step) / (self.steps - self.warmup))


@dataclass(frozen=True)
class CosineDecay(LinearDecay):
    """Like `LinearDecay`, but falling along half a cosine."""

    def __call__(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warmup:
            return super().__call__(step)
        share = min(1.0, (step - self.warmup) / (self.steps - self.warmup))
        return self.peak * (1 + math.cos(math.pi * share)) / 2


def _fraction(name: str, value: float) -> None:
    if checks.real(name, value, 0, 1) == 1:
        checks.fail(name, value, "a number in [0, 1)")

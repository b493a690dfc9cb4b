"""What one step on the factors W_q and W_k does to their product: Remark A.6 and S39."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from minattn.arrays import Array
from minattn.optim import SGD
from minattn.step import loss_and_grad
from minattn.theorems.instances import small_batch, small_model
from minattn.theorems.registry import Outcome, Trial, statement
from minattn.theorems.verdicts import DOES_NOT_HOLD, HOLDS_EXACTLY, is_exact, only_if
from minattn.update import implicit_update

# (rng, W_q (d, h), W_k (d, h)) -> factors to use in their place
Redraw: TypeAlias = Callable[[np.random.Generator, Array, Array], tuple[Array, Array]]
# (Ghat (d, d), W_q, W_k, eta) -> the change of W_q W_k^T (d, d)
Change: TypeAlias = Callable[[Array, Array, Array, float], Array]


def as_drawn(rng: np.random.Generator, W_q: Array, W_k: Array) -> tuple[Array, Array]:
    """Keep the factors of the initialisation."""
    return W_q, W_k


def orthogonal(rng: np.random.Generator, W_q: Array, W_k: Array) -> tuple[Array, Array]:
    """Return square factors with W W^T = I."""
    one, other = np.linalg.qr(rng.standard_normal((2, *W_q.shape)))[0]
    return one, other


def zero_queries(rng: np.random.Generator, W_q: Array, W_k: Array) -> tuple[Array, Array]:
    """Set W_q to zero: the product of the two gradients then vanishes."""
    return np.zeros_like(W_q), W_k


def first_order(G: Array, W_q: Array, W_k: Array, eta: float) -> Array:
    """Return eta (G W_k W_k^T + W_q W_q^T G)."""
    return np.asarray(eta * (G @ W_k @ W_k.T + W_q @ W_q.T @ G))


def exact_change(G: Array, W_q: Array, W_k: Array, eta: float) -> Array:
    """Return eta (G W_k W_k^T + W_q W_q^T G) + eta^2 G W_k W_q^T G."""
    return first_order(G, W_q, W_k, eta) + eta**2 * G @ W_k @ W_q.T @ G


class Step:
    """One plain SGD step of a one-head model on its factors.

    `update` is Ghat (d, d); `before` the factors; `change(eta)` what the step does to W_qk.
    """

    def __init__(self, rng: np.random.Generator, redraw: Redraw, head_width: int, width: int = 6):
        config, self._params = small_model(
            rng, layers=1, heads=1, width=width, head_width=head_width
        )
        self.before = redraw(rng, *self._factors(self._params))
        for name, value in zip(("W_q", "W_k"), self.before, strict=True):
            self._params[f"layers.0.{name}"] = value[None, :, None]
        batch = small_batch(rng, config, "bidirectional")
        _, self._grads, tape = loss_and_grad(config, self._params, batch)
        self.update = implicit_update(config, self._params, tape).total[0, 0]

    def change(self, eta: float) -> Array:
        """Return W_q W_k^T after the step minus before, (d, d)."""
        sgd = SGD(lr=eta)
        after, _ = sgd.step(self._params, self._grads, sgd.init(self._params))
        (W_q, W_k), (V_q, V_k) = self._factors(after), self.before
        # The difference of two products would lose the digits that small steps leave.
        return np.asarray((W_q - V_q) @ W_k.T + V_q @ (W_k - V_k).T)

    @staticmethod
    def _factors(params: dict[str, Array]) -> tuple[Array, Array]:
        return params["layers.0.W_q"][0, :, 0], params["layers.0.W_k"][0, :, 0]


def remark_a6_rule(residuals: Array, cosines: Array, orthogonal_cosines: Array) -> str:
    """Judge "the product moves in proportion to Ghat".

    residuals of the exact change; cosines between change and Ghat with the factors at hand, and
    with orthogonal ones. Proportional means a cosine of 1 within 1e-4, what a small step leaves.
    """
    if not is_exact(residuals):
        return DOES_NOT_HOLD
    if np.min(cosines) > 1 - 1e-4:
        return HOLDS_EXACTLY
    if np.min(orthogonal_cosines) > 1 - 1e-4:
        return only_if("W_q W_q^T and W_k W_k^T are multiples of the identity, and the step small")
    return DOES_NOT_HOLD


@statement(
    "Remark A.6",
    text="a gradient step on W_q and W_k moves W_qk in proportion to Ghat = -dL/dW_qk",
    source="Remark A.6",
    assumptions="plain SGD, no biases, one head",
    method="identity",
    predicted="1: cosine between the change of W_qk and Ghat",
    rule="the exact change eta (G W_k W_k^T + W_q W_q^T G) + eta^2 G W_k W_q^T G is met to "
    "rounding, and the cosine is 1; if it is so for orthogonal factors alone, the remark is "
    "conditional",
    draws=12,
)
def remark_a6(
    trial: Trial,
    *,
    redraw: Redraw = as_drawn,
    head_width: int = 3,
    change: Change = exact_change,
) -> Outcome:
    """Take real steps, large for the exact formula and small for the cosine."""
    residuals, cosines, straight = [], [], []
    for _ in range(trial.draws):
        step = Step(trial.rng, redraw, head_width)
        expected = change(step.update, *step.before, 1.0)
        residuals.append(np.linalg.norm(step.change(1.0) - expected) / np.linalg.norm(expected))
        cosines.append(cosine(step.change(1e-5), step.update))
        square = Step(trial.rng, orthogonal, head_width=6)
        straight.append(cosine(square.change(1e-5), square.update))
    mean = float(np.mean(cosines))
    found = (
        f"The exact change is met within {max(residuals):.1e}; the cosine with Ghat is "
        f"{mean:.3f} on average over {trial.draws} random models ({min(cosines):.3f} to "
        f"{max(cosines):.3f}), and {min(straight):.6f} at least with square orthogonal factors, "
        "whose products with their transposes may be dropped."
    )
    verdict = remark_a6_rule(np.array(residuals), np.array(cosines), np.array(straight))
    return Outcome(mean, (min(cosines), max(cosines)), verdict, found)


def cosine(A: Array, B: Array) -> float:
    """Return <A, B> / (|A| |B|)."""
    return float((A * B).sum() / np.linalg.norm(A) / np.linalg.norm(B))


def s39_rule(slopes: Array, shares: Array) -> str:
    """Judge "what first order leaves is o(eta^2)" by the slopes of log remainder over log eta.

    shares: remainder / eta^2 at the smallest eta, relative to |first order| / eta.
    """
    if np.max(shares) < 1e-6:
        return HOLDS_EXACTLY
    if np.all(np.abs(slopes - 2) < 0.05):
        return only_if("o(eta^2) is read as O(eta^2)")
    return HOLDS_EXACTLY if np.all(slopes > 2.05) else DOES_NOT_HOLD


@statement(
    "S39",
    text="to first order in the step size eta, what remains of the change of W_qk is o(eta^2)",
    source="Eq. S39",
    assumptions="plain SGD, no biases, one head, float64",
    method="identity",
    predicted="> 2: slope of log |remainder| against log eta, for eta from 1/4 down to 1/1024",
    rule="the remainder over eta^2 vanishes; a slope of 2 within .05 makes it O(eta^2)",
    draws=12,
)
def s39(
    trial: Trial,
    *,
    redraw: Redraw = as_drawn,
    approximation: Change = first_order,
    head_width: int = 3,
) -> Outcome:
    """Halve eta, and see how fast the remainder falls."""
    etas = 2.0 ** -np.arange(2, 11)
    slopes, shares = [], []
    for _ in range(trial.draws):
        step = Step(trial.rng, redraw, head_width)
        left = np.array(
            [
                np.linalg.norm(step.change(eta) - approximation(step.update, *step.before, eta))
                for eta in etas
            ]
        )
        scale = np.linalg.norm(first_order(step.update, *step.before, 1.0))
        shares.append(left[-1] / etas[-1] ** 2 / scale)
        slopes.append(np.polyfit(np.log(etas), np.log(np.maximum(left, 1e-300)), 1)[0])
    mean = float(np.mean(slopes))
    found = (
        f"The remainder falls with eta to the power {min(slopes):.4f} to {max(slopes):.4f}; over "
        f"eta^2 it stays at {min(shares):.1e} to {max(shares):.1e} of the first-order term."
    )
    verdict = s39_rule(np.array(slopes), np.array(shares))
    return Outcome(mean, (float(min(slopes)), float(max(slopes))), verdict, found)

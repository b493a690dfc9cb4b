"""One arm's update of W_qk on one sequence, taken apart: what `term_by_term.py` looks at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from minattn.arrays import Array, Params
from minattn.blocks import PARTS, Blocks, form_blocks, grouped_coefficients, update_blocks
from minattn.comparison import ARMS, Task
from minattn.config import TransformerConfig
from minattn.descent import cosine, product_change
from minattn.optim import SGD
from minattn.params import W_qk
from minattn.scores import symmetry
from minattn.terms import ImplicitUpdate
from minattn.update import COMPLEX_STEP


class Terms(NamedTuple):
    """Every non-zero term, largest first: arrays (M,); see the module's docstring."""

    query: Array
    key: Array
    beta: Array
    norm: Array  # |beta_ij K_ij| / |Ghat|
    symmetric_energy: Array
    skew_energy: Array
    share: Array
    own_score: Array
    all_score: Array
    symmetry_slope: Array


@dataclass(frozen=True)
class Dissection:
    """One arm's model before and after training, and its update on the one sequence."""

    arm: str
    task: Task
    config: TransformerConfig
    initial: Params
    params: Params
    grads: Params
    update: ImplicitUpdate
    proof_residual: float
    losses: tuple[float, float]  # of the sequence, before training and now
    trained: bool

    @property
    def title(self) -> str:
        """The arm in words."""
        return ARMS[self.arm].title

    @property
    def total(self) -> Array:
        """Ghat (d, d)."""
        return self.update.total[0, 0]

    @property
    def form(self) -> Array:
        """W_qk (d, d)."""
        return W_qk(self.params, self.update.layer)[0]

    @property
    def change(self) -> Array | None:
        """W_qk - W_qk(0) (d, d), if there was training."""
        return self.form - W_qk(self.initial, self.update.layer)[0] if self.trained else None

    @property
    def tokens(self) -> list[str]:
        """The inputs as they are written."""
        return [self.task.written(int(token)) for token in self.update.tokens[0, 0]]

    @cached_property
    def terms(self) -> Terms:
        """Every non-zero term, largest first."""
        x, beta, G, W = self.update.x[0, 0], self.update.beta[0, 0, 0], self.total, self.form
        i, j = np.nonzero(beta)
        b, energy, root_h = beta[i, j], (G * G).sum(), self.config.h**0.5
        gram, along = x @ x.T, x @ G @ x.T
        squares = gram.diagonal()
        product, overlap = squares[i] * squares[j], gram[i, j] ** 2
        scores = x @ W @ x.T
        slope = 2 * b * (scores[j, i] - float(symmetry(W)) * scores[i, j]) / (W * W).sum()
        terms = Terms(
            query=i,
            key=j,
            beta=b,
            norm=abs(b) * np.sqrt(product / energy),
            symmetric_energy=b**2 * (product + overlap) / 2 / energy,
            skew_energy=b**2 * np.maximum(product - overlap, 0) / 2 / energy,
            share=b * along[i, j] / energy,
            own_score=b * product / root_h,
            all_score=along[i, j] / root_h,
            symmetry_slope=slope,
        )
        order = np.argsort(-terms.norm, kind="stable")
        return Terms(*(column[order] for column in terms))

    @cached_property
    def running(self) -> tuple[Array, Array]:
        """Distance to Ghat over |Ghat|, and cosine with it, of the sums of the first terms."""
        x, G = self.update.x[0, 0], self.total
        length, partial, distances, cosines = np.linalg.norm(G), np.zeros_like(G), [], []
        for i, j, b in zip(*self.terms[:3], strict=True):
            partial += b * np.outer(x[i], x[j])
            distances.append(np.linalg.norm(partial - G) / length)
            cosines.append(float(cosine(partial, G)))
        return np.array(distances), np.array(cosines)

    @cached_property
    def symbol_shares(self) -> dict[str, dict[str, float]]:
        """Each symbol's share of Ghat "as_key" and "as_query"."""
        G, found = self.total, {}
        symbols = [int(symbol) for symbol in np.unique(self.update.tokens)]
        for family, part in (
            ("as_key", self.update.as_context),
            ("as_query", self.update.as_query),
        ):
            share = {s: float((part(s)[0, 0] * G).sum() / (G * G).sum()) for s in symbols}
            found[family] = {self.task.written(s): value for s, value in share.items()}
        return found

    @cached_property
    def blocks(self) -> dict[str, Blocks]:
        """Ghat and the change of W_qk as forms on tokens and positions; layer 0 only."""
        if self.update.layer > 0:
            return {}
        N = self.update.tokens.shape[-1]
        found = {"Ghat": update_blocks(self.config, self.params, self.update, N)}
        if self.trained:
            found["change"] = form_blocks(self.config, self.params, 0, self.initial, N)
        return found

    @cached_property
    def contributions(self) -> dict[str, Array]:
        """What tokens, positions and the two across contribute to Ghat (d, d); layer 0 only."""
        if self.update.layer > 0:
            return {}
        B = grouped_coefficients(self.config, self.update)
        E, P = (self.params[f"{name}_embedding"][0] for name in ("token", "position"))
        P = P[: self.update.tokens.shape[-1]]
        across = E.T @ B.token_position[0, 0] @ P + P.T @ B.position_token[0, 0] @ E
        own = E.T @ B.token_token[0, 0] @ E, P.T @ B.position_position[0, 0] @ P
        return dict(zip(PARTS, (*own, across), strict=True))


def symmetry_gap(arm: Dissection) -> float:
    """Sum of the terms' effects on the symmetry of W_qk against a complex step along Ghat."""
    W = arm.form + COMPLEX_STEP * 1j * arm.total
    derivative = (np.trace(W @ W) / (W * W).sum()).imag / COMPLEX_STEP
    slopes = arm.terms.symmetry_slope
    return abs(float(slopes.sum() - derivative)) / max(norm(slopes), abs(float(derivative)))


def step_gap(arm: Dissection) -> float:
    """Change of W_qk by one SGD step, eta = 1, against the exact formula."""
    sgd = SGD(lr=1.0)
    after, _ = sgd.step(arm.params, arm.grads, sgd.init(arm.params))
    change = W_qk(after, arm.update.layer)[0] - arm.form
    return norm(change - product_change(arm.params, arm.update, 1.0).total[0, 0]) / norm(change)


def norm(array: Array) -> float:
    """Frobenius norm."""
    return float(np.linalg.norm(array))


def energy_shares(M: Array) -> dict[str, float]:
    """Share of the energy of a matrix in its symmetric and in its skew part."""
    halves = {"symmetric": (M + M.T) / 2, "skew": (M - M.T) / 2}
    return {name: norm(half) ** 2 / norm(M) ** 2 for name, half in halves.items()}

"""The primitives on plain arrays: the readable truth, which the other engines override.

Shapes: R replicas, B sequences of N positions, H heads, T = B N tokens, d any width, V symbols.
`...` stands for any leading axes. No primitive changes an input unless it is also passed as `out`.
Everything here is analytic where it can be, so that complex arrays may pass (complex steps).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import numpy as np

from minattn.arrays import Array
from minattn.engines.workspace import Call, Workspace

Result = TypeVar("Result")
Tree = TypeVar("Tree")

NORM_EPSILON = 1e-5
GELU_SCALE = (2 / np.pi) ** 0.5
GELU_CUBIC = 0.044715


class Reference:
    """Engine "numpy": every primitive in a few lines of NumPy, one shard at a time.

    Primitives that an engine on other arrays can use as they are call its array module, `xp`.
    """

    name = "numpy"
    xp: Any = np
    dtypes: tuple[str, ...] = ("float64", "float32", "complex128")
    threads = 1
    divides = True  # whether a step is cut into parts that stay in a core's cache
    replays = False  # whether all of its computing goes through `call`, so that it can be repeated

    def __init__(self, workspace: Workspace | None = None, calls: list[Call] | None = None) -> None:
        self._workspace = workspace
        self._calls = calls

    def using(self, workspace: Workspace | None, calls: list[Call] | None = None) -> Reference:
        """Return this engine with its outputs taken from a workspace, and its calls noted."""
        return type(self)(workspace, calls)

    def run(self, tasks: Sequence[Callable[[], Result]]) -> list[Result]:
        """Run the shards of a step and return their results in order."""
        return [task() for task in tasks]

    def session(self) -> AbstractContextManager[object]:
        """Return the context that many steps in a row run in."""
        return nullcontext()

    def put(self, tree: Tree) -> Tree:
        """Return arrays, or what holds them, where this engine computes."""
        return tree

    def get(self, tree: Tree) -> Tree:
        """Return arrays, or what holds them, where NumPy finds them: undoes `put`."""
        return tree

    def on_host(self) -> Reference:
        """Return an engine for what `get` returns, to be used outside of steps."""
        return self.using(None)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialised array for an output."""
        if self._workspace is None:
            return self.xp.empty(shape, dtype)
        return self._workspace.empty(shape, dtype)

    def scratch(self) -> AbstractContextManager[object]:
        """Return a context whose outputs are free again after it, unless they are to last."""
        return nullcontext() if self._workspace is None else self._workspace.scratch()

    def call(self, function: Callable[..., object], *arguments: Any, **options: Any) -> None:
        """Call a function that writes to arrays it is given; note it where calls are noted."""
        function(*arguments, **options)
        if self._calls is not None:
            self._calls.append(partial(function, *arguments, **options))

    def add(self, to: Array, term: Array) -> None:
        """Add to an array in place."""
        self.call(self.xp.add, to, term, out=to)

    def assign(self, to: Array, value: Array | float) -> None:
        """Write a value over an array."""
        self.call(self.xp.copyto, to, value)

    def row_sums(self, rows: Array) -> Array:
        """Return the sum of rows (R, T, ...) over axis 1."""
        out = self.empty((len(rows), *rows.shape[2:]), rows.dtype)
        self.call(self.xp.sum, rows, axis=1, out=out)
        return out

    def only_where(self, chosen: Array, rows: Array) -> Array:
        """Return `rows` where `chosen`, a mask that broadcasts with it, and zero elsewhere."""
        out = self.empty(rows.shape, rows.dtype)
        self.assign(out, 0)
        self.call(self.xp.copyto, out, rows, where=self.xp.asarray(chosen))
        return out

    def matmul(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """Return a @ b over the last two axes; the leading axes of a and b are equal."""
        if out is None:
            out = self.empty((*a.shape[:-1], b.shape[-1]), a.dtype)
        self.call(np.matmul, a, b, out=out)
        return out

    def pair_products(self, a: Array, b: Array, allowed: Array) -> Array:
        """Return a_i . b_j (..., N, N) on the allowed pairs; the others may hold anything.

        Rows a and b (..., N, h).
        """
        return self.matmul(a, b.swapaxes(-2, -1))

    def key_sums(self, W: Array, b: Array, allowed: Array, out: Array | None = None) -> Array:
        """Return sum_j W_ij b_j (..., N, h), for weights W (..., N, N) that are zero elsewhere."""
        return self.matmul(W, b, out)

    def query_sums(self, W: Array, a: Array, allowed: Array, out: Array | None = None) -> Array:
        """Return sum_i W_ij a_i (..., N, h), for weights W (..., N, N) that are zero elsewhere."""
        return self.matmul(W.swapaxes(-2, -1), a, out)

    def masked_softmax(
        self, scores: Array, allowed: Array, scale: float, out: Array | None = None
    ) -> Array:
        """Return the softmax of ``scale * scores`` (..., N, N) over the allowed keys of each row.

        Weights are zero outside `allowed` (N, N) and in rows without an allowed key, whatever the
        scores there, NaN included.
        """
        z = np.where(allowed, scores * scale, 0)  # scaled before masked: -inf is not analytic
        top = np.where(allowed, z.real, -np.inf).max(axis=-1, keepdims=True)
        exponentials = np.where(allowed, np.exp(np.where(allowed, z - top, 0)), 0)
        total = exponentials.sum(axis=-1, keepdims=True)
        return written(exponentials / np.where(total == 0, 1, total), out)

    def masked_softmax_backward(
        self,
        weights: Array,
        d_weights: Array,
        allowed: Array,
        scale: float,
        out: Array | None = None,
    ) -> Array:
        """Return dL/dscores = scale A (dA - sum_k A_ik dA_ik), given A and dA (..., N, N).

        It is zero outside `allowed`, where A is.
        """
        d_weights = np.where(allowed, d_weights, 0)
        mean = (weights * d_weights).sum(axis=-1, keepdims=True)
        return written(scale * weights * (d_weights - mean), out)

    def masked_scale(
        self, scores: Array, allowed: Array, scale: float, out: Array | None = None
    ) -> Array:
        """Return ``scale * scores`` (..., N, N) on the allowed pairs, zero elsewhere.

        The weights of linear attention; as the map is its own transpose, also their backward.
        """
        return written(self.xp.where(allowed, scores * scale, 0), out)

    def mutual_sums(self, W: Array, allowed: Array) -> Array:
        """Return what compares W_ij with W_ji (R, ..., N, N), zero outside `allowed`: (R, 3).

        They are sum W_ij W_ji, sum W_ij^2 and the number of entries, over i != j of which both
        orders count: both are allowed, and neither row is all zeros. In float64, as they count.
        """
        xp, rest = self.xp, tuple(range(1, W.ndim))
        both = xp.asarray((allowed & allowed.T & ~np.eye(len(allowed), dtype=bool)).astype(float))
        active = xp.where(W != 0, 1.0, 0.0).max(axis=-1)
        counts = both * active[..., None] * active[..., None, :]
        W = xp.where(counts > 0, W, 0)
        sums = [(W * W.swapaxes(-2, -1)).sum(axis=rest), (W * W).sum(axis=rest)]
        return xp.stack([*sums, counts.sum(axis=rest)], axis=-1)

    def cross_entropy(
        self, logits: Array, targets: Array, weights: Array, out: Array | None = None
    ) -> tuple[Array, Array]:
        """Return sum_t w_t (logsumexp(l_t) - l_t[target]), shape (R,), and its logit gradient.

        Logits (R, T, V); targets and weights (R, T). Rows of zero weight contribute exactly zero.
        """
        scored = weights[..., None] > 0
        shifted = np.where(scored, logits, 0)
        shifted = shifted - shifted.real.max(axis=-1, keepdims=True)
        exponentials = np.exp(shifted)
        total = exponentials.sum(axis=-1, keepdims=True)
        chosen = np.take_along_axis(shifted, targets[..., None], axis=-1)
        losses = weights * (np.log(total) - chosen)[..., 0]
        gradient = exponentials / total
        index = targets[..., None]
        np.put_along_axis(gradient, index, np.take_along_axis(gradient, index, -1) - 1, axis=-1)
        return losses.sum(axis=1), written(weights[..., None] * gradient, out)

    def embedding(self, table: Array, tokens: Array) -> Array:
        """Return the rows of table (R, rows, d) that tokens (R, T) name: (R, T, d)."""
        out = self.empty((*tokens.shape, table.shape[-1]), table.dtype)
        replicas, rows, d = table.shape
        places = self.empty(tokens.shape, tokens.dtype)  # in all tables, one after another
        self.call(np.add, tokens, rows * np.arange(replicas)[:, None], out=places)
        self.call(np.take, table.reshape(replicas * rows, d), places, axis=0, out=out, mode="clip")
        return out

    def embedding_gradient(self, tokens: Array, dx: Array, rows: int) -> Array:
        """Sum the gradients dx (R, T, d) of equal tokens (R, T) into rows: (R, rows, d)."""
        gradient = self.empty((dx.shape[0], rows, dx.shape[-1]), dx.dtype)
        gradient[...] = 0
        for replica in range(dx.shape[0]):
            np.add.at(gradient[replica], tokens[replica], dx[replica])
        return gradient

    def all_finite(self, arrays: Iterable[Array]) -> bool:
        """Return whether no entry of any of the arrays is infinite or NaN."""
        # A sum is finite only if its terms are, and needs no second array.
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite([np.add.reduce(array, axis=None) for array in arrays]).all())

    def layer_norm(self, x: Array, gain: Array, shift: Array) -> tuple[Array, Array, Array]:
        """Return gain n + shift, n and 1/s: n = (x - mean)/s, s^2 = population variance + eps.

        Rows x (R, T, d); gain and shift (R, d); 1/s is (R, T).
        """
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred * centred).mean(axis=-1, keepdims=True)
        inverse = 1 / self.xp.sqrt(variance + NORM_EPSILON)
        # Where the variance has overflowed: no zeros, but what a step's check sees.
        inverse = self.xp.where(inverse == 0, np.nan, inverse)
        normed = centred * inverse
        return gain[:, None] * normed + shift[:, None], normed, inverse[..., 0]

    def layer_norm_backward(
        self, dy: Array, gain: Array, normed: Array, inverse: Array
    ) -> tuple[Array, Array, Array]:
        """Return the gradients of x (R, T, d), gain (R, d) and shift (R, d)."""
        dn = gain[:, None] * dy
        along = (dn * normed).mean(axis=-1, keepdims=True)
        dx = inverse[..., None] * (dn - dn.mean(axis=-1, keepdims=True) - normed * along)
        return dx, (dy * normed).sum(axis=1), dy.sum(axis=1)

    def gelu(self, u: Array) -> Array:
        """Return u (1 + tanh(c (u + k u^3))) / 2, the analytic form of GELU."""
        return 0.5 * u * (1 + self.xp.tanh(GELU_SCALE * (u + GELU_CUBIC * u * u * u)))

    def gelu_backward(self, u: Array, dy: Array) -> Array:
        """Return the gradient of u."""
        tanh = self.xp.tanh(GELU_SCALE * (u + GELU_CUBIC * u * u * u))
        slope = GELU_SCALE * (1 + 3 * GELU_CUBIC * u * u)
        return dy * 0.5 * (1 + tanh + u * (1 - tanh * tanh) * slope)

    def sgd_update(
        self, value: Array, gradient: Array, velocity: Array | None, lr: float, momentum: float
    ) -> None:
        """Set velocity = momentum velocity + gradient and value -= lr velocity, in place."""
        if velocity is None:
            value -= lr * gradient
            return
        velocity *= momentum
        velocity += gradient
        value -= lr * velocity

    def adamw_update(
        self,
        value: Array,
        gradient: Array,
        mean: Array,
        square: Array,
        beta1: float,
        beta2: float,
        step_size: float,
        inverse_correction: float,
        epsilon: float,
        shrink: float,
    ) -> None:
        """Update the moments, then value = shrink value - step_size m / (sqrt(s c) + eps).

        Bias correction comes in as numbers: step_size = lr / (1 - beta1^t) and
        c = inverse_correction = 1 / (1 - beta2^t); shrink = 1 - lr weight_decay.
        """
        mean *= beta1
        mean += (1 - beta1) * gradient
        square *= beta2
        square += (1 - beta2) * gradient * gradient
        value *= shrink
        value -= step_size * mean / (np.sqrt(square * inverse_correction) + epsilon)


def written(value: Array, out: Array | None) -> Array:
    """Return `value`, in `out` where there is one."""
    if out is None or out is value:
        return value
    out[...] = value
    return out

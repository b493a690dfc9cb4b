"""Engine "numba": shards in threads, and compiled loops that release the GIL.

Matrix products stay with BLAS, one thread a shard; what surrounds them is fused into one pass over
memory each, by the kernels of `kernels.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from minattn import checks
from minattn.arrays import Array
from minattn.engines import kernels
from minattn.engines.compiling import compiled
from minattn.engines.reference import GELU_CUBIC, GELU_SCALE, NORM_EPSILON, Reference
from minattn.engines.threads import get_threads, run_in_threads, single_threaded_blas

Result = TypeVar("Result")

_row_spans = compiled(kernels.row_spans)
_softmax = compiled(kernels.softmax_rows)
_softmax_backward = compiled(kernels.softmax_rows_backward)
_scale = compiled(kernels.scale_rows)
_mutual = compiled(kernels.mutual_entries)
_cross_entropy = compiled(kernels.cross_entropy_rows)
_embedding_gradient = compiled(kernels.embedding_gradient_rows)
_layer_norm = compiled(kernels.layer_norm_rows)
_layer_norm_backward = compiled(kernels.layer_norm_rows_backward)
_gelu = compiled(kernels.gelu_entries)
_gelu_backward = compiled(kernels.gelu_entries_backward)
_adamw = compiled(kernels.adamw_entries)

# Rows of a band: fewer would leave BLAS too little to do in one call, more would compute more of
# what the mask hides.
BAND = 32
PLANS_REMEMBERED = 64

Band: TypeAlias = tuple[slice, slice]


class Plan(NamedTuple):
    """A mask, where its rows stop, and the bands of queries and of keys that are computed."""

    allowed: Array
    mutual: bool  # whether two positions see each other
    stops: Array
    by_query: list[Band]
    by_key: list[Band]


class NumbaCPU(Reference):
    """The reference engine with its loops compiled and its shards in threads."""

    name = "numba"
    dtypes = ("float64", "float32")
    replays = True

    @property
    def threads(self) -> int:  # type: ignore[override]
        """Number of shards that run side by side."""
        return get_threads()

    def run(self, tasks: Sequence[Callable[[], Result]]) -> list[Result]:
        """Run the shards of a step in threads and return their results in order."""
        return run_in_threads(tasks)

    def session(self) -> AbstractContextManager[object]:
        """Hold BLAS at one thread: its idle threads would spin on the cores that shards need."""
        return single_threaded_blas()

    def pair_products(self, a: Array, b: Array, allowed: Array) -> Array:
        """Products by bands of queries, each with the keys that some of them see."""
        out = self.empty((*a.shape[:-1], b.shape[-2]), a.dtype)
        b = b.swapaxes(-2, -1)
        for queries, keys in _plan(allowed).by_query:
            self.matmul(a[..., queries, :], b[..., keys], out[..., queries, keys])
        return out

    def key_sums(self, W: Array, b: Array, allowed: Array, out: Array | None = None) -> Array:
        """Products by bands of queries, each with the keys that some of them see."""
        if out is None:
            out = self.empty((*W.shape[:-1], b.shape[-1]), W.dtype)
        for queries, keys in _plan(allowed).by_query:
            self.matmul(W[..., queries, keys], b[..., keys, :], out[..., queries, :])
        return out

    def query_sums(self, W: Array, a: Array, allowed: Array, out: Array | None = None) -> Array:
        """Products by bands of keys, each with the queries that see some of them."""
        if out is None:
            out = self.empty((*W.shape[:-1], a.shape[-1]), W.dtype)
        W = W.swapaxes(-2, -1)
        for keys, queries in _plan(allowed).by_key:
            self.matmul(W[..., keys, queries], a[..., queries, :], out[..., keys, :])
        return out

    def masked_softmax(
        self, scores: Array, allowed: Array, scale: float, out: Array | None = None
    ) -> Array:
        """Fused scale, mask and softmax; a row stops at its last allowed key."""
        out = self._out(scores, out)
        plan = _plan(allowed)
        rows = (self._matrices(scores), plan.allowed, plan.stops)
        self.call(_softmax, *rows, scale, self._matrices(out))
        return out

    def masked_softmax_backward(
        self,
        weights: Array,
        d_weights: Array,
        allowed: Array,
        scale: float,
        out: Array | None = None,
    ) -> Array:
        """Fused softmax backward; a row stops at its last allowed key."""
        out = self._out(d_weights, out)
        plan = _plan(allowed)
        rows = (*map(self._matrices, (weights, d_weights)), plan.allowed, plan.stops)
        self.call(_softmax_backward, *rows, scale, self._matrices(out))
        return out

    def masked_scale(
        self, scores: Array, allowed: Array, scale: float, out: Array | None = None
    ) -> Array:
        """Fused scale and mask."""
        out = self._out(scores, out)
        rows = (self._matrices(scores), _plan(allowed).allowed)
        self.call(_scale, *rows, scale, self._matrices(out))
        return out

    def mutual_sums(self, W: Array, allowed: Array) -> Array:
        """Pass over the pairs once, or not at all where a mask is causal."""
        out, plan = self.empty((len(W), 3), np.float64), _plan(allowed)
        if plan.mutual:
            rows = self._plain(W).reshape(len(W), -1, *W.shape[-2:])
            self.call(_mutual, rows, plan.allowed, out)
        else:
            self.assign(out, 0)
        return out

    def cross_entropy(
        self, logits: Array, targets: Array, weights: Array, out: Array | None = None
    ) -> tuple[Array, Array]:
        """Fused softmax, loss and gradient; rows of zero weight are skipped."""
        out = self._out(logits, out)
        losses = self.empty(logits.shape[:1], logits.dtype)
        self.call(_cross_entropy, *map(self._plain, (logits, targets, weights)), losses, out)
        return losses, out

    def embedding_gradient(self, tokens: Array, dx: Array, rows: int) -> Array:
        """Scatter-add in token order, so that no update is lost and the order is fixed."""
        out = self.empty((dx.shape[0], rows, dx.shape[-1]), dx.dtype)
        self.call(_embedding_gradient, self._plain(tokens), self._plain(dx), out)
        return out

    def layer_norm(self, x: Array, gain: Array, shift: Array) -> tuple[Array, Array, Array]:
        """Fused mean, variance, normalisation, gain and shift."""
        y, normed = self.empty(x.shape, x.dtype), self.empty(x.shape, x.dtype)
        inverse = self.empty(x.shape[:-1], x.dtype)
        given = map(self._plain, (x, gain, shift))
        self.call(_layer_norm, *given, NORM_EPSILON, y, normed, inverse)
        return y, normed, inverse

    def layer_norm_backward(
        self, dy: Array, gain: Array, normed: Array, inverse: Array
    ) -> tuple[Array, Array, Array]:
        """Fused gradients of x, gain and shift."""
        dx = self.empty(dy.shape, dy.dtype)
        dgain, dshift = self.empty(gain.shape, dy.dtype), self.empty(gain.shape, dy.dtype)
        given = map(self._plain, (dy, gain, normed, inverse))
        self.call(_layer_norm_backward, *given, dx, dgain, dshift)
        return dx, dgain, dshift

    def gelu(self, u: Array) -> Array:
        """GELU in one pass."""
        y = self.empty(u.shape, u.dtype)
        self.call(_gelu, self._flat(u), GELU_SCALE, GELU_CUBIC, self._flat(y))
        return y

    def gelu_backward(self, u: Array, dy: Array) -> Array:
        """GELU's gradient in one pass."""
        du = self.empty(u.shape, u.dtype)
        given = map(self._flat, (u, dy))
        self.call(_gelu_backward, *given, GELU_SCALE, GELU_CUBIC, self._flat(du))
        return du

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
        """Moments, bias correction, decay and step in one pass."""
        for name, array in (("value", value), ("mean", mean), ("square", square)):
            _check_in_place(name, array)
        numbers = (beta1, beta2, step_size, inverse_correction, epsilon, shrink)
        _adamw(
            self._flat(value), self._flat(gradient), self._flat(mean), self._flat(square), *numbers
        )

    def _plain(self, array: Array) -> Array:
        """Return the array as kernels are compiled for it: C-contiguous, aligned and writable."""
        if array.flags.carray:
            return array
        copy = self.empty(array.shape, array.dtype)
        self.assign(copy, array)
        return copy

    def _matrices(self, array: Array) -> Array:
        """View (..., N, N) as (M, N, N)."""
        return self._plain(array).reshape(-1, *array.shape[-2:])

    def _flat(self, array: Array) -> Array:
        return self._plain(array).reshape(-1)

    def _out(self, like: Array, out: Array | None) -> Array:
        if out is None:
            return self.empty(like.shape, like.dtype)
        if out.shape != like.shape or out.dtype != like.dtype:
            checks.fail("out", f"{out.dtype} of shape {out.shape}", f"{like.dtype} {like.shape}")
        _check_in_place("out", out)
        return out


_plans: dict[int, tuple[Array, Plan]] = {}


def _plan(allowed: Array) -> Plan:
    """Return the plan of a mask, remembered for arrays that nobody can write to."""
    fixed = not allowed.flags.writeable
    if fixed and (known := _plans.get(id(allowed))):
        return known[1]
    own, turned = (np.array(array, order="C") for array in (allowed, allowed.T))
    starts, stops = _row_spans(own)
    mutual = bool((own & turned & ~np.eye(len(own), dtype=bool)).any())
    plan = Plan(own, mutual, stops, _bands(starts, stops), _bands(*_row_spans(turned)))
    if fixed:
        if len(_plans) >= PLANS_REMEMBERED:
            _plans.clear()
        _plans[id(allowed)] = allowed, plan  # both, so that no other mask gets this id
    return plan


def _bands(starts: Array, stops: Array) -> list[Band]:
    """Cut rows into bands with the columns from the first allowed to the last of any of them.

    Neighbours with the same columns are one band, so that a full mask is one product.
    """
    bands: list[Band] = []
    for top in range(0, len(starts), BAND):
        rows = slice(top, min(top + BAND, len(starts)))
        columns = slice(int(starts[rows].min()), int(stops[rows].max()))
        if bands and bands[-1][1] == columns:
            rows = slice(bands.pop()[0].start, rows.stop)
        bands.append((rows, columns))
    return bands


def _check_in_place(name: str, array: Array) -> None:
    if not (array.flags.c_contiguous and array.flags.writeable):  # a copy would be written instead
        checks.fail(name, "a strided or read-only array", "a writable C-contiguous one")

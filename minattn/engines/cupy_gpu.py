"""Engine "cupy": the same primitives on an NVIDIA GPU, a step being one shard.

Products go to cuBLAS, batched over replicas, sequences and heads; what surrounds them is fused by
the kernels of `cupy_kernels.cu`. Parameters, gradients and tapes are on the device; masks stay on
the host, where layers look at them. One array that kernels read is kept there for each mask.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from minattn import checks
from minattn.arrays import Array, mapped
from minattn.engines.cupy_products import matmul
from minattn.engines.reference import Reference, Tree, written
from minattn.engines.workspace import Call, Workspace

SOURCE = Path(__file__).with_name("cupy_kernels.cu")
REALS = {"float64": "double", "float32": "float"}
ROWS = (32, 8)  # threads of a block that takes rows: a warp each
ENTRIES = (256,)  # of one that takes entries
TILE = (128,)  # of embedding_gradient, as in its source


class CupyGPU(Reference):
    """The reference engine on the current CUDA device."""

    name = "cupy"
    xp = cupy
    divides = False
    dtypes = ("float64", "float32")

    def using(self, workspace: Workspace | None, calls: list[Call] | None = None) -> CupyGPU:
        """Return this engine: CuPy's pool of memory keeps the arrays of earlier steps anyway."""
        return self

    def put(self, tree: Tree) -> Tree:
        """Copy arrays to the device, all but masks and those without an axis."""
        return mapped(lambda a: cupy.asarray(a) if a.ndim and a.dtype != bool else a, tree)

    def get(self, tree: Tree) -> Tree:
        """Copy arrays to the host."""
        return mapped(cupy.asnumpy, tree)

    def on_host(self) -> Reference:
        """Return the engine "numpy"."""
        return Reference()

    def matmul(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """Return a @ b, read and written in place whatever the strides."""
        if out is None:
            out = self.empty((*a.shape[:-1], b.shape[-1]), a.dtype)
        return matmul(a, b, out)

    def masked_softmax(
        self, scores: Array, allowed: Array, scale: float, out: Array | None = None
    ) -> Array:
        """Fused scale, mask and softmax, a warp a row."""
        size, target = len(allowed), self._target(scores, out)
        arrays = (cupy.ascontiguousarray(scores), _on_device(allowed), target)
        _by_row("masked_softmax", scores.size // size, *arrays, size, float(scale))
        return written(target, out)

    def masked_softmax_backward(
        self,
        weights: Array,
        d_weights: Array,
        allowed: Array,
        scale: float,
        out: Array | None = None,
    ) -> Array:
        """Fused softmax backward, a warp a row."""
        size, target = len(allowed), self._target(d_weights, out)
        arrays = (*map(cupy.ascontiguousarray, (weights, d_weights)), _on_device(allowed), target)
        _by_row("masked_softmax_backward", weights.size // size, *arrays, size, float(scale))
        return written(target, out)

    def masked_scale(
        self, scores: Array, allowed: Array, scale: float, out: Array | None = None
    ) -> Array:
        """Scale, then mask."""
        return super().masked_scale(scores, _on_device(allowed), scale, out)

    def cross_entropy(
        self, logits: Array, targets: Array, weights: Array, out: Array | None = None
    ) -> tuple[Array, Array]:
        """Fused softmax, loss and gradient, a warp a token; rows of zero weight are skipped."""
        arrays = map(cupy.ascontiguousarray, (logits, targets, weights))
        losses, target = self.empty(targets.shape, logits.dtype), self._target(logits, out)
        _by_row("cross_entropy", targets.size, *arrays, losses, target, logits.shape[-1])
        return losses.sum(axis=-1), written(target, out)

    def embedding(self, table: Array, tokens: Array) -> Array:
        """Look all rows up at once."""
        out = self.empty((*tokens.shape, table.shape[-1]), table.dtype)
        arrays = (*map(cupy.ascontiguousarray, (table, tokens)), out)
        _by_entry("embedding", out.size, *arrays, tokens.shape[-1], *table.shape[1:])
        return out

    def embedding_gradient(self, tokens: Array, dx: Array, rows: int) -> Array:
        """Sum by row, in token order: no update is lost and the order is fixed."""
        replicas, T, d = dx.shape
        out = self.empty((replicas, rows, d), dx.dtype)
        arrays = (*map(cupy.ascontiguousarray, (tokens, dx)), out)
        _kernel("embedding_gradient", dx.dtype.name)((rows, replicas), TILE, (*arrays, T, d))
        return out

    def all_finite(self, arrays: Iterable[Array]) -> bool:
        """Look at every entry, and at the outcome once."""
        found = cupy.zeros(1, np.int32)
        for array in arrays:
            _by_entry("find_non_finite", array.size, cupy.ascontiguousarray(array), found)
        return not int(found[0])

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
            if not array.flags.c_contiguous:  # a copy would be written instead
                checks.fail(name, "a strided array", "a C-contiguous one")
        arrays = (value, cupy.ascontiguousarray(gradient), mean, square)
        numbers = (beta1, beta2, step_size, inverse_correction, epsilon, shrink)
        _by_entry("adamw", value.size, *arrays, *map(float, numbers))

    def _target(self, like: Array, out: Array | None) -> Array:
        """Return a contiguous array for a kernel to write: `out` if it is one."""
        if out is not None and out.flags.c_contiguous:
            return out
        return self.empty(like.shape, like.dtype)


def what_is_missing() -> str | None:
    """Return what this engine lacks to run here, or None: a driver, a device, CUDA's libraries."""
    runtime = cupy.cuda.runtime
    if not runtime.driverGetVersion():
        return "an NVIDIA driver"
    try:
        if not runtime.getDeviceCount():
            return "a CUDA device"
    except runtime.CUDARuntimeError as error:
        kind = "a newer NVIDIA driver" if "InsufficientDriver" in str(error) else "a CUDA device"
        return f"{kind} ({error})"
    try:
        for library in ("cublas", "nvrtc"):  # which load when they are asked for
            getattr(cupy.cuda, library)
    except (ImportError, RuntimeError) as error:
        return f"CUDA's libraries ({error})"
    return None


def _by_row(name: str, rows: int, array: Array, *others: Any) -> None:
    """Run a kernel that takes a warp a row."""
    grid = (-(-rows // ROWS[1]),)
    _kernel(name, array.dtype.name)(grid, ROWS, (rows, array, *others))


def _by_entry(name: str, entries: int, array: Array, *others: Any) -> None:
    """Run a kernel that takes a thread an entry."""
    grid = (-(-entries // ENTRIES[0]),)
    _kernel(name, array.dtype.name)(grid, ENTRIES, (entries, array, *others))


@cache
def _kernel(name: str, dtype: str) -> Any:
    return _module(dtype).get_function(name)


@cache
def _module(dtype: str) -> Any:
    return cupy.RawModule(code=SOURCE.read_text(), options=(f"-DREAL={REALS[dtype]}",))


def _on_device(allowed: Array) -> Array:
    return _kept_mask(np.ascontiguousarray(allowed).tobytes(), len(allowed))


@lru_cache(maxsize=32)
def _kept_mask(entries: bytes, size: int) -> Array:
    return cupy.asarray(np.frombuffer(entries, bool).reshape(size, size))

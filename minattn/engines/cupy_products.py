"""Batched matrix products on the GPU, straight from arrays of any strides.

cupy.matmul copies a transposed or strided operand first, and its result once more into a strided
one; nearly all operands here are such views, of q, k and v side by side or of W^T and x^T. cuBLAS
reads matrices where they are, given the distances between rows or columns and between matrices,
which are counted in entries.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import cupy
import numpy as np

DeviceArray: TypeAlias = Any  # a cupy.ndarray

MOST_MATRICES = 65535  # of a call
MOST_CALLS = 16  # of a product: beyond, copies are cheaper
ZERO_AND_ONE = {kind: np.array([0, 1], kind) for kind in ("float32", "float64")}


class Axis(NamedTuple):
    """A leading axis: how many matrices, and how far apart they are in a, b and out."""

    size: int
    steps: tuple[int, ...]


def matmul(a: DeviceArray, b: DeviceArray, out: DeviceArray) -> DeviceArray:
    """Write a @ b over the last two axes to `out` and return it; all leading axes are equal."""
    left, right, target = _readable(a), _readable(b), _writable(out)
    axes = _merged_axes(left, right, target)
    if np.prod([axis.size for axis in axes[1:]], dtype=int) > MOST_CALLS:
        left, right, target = (*map(cupy.ascontiguousarray, (a, b)), _contiguous(out))
        axes = _merged_axes(left, right, target)
    _multiply(left, right, target, axes)
    if target is not out:
        out[...] = target
    return out


def _multiply(a: DeviceArray, b: DeviceArray, out: DeviceArray, axes: Sequence[Axis]) -> None:
    kind = out.dtype.name
    cublas, handle = cupy.cuda.cublas, cupy.cuda.device.get_cublas_handle()
    gemm = {"float32": cublas.sgemmStridedBatched, "float64": cublas.dgemmStridedBatched}[kind]
    zero = ZERO_AND_ONE[kind].ctypes.data
    one = zero + out.itemsize
    # cuBLAS counts by columns: what it is told of is out^T = b^T a^T.
    (a_turned, a_lead), (b_turned, b_lead), (_, lead) = (_layout(x) for x in (a, b, out))
    sizes = (out.shape[-1], out.shape[-2], a.shape[-1])
    a_step, b_step, step = axes[0].steps
    for count, starts in _calls(axes):
        A, B, C = (x.data.ptr + out.itemsize * n for x, n in zip((a, b, out), starts, strict=True))
        left, right = (B, b_lead, b_step), (A, a_lead, a_step)
        turned = (int(b_turned), int(a_turned))
        gemm(handle, *turned, *sizes, one, *left, *right, zero, C, lead, step, count)


def _calls(axes: Sequence[Axis]) -> Iterator[tuple[int, list[int]]]:
    """Yield how many matrices a call takes, and where it starts in a, b and out."""
    first, *others = axes
    for index in itertools.product(*(range(axis.size) for axis in others)):
        for done in range(0, first.size, MOST_MATRICES):
            places = (done, *index)
            starts = [
                sum(place * axis.steps[i] for axis, place in zip(axes, places, strict=True))
                for i in range(3)
            ]
            yield min(first.size - done, MOST_MATRICES), starts


def _merged_axes(*arrays: DeviceArray) -> list[Axis]:
    """Return the leading axes of a, b and out, merged where all three allow; the longest first."""
    merged = [Axis(1, (0, 0, 0))]
    strides = [[step // x.itemsize for step in x.strides[:-2]] for x in arrays]
    for size, *steps in zip(arrays[2].shape[:-2], *strides, strict=True):
        axis = Axis(size, tuple(steps))
        if size > 1 and merged[-1].steps == tuple(size * step for step in steps):
            merged[-1] = Axis(merged[-1].size * size, axis.steps)
        elif size > 1:
            merged.append(axis)
    return sorted(merged, key=lambda axis: -axis.size)


def _layout(x: DeviceArray) -> tuple[bool, int]:
    """Return whether matrices lie column by column, and the distance between columns or rows.

    That distance is 0 if they lie in neither way.
    """
    (rows, columns), (down, right) = x.shape[-2:], (step // x.itemsize for step in x.strides[-2:])
    if right == 1 or columns == 1:
        distance = down if rows > 1 else columns
        if distance >= columns:
            return False, distance
    if down == 1 or rows == 1:
        distance = right if columns > 1 else rows
        if distance >= rows:
            return True, distance
    return False, 0


def _readable(x: DeviceArray) -> DeviceArray:
    return x if _layout(x)[1] and min(x.strides) >= 0 else cupy.ascontiguousarray(x)


def _writable(out: DeviceArray) -> DeviceArray:
    turned, distance = _layout(out)
    in_order = distance and not turned and min(out.strides) >= 0
    return out if in_order else cupy.empty(out.shape, out.dtype)


def _contiguous(out: DeviceArray) -> DeviceArray:
    return out if out.flags.c_contiguous else cupy.empty(out.shape, out.dtype)

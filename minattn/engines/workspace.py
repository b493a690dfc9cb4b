"""Buffers that a training loop uses again at every step."""

from __future__ import annotations

from typing import Any

import numpy as np

from minattn.arrays import Array


class Workspace:
    """Hands out the same arrays, in the same order, after each `restart`.

    A training step asks for the same sequence of shapes every time, so the k-th request of a step
    gets the k-th buffer. One workspace belongs to one shard; it is never shared between threads.
    """

    def __init__(self) -> None:
        self._buffers: list[Array] = []
        self._next = 0

    def restart(self) -> None:
        """Declare every array handed out so far free again."""
        self._next = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialised array, a buffer of an earlier step where one fits."""
        if self._next == len(self._buffers):
            self._buffers.append(np.empty(shape, dtype))
        buffer = self._buffers[self._next]
        if buffer.shape != shape or buffer.dtype != dtype:
            buffer = self._buffers[self._next] = np.empty(shape, dtype)
        self._next += 1
        return buffer

"""Buffers that a training loop uses again at every step."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from minattn.arrays import Array


class Workspace:
    """Hands out the same memory, in the same order, after each `restart`.

    A block of a step asks for the same sequence of shapes every time, or for smaller ones, so the
    k-th request gets the k-th buffer. A workspace serves one block at a time; it is never shared
    between threads.
    """

    def __init__(self) -> None:
        self._buffers: list[Array] = []  # bytes
        self._views: list[Array] = []  # what was last handed out of each
        self._next = 0
        self._complete = False

    def restart(self, complete: bool = False) -> None:
        """Declare every array handed out so far free again; `complete` keeps scratch arrays."""
        self._next, self._complete = 0, complete

    @contextlib.contextmanager
    def scratch(self) -> Iterator[None]:
        """Declare what is handed out in this context free at its end, unless all is kept."""
        before = self._next
        yield
        if not self._complete:
            self._next = before

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialised array, out of a buffer of an earlier step where one is there."""
        number = self._next
        self._next += 1
        if number < len(self._views):
            view = self._views[number]
            if view.shape == shape and view.dtype == dtype:
                return view
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if number == len(self._buffers):
            self._buffers.append(np.empty(size, np.uint8))
            self._views.append(self._buffers[number])
        elif self._buffers[number].size < size:
            self._buffers[number] = np.empty(size, np.uint8)
        view = self._views[number] = self._buffers[number][:size].view(dtype).reshape(shape)
        return view


class Buffers:
    """What a training loop keeps from step to step: arrays for gradients, and workspaces."""

    def __init__(self) -> None:
        self._gradients: list[dict[str, Array]] = []  # one set a share of the batch
        self._lasting: dict[tuple[int, int], Workspace] = {}
        self._free: list[Workspace] = []

    def gradients_like(
        self, xp: Any, params: dict[str, Array], sets: int
    ) -> list[dict[str, Array]]:
        """Return uninitialised arrays of the shapes of `params`, in so many sets.

        `xp` is the module of their kind of arrays.
        """
        while len(self._gradients) < sets:
            self._gradients.append({n: xp.empty(p.shape, p.dtype) for n, p in params.items()})
        return self._gradients[:sets]

    @contextlib.contextmanager
    def workspace(
        self, block: tuple[int, int] | None = None, complete: bool = False
    ) -> Iterator[Workspace]:
        """Lend a workspace, to one borrower at a time; a block's own is for arrays that last.

        Which of several borrowers gets which does not matter: contents mean nothing. In a complete
        one, and in a block's own, scratch arrays stay until it is lent again.
        """
        if block is not None:
            workspace = self._lasting.setdefault(block, Workspace())
        else:
            try:
                workspace = self._free.pop()
            except IndexError:
                workspace = Workspace()
        workspace.restart(complete or block is not None)
        yield workspace
        if block is None:
            self._free.append(workspace)

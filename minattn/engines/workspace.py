"""What a training loop uses again at every step: buffers, and the calls that fill them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import is_
from typing import Any, TypeAlias, TypeVar

import numpy as np

from minattn.arrays import Array

Call: TypeAlias = Callable[[], object]
Kept = TypeVar("Kept")


class Workspace:
    """Hands out the same memory, in the same order, after each `restart`.

    A block of a step asks for the same sequence of shapes every time, or for smaller ones, so the
    k-th request gets the k-th buffer. A workspace serves one block at a time; it is never shared
    between threads.
    """

    def __init__(self) -> None:
        self.kept: dict[Hashable, Any] = {}  # what borrowers leave to be found again
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
    """What a training loop keeps from step to step: workspaces, and what it has prepared."""

    def __init__(self) -> None:
        self._lasting: dict[Hashable, Workspace] = {}
        self._free: list[Workspace] = []
        self._prepared: tuple[Hashable, Sequence[Array], Any] | None = None

    def prepared(
        self, settings: Hashable, arrays: Sequence[Array], prepare: Callable[[], Kept]
    ) -> Kept:
        """Return what `prepare` returned last, if that was for equal settings and these arrays.

        Otherwise forget all that is kept here, and prepare anew. Arrays count as these if they are
        the same objects, whatever is in them.
        """
        if self._prepared is not None:
            before, those, kept = self._prepared
            if before == settings and len(those) == len(arrays) and all(map(is_, those, arrays)):
                return kept
        self.__init__()  # type: ignore[misc]
        kept = prepare()
        self._prepared = settings, arrays, kept
        return kept

    @contextlib.contextmanager
    def workspace(
        self, lasting: Hashable | None = None, complete: bool = False
    ) -> Iterator[Workspace]:
        """Lend a workspace, to one borrower at a time; one of a name is for arrays that last.

        Which of several borrowers gets which does not matter: contents mean nothing. In a complete
        one, and in one of a name, scratch arrays stay until it is lent again.
        """
        if lasting is not None:
            workspace = self._lasting.setdefault(lasting, Workspace())
        else:
            try:
                workspace = self._free.pop()
            except IndexError:
                workspace = Workspace()
        workspace.restart(complete or lasting is not None)
        yield workspace
        if lasting is None:
            self._free.append(workspace)

"""How many threads a step may use, and the pool that runs its shards."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from minattn import checks

Result = TypeVar("Result")


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_threads = available_cores()


def set_threads(n: int) -> None:
    """Set how many threads a training step of a compiled engine uses.

    The default is the number of cores that the process may use. Results are bit-equal for the same
    number of threads.

    Raises
    ------
    ValueError
        If `n` is not a positive integer.
    """
    global _threads
    _threads = checks.integer("n", n, minimum=1)


def get_threads() -> int:
    """Return the number of threads that a training step uses."""
    return _threads


def run_in_threads(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run tasks side by side, with one BLAS thread each, and return their results in order.

    Each thread, the calling one among them, takes the next task when it is done with one. When a
    task fails, those that have begun are finished first.
    """
    waiting = deque(enumerate(tasks))
    results: dict[int, Result] = {}

    def work() -> None:
        while waiting:
            try:
                number, task = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                results[number] = task()
            except BaseException:
                waiting.clear()
                raise

    with single_threaded_blas():
        helpers = min(_threads, len(tasks)) - 1
        futures = [_pool(_threads).submit(work) for _ in range(helpers)]
        try:
            work()
        finally:
            errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None:
            raise error
    return [results[number] for number in range(len(tasks))]


@contextlib.contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Run a context in which BLAS uses one thread a call.

    The limit is the process's, not the thread's: the first to enter sets it, and the last to leave
    takes it back, so that runs in several threads neither lift it too early nor leave it behind.
    """
    _limit.enter()
    try:
        yield
    finally:
        _limit.leave()


class _Limit:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._limits: Any = None

    def enter(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._limits = _blas().limit(limits=1, user_api="blas")
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limits.restore_original_limits()

    def after_fork(self) -> None:
        """Forget the threads that the fork left behind, which may have held lock and limit."""
        if self._inside:
            self._limits.restore_original_limits()
        self.__init__()  # type: ignore[misc]


_limit = _Limit()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    # The calling thread runs a task as well.
    return ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="minattn")


@cache
def _blas():  # type: ignore[no-untyped-def]
    # Held, because finding the loaded libraries anew takes half a millisecond.
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
    os.register_at_fork(after_in_child=_limit.after_fork)

"""How many threads a step may use, and the pool that runs its shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import TypeVar

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
    """Run tasks side by side, with one BLAS thread each, and return their results in order."""
    with single_threaded_blas():
        if len(tasks) == 1:
            return [tasks[0]()]
        futures = [_pool(_threads).submit(task) for task in tasks[1:]]
        try:
            first = tasks[0]()
        finally:
            results = [future.exception() or future.result() for future in futures]
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [first, *results]  # type: ignore[list-item]


def single_threaded_blas() -> AbstractContextManager[object]:
    """Return a context in which BLAS uses one thread a call."""
    limits: AbstractContextManager[object] = _blas().limit(limits=1, user_api="blas")
    return limits


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

"""Executors for settings: this process, processes on this machine, or a Dask cluster.

Each computes a setting with one thread of minattn and one of BLAS.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from minattn import checks
from minattn.arrays import Array
from minattn.engines import get_threads, set_threads
from minattn.engines.threads import single_threaded_blas

Result: TypeAlias = dict[str, Array]
Function: TypeAlias = Callable[[Any], Result]

CONNECT_WITHIN = "10s"


class Submitter(NamedTuple):
    """How to submit a setting, and how many settings to submit at a time."""

    submit: Callable[[Any], Future[Result]]
    room: float


@contextlib.contextmanager
def open_executor(function: Function, workers: int, scheduler: str | None) -> Iterator[Submitter]:
    """Open this process, a pool of processes or a cluster as an executor.

    Raises
    ------
    ValueError
        If the cluster cannot be reached.
    ChildProcessError
        If the cluster gives a setting up, because its workers keep dying.
    """
    if scheduler is not None:
        with _cluster(scheduler) as cluster:
            yield Submitter(lambda s: cluster.submit(_compute, _by_value(function, s)), math.inf)
    elif workers == 1:
        with one_thread():
            yield Submitter(lambda setting: _InProcess().submit(function, setting), 1)
    else:
        with _processes(workers) as pool:
            # No more than there are workers: those that a broken pool takes along are then the ones
            # that had begun.
            yield Submitter(lambda setting: pool.submit(function, setting), workers)


class _InProcess(Executor):
    """Computes at once, where it is called; Ctrl-C passes through."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **named))
        except Exception as error:
            future.set_exception(error)
        return future


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread in this process, and give back what was there before."""
    before = get_threads()
    set_threads(1)
    try:
        with single_threaded_blas():
            yield
    finally:
        set_threads(before)


def _hold_one_thread() -> None:
    """Compute with one thread in this process from now on."""
    set_threads(1)
    single_threaded_blas().__enter__()


@contextlib.contextmanager
def _processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of new processes; an error or Ctrl-C in the block ends them at once."""
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")  # threads do not survive a fork
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker)
    try:
        yield pool
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()  # nothing that it still computes is wanted
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches workers too: end without a word
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _hold_one_thread()


def _end_with_parent() -> None:
    """End this worker when its parent is killed: nobody would ever give it work again."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextlib.contextmanager
def _cluster(scheduler: str) -> Iterator[Executor]:
    """Connect to a Dask scheduler; settings whose workers die are its own to try again."""
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        needs = "the package distributed: pip install 'minattn[cluster]'"
        checks.fail("--scheduler", f"{scheduler!r}, which cannot be used", needs)
    try:
        client = Client(scheduler, timeout=CONNECT_WITHIN)
    except (OSError, ValueError) as error:
        checks.fail("--scheduler", f"{scheduler!r} ({error})", "the address of a Dask scheduler")
    with client:
        try:
            yield client.get_executor()
        except KilledWorker as error:
            raise ChildProcessError(str(error)) from error


def _by_value(function: Function, setting: Any) -> bytes:
    """Pickle a call for workers that cannot import the script's folder."""
    import cloudpickle

    beside = _beside(function.__module__)
    for name in beside:
        cloudpickle.register_pickle_by_value(sys.modules[name])
    try:
        return bytes(cloudpickle.dumps((function, setting)))
    finally:
        for name in beside:
            cloudpickle.unregister_pickle_by_value(sys.modules[name])


def _beside(module: str) -> list[str]:
    """Return the loaded modules and packages in the folder of this one's script.

    None if the module is minattn's or installed: workers have it.
    """
    top = module.partition(".")[0]
    folder = _home(top)
    if top == "minattn" or folder is None or folder.name in ("site-packages", "dist-packages"):
        return []
    here = ("__main__", "minattn")  # what is in __main__ always travels by value
    names = (name for name in list(sys.modules) if "." not in name and name not in here)
    return [name for name in names if _home(name) == folder]


def _home(name: str) -> Path | None:
    """Return the folder in which a top-level module or package lies; None for one without files."""
    module = sys.modules[name]
    places = [*getattr(module, "__path__", []), getattr(module, "__file__", None)]
    return Path(places[0]).resolve().parent if places[0] else None


def _compute(call: bytes) -> Result:
    # For good: this process may compute several settings side by side, and giving back what was
    # there before would do so under the feet of the others.
    _hold_one_thread()
    function, setting = pickle.loads(call)
    result: Result = function(setting)
    return result

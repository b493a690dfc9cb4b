"""Many independent settings: one after the other, in processes, or on a Dask cluster.

A sim gives `run` a function of its own and a list of settings. What is finished is kept, so that a
run that was stopped can go on. Numbers depend on a setting alone, not on how the work was split:
every setting is computed with one thread of minattn and one of BLAS, also in this process, because
sums over the shards of a batch round differently for another number of threads. More cores are
used by more workers.

Functions travel by name to processes and by value to a cluster, and a script is no exception. A new
process imports the script that was started before it unpickles anything, as `multiprocessing` does
under "spawn": the script must start its run under ``if __name__ == "__main__"``. Workers of a
cluster need minattn, but not the script's folder: modules and packages that lie in it are pickled
by value, which functions under `functools.cache` cannot be.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

import minattn
from minattn import checks
from minattn.executors import Function, Result, Submitter, open_executor
from minattn.saving import claimed, load_arrays, save_arrays

RETRIES = 3  # of a setting whose worker died
_MOST_WORKERS = 9999


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add --workers, --scheduler and --resume to a sim's arguments."""
    group = parser.add_argument_group("how the work is split (numbers do not depend on it)")
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "--workers",
        type=_at_least_one,
        metavar="N",
        help="processes on this machine, one thread each (default one a core, with --quick 1)",
    )
    where.add_argument(
        "--scheduler",
        metavar="tcp://HOST:PORT",
        help="use the workers of this Dask cluster instead (pip install 'minattn[cluster]')",
    )
    group.add_argument(
        "--resume", action="store_true", help="use again what an earlier run has finished"
    )


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_WORKERS:
        needs = f"an integer within 1..{_MOST_WORKERS}"
        raise argparse.ArgumentTypeError(f"got {text!r}, needs {needs}")
    return int(text)


def run_as_asked(
    function: Function, settings: Sequence[Any], options: argparse.Namespace, label: str
) -> list[Result]:
    """Do `run` with what the options of `add_options` and --out say; otherwise as there."""
    # Beside the result folder, not in it: that is replaced as a whole when a run is complete.
    folder = options.out.with_name(f".{options.out.name}.settings")
    return run(
        function,
        settings,
        folder=folder,
        workers=options.workers,
        scheduler=options.scheduler,
        resume=options.resume,
        label=label,
    )


def run(
    function: Function,
    settings: Sequence[Any],
    *,
    folder: str | Path,
    workers: int = 1,
    scheduler: str | None = None,
    resume: bool = False,
    label: str = "",
) -> list[Result]:
    """Compute ``function(setting)`` for every setting; return the results in their order.

    Each result is saved as soon as it is there. A setting whose worker dies is tried again, up to
    `RETRIES` times (on a cluster, as often as its scheduler allows).

    Parameters
    ----------
    function : callable
        At the top level of a module or script; takes a setting and returns a flat dict of arrays.
        Its numbers must follow from the setting alone.
    settings : list of dataclass instances
        Picklable, with fields that JSON can hold; no two equal.
    folder : path
        Where results are kept, one safetensors file a setting; made if it does not exist.
    workers : int
        1: in this process. More: so many processes.
    scheduler : str, optional
        Address of a Dask scheduler, whose workers are used instead.
    resume : bool
        True: results in `folder` that this version of minattn made for the same function and
        setting are used again. False: those of this sweep are removed first.
    label : str
        Names the progress bar, and tells sweeps of one function in one folder apart.

    Raises
    ------
    ValueError
        If an argument does not fit, a result is no flat dict of arrays of numbers, the cluster
        cannot be reached, or another run of this sweep writes to the folder.
    OSError
        If a result cannot be kept, as on a full disk; those before it are.
    ChildProcessError
        If the workers of a setting keep dying.
    KeyboardInterrupt
        Passed on; what is finished is kept.
    """
    from tqdm import tqdm

    workers = checks.integer("workers", workers, minimum=1)
    store = _Store(Path(folder), function, label, [_plain(setting) for setting in settings])
    with store.held():
        results = store.load() if resume else store.clear()
        waiting = {number: s for number, s in enumerate(settings) if number not in results}
        size = {"total": len(settings), "initial": len(results)}
        bar = tqdm(desc=label, unit="setting", dynamic_ncols=True, **size)
        work = contextlib.closing(_finished(function, waiting, workers, scheduler))
        try:
            with bar, work as finished:
                for number, result in finished:
                    results[number] = store.save(number, result)
                    bar.update()
        except KeyboardInterrupt:
            kept = f"{len(results)} of {len(settings)} settings are kept"
            print(f"\n{kept}: --resume goes on with the others", file=sys.stderr)
            raise
    return [results[number] for number in range(len(settings))]


def _finished(
    function: Function, waiting: dict[int, Any], workers: int, scheduler: str | None
) -> Generator[tuple[int, Result], None, None]:
    """Yield results as they come; begin again with a new pool where a worker died."""
    waiting, started = dict(waiting), Counter[int]()
    while waiting:
        opened = open_executor(function, workers, scheduler)
        with contextlib.suppress(BrokenExecutor), opened as executor:
            for number, result in _through(executor, dict(waiting), started):
                del waiting[number]
                yield number, result


def _through(
    executor: Submitter, waiting: dict[int, Any], started: Counter[int]
) -> Iterator[tuple[int, Result]]:
    """Yield the results that one executor gives, until it breaks."""
    running: dict[Future[Result], int] = {}
    while waiting or running:
        while waiting and len(running) < executor.room:
            number = next(iter(waiting))
            started[number] += 1
            if started[number] > 1 + RETRIES:
                raise ChildProcessError(f"{waiting[number]}: its worker died {1 + RETRIES} times")
            running[executor.submit(waiting.pop(number))] = number
        done = wait(running, return_when=FIRST_COMPLETED).done
        # Results before errors: what is finished is to be kept.
        for future in sorted(done, key=lambda future: future.exception() is not None):
            yield running.pop(future), future.result()


class _Store:
    """The results of one sweep in a folder, one file a setting."""

    def __init__(self, folder: Path, function: Function, label: str, settings: list[Any]) -> None:
        name = f"{function.__module__}.{function.__qualname__}"
        name = name.replace("__main__", Path(sys.argv[0]).stem)  # however the script was started
        self.stem = re.sub(r"\W+", "-", f"{function.__qualname__} {label}".strip())
        self.notes = [
            {"function": name, "setting": setting, "minattn": minattn.__version__}
            for setting in settings
        ]
        self.paths = [folder / f"{self.stem}.{_hash(note)}.safetensors" for note in self.notes]
        if len(set(self.paths)) < len(self.paths):
            checks.fail("settings", "two that are equal", "each of them once")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            checks.fail("folder", f"{folder} ({error.strerror})", "a folder that can be made")
        if not os.access(folder, os.W_OK):
            checks.fail("folder", str(folder), "a folder that can be written")
        self.folder = folder

    def clear(self) -> dict[int, Result]:
        """Remove what earlier runs of this sweep have left; there is then nothing to use."""
        for path in self.folder.glob(f"{self.stem}.*.safetensors"):
            path.unlink()
        return {}

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder against other runs of this sweep; leave none that is empty."""
        try:
            with claimed(self.folder / self.stem, "folder"):
                yield
        finally:
            with contextlib.suppress(OSError):
                self.folder.rmdir()

    def load(self) -> dict[int, Result]:
        """Return the results that are there, by the number of the setting."""
        found = {}
        for number, (path, note) in enumerate(zip(self.paths, self.notes, strict=True)):
            with contextlib.suppress(ValueError):  # missing, or damaged: computed anew
                result, saved = load_arrays(path)
                if saved == note:
                    found[number] = result
        return found

    def save(self, number: int, result: Any) -> Result:
        """Keep a result and return it, or fail if it is not what a function has to return."""
        if not isinstance(result, dict):
            checks.fail("function", f"a {type(result).__name__}", "a dict of arrays from it")
        arrays = {str(name): np.asarray(value) for name, value in result.items()}
        for name, value in arrays.items():
            if value.dtype.kind not in "fiub":
                checks.fail("function", f"{name!r} of {value.dtype}", "arrays of numbers from it")
        save_arrays(self.paths[number], arrays, self.notes[number])
        return arrays


def _plain(setting: Any) -> Any:
    """Return a setting as JSON gives it back, or fail."""
    if not is_dataclass(setting) or isinstance(setting, type):
        checks.fail("settings", repr(setting), "instances of a dataclass")
    try:
        return json.loads(json.dumps(asdict(setting)))
    except TypeError as error:
        checks.fail("settings", f"{setting} ({error})", "fields that JSON can hold")


def _hash(note: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(note, sort_keys=True).encode()).hexdigest()[:20]

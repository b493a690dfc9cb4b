"""What a fresh process shows: peak memory of a step, and compilation at first use.

Run as a script it is that process, which prints one number; SETTING is JSON:

    python -m parts.benchmark.processes memory SETTING NAME THREADS
    python -m parts.benchmark.processes compilation SETTING
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
from parts.benchmark.contestants import ENGINES, engine_step, makers
from parts.benchmark.results import Found, row
from parts.benchmark.settings import Setting
from parts.benchmark.steps import LARGE, SMALL
from parts.benchmark.timing import claim, quartiles

from minattn import account, fit, init_params, next_token, set_threads
from minattn.data import MarkovChain

SIMS = Path(__file__).resolve().parents[2]

STEPS = 3  # in which memory is watched
RUNS = 2  # fresh processes a measurement of memory
COMPILATION = 15.0  # seconds, at most
PEAK = Path("/proc/self/clear_refs")


def models(quick: bool) -> list[Setting]:
    """Return the steps whose memory is measured."""
    made = [
        Setting(**SMALL, layers=4, heads=4, dtype="float64"),
        Setting(**LARGE, layers=4, heads=4),
        Setting(**SMALL | {"length": 512, "batch": 8}, layers=2, heads=4),
    ]
    return [replace(made[0], layers=1)] if quick else made


def measure_memory(setting: Setting, options: Namespace) -> Found:
    """Measure what a step takes above what is there before it, in fresh processes."""
    found, peaks = Found(lines=[str(setting)]), {}
    if not PEAK.exists():
        found.left_out["memory"] = "the system does not say"
        return found
    for name in ("numba", "numpy", "torch eager"):
        if name not in options.makers:
            continue
        peaks[name] = np.array(
            [ask("memory", setting, name, str(options.threads)) for _ in range(RUNS)]
        )
        found.rows.append(row("memory", name, peaks[name], "MiB", setting))
    told = ", ".join(f"{name} {quartiles(peak).median:.4g}" for name, peak in peaks.items())
    found.lines.append(f"  peak memory of a step, MiB: {told}")
    if "torch eager" in peaks:
        text = f"{setting}: memory over torch eager"
        found.claims = [claim(text, peaks["numba"] / peaks["torch eager"], 1.0)]
    return found


def runs(quick: bool) -> list[Setting]:
    """Return the models whose first training run is timed."""
    made = [Setting(**SMALL, layers=1, heads=4, feed_forward=more) for more in (False, True)]
    return made[:1] if quick else made


def measure_compilation(setting: Setting, options: Namespace) -> Found:
    """Time the first training run of a process, with an empty cache and with a filled one."""
    found = Found(lines=[str(setting)])
    with tempfile.TemporaryDirectory() as cache:
        for state in ("empty", "filled"):
            seconds = np.array([ask("compilation", setting, NUMBA_CACHE_DIR=cache)])
            found.rows.append(row("compilation", f"{state} cache", seconds, "s", setting))
            found.lines.append(f"  first use, {state} cache: {seconds[0]:.2f} s")
            if state == "empty":
                text = f"{setting}: seconds of compilation"
                found.claims.append(claim(text, seconds, COMPILATION))
    return found


def ask(task: str, setting: Setting, *more: str, **environment: str) -> float:
    """Run this file in a fresh process and return the number that it prints."""
    paths = f"{SIMS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment |= {"PYTHONPATH": paths.rstrip(os.pathsep)}
    command = [sys.executable, "-m", __name__, task, json.dumps(asdict(setting)), *more]
    run = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise ChildProcessError(f"{task} of {setting}: {run.stderr.strip().splitlines()[-1]}")
    return float(run.stdout.splitlines()[-1])


def memory(setting: Setting, name: str, threads: str) -> float:
    """Return the peak of resident memory in a step, in MiB over the level before it."""
    set_threads(int(threads))
    make = partial(engine_step, name) if name in ENGINES else makers(int(threads))[0][name]
    compiles_and_loads = replace(setting, length=8, batch=2)
    for sizes in (compiles_and_loads, setting):
        contestant = make(sizes, *sizes.numbers(seed=0))
        _give_back()
        level = _resident("VmRSS")
        PEAK.write_text("5")  # the peak starts anew
        with contestant.session():
            for _ in range(STEPS):
                contestant.step()
    return _resident("VmHWM") - level


def _give_back() -> None:
    """Give freed memory back to the system: what is left of it would hide a peak."""
    with contextlib.suppress(OSError, AttributeError):  # a C library without it
        ctypes.CDLL(None).malloc_trim(0)


def _resident(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def compilation(setting: Setting) -> float:
    """Return by how many seconds a first training run takes longer than a second one."""
    first, second = _train(setting), _train(setting)
    return first - second


def _train(setting: Setting) -> float:
    start = perf_counter()
    config = setting.config
    params = init_params(config, dtype=setting.dtype)
    chain = MarkovChain.random(setting.vocabulary)
    train = partial(fit, config, params, chain, next_token, steps=2, engine="numba")
    train(length=setting.length, observe=account(config, params))
    return perf_counter() - start


if __name__ == "__main__":
    task = {"memory": memory, "compilation": compilation}[sys.argv[1]]
    print(task(Setting(**json.loads(sys.argv[2])), *sys.argv[3:]))

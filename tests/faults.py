"""Kills, full disks and second runs: what is left behind must be the old or the new, and whole.

    python tests/faults.py --kills 200

starts training with ``save=``, figures, result folders and sweeps in processes of their own, kills
each at a random moment, looks at what is there, and lets the next one go on from it. The suite does
the same with few kills.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

import minattn as ma
from minattn import experiment, plots, sweep
from minattn.saving import load_arrays

CONTEXT = multiprocessing.get_context("forkserver")  # a fork of a process without threads
CONTEXT.set_forkserver_preload(
    ["minattn.training", "minattn.plots", "minattn.sweep", "matplotlib.figure", "safetensors.numpy"]
)
LONG = 10**6  # more work than a victim lives to do
DEAD = 77

CONFIG = ma.TransformerConfig(vocab_size=3, width=8, layers=1, heads=2, max_length=6)


class Uniform:
    """A source that needs no compiler, so that victims begin at once."""

    n_symbols = 3

    def sample(self, B: int, N: int, rng: np.random.Generator) -> np.ndarray:
        return rng.integers(3, size=(B, N))


class Reached:
    """What a victim says it has done, where its killer can read it."""

    def __init__(self) -> None:
        self._numbers = CONTEXT.Array("q", [0, 0], lock=False)

    def begin(self) -> None:
        self._numbers[1] = 1

    def say(self, count: int) -> None:
        self._numbers[0] = count

    @property
    def count(self) -> int:
        return self._numbers[0]

    def wait_for_begin(self) -> None:
        for _ in range(60_000):
            if self._numbers[1]:
                self._numbers[1] = 0
                return
            time.sleep(0.001)
        raise TimeoutError("a victim did not begin")


# Training


class Steps:
    """A progress bar that says which steps are saved: all before the one that it is told of."""

    def __init__(self, reached: Reached, start: int) -> None:
        self.reached, self.made = reached, start

    def set_postfix(self, **values: object) -> None:
        pass

    def update(self) -> None:
        self.reached.say(self.made)
        self.made += 1


def fit(folder: Path, steps: int, progress: Steps | None = None) -> ma.History:
    path = folder / "run"
    return ma.fit(
        CONFIG,
        ma.init_params(CONFIG),
        Uniform(),
        ma.MaskedToken(mask_symbol=3),
        steps=steps,
        batch_size=2,
        length=6,
        engine="numpy",
        record_every=LONG,
        save=path,
        save_every=1,
        resume=path if path.exists() else None,
        progress=progress,
    )


def saved_step(folder: Path) -> int:
    """Return the step of the save, or fail: whatever is there must be whole."""
    path = folder / "run"
    return load_arrays(path)[1]["step"] if path.exists() else 0


def train(folder: Path, reached: Reached) -> None:
    fit(folder, LONG, Steps(reached, saved_step(folder)))


def check_training(folder: Path, said: int) -> None:
    step = saved_step(folder)
    assert step >= said, f"step {step} is saved, and {said} had been"
    with tempfile.TemporaryDirectory() as other:
        never_stopped = fit(Path(other), max(step, 1)).params
    here = load_arrays(folder / "run")[0] if step else {}
    for name, value in here.items():
        if name.startswith("params."):
            np.testing.assert_array_equal(value, never_stopped[name.removeprefix("params.")])


# Figures


def draw(path: Path, number: int) -> None:
    made = plots.figure(1, 1)
    made.text(0.2, 0.5, str(number % 2))
    plots.save(made, path)


def figures(folder: Path, reached: Reached) -> None:
    for number in range(reached.count + 1, LONG):
        draw(folder / "figure.png", number)
        reached.say(number)


def check_figures(folder: Path, said: int) -> None:
    if not said and not (folder / "figure.png").exists():
        return
    possible = []
    for number in (0, 1):
        draw(folder / "expected.png", number)
        possible.append((folder / "expected.png").read_bytes())
    found = (folder / "figure.png").read_bytes()
    assert found in possible
    assert found in (possible[said % 2], possible[(said + 1) % 2])


# Result folders


def results(folder: Path, reached: Reached) -> None:
    for number in range(reached.count + 1, LONG):
        with experiment.result_folder(folder / "results") as made:
            experiment.write_json(made.path("summary.json"), {"number": number})
            experiment.write_csv(made.path("metrics.csv"), ("number",), [(number,)] * 500)
            made.complete()
        reached.say(number)


def fill_and_die(target: Path, files: dict[str, str], survived: int) -> None:
    """Complete a run of these files, and die before one change of the disk more than `survived`."""
    left = [survived]

    def count(event: str, arguments: tuple[object, ...]) -> None:
        written = event == "open" and set(str(arguments[1])) & set("wax+")
        if written or event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir"):
            if not left[0]:
                os._exit(DEAD)
            left[0] -= 1

    with experiment.result_folder(target) as made:
        for name, text in files.items():
            made.path(name).write_text(text)
        sys.addaudithook(count)
        made.complete()


def check_results(folder: Path, said: int) -> None:
    if said:  # also before the next run has put in order what it finds
        for file in ("metrics.csv", "summary.json"):
            found = (folder / "results" / file).read_text()
            assert any(re.search(rf"\b{number}\b", found) for number in (said, said + 1))
    with experiment.result_folder(folder / "results"):  # as the next run does
        files = sorted((folder / "results").iterdir()) if said else []
    assert [file.name for file in files] == (["metrics.csv", "summary.json"] if said else [])
    if said:
        table = files[0].read_text().split()
        number = int(table[1])
        assert number in (said, said + 1)
        assert table == ["number", *[str(number)] * 500]
        assert files[1].read_text() == f'{{\n  "number": {number}\n}}\n'
    assert {path.name for path in folder.iterdir()} <= {"results"}  # no lock, nothing half done


# Sweeps


@dataclass(frozen=True)
class Setting:
    number: int
    folder: str


def work(setting: Setting) -> dict[str, np.ndarray]:
    """Take a moment, and leave a note of having been computed."""
    with (Path(setting.folder) / f"computed.{setting.number}").open("a") as file:
        file.write("x")
    time.sleep(0.002)
    return {"square": np.full(1000, float(setting.number**2))}


SETTINGS = 40


def run_sweep(folder: Path, workers: int = 1) -> list[dict[str, np.ndarray]]:
    settings = [Setting(number, str(folder)) for number in range(SETTINGS)]
    return sweep.run(work, settings, folder=folder / "kept", workers=workers, resume=True)


def sweeps(folder: Path, reached: Reached) -> None:
    run_sweep(folder)
    reached.say(SETTINGS)


def check_sweeps(folder: Path, said: int) -> None:
    kept = list((folder / "kept").glob("work.*.safetensors"))
    assert len(kept) >= said
    for path in kept:
        (square,) = load_arrays(path)[0].values()
        assert square.shape == (1000,)
    # All that were computed are kept, but for the one that the kill came into.
    computed = list(folder.glob("computed.*"))
    assert len(computed) - len(kept) in (0, 1)
    again = [path for path in computed if path.read_text() != "x"]
    if not again:
        return
    for path in again:
        path.write_text("x")
    assert len(again) == 1  # computed twice: what the kill before this one had come into


VICTIMS = {
    "training": (train, check_training, 0.15),
    "figures": (figures, check_figures, 0.6),
    "results": (results, check_results, 0.1),
    "sweeps": (sweeps, check_sweeps, 0.15),
}


def begin(victim: Callable[[Path, Reached], None], folder: Path, reached: Reached) -> None:
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 # progress bars
    tqdm.set_lock(threading.RLock())  # its own outlives a kill
    reached.begin()
    victim(folder, reached)


def survive(name: str, kills: int, seed: int) -> int:
    """Kill victims one after another in one folder; return how many were at work when killed."""
    victim, check, span = VICTIMS[name]
    rng = np.random.default_rng(seed)
    at_work = 0
    with tempfile.TemporaryDirectory() as place:
        folder, reached = Path(place), Reached()
        for _ in range(kills):
            before = reached.count
            process = CONTEXT.Process(target=begin, args=(victim, folder, reached))
            process.start()
            reached.wait_for_begin()
            time.sleep(rng.uniform(0, span))
            process.kill()
            process.join(60)
            check(folder, reached.count)
            if process.exitcode == -signal.SIGKILL:
                at_work += reached.count > before or name == "sweeps"
            elif name == "sweeps" and process.exitcode == 0:  # it was done: begin anew
                folder = Path(tempfile.mkdtemp(dir=place))
                reached = Reached()
            else:
                raise AssertionError(f"{name}: a victim ended by itself, with {process.exitcode}")
        if name == "sweeps":
            squares = [float(result["square"][0]) for result in run_sweep(folder)]
            assert squares == [number**2 for number in range(SETTINGS)]
    return at_work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--kills", type=int, default=200, help="in all (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default 0)")
    options = parser.parse_args()
    share = -(-options.kills // len(VICTIMS))
    total = 0
    for name in VICTIMS:
        at_work = survive(name, share, options.seed)
        total += share
        print(f"{name:10} {share} kills survived, {at_work} of them of a run that had got on")
    print(f"{total} kills survived (seed {options.seed})")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import faults  # under this name, processes of its own can import it

    faults.main()

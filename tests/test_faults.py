"""Kills, full disks, folders that cannot be written, second runs: old or new, whole, and said."""

from __future__ import annotations

import contextlib
import errno
import resource
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import faults
import numpy as np
import pytest
from faults import CONTEXT, Reached

from minattn import experiment, sweep
from minattn.saving import claimed, load_arrays, save_arrays


@pytest.mark.parametrize("name", faults.VICTIMS)
def test_a_few_kills_are_survived(name):
    seed = secrets.randbelow(2**32)
    print(f"faults.survive({name!r}, kills=3, seed={seed})")
    faults.survive(name, kills=3, seed=seed)


OLD = {"summary.json": "old", "both.png": "old", "old.png": "old"}
NEW = {"summary.json": "new", "both.png": "new", "new.png": "new", "more.csv": "new"}


@pytest.mark.parametrize("old", [OLD, {}], ids=["replaced", "first"])
def test_a_result_folder_survives_a_death_between_any_two_steps(tmp_path, old):
    """Each file is the old or the new one; and so are all together once the next run begins."""
    outcomes = []
    for survived in range(100):
        folder = tmp_path / str(survived)
        target = folder / "run"
        target.mkdir(parents=True)
        for name, text in old.items():
            (target / name).write_text(text)
        victim = faults.CONTEXT.Process(target=faults.fill_and_die, args=(target, NEW, survived))
        victim.start()
        victim.join(60)
        found = texts(target)
        for name in old.keys() & NEW.keys():
            assert found[name] in ("old", "new")
        for name, text in found.items():
            assert text in (old.get(name), NEW.get(name))
        if found.get("summary.json") == "new":
            assert NEW.items() <= found.items()
        with experiment.result_folder(target):
            healed = texts(target)
        assert healed in (old, NEW)
        assert found == old or healed == NEW
        assert [path.name for path in folder.iterdir()] == ["run"]
        outcomes.append((found, healed == NEW))
        if victim.exitcode != faults.DEAD:
            break
    assert victim.exitcode == 0
    assert found == NEW
    assert (old, False) in outcomes
    assert len({str(found) for found, _ in outcomes}) >= len(NEW)  # it was there between two files


def texts(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


ORPHANS = """
import sys
sys.path.insert(0, {tests!r})
import faults
from pathlib import Path
faults.SETTINGS = 10_000  # more than it lives to do
faults.run_sweep(Path({folder!r}), workers=2)
"""


def test_workers_end_with_a_killed_parent(tmp_path):
    """A worker that nobody gives work any more must not stay for ever."""
    script = ORPHANS.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.DEVNULL, cwd=Path(__file__).parent.parent
    )
    workers = until(lambda: children_of(parent.pid, 2))
    parent.kill()
    parent.wait()
    until(lambda: not any(command_of(pid) for pid in workers))


def children_of(pid, count):
    """Return the processes below one, once there are so many at work."""
    with contextlib.suppress(OSError):
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        at_work = [one for one in listed if "spawn_main" in command_of(one)]
        return at_work if len(at_work) >= count else None


def command_of(pid):
    """Return the command of a process; none once it has ended, whether or not anyone reaped it."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def until(found, seconds=60):
    for _ in range(seconds * 50):
        if result := found():
            return result
        time.sleep(0.02)
    raise TimeoutError


# No room


@pytest.fixture
def disk(tmp_path):
    """Return a function that mounts a small disk, where that is allowed."""
    mounted = []

    def mount(kilobytes):
        place = tmp_path / "disk"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", place]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no disk can be mounted here")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", place], check=True)


def read_only(place):
    """Make a mounted disk read-only."""
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)


def fill(place):
    with contextlib.suppress(OSError), (place / "filling").open("wb") as file:
        while file.write(bytes(4096)):
            file.flush()


def test_a_full_disk_leaves_the_last_save_and_says_so(disk):
    place = disk(256)
    faults.fit(place, 3)
    fill(place)
    with pytest.raises(OSError, match="No space left on device"):
        faults.fit(place, 5)
    assert sorted(path.name for path in place.iterdir()) == ["filling", "run"]
    (place / "filling").unlink()
    faults.check_training(place, 3)
    assert faults.saved_step(place) in (3, 4)
    faults.fit(place, 5)
    faults.check_training(place, 5)


def test_a_full_disk_leaves_the_last_results_and_the_sim_says_so_in_one_line(disk, capsys):
    place = disk(256)

    def run(rows):
        with experiment.result_folder(place / "results") as folder:
            experiment.write_json(folder.path("summary.json"), {"rows": rows})
            experiment.write_csv(folder.path("metrics.csv"), ("row",), [("x" * 100,)] * rows)
            folder.complete()

    run(rows=1)
    with pytest.raises(SystemExit) as ending:
        experiment.run(lambda: run(rows=10_000))
    assert ending.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "No space left on device" in error
    assert error.count("\n") == 1
    assert [path.name for path in place.iterdir()] == ["results"]
    assert (place / "results" / "metrics.csv").read_text().count("x" * 100) == 1


def test_a_full_disk_keeps_the_settings_that_are_done(disk, tmp_path):
    place = disk(64)
    (tmp_path / "notes").mkdir()
    settings = [faults.Setting(number, str(tmp_path / "notes")) for number in range(20)]
    with pytest.raises(OSError, match="No space left on device"):
        sweep.run(faults.work, settings, folder=place / "kept")
    kept = sorted((place / "kept").iterdir())
    assert 0 < len(kept) < 20
    for path in kept:
        assert load_arrays(path)[0]["square"].shape == (1000,)


def limited(function, *arguments):
    """Call a function in a process that may write no more than 200 bytes to a file."""
    sending, receiving = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_limited, args=(receiving, function, *arguments))
    process.start()
    found = sending.recv() if sending.poll(60) else "nothing"
    process.join(60)
    return found


def _limited(connection, function, *arguments):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
    try:
        function(*arguments)
    except Exception as error:
        connection.send(getattr(error, "errno", repr(error)))
    else:
        connection.send(None)


def save_many(path):
    save_arrays(path, {"x": np.zeros(1000)}, {})


def draw(path):
    faults.draw(path, 0)


@pytest.mark.parametrize("writer", [save_many, draw])
def test_a_write_that_breaks_off_in_its_middle_leaves_the_old_file(tmp_path, writer):
    path = tmp_path / "file.png"
    path.write_bytes(b"old")
    assert limited(writer, path) == errno.EFBIG
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["file.png"]


# No leave to write


def test_nothing_is_begun_that_could_not_be_written(disk):
    place = disk(256)
    faults.fit(place, 1)
    run = (place / "run").read_bytes()
    read_only(place)
    setting = faults.Setting(0, str(place))  # work would fail to leave its note
    for begin, said in (
        (lambda: faults.fit(place, 5), r"^save: got .*run'"),
        (lambda: experiment.result_folder(place / "results").__enter__(), r"^--out: got .*results"),
        (lambda: sweep.run(faults.work, [setting], folder=place), r"^folder: got .*disk"),
        (lambda: sweep.run(faults.work, [setting], folder=place / "kept"), r"^folder: got .*kept"),
    ):
        with pytest.raises(ValueError, match=said):
            begin()
    assert [one.name for one in place.iterdir()] == ["run"]
    assert (place / "run").read_bytes() == run


# Two at once


def test_a_second_run_into_the_same_save_is_refused_and_disturbs_nothing(tmp_path):
    reached = Reached()
    process = CONTEXT.Process(target=faults.begin, args=(faults.train, tmp_path, reached))
    process.start()
    until(lambda: reached.count)
    with pytest.raises(ValueError, match=r"^save: got .*run', which another run is writing, needs"):
        faults.fit(tmp_path, 1)
    process.kill()
    process.join()
    faults.check_training(tmp_path, reached.count)
    step = faults.saved_step(tmp_path)
    faults.fit(tmp_path, step + 1)  # the killed run holds it no more
    assert [one.name for one in tmp_path.iterdir()] == ["run"]


def test_a_second_sweep_into_the_same_folder_is_refused(tmp_path):
    (tmp_path / "kept").mkdir()
    with (
        claimed(tmp_path / "kept" / "work", "folder"),
        pytest.raises(ValueError, match=r"^folder: got .*, which another run is writing"),
    ):
        faults.run_sweep(tmp_path)
    assert not list(tmp_path.glob("computed.*"))

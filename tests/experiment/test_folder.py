import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from minattn import experiment


def fill(target, text, name="summary.json"):
    with experiment.result_folder(target) as folder:
        folder.path(name).write_text(text)
        folder.complete()


def leftovers(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir())


def test_a_completed_run_replaces_the_whole_folder(tmp_path):
    target = tmp_path / "deep" / "run"
    fill(target, "old")
    (target / "old.png").write_text("of the old run")
    fill(target, "new")
    assert [path.name for path in target.iterdir()] == ["summary.json"]
    assert (target / "summary.json").read_text() == "new"
    assert leftovers(target.parent) == ["run"]


def test_a_failed_run_leaves_the_old_folder(tmp_path):
    target = tmp_path / "run"
    fill(target, "old")
    failing = experiment.result_folder(target)
    with failing as folder:
        folder.path("summary.json").write_text("half")
    assert (target / "summary.json").read_text() == "old"
    assert leftovers(tmp_path) == ["run"]


def test_an_interrupted_run_is_kept_beside(tmp_path):
    target = tmp_path / "run"
    fill(target, "old")
    for text in ("first", "second"):
        with experiment.result_folder(target) as folder:
            folder.path("summary.json").write_text(text)
            kept = folder.keep_interrupted()
    assert (kept / "summary.json").read_text() == "second"
    assert (target / "summary.json").read_text() == "old"


def test_two_runs_into_one_folder(tmp_path):
    target = tmp_path / "run"
    with (
        experiment.result_folder(target),
        pytest.raises(ValueError, match="another run is writing"),
        experiment.result_folder(target),
    ):
        pass
    fill(target, "the lock is free again")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_place_that_takes_no_files_is_not_called_another_run():
    with pytest.raises(
        ValueError, match=r"^--out: got '/proc/run' \(.+\), needs a folder that can"
    ):
        experiment.result_folder(Path("/proc/run")).__enter__()


def _hold_and_die(target):
    with experiment.result_folder(target) as folder:
        folder.path("summary.json").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_run_leaves_the_old_folder_and_no_lock(tmp_path):
    target = tmp_path / "run"
    fill(target, "old")
    process = multiprocessing.get_context("spawn").Process(target=_hold_and_die, args=(target,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert (target / "summary.json").read_text() == "old"
    fill(target, "new")
    assert leftovers(tmp_path) == ["run"]


def test_a_folder_with_folders_in_it_is_replaced(tmp_path):
    target = tmp_path / "run"
    for text in ("old", "new"):
        with experiment.result_folder(target) as folder:
            folder.path("summary.json").write_text(text)
            for name in ("parts", f"of the {text} run"):
                folder.path(name).mkdir()
                (folder.path(name) / "part").write_text(text)
            folder.complete()
    assert sorted(path.name for path in target.iterdir()) == [
        "of the new run",
        "parts",
        "summary.json",
    ]
    assert (target / "parts" / "part").read_text() == "new"


def test_folders_that_are_not_results_are_not_touched(tmp_path):
    (tmp_path / "photo.jpg").write_text("dear")
    with (
        pytest.raises(ValueError, match="no run has written"),
        experiment.result_folder(tmp_path),
    ):
        pass
    file = tmp_path / "file"
    file.write_text("")
    for target in (file, file / "below"):
        with pytest.raises(ValueError, match="--out"), experiment.result_folder(target):
            pass
    assert (tmp_path / "photo.jpg").read_text() == "dear"


def test_publish_copies_summary_and_figures_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target = Path("results/own")
    with experiment.result_folder(target) as folder:
        for name in ("summary.json", "metrics.csv", "loss.png"):
            folder.path(name).write_text(name)
        folder.complete()
    published = experiment.publish(target, "own")
    assert sorted(path.name for path in published.iterdir()) == ["loss.png", "summary.json"]
    assert published.resolve() == (tmp_path / "results/published/own").resolve()


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path, there):
    real, link = tmp_path / "real", tmp_path / "link"
    if there:
        real.mkdir()
    link.symlink_to(real)
    for text in ("old", "new"):
        fill(link, text)
    assert link.is_symlink()
    assert (real / "summary.json").read_text() == "new"
    assert leftovers(tmp_path) == ["link", "real"]


@pytest.mark.parametrize("name", [".", ".."])
def test_the_current_folder_is_not_replaced(tmp_path, monkeypatch, name):
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    with (
        pytest.raises(ValueError, match=r"--out: .* in which this process runs"),
        experiment.result_folder(Path(name)),
    ):
        pass

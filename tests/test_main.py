"""What `python -m minattn` says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import minattn
from minattn import __main__ as tour

ROOT = Path(__file__).parent.parent


def test_it_says_what_is_here():
    run = subprocess.run(
        [sys.executable, "-m", "minattn"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith(f"minattn {minattn.__version__}, Python ")
    assert not run.stderr
    for name in minattn.engines.availability():
        assert f" {name} " in run.stdout
    for title in ("threads", "BLAS", "sims"):
        assert f"\n{title}" in run.stdout


def test_an_engine_that_cannot_run_says_what_it_lacks(monkeypatch):
    monkeypatch.setattr(tour, "availability", lambda: {"numpy": None, "cupy": "a GPU\n or so"})
    auto, numpy, cupy = tour.engines()
    assert auto == f'"auto" is {minattn.engines.choose("auto").name}'
    assert numpy == "numpy    can run (float64, float32, complex128)"
    assert cupy == "cupy     cannot run here: it needs a GPU or so"


def test_blas_libraries_are_those_of_threadpoolctl(monkeypatch):
    import threadpoolctl

    one = {"user_api": "blas", "internal_api": "mkl", "version": "2024", "num_threads": 7}
    other = {"user_api": "openmp", "internal_api": "openmp", "version": None, "num_threads": 3}
    monkeypatch.setattr(threadpoolctl, "threadpool_info", lambda: [one, other])
    assert list(tour.blas()) == ["mkl 2024; threads: 7, inside a training step 1"]
    monkeypatch.setattr(threadpoolctl, "threadpool_info", list)
    (line,) = tour.blas()
    assert line.startswith("none")


def test_sims_are_listed_with_their_questions(tmp_path):
    (tmp_path / "why.py").write_text('"""Why?\n\nBecause."""\n')
    (tmp_path / "a_longer_name.py").write_text('"""What for?"""\nimport nothing\n')
    lines = list(tour.sims(tmp_path))
    assert lines[:2] == ["a_longer_name.py  What for?", "why.py            Why?"]
    assert lines[2].endswith("/NAME.py --quick")


@pytest.mark.parametrize("name", [".", "no such folder"])
def test_without_sims_it_says_where_to_get_them(tmp_path, name):
    (line,) = tour.sims(tmp_path / name)
    assert "source distribution" in line


def test_a_reader_who_leaves_early_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "minattn"]
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")

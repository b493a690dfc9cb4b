"""The check of the GPU engine: it passes what is right, catches what is not, and needs little."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "sims"), str(ROOT / "tests" / "engines")]

import cuda_on_cpu  # noqa: E402
import fake_cupy  # noqa: E402
from parts.benchmark import gpu_checks as checks  # noqa: E402

from minattn.claims import VERDICTS  # noqa: E402


@pytest.fixture
def device(monkeypatch):
    """A stand-in for a GPU, and models small enough for it."""
    if cuda_on_cpu.COMPILER is None:
        pytest.skip("no g++ to compile kernels for the CPU")
    monkeypatch.setattr(checks, "STEPS", 2)
    monkeypatch.setattr(checks, "BATCH", 1)
    monkeypatch.setattr(checks, "MODELS", {checks.TRAINED: {}})
    monkeypatch.setattr(checks, "SIZES", {"width": 4, "heads": 2, "layers": 1, "max_length": 32})
    with fake_cupy.installed():
        yield fake_cupy


def test_what_is_right_passes_and_every_primitive_is_looked_at(device):
    found = list(checks.checks())
    assert [one.name for one in found if not one.passed] == []
    assert len(found) == 2 * (len(checks.PRIMITIVES) + 3 * len(checks.MODELS)) + 2
    assert checks.replica_alone() == 0


@pytest.mark.parametrize("name", checks.PRIMITIVES)
def test_a_wrong_primitive_is_caught(device, monkeypatch, name):
    from minattn.engines.cupy_gpu import CupyGPU

    right = getattr(CupyGPU, name)

    def wrong(self, *arguments, **options):
        found = right(self, *arguments, **options)
        array = arguments[0] if found is None else found[0] if type(found) is tuple else found
        array += 1e-2
        return found

    monkeypatch.setattr(CupyGPU, name, wrong)
    for dtype, limit in checks.LIMITS.items():
        error = checks.primitive_error(checks.PRIMITIVES[name], dtype)
        assert not checks.Check(name, error, limit).passed


def test_nothing_that_is_not_a_number_passes(device):
    array = np.ones((2, 3))
    assert not checks.Check("", checks.relative_error({0: array * np.nan}, {0: array}), 1).passed


def test_it_runs_in_a_source_tree_with_numpy_alone():
    code = """
import sys
for name in ("numba", "scipy", "matplotlib", "tqdm", "safetensors", "filelock", "threadpoolctl"):
    sys.modules[name] = None
sys.path.insert(0, "sims")
from parts.benchmark import gpu_checks as checks
checks.train("numpy")
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.skipif(not (ROOT / "minattn").is_dir(), reason="needs minattn beside sims")
def test_it_starts_where_minattn_is_not_installed(tmp_path):
    code = f"""
import runpy
import sys
from importlib.machinery import PathFinder

class SourceTree:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "minattn":
            found = PathFinder.find_spec(name, [one for one in sys.path if one == {str(ROOT)!r}])
            if found is None:
                raise ModuleNotFoundError(name)
            return found

sys.meta_path.insert(0, SourceTree)
sys.path[0] = {str(ROOT / "sims")!r}
sys.argv = ["sims/benchmark.py", "--gpu-check", "--help"]
runpy.run_path({str(ROOT / "sims" / "benchmark.py")!r}, run_name="__main__")
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "--out" in run.stdout


# The rest needs what sims/benchmark.py needs


@pytest.fixture
def sim():
    from parts.benchmark import gpu

    return gpu


@pytest.fixture
def small(device, sim, monkeypatch):
    sizes = [("toy", sim._setting(4, 4, 2, 4, 1, 1)), ("large", sim._setting(4, 4, 2, 4, 2, 2))]
    monkeypatch.setattr(sim, "settings", lambda: sizes)
    monkeypatch.setattr(sim, "REPLICAS", (1, 2))
    monkeypatch.setattr(sim, "ROUNDS", 2)
    monkeypatch.setattr(sim, "SECONDS", 0.001)
    monkeypatch.setattr(sim, "DEVICE", "cpu")
    return sim


def test_a_whole_check_is_written_down(small, tmp_path, capsys):
    small.main(["--out", str(tmp_path / "out")])
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert {one["verdict"] for one in summary["claims"]} <= set(VERDICTS)
    assert any("over one replica" in one["claim"] for one in summary["claims"])
    assert len(summary["measured"]) == 4
    assert all(row["cupy ms"] > 0 for row in summary["measured"])
    assert all(one["error"] <= one["limit"] for one in summary["checks"])
    table = (tmp_path / "out" / "benchmark_gpu.csv").read_text().splitlines()
    assert len(table) == 5
    assert "a stand-in" in capsys.readouterr().out


def test_wrong_numbers_stop_it_before_anything_is_timed(small, monkeypatch, tmp_path):
    from minattn.engines.cupy_gpu import CupyGPU

    monkeypatch.setattr(CupyGPU, "gelu", lambda self, u: u)
    with pytest.raises(
        RuntimeError, match=r"gives wrong numbers on this device: \['gelu, float64'"
    ):
        small.gpu_check(tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_a_device_it_says_what_is_missing(sim, capsys):
    with pytest.raises(SystemExit):
        sim.main([])
    assert "cannot run here: it needs " in capsys.readouterr().err


def test_the_settings_are_those_promised(sim):
    kinds = [kind for kind, _ in sim.settings()]
    assert kinds == ["toy"] * 2 + ["small"] * 4 + ["large"] * 2

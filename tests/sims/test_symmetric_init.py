import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import symmetric_init as sim
from hypothesis import given
from hypothesis import strategies as st
from parts.symmetric_init import training

import minattn as ma
from minattn.claims import VERDICTS

ROOT = Path(__file__).parents[2]
TINY = ["--quick", "--steps", "4", "--replicas", "2", "--width", "8"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run from the command line, and where it is."""
    folder = tmp_path_factory.mktemp("symmetric_init")
    command = [sys.executable, ROOT / "sims" / "symmetric_init.py", *TINY, "--out", folder / "run"]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    return folder / "run", run


def test_a_quick_run_from_the_command_line(finished):
    out, run = finished
    assert "95% interval" in run.stdout
    assert "Traceback" not in run.stderr
    summary = json.loads((out / "summary.json").read_text(), parse_constant=pytest.fail)
    assert {"name", "config", "seeds", "engine", "threads", "versions"} <= summary.keys()
    assert len(summary["claims"]) == 36
    assert {claim["verdict"] for claim in summary["claims"]} <= set(VERDICTS)
    assert len(summary["results"]) == 22
    plain, symmetric = summary["results"][:2]
    assert plain["net_speed_up"]["mean"] == 0
    assert [layer["mean"] for layer in symmetric["symmetry_before"]] == pytest.approx([1, 1])
    assert plain["optimum"] is None
    assert {path.stem for path in out.glob("*.png")} == {"overview", "speed_up"}
    with (out / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["metric"] for row in rows} == {"loss", "symmetry", "symmetry_heads", "norm"}
    assert {row["start"] for row in rows} == set(training.STARTS)


def test_resume_gives_the_same_numbers(finished, capsys):
    out, _ = finished
    before = json.loads((out / "summary.json").read_text())
    for path in sorted(out.with_name(".run.settings").glob("*.safetensors"))[::8]:
        path.unlink()
    sim.main([*TINY, "--out", str(out), "--resume"])
    capsys.readouterr()
    after = json.loads((out / "summary.json").read_text())
    assert before["claims"] == after["claims"]
    assert before["results"] == after["results"]


def test_starts_share_scale_or_symmetry_and_tokens(finished):
    """Plain and symmetric starts have the norm that their names say, per head and in the mean."""
    options = sim.parse([*TINY, "--replicas", "64", "--width", "16"])
    norms = {}
    for name, start in training.STARTS.items():
        setting = sim.setting_of(options, "lag2", "causal", name)
        config = ma.TransformerConfig(
            vocab_size=8, width=setting.width, layers=1, heads=2, max_length=4
        )
        params = ma.init_params(config, setting.replicas, setting.seed, start.qk_init)
        heads = np.linalg.norm(ma.W_qk(params, per_head=True), axis=(-2, -1))
        norms[name] = np.sqrt((heads**2).mean())
    assert norms["symmetric_matched"] == pytest.approx(norms["random"], rel=0.05)
    assert norms["random_matched"] == pytest.approx(norms["symmetric"], rel=0.05)
    assert norms["symmetric"] > 1.1 * norms["random"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "0"], "--steps"),
        (["--replicas", "none"], "--replicas"),
        (["--width", "7"], "--width"),
        (["--layers", "0"], "--layers"),
        (["--sources", "lag3"], "--sources"),
        (["--penalty-weight", "-1"], "--penalty-weight"),
        (["--seed", "-1"], "--seed"),
        (["--workers", "0"], "--workers"),
        (["--text", "no such file"], "no such file"),
    ],
)
def test_bad_options_are_one_clear_line(options, message, refused):
    assert message in refused(sim.main, *TINY, *options)


def run_with(loss, steps=(0, 10, 20), **more):
    return {"steps": np.array(steps), "loss": np.array(loss, dtype=float), **more}


def test_speed_up_is_the_papers_with_lines_between_records():
    slow = run_with([[4.0, 4.0, 4.0], [3.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    fast = run_with([[4.0, 4.0, 1.0], [2.0, 2.9, 1.0], [1.0, 2.8, 1.0]])
    # Reached at step 10; never; before the first step.
    assert training.net_speed_up(slow, slow) == pytest.approx([0, 0, 0])
    assert training.speed_up(fast, slow) == pytest.approx([0.5, 0.0, 1.0])
    # The slow run reaches 2.8 at step 12.
    assert training.speed_up(slow, fast) == pytest.approx([0.0, 0.4, 0.0])
    assert training.net_speed_up(fast, slow) == pytest.approx([0.5, -0.4, 1.0])
    between = run_with([[4.0], [1.0], [0.5]])
    target = run_with([[4.0], [3.0], [2.0]])
    assert training.speed_up(between, target) == pytest.approx([1 - 10 * 2 / 3 / 20])


def test_undertrained_is_told_by_what_is_known():
    halfway = [[4.0, 4.0], [2.9, 2.9]]
    assert not training.undertrained(run_with(halfway, optimum=np.array([2.0, 2.0])))
    assert training.undertrained(run_with(halfway, optimum=np.array([1.0, 1.0])))
    text = {"optimum": np.full(2, np.nan)}
    assert not training.undertrained(run_with(halfway, context_free=np.array(3.0), **text))
    assert training.undertrained(run_with(halfway, context_free=np.array(2.8), **text))


def test_symmetry_is_read_at_a_share_of_training():
    result = {"steps": np.array([0, 5, 10, 20]), "symmetry": np.arange(8.0).reshape(4, 2, 1)}
    assert training.form_symmetry(result, 0.0) == [0.5]
    assert training.form_symmetry(result, 0.25) == [2.5]
    assert training.form_symmetry(result) == [6.5]


@given(
    layers=st.integers(1, 2),
    heads=st.integers(1, 3),
    width=st.integers(2, 5),
    weight=st.floats(0.01, 10),
    seed=st.integers(0, 1000),
)
def test_the_gradient_of_the_penalty_is_its_derivative(layers, heads, width, weight, seed):
    rng = np.random.default_rng(seed)
    names = [f"layers.{layer}.{name}" for layer in range(layers) for name in ("W_q", "W_k")]
    params = {name: rng.standard_normal((2, width, heads, 2)) for name in names}
    penalty = training.Asymmetry(layers, weight)

    def gradient(params, cotangent):
        grads = penalty(params)[1]
        return {name: cotangent[:, None, None, None] * grads[name] for name in names}

    ma.testing.check_gradient(lambda p: penalty(p)[0], gradient, params, method="complex")


def test_the_penalty_is_one_for_a_symmetric_form_and_leaves_it_there():
    config = ma.TransformerConfig(vocab_size=4, width=8, layers=2, heads=2, max_length=4)
    params = ma.init_params(config, replicas=3, qk_init="symmetric")
    value, grads = training.Asymmetry(2, 5.0)(params)
    assert value == pytest.approx([5.0] * 3)
    assert max(abs(gradient).max() for gradient in grads.values()) < 1e-12
    params = ma.init_params(config, replicas=3)
    value, grads = training.Asymmetry(2, 1.0)(params)
    forms = np.stack([ma.W_qk(params, layer) for layer in range(2)])
    symmetric = (forms + forms.swapaxes(-2, -1)) / 2
    ratio = [np.linalg.norm(part, axis=(-2, -1)) for part in (forms, symmetric)]
    assert value == pytest.approx((ratio[0] / ratio[1]).mean(axis=0))

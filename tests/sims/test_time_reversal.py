import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import time_reversal as sim
from hypothesis import given
from hypothesis import strategies as st
from parts.time_reversal import claims, figures, training

import minattn as ma
from minattn import plots
from minattn.claims import VERDICTS

ROOT = Path(__file__).parents[2]
TINY = ["--quick", "--steps", "4", "--replicas", "2", "--width", "8"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run from the command line, and where it is."""
    folder = tmp_path_factory.mktemp("time_reversal")
    command = [sys.executable, ROOT / "sims" / "time_reversal.py", *TINY, "--out", folder / "run"]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    return folder / "run", run


def test_a_quick_run_from_the_command_line(finished):
    out, run = finished
    assert "95% interval" in run.stdout
    assert "Traceback" not in run.stderr
    summary = json.loads((out / "summary.json").read_text(), parse_constant=pytest.fail)
    assert {"name", "config", "seeds", "engine", "threads", "versions"} <= summary.keys()
    assert len(summary["claims"]) == 21
    assert {claim["verdict"] for claim in summary["claims"]} <= set(VERDICTS)
    assert len(summary["results"]) == 16
    first = summary["results"][0]
    assert (first["objective"], first["positions"], first["flux"]) == ("masked", True, 0.0)
    assert len(first["trained_agreement"]) == 2
    causal = [row for row in summary["results"] if row["objective"] == "next"]
    assert all(row["trained_agreement"] == [None, None] for row in causal)
    assert {path.stem for path in out.glob("*.png")} == {"overview", "exchangeability", "training"}
    with (out / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["metric"] for row in rows} == {"loss", *training.CURVES}


def test_resume_on_two_workers_gives_the_same_numbers(finished, capsys):
    out, _ = finished
    before = json.loads((out / "summary.json").read_text())
    kept = sorted(out.with_name(".run.settings").glob("*.safetensors"))
    assert len(kept) == 16
    for path in kept[::8]:
        path.unlink()
    sim.main([*TINY, "--out", str(out), "--resume", "--workers", "2"])
    capsys.readouterr()
    after = json.loads((out / "summary.json").read_text())
    assert before["claims"] == after["claims"]
    assert before["results"] == after["results"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "0"], "--steps"),
        (["--replicas", "none"], "--replicas"),
        (["--width", "-1"], "--width"),
        (["--lag", "0"], "--lag"),
        (["--seed", "-1"], "--seed"),
        (["--workers", "0"], "--workers"),
        (["--engine", "abacus"], "--engine"),
        (["--scheduler", "nowhere"], "--scheduler"),
    ],
)
def test_bad_options_are_one_clear_line(options, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as ending:
        sim.experiment.run(lambda: sim.main([*TINY, "--out", str(tmp_path / "run"), *options]))
    assert ending.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last
    assert not (tmp_path / "run").exists()


def test_points_of_undertrained_models_are_hollow_but_for_untrained_ones():
    rng = np.random.default_rng(0)
    results = {}
    for flux, final in ((0.0, 1.1), (1.0, 1.9)):  # of the excess, 1, are removed .9 and .1
        shots = {f"{when}_agreement": rng.random((2, 3)) for when in ("trained", "untrained")}
        results["masked", True, flux] = shots | {
            "loss": np.array([[2.0] * 3, [final] * 3]),
            "optimum": np.ones(3),
        }
    kind = ("masked", True)
    for metric, hollow in (("trained_agreement", [1.0]), ("untrained_agreement", [])):
        axes = plots.figure(3, 3).subplots()
        figures._knob_curve(axes, results, kind, metric, 0, "label", 0)
        curve, *marks = axes.lines
        assert list(curve.get_xdata()) == [0.0, 1.0]
        assert [float(mark.get_xdata()[0]) for mark in marks] == hollow
        for mark in marks:
            assert mark.get_ydata()[0] == pytest.approx(curve.get_ydata()[1])
            assert mark.get_markerfacecolor() == "white"


@given(
    flux=st.floats(0, 1),
    entropy=st.floats(0.75, 1.05),
    lag=st.integers(1, 2),
    seed=st.integers(0, 100),
)
def test_the_knob_moves_the_net_flux_alone(flux, entropy, lag, seed):
    steps = training.disjoint_permutations(12, 3, np.random.default_rng(seed))
    chain = training.knob_chain(steps, flux, entropy, lag)
    assert chain.net_flux == pytest.approx(flux, abs=1e-12)
    assert chain.entropy_rate == pytest.approx(entropy, abs=1e-9)
    assert chain.stationary == pytest.approx(np.full(12, 1 / 12), abs=1e-12)
    assert chain.lag == lag


@given(seed=st.integers(0, 100))
def test_permutations_and_their_inverses_agree_nowhere(seed):
    steps = training.disjoint_permutations(12, 3, np.random.default_rng(seed))
    both = np.concatenate([steps, np.argsort(steps, axis=1)])
    assert all(len(set(column)) == 6 for column in both.T)
    assert all(symbol not in column for symbol, column in enumerate(both.T))


def update_of(tokens, positions, layer=0, heads=1):
    """The update of an untrained model with two layers on masked tokens (B, N)."""
    config = ma.TransformerConfig(
        vocab_size=6, width=8, layers=2, heads=heads, max_length=12, positions=positions
    )
    params = ma.init_params(config, replicas=2, seed=3)
    hidden = np.random.default_rng(4).random((len(tokens) // 2, tokens.shape[1])) < 0.4
    hidden = np.concatenate([hidden, hidden[:, ::-1]])
    batch = ma.Batch(
        inputs=np.where(hidden, 6, tokens),
        targets=tokens,
        weights=hidden.astype(float),
        mask="bidirectional",
    )
    _, _, tape = ma.loss_and_grad(config, params, batch, "numpy")
    return ma.implicit_update(config, params, tape, layer)


def mirrored_tokens():
    tokens = np.random.default_rng(5).integers(6, size=(10, 12))
    return np.concatenate([tokens, tokens[:, ::-1]])


@pytest.mark.parametrize("layer", [0, 1])
def test_without_positions_reversing_a_sequence_exchanges_the_pair(layer):
    index, later = training.exchangeability(update_of(mirrored_tokens(), False, layer))
    assert np.abs(index).max() < 1e-20  # the sums over the two halves cancel
    assert np.abs(later).max() < 1e-10
    index, later = training.exchangeability(update_of(mirrored_tokens(), True, layer))
    assert index.min() > 1e-3
    assert np.abs(later).min() > 1e-3


def test_exchangeability_is_what_its_docstring_says():
    B = 16
    update = update_of(np.random.default_rng(6).integers(6, size=(B, 12)), True, 1, heads=2)
    index, later = training.exchangeability(update)
    for r in range(2):
        squares, energies = [], [0.0, 0.0]
        for head in range(2):
            beta = update.beta[r, :, head]
            active = (beta != 0).any(axis=-1)
            for offset in training.OFFSETS:
                for power in training.POWERS:
                    D = np.zeros(B)
                    for b in range(B):
                        for i in range(12 - offset):
                            j = i + offset
                            if active[b, i] and active[b, j]:
                                D[b] += beta[b, i, j] ** power - beta[b, j, i] ** power
                    squares.append(D.sum() ** 2 / (D**2).sum())
            for b, i, j in np.ndindex(B, 12, 12):
                if i != j and active[b, i] and active[b, j]:
                    energies[int(i > j)] += beta[b, i, j] ** 2
        assert index[r] == pytest.approx(np.mean(squares))
        assert later[r] == pytest.approx((energies[0] - energies[1]) / sum(energies))


def test_causal_models_have_no_pair():
    config = ma.TransformerConfig(vocab_size=4, width=8, layers=1, heads=1, max_length=8)
    params = ma.init_params(config, replicas=2)
    batch = ma.next_token(np.random.default_rng(0).integers(4, size=(3, 8)))
    shot = training.snapshot(config, params, batch, "numpy")
    assert np.isnan(shot["agreement"]).all()
    assert np.isnan(shot["exchange"]).all()
    assert np.isnan(shot["later"]).all()
    assert (shot["pairs"] == 0).all()
    assert np.isfinite(shot["ghat"]).all()


def test_slope_of_a_line():
    x = (0.0, 0.5, 1.0)
    values = np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 4.0]])
    assert claims.slope(x, values) == pytest.approx([-2.0, 4.0])

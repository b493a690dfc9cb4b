"""The sim of column dominance: its two stages, its candidates, its endings."""

import json
import subprocess
import sys
from pathlib import Path

import column_dominance as sim
import numpy as np
import pytest
from parts.column_dominance import claims, training

from minattn import SGD, W_qk, dispersion, fit, loss_and_grad
from minattn.claims import VERDICTS

ROOT = Path(__file__).parents[2]
TINY = ["--quick", "--steps", "4", "--replicas", "2", "--width", "8"]
SIZES = {"replicas": 2, "steps": 6, "width": 8, "n_symbols": 6, "length": 8, "record_every": 2}


def setting(**change):
    plain = {"source": "drifting", "knob": 1.0, "optimizer": "sgd", "attention": "softmax"}
    plain |= {"trained": "W_qk", "spread": "none", "seed": 3, "engine": "numpy"}
    return training.Setting(**(SIZES | plain | change))


def test_a_quick_run_from_the_command_line(tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, ROOT / "sims" / "column_dominance.py", *TINY, "--out", out]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "Stage 1 found" in run.stdout
    assert "Traceback" not in run.stderr
    summary = json.loads((out / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["complete"] is True
    assert {"config", "seeds", "engine", "threads", "versions", "text"} <= summary.keys()
    assert {claim["verdict"] for claim in summary["claims"]} <= set(VERDICTS)
    assert len(summary["training"]) == 28
    assert summary["exploration"]["candidate"] in training.CANDIDATES
    figures = {path.stem for path in out.glob("*.png")}
    assert figures == {"conditions", "predictions", "over_training"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--replicas", "0"], "--replicas"),
        (["--steps", "0"], "--steps"),
        (["--width", "1"], "--width"),
        (["--seed", "-1"], "--seed"),
        (["--workers", "0"], "--workers"),
        (["--engine", "abacus"], "--engine"),
        (["--text", "no such file"], "no such file"),
    ],
)
def test_bad_options_are_one_clear_line(options, message, refused):
    assert message in refused(sim.main, *TINY, *options)


def test_descent_of_every_record_is_the_change_itself():
    """SGD on W_qk with a record at each step: the sum of the gradients is all that happens."""
    place = setting()
    train_on, _ = training.sources(place)
    config = training.TransformerConfig(vocab_size=6, width=8, layers=1, heads=1, max_length=8)
    initial, frozen = training.start(config, train_on, place)
    optimizer, options = SGD(0.5), {"engine": "numpy", "record_every": 1, "frozen": frozen}
    common = (config, initial, train_on, training.next_token, 6, 4, 8, optimizer)
    history = fit(*common, observe=training.sides(config), **options)
    made = {name: values[:-1] for name, values in history.metrics.items()}  # the last is not made
    found = training.predictions(made, place)
    change = W_qk(history.params) - W_qk(initial)
    np.testing.assert_allclose(found["descent"], dispersion(change), rtol=1e-9)
    np.testing.assert_array_equal(found["consistency"], found["descent"])  # nothing is divided


def test_consistency_does_not_see_the_size_of_entries():
    rng = np.random.default_rng(1)
    gradient = rng.standard_normal((5, 2, 8, 8))
    scaled = gradient * np.exp(rng.standard_normal((2, 8, 8)))
    one, other = training.over_own_size(gradient), training.over_own_size(scaled)
    np.testing.assert_allclose(one, other)
    assert training.over_own_size(np.zeros((2, 1, 1, 1))).max() == 0


def test_sides_are_sums_over_pairs():
    """Each weight from its own definition, pair by pair."""
    config = training.TransformerConfig(vocab_size=6, width=8, layers=1, heads=1, max_length=8)
    initial = training.init_params(config, 1, 0)
    batch = training.next_token(training.drifting_chain(setting(), 0).sample(2, 6, RNG))
    _, grads, tape = loss_and_grad(config, initial, batch, "numpy")
    found = training.sides(config)(0, initial, grads, tape)
    update = training.implicit_update(config, initial, tape)
    squares, partners, rows = np.zeros(8), np.zeros(8), np.zeros((6 + 1 + 8, 8))
    for b in range(2):
        for j in range(5):
            x, beta = update.x[0, b], update.beta[0, b, 0]
            partner = sum(beta[i, j] * x[i] for i in range(5))
            squares += sum(beta[i, j] ** 2 for i in range(5)) * x[j] ** 2
            partners += partner @ partner * x[j] ** 2
            rows[batch.inputs[b, j]] += partner
            rows[7 + j] += partner
    np.testing.assert_allclose(found["squares.keys"][0], squares)
    np.testing.assert_allclose(found["partners.keys"][0], partners)
    np.testing.assert_allclose(found["rows.keys"][0], rows, atol=1e-12)
    # The rows' terms add up to the whole update: E and P stacked, times their partners.
    total = found["rows.keys"][0].T @ found["embeddings"][0]
    np.testing.assert_allclose(total, update.total[0, 0], atol=1e-12)


RNG = np.random.default_rng(0)


def test_the_knob_leaves_chain_and_start_alone():
    low, high = (training.drifting_chain(setting(knob=knob), 1) for knob in (0.0, 1.0))
    np.testing.assert_array_equal(low.chain.transition, high.chain.transition)
    assert np.abs(low.tilt).max() == 0 < np.abs(high.tilt).max()


def test_uneven_sides_touch_their_own_rows_only():
    keys, queries = (setting(spread=side) for side in ("keys", "queries"))
    train_on, _ = training.sources(keys)
    config = training.TransformerConfig(vocab_size=6, width=8, layers=1, heads=1, max_length=8)
    plain, _ = training.start(config, train_on, setting())
    touched = []
    for place in (keys, queries):
        uneven, frozen = training.start(config, train_on, place)
        assert "*_embedding" in frozen
        names = ("token_embedding", "position_embedding")
        touched.append([(uneven[n] != plain[n]).any(axis=2)[0] for n in names])
    for one, other, size in zip(*touched, (6, 8), strict=True):
        assert not (one & other).any()
        assert (one | other).sum() == size


def test_correlation_is_within_a_replica():
    first, second = setting(), setting(knob=0.0)
    third = setting(knob=0.5)
    values = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
    predicted = np.array([[5.0, 0.0], [6.0, -1.0], [7.0, -2.0]])
    results = {
        place: {"change_dispersion": v, "squares": p}
        for place, v, p in zip((first, second, third), values, predicted, strict=True)
    }
    np.testing.assert_allclose(claims.correlation(results, "squares"), [1, -1])


def test_too_little_training_is_said():
    chains, text = setting(), setting(source="text")
    loss = np.array([[3.0, 3.0], [2.6, 2.6]])
    assert claims.undertrained(chains, {"loss": loss, "goal": np.array([2.0, 2.0])})
    assert not claims.undertrained(chains, {"loss": loss, "goal": np.array([2.3, 2.3])})
    assert claims.undertrained(text, {"loss": loss, "goal": np.array([2.5, 2.5])})
    assert not claims.undertrained(text, {"loss": loss, "goal": np.array([2.7, 2.7])})

"""The sim of depth: real changes, whose losses move a layer, its endings."""

import json
import subprocess
import sys
from pathlib import Path

import depth as sim
import numpy as np
import pytest
from parts.depth import training

from minattn import AdamW, Batch, MaskedToken, fit, init_params, next_token
from minattn.claims import VERDICTS
from minattn.config import TransformerConfig
from minattn.data import MarkovChain
from minattn.model import backward, forward
from minattn.objectives import stack
from minattn.step import loss_and_grad
from minattn.update import implicit_update

ROOT = Path(__file__).parents[2]
TINY = ["--quick", "--steps", "4", "--replicas", "2", "--width", "8"]
CONFIG = TransformerConfig(
    vocab_size=5, width=8, layers=3, heads=2, max_length=6, norm="pre", feed_forward=8
)


def batch_of(objective):
    chain = MarkovChain.random(5, 0.5)
    windows = [chain.sample(3, 6, np.random.default_rng(seed)) for seed in (0, 1)]
    return stack([objective(window, np.random.default_rng(2)) for window in windows])


OBJECTIVES = {"next": next_token, "masked": MaskedToken(rate=0.5, mask_symbol=5)}


def test_a_quick_run_from_the_command_line(tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, ROOT / "sims" / "depth.py", *TINY, "--out", out]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "others" in run.stdout
    assert "Traceback" not in run.stderr
    summary = json.loads((out / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["complete"] is True
    assert {"config", "seeds", "engine", "threads", "versions", "text"} <= summary.keys()
    assert {claim["verdict"] for claim in summary["claims"]} <= set(VERDICTS)
    verdicts = {claim["claim"]: claim["verdict"] for claim in summary["claims"]}
    assert verdicts["check: no share through other positions in the last layer"] == "holds"
    assert len(summary["training"]) == 8
    assert {path.stem for path in out.glob("*.png")} == {"scores", "steps", "over_training"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--replicas", "0"], "--replicas"),
        (["--steps", "0"], "--steps"),
        (["--width", "7"], "--width"),
        (["--depths", "1,2"], "--depths"),
        (["--depths", "deep"], "--depths"),
        (["--seed", "-1"], "--seed"),
        (["--text", "no such file"], "no such file"),
    ],
)
def test_bad_options_are_one_clear_line(options, message, refused):
    assert message in refused(sim.main, *TINY, *options)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_own_and_other_paths_from_one_backward_pass_a_position(name):
    """The copies against `backward` with the loss of a single position, one after another."""
    params, batch = init_params(CONFIG, 2, 0), batch_of(OBJECTIVES[name])
    found = training.path_shares(CONFIG, params, batch, "numpy")
    logits, tape = forward(CONFIG, params, batch.inputs, batch.mask, "numpy", tape=True)
    shares = batch.weights / batch.weights.sum(axis=(1, 2), keepdims=True)
    chances = np.exp(logits - logits.max(axis=-1, keepdims=True))
    chances /= chances.sum(axis=-1, keepdims=True)
    dlogits = shares[..., None] * (chances - np.eye(5)[batch.targets])
    N = batch.inputs.shape[-1]
    own = [0.0] * CONFIG.layers
    for p in range(N):
        only = np.where(np.arange(N)[:, None] == p, dlogits, 0)
        backward(CONFIG, params, tape, only)
        for layer in range(CONFIG.layers):
            update = implicit_update(CONFIG, params, tape, layer)
            beta = np.where(np.arange(N)[:, None] == p, update.beta, 0)  # of query p alone
            own[layer] = own[layer] + training.weighted_outer_sum(update.x, beta)
    _, _, whole = loss_and_grad(CONFIG, params, batch, "numpy")
    for layer in range(CONFIG.layers):
        total = implicit_update(CONFIG, params, whole, layer).total
        energies = [(M**2).sum(axis=(1, 2, 3)) for M in (total - own[layer], own[layer])]
        expected = energies[0] / (energies[0] + energies[1])
        np.testing.assert_allclose(found["share_through_others"][layer], expected, atol=1e-12)
    assert (found["share_through_others"][0] > 1e-3).all()
    np.testing.assert_allclose(found["share_through_others"][-1], 0, atol=1e-28)
    np.testing.assert_allclose(found["cosine_of_own"][-1], 1)


def test_copies_keep_the_mean_loss():
    params, batch = init_params(CONFIG, 2, 0), batch_of(OBJECTIVES["masked"])
    copies = training.one_loss_a_copy(batch)
    assert isinstance(copies, Batch)
    losses = [loss_and_grad(CONFIG, params, one, "numpy")[0] for one in (batch, copies)]
    np.testing.assert_allclose(*losses)


def test_watching_does_not_disturb_and_sees_what_happens():
    chain = MarkovChain.random(5, 0.5)
    initial = init_params(CONFIG, 2, 0)
    common = (CONFIG, initial, chain, next_token, 3, 2, 6)
    plain = fit(*common, AdamW(1e-2), engine="numpy")
    watched = training.Watched(1e-2, AdamW(1e-2), 1)
    history = fit(*common, watched, engine="numpy")
    for name, value in plain.params.items():
        np.testing.assert_array_equal(value, history.params[name])
    moved = sum(watched.moved.values())
    assert sorted(watched.moved) == [0, 1, 2]
    expected = training.heads(history.params) - training.heads(initial)
    np.testing.assert_allclose(moved, expected, atol=1e-14)


def test_sgd_is_its_first_order_and_adamw_is_not():
    sizes = {"seed": 0, "replicas": 1, "steps": 2, "width": 8, "heads": 2, "length": 8}
    sizes |= {"batch_size": 4, "record_every": 1, "engine": "numpy"}
    cosines = {}
    for optimizer in training.OPTIMIZERS:
        result = training.train(training.Setting(2, "next_causal", optimizer, **sizes))
        assert result["cosine_with_update"].shape == (2, 2, 1)
        cosines[optimizer] = result["cosine_with_first_order"]
    assert (cosines["sgd"] > 0.99).all()
    assert (cosines["adamw"] < 0.99).all()

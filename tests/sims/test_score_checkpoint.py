import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import score_checkpoint as sim
from safetensors.numpy import save_file

import minattn as ma

ROOT = Path(__file__).parents[2]
SCORES = ("symmetry", "directionality", "directionality_published", "dispersion")


def save_llama(folder, layers=3, d=12, key_rows=4, seed=0):
    rng = np.random.default_rng(seed)
    folder.mkdir()
    arrays = {}
    for layer in range(layers):
        stem = f"model.layers.{layer}"
        arrays[f"{stem}.self_attn.q_proj.weight"] = rng.normal(size=(8, d))
        arrays[f"{stem}.self_attn.k_proj.weight"] = rng.normal(size=(key_rows, d))
        arrays[f"{stem}.input_layernorm.weight"] = rng.lognormal(size=d)
    save_file(arrays, folder / "model.safetensors")
    config = {"model_type": "llama", "num_attention_heads": 4}
    (folder / "config.json").write_text(json.dumps(config))
    return arrays


def save_t5(folder, d=12):
    rng = np.random.default_rng(1)
    folder.mkdir()
    stems = (
        "encoder.block.{}.layer.0.SelfAttention",
        "decoder.block.{}.layer.0.SelfAttention",
        "decoder.block.{}.layer.1.EncDecAttention",
    )
    arrays = {
        f"{stem.format(layer)}.{side}.weight": rng.normal(size=(8, d))
        for stem in stems
        for layer in range(2)
        for side in "qk"
    }
    save_file(arrays, folder / "model.safetensors")
    config = {"model_type": "t5", "num_heads": 2, "d_kv": 4}
    (folder / "config.json").write_text(json.dumps(config))


def run(tmp_path, *arguments):
    out = tmp_path / "out"
    sim.main(["--quick", "--out", str(out), *map(str, arguments)])
    with (out / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    summary = json.loads((out / "summary.json").read_text(), parse_constant=pytest.fail)
    assert (out / "scores.png").stat().st_size > 10_000
    return rows, summary


def test_it_runs_without_a_path(tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, ROOT / "sims" / "score_checkpoint.py", "--quick", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "next token, causal (minattn): W_qk, summed over heads" in done.stdout
    assert "Traceback" not in done.stderr
    assert {path.name for path in out.iterdir()} == {"scores.csv", "scores.png", "summary.json"}
    summary = json.loads((out / "summary.json").read_text())
    assert [list(model["towers"]) for model in summary["models"]] == [["decoder"], ["encoder"]]


def test_every_layer_and_head_is_scored_beside_its_band(tmp_path, capsys):
    arrays = save_llama(tmp_path / "tiny")
    rows, summary = run(tmp_path, tmp_path / "tiny")
    assert len(rows) == 3 * 4 * (1 + 4)  # layers, scores, sum and heads
    q, k = (arrays[f"model.layers.1.self_attn.{side}_proj.weight"] for side in "qk")
    heads = np.array([q[2 * i : 2 * i + 2].T @ k[2 * (i // 2) :][:2] for i in range(4)])
    for head, M in [("", heads.sum(axis=0)), *zip("0123", heads, strict=True)]:
        found = [row for row in rows if (row["layer"], row["head"]) == ("1", head)]
        for row, value in zip(found, ma.scores.scores(M), strict=True):
            assert float(row["value"]) == pytest.approx(value, rel=1e-9, abs=1e-9)
            assert float(row["null_low"]) <= float(row["null_high"])
    (model,) = summary["models"]
    assert (model["name"], model["family"]) == ("tiny", "llama")
    tower = model["towers"]["decoder"]
    assert (tower["heads"], tower["key_heads"], tower["head_width"]) == (4, 2, 2)
    values = tower["by_layer"]["dispersion"]
    assert tower["scores"]["dispersion"]["median"] == pytest.approx(np.median(values))
    assert tower["scores"]["dispersion"]["low"] == pytest.approx(np.percentile(values, 25))
    assert str(tmp_path) not in json.dumps(summary)  # where models lie is nobody's business
    printed = capsys.readouterr().out
    assert printed.count("\ndecoder  ") == 3
    assert max(map(len, printed.splitlines())) <= 100


def test_models_and_towers_are_told_apart(tmp_path):
    save_llama(tmp_path / "one")
    save_t5(tmp_path / "two")
    rows, summary = run(tmp_path, tmp_path / "one", f"other={tmp_path / 'two'}")
    assert list(dict.fromkeys(row["model"] for row in rows)) == ["one", "other"]
    assert list(summary["models"][1]["towers"]) == ["encoder", "decoder", "cross"]
    assert summary["form"] == "W_qk"


@pytest.mark.parametrize(
    ("options", "form"),
    [
        (["--fold-norm"], "W_qk, norm folded in"),
        (["--rotary-offset", "2"], "W_qk, rotary offset 2"),
        (["--as-published"], "W_qk, heads paired as published"),
        (["--fold-norm", "--rotary-offset", "-1"], "W_qk, norm folded in, rotary offset -1"),
    ],
)
def test_what_a_score_is_for_is_said_and_matters(options, form, tmp_path, capsys):
    save_llama(tmp_path / "tiny")
    plain, _ = run(tmp_path, tmp_path / "tiny")
    other, summary = run(tmp_path, tmp_path / "tiny", *options)
    assert summary["form"] == form
    assert {row["form"] for row in other} == {form}
    assert f"tiny (llama): {form}, summed over heads" in capsys.readouterr().out
    assert [row["value"] for row in plain] != [row["value"] for row in other]


def test_an_infinite_dispersion_is_reported(tmp_path):
    save_file(
        {"layers.0.W_q": np.ones((1, 6, 1, 1)), "layers.0.W_k": np.arange(6.0).reshape(1, 6, 1, 1)},
        tmp_path / "rank_one.safetensors",
        metadata={"minattn": "{}"},
    )
    rows, summary = run(tmp_path, tmp_path / "rank_one.safetensors")
    assert {row["value"] for row in rows if row["score"] == "dispersion"} == {"inf"}
    assert summary["models"][0]["towers"]["decoder"]["by_layer"]["dispersion"] == [None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nowhere"], "PATH: got 'nowhere', needs a safetensors file"),
        (["{tiny}", "{tiny}"], "models of different names"),
        (["={tiny}"], "models of different names"),
        (["{tiny}", "--heads", "5"], "a multiple of 5"),
        (["{tiny}", "--family", "lama"], "--family"),
        (["{tiny}", "--draws", "1"], "--draws"),
        (["{tiny}", "--seed", "-1"], "--seed"),
        (["{t5}", "--fold-norm"], "fold"),
        (["{t5}", "--rotary-offset", "1"], "a layer with rotary positions"),
    ],
)
def test_bad_arguments_are_one_clear_line(options, message, tmp_path, capsys):
    save_llama(tmp_path / "tiny")
    save_t5(tmp_path / "t5")
    paths = {"tiny": tmp_path / "tiny", "t5": tmp_path / "t5"}
    given = [option.format(**paths) for option in options]
    with pytest.raises(SystemExit) as ending:
        sim.experiment.run(lambda: sim.main(["--quick", "--out", str(tmp_path / "out"), *given]))
    assert ending.value.code == 2
    error = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(error) == 1
    assert message in error[0]
    assert not (tmp_path / "out").exists()

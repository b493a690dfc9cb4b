"""The sim of modalities: three materials, their controls, what is missing said in one line."""

import json
import subprocess
import sys
from pathlib import Path

import modalities as sim
import numpy as np
import pytest
from parts.modalities import training

from minattn.claims import VERDICTS
from minattn.data import load_wav

ROOT = Path(__file__).parents[2]
TINY = ["--quick", "--steps", "3", "--replicas", "2", "--width", "8"]
SIZES = {"replicas": 2, "steps": 2, "width": 8, "layers": 1, "length": 8, "record_every": 1}


def setting(modality, shuffled=False, arm="masked_bidirectional", **change):
    plain = {"modality": modality, "shuffled": shuffled, "arm": arm, "seed": 0, "engine": "numpy"}
    return training.Setting(**(SIZES | plain | change))


def test_a_quick_run_from_the_command_line(tmp_path):
    pytest.importorskip("sklearn")
    out = tmp_path / "run"
    command = [sys.executable, ROOT / "sims" / "modalities.py", *TINY, "--out", out]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "synthetic tone mixture" in (out / "summary.json").read_text()
    assert "Traceback" not in run.stderr
    summary = json.loads((out / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["complete"] is True
    assert {"config", "seeds", "engine", "threads", "versions"} <= summary.keys()
    assert summary["materials"].keys() == set(training.MODALITIES)
    assert {claim["verdict"] for claim in summary["claims"]} <= set(VERDICTS)
    proof = [claim for claim in summary["claims"] if "Ghat" in claim["claim"]]
    assert [claim["verdict"] for claim in proof] == ["holds"]
    assert len(summary["training"]) == 12
    figures = {path.stem for path in out.glob("*.png")}
    assert figures == {"overview", "loss", *(f"matrices_{name}" for name in training.MODALITIES)}
    assert load_wav(out / "tones.wav").sha256 == summary["materials"]["sound"]["sha256"]


def test_a_wav_file_takes_the_place_of_the_tones(tmp_path, capsys):
    file = tmp_path / "own.wav"
    training.write_wav(file, training.tones(5)[:4000], 8000)
    out = tmp_path / "run"
    options = [*TINY, "--modalities", "sound", "--wav", str(file), "--engine", "numpy"]
    sim.main([*options, "--out", str(out)])
    capsys.readouterr()
    summary = json.loads((out / "summary.json").read_text())
    assert summary["materials"]["sound"]["title"] == "sound (own.wav)"
    assert not (out / "tones.wav").exists()
    assert len(summary["training"]) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--modalities", "smell"], "--modalities"),
        (["--replicas", "0"], "--replicas"),
        (["--steps", "0"], "--steps"),
        (["--seed", "-1"], "--seed"),
        (["--wav", "no such.wav", "--modalities", "sound"], "error: --wav: got 'no such.wav'"),
        (["--text", "no such file", "--modalities", "text"], "error: --text: got 'no such file'"),
    ],
)
def test_bad_options_are_one_clear_line(options, message, refused):
    assert message in refused(sim.main, *TINY, *options)


def test_a_sound_that_is_too_short_is_refused_before_training(tmp_path, refused):
    file = tmp_path / "short.wav"
    training.write_wav(file, training.tones(0)[:40], 8000)
    error = refused(sim.main, *TINY, "--modalities", "sound", "--wav", str(file))
    assert error.startswith("error: --wav: got 4 tokens to validate on, a tenth of all, needs")


def test_images_are_left_out_only_if_nobody_asks_for_them(monkeypatch, capsys):
    monkeypatch.setattr(sim, "find_spec", lambda name: None)
    assert sim.chosen_modalities(None) == ("text", "sound")
    assert "minattn[images]" in capsys.readouterr().out
    assert sim.chosen_modalities("images,text") == ("text", "images")
    monkeypatch.setattr(sim, "find_spec", lambda name: object())
    assert sim.chosen_modalities(None) == training.MODALITIES


def test_asking_for_images_without_the_library_is_one_clear_line(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    error = refused(sim.main, *TINY, "--modalities", "images")
    assert "pip install 'minattn[images]'" in error


def test_shuffled_controls_keep_the_frequencies():
    source = training.material("sound", 0, None, None)
    task = training.task_of(setting("sound", shuffled=True), source)
    counts = np.bincount(source.train.tokens, minlength=source.n_symbols)
    np.testing.assert_allclose(task.sources[0].stationary, counts / counts.sum())
    assert np.ptp(task.sources[0].transition, axis=0).max() == 0
    plain = training.task_of(setting("sound"), source)
    assert plain.sources[0] is source.train
    assert plain.held_out[0] is source.validation


def test_resume_takes_no_result_of_another_file(tmp_path, capsys):
    file = tmp_path / "a $5 tone.wav"
    options = [*TINY, "--modalities", "sound", "--wav", str(file), "--engine", "numpy"]
    summaries = []
    for seed in (1, 2):
        training.write_wav(file, training.tones(seed)[:4000], 8000)
        sim.main([*options, "--resume", "--out", str(tmp_path / "run")])
        summaries.append(json.loads((tmp_path / "run" / "summary.json").read_text()))
    capsys.readouterr()
    assert summaries[0]["scores"] != summaries[1]["scores"]

import csv
import json
import subprocess
import sys
from pathlib import Path

import bidirectional_vs_causal as sim
import numpy as np
import pytest
from parts.bidirectional_vs_causal import claims, film

from minattn.claims import INCONCLUSIVE, UNDERTRAINED, VERDICTS
from minattn.comparison import ARMS
from minattn.params import W_qk

ROOT = Path(__file__).parents[2]
TINY = ["--quick", "--steps", "8", "--replicas", "2", "--width", "8"]
REPORTED = {"claim", "predicted", "measured", "interval", "rule", "verdict"}


def test_a_quick_run_from_the_command_line(tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, ROOT / "sims" / "bidirectional_vs_causal.py", *TINY, "--out", out]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "95% interval" in run.stdout
    assert "Traceback" not in run.stderr
    summary = json.loads((out / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["complete"] is True
    assert {"config", "seeds", "engine", "threads", "versions", "text"} <= summary.keys()
    assert len(summary["claims"]) == 26
    for claim in summary["claims"]:
        assert claim.keys() >= REPORTED
        assert claim["verdict"] in VERDICTS
    proofs = [c for c in summary["claims"] if "Ghat" in c["claim"]]
    assert [c["verdict"] for c in proofs] == ["holds"] * 3
    assert summary["scores"].keys() == set(sim.SOURCES)
    assert len(summary["scores"]["text"]["next_causal"]["symmetry"]) == 2
    figures = {path.stem for path in out.glob("*.png")}
    shown = {f"{kind}_{source}" for kind in ("matrices", "beta") for source in sim.SOURCES}
    pages = {"overview", "scores_of_change", "scores_of_W_qk", "loss", "update"}
    assert figures == shown | pages
    with (out / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert set(rows[0]) == {"source", "arm", "replica", "layer", "step", "metric", "value"}
    assert {row["arm"] for row in rows} == set(ARMS)


def test_the_same_seed_gives_the_same_numbers(tmp_path, capsys):
    summaries = []
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        options = [*TINY, "--sources", "lag1", "--seed", seed, "--out", str(tmp_path / name)]
        sim.main(options)
        summaries.append(json.loads((tmp_path / name / "summary.json").read_text()))
    capsys.readouterr()
    assert summaries[0]["scores"] == summaries[1]["scores"]
    assert summaries[0]["claims"] == summaries[1]["claims"]
    assert summaries[0]["scores"] != summaries[2]["scores"]


def test_a_choice_of_arms_and_sources_makes_the_claims_it_can(tmp_path, capsys):
    out = tmp_path / "run"
    options = [*TINY, "--sources", "lag2", "--arms", "next_causal", "--layers", "2"]
    sim.main([*options, "--engine", "numpy", "--dtype", "float64", "--out", str(out)])
    assert "lag2" in capsys.readouterr().out
    claims = json.loads((out / "summary.json").read_text())["claims"]
    assert len(claims) == 5
    assert not any("mask alone" in claim["claim"] for claim in claims)
    assert {claim["verdict"] for claim in claims} <= {UNDERTRAINED, INCONCLUSIVE, "holds"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "abacus"], "--engine"),
        (["--sources", "lag3"], "--sources"),
        (["--arms", "all"], "--arms"),
        (["--steps", "0"], "--steps"),
        (["--steps", "-5"], "--steps"),
        (["--steps", "many"], "--steps"),
        (["--replicas", "0"], "--replicas"),
        (["--width", "0"], "--width"),
        (["--layers", "0"], "--layers"),
        (["--seed", "-1"], "--seed"),
        (["--text", "no such file", "--sources", "text"], "no such file"),
        (["--dtype", "float16"], "--dtype"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_bad_options_are_one_clear_line(options, message, refused):
    assert message in refused(sim.main, *TINY, *options)


def test_a_text_that_cannot_be_used_is_refused_before_training(tmp_path, refused):
    short, odd, empty = (tmp_path / name for name in ("short.txt", "odd.txt", "empty"))
    short.write_text("a short one")
    odd.write_bytes(b"caf\xe9")
    empty.mkdir()
    for text, got in (
        (short, "2 tokens to validate on, a tenth of all, needs at least the 16 of a window"),
        (odd, f"'{odd}', not UTF-8 at byte 3"),
        (empty, f"the folder '{empty}' without a file"),
        ("nowhere.txt", "'nowhere.txt', needs an existing file or folder"),
    ):
        error = refused(sim.main, *TINY, "--text", str(text))
        assert error.startswith(f"error: --text: got {got}")


def test_ctrl_c_keeps_what_is_done(tmp_path, capsys, monkeypatch):
    real, calls = sim.train, []

    def train(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(sim, "train", train)
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        sim.main([*TINY, "--sources", "lag1", "--out", str(out)])
    kept = tmp_path / "run.interrupted"
    summary = json.loads((kept / "summary.json").read_text())
    assert summary["complete"] is False
    assert summary["scores"]["lag1"].keys() == {"next_causal", "masked_bidirectional"}
    assert not out.exists()
    assert str(kept) in capsys.readouterr().out


def test_the_film_has_a_frame_a_record_and_changes_no_number(tmp_path, capsys):
    from PIL import Image

    options = [*TINY, "--sources", "lag2", "--dtype", "float64"]
    sim.main([*options, "--out", str(tmp_path / "plain")])
    sim.main([*options, "--film", "--out", str(tmp_path / "filmed")])
    capsys.readouterr()
    summaries = [
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("plain", "filmed")
    ]
    assert summaries[0] == summaries[1]
    with Image.open(tmp_path / "filmed" / "film_lag2.gif") as image:
        assert image.n_frames == 2  # steps 0 and 8
    with pytest.raises(ValueError, match="--film: got 'text', needs one of 'lag2'"):
        sim.parse([*options, "--film", "text"])


def test_a_frame_is_W_qk_and_the_scores_so_far():
    options = sim.parse([*TINY, "--sources", "lag1", "--steps", "20", "--film", "lag1"])
    tasks, _ = sim.make_tasks(options)
    cameras = {arm: film.Camera() for arm in ARMS}
    how = sim.training(options)
    runs = list(sim.run_all(tasks, options.arms, how, options.film, cameras))
    for run, arm in zip(runs, ARMS, strict=True):
        assert len(cameras[arm].frames) == len(run.history.steps) == 3
        for frame, params in ((0, run.initial), (-1, run.history.params)):
            np.testing.assert_array_equal(cameras[arm].frames[frame], W_qk(params)[0])
    made, show = film.scene(runs, [cameras[run.arm].frames for run in runs])
    show(1)
    above, below = made.subfigs
    images = [axes.images[0] for axes in above.axes if axes.images]
    for image, arm in zip(images, ARMS, strict=True):
        np.testing.assert_array_equal(image.get_array(), cameras[arm].frames[1])
    assert len(below.axes) == len(film.SCORES)
    thin, line, dot = below.axes[0].lines[:3]
    assert thin.get_xdata().tolist() == [0, 10, 20]
    assert line.get_xdata().tolist() == [0, 10]
    assert dot.get_xdata().tolist() == [10]
    expected = runs[0].metric("symmetry").mean(axis=1)
    np.testing.assert_allclose(line.get_ydata(), expected[:2])
    assert "step 10 of 20" in made.get_suptitle()


@pytest.mark.parametrize(("source", "number"), [("lag1", 7), ("text", 5)])
def test_undertrained_arms_get_no_verdict(tmp_path, capsys, source, number):
    sim.main([*TINY, "--sources", source, "--steps", "1", "--out", str(tmp_path / "run")])
    claims = json.loads((tmp_path / "run" / "summary.json").read_text())["claims"]
    about = [claim for claim in claims if claim["claim"].startswith(source)]
    assert len(about) == number
    assert {claim["verdict"] for claim in about} == {UNDERTRAINED}
    assert capsys.readouterr().out.count("undertrained") >= number


def test_what_is_not_judged_is_not_passed_over_in_silence(tmp_path, capsys):
    sim.main([*TINY, "--sources", "lag1,text,iid", "--steps", "1", "--out", str(tmp_path / "run")])
    table = capsys.readouterr().out.partition("Held-out loss")[0].splitlines()
    for source, note in {
        "lag1": "undertrained",
        "text": "undertrained",
        "iid": "not judged",
    }.items():
        lines = [line for line in table if line.startswith(source)]
        assert len(lines) == len(ARMS)
        assert all(line.endswith(f"  {note}") for line in lines)


def test_matched_share_compares_equal_progress():
    class Fake:
        def __init__(self, share, symmetry):
            self.share_removed = np.array(share)
            self.symmetry = np.array(symmetry)

        def metric(self, name):
            assert name == "change_symmetry"
            return self.symmetry

    fast = Fake([[0.0, 0.0], [0.6, 0.5], [0.9, 0.8]], [[0.0, 0.0], [0.1, 0.2], [0.3, 0.4]])
    slow = Fake([[0.0, 0.0], [0.2, 0.7], [0.5, 0.9]], [[0.0, 0.0], [0.5, 0.6], [0.7, 0.8]])
    one, other = claims.at_matched_share(fast, slow)
    assert one.tolist() == [0.1, 0.4]  # replica 0 stops at the slow arm's 0.5, replica 1 at 0.8
    assert other.tolist() == [0.7, 0.8]


def test_controls_that_rest_on_undertrained_arms_get_no_verdict(tmp_path, capsys):
    out = tmp_path / "run"
    sim.main([*TINY, "--sources", "lag1,iid", "--steps", "1", "--out", str(out)])
    claims = json.loads((out / "summary.json").read_text())["claims"]
    controls = [claim for claim in claims if "i.i.d. symbols move" in claim["claim"]]
    assert [claim["verdict"] for claim in controls] == [UNDERTRAINED] * 3
    assert not any("p_value" in claim for claim in controls)


def test_results_are_there_even_if_nobody_reads_the_table(tmp_path, monkeypatch):
    def report(runs, claims):
        raise BrokenPipeError

    monkeypatch.setattr(sim, "report", report)
    out = tmp_path / "run"
    with pytest.raises(BrokenPipeError):
        sim.main([*TINY, "--sources", "lag1", "--arms", "next_causal", "--out", str(out)])
    assert (out / "summary.json").exists()


def test_ctrl_c_while_drawing_keeps_the_numbers(tmp_path, capsys, monkeypatch):
    def draw(runs, folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(sim, "draw", draw)
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        sim.main([*TINY, "--sources", "lag1", "--arms", "next_causal", "--out", str(out)])
    kept = {path.name for path in (tmp_path / "run.interrupted").iterdir()}
    assert kept == {"summary.json", "metrics.csv"}
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [("crlf.txt", "one line\r\n\tand two\x00\r\n"), ("$\\frac{$.txt", "日本語🙂 a b c ")],
)
def test_odd_texts_and_names_are_drawn_without_a_warning(tmp_path, capsys, name, text):
    file = tmp_path / name
    file.write_bytes(text.encode() * 30)
    options = ["--sources", "text", "--arms", "next_causal", "--text", str(file)]
    sim.main([*TINY, *options, "--out", str(tmp_path / "run")])
    assert (tmp_path / "run" / "beta_text.png").exists()

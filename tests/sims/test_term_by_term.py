import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import term_by_term as sim
from parts.term_by_term import figures, report
from parts.term_by_term.dissection import Terms

from minattn import symmetry
from minattn.comparison import ARMS

ROOT = Path(__file__).parents[2]
TINY = ["--quick", "--steps", "3", "--width", "6", "--length", "7"]


class NoBar:
    """A progress bar that shows nothing."""

    def set_description(self, text):
        pass

    def set_postfix(self, **values):
        pass

    def update(self, by=1):
        pass


def dissected(*extra):
    options = sim.parse([*TINY, *extra])
    task = sim.make_task(options, None)
    return [sim.dissect(arm, task, options, "numpy", NoBar()) for arm in ARMS]


@pytest.fixture(scope="module")
def arms():
    return dissected()


@pytest.fixture
def no_figures(monkeypatch):
    """Leave the drawing out: it takes longer than all else."""
    monkeypatch.setattr(report, "draw", lambda arms, folder: None)


def test_a_quick_run_from_the_command_line(tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, ROOT / "sims" / "term_by_term.py", *TINY, "--out", out]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "Traceback" not in run.stderr
    assert max(map(len, run.stdout.splitlines())) <= 100
    summary = json.loads((out / "summary.json").read_text(), parse_constant=pytest.fail)
    assert {"name", "config", "seeds", "engine", "threads", "versions"} <= summary.keys()
    assert [claim["verdict"] for claim in summary["claims"]] == ["holds"] * 9
    assert [arm["arm"] for arm in summary["arms"]] == list(ARMS)
    pages = {"beta", "running_sum", "symbols", "parts", "Ghat", "change"}
    pages |= {"blocks_Ghat", "blocks_change"}
    assert {path.stem for path in out.glob("*.png")} == pages
    with (out / "terms.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["arm", "query_token", "key_token", *Terms._fields]
    assert len(rows) == sum(arm["terms"] for arm in summary["arms"])


def test_each_term_is_what_it_says(arms):
    for arm in arms:
        x, G, W = arm.update.x[0, 0], arm.total, arm.form
        size = np.linalg.norm(G)
        for i, j, b, norm, plus, minus, share, own, everything, slope in zip(
            *arm.terms, strict=True
        ):
            term = b * np.outer(x[i], x[j])
            assert norm == pytest.approx(np.linalg.norm(term) / size)
            halves = (term + term.T) / 2, (term - term.T) / 2
            energies = [(np.linalg.norm(half) / size) ** 2 for half in halves]
            assert [plus, minus] == pytest.approx(energies, abs=1e-12)
            assert share == pytest.approx((term * G).sum() / size**2)
            for moved, score in ((term, own), (G, everything)):
                assert score == pytest.approx(x[i] @ moved @ x[j] / arm.config.h**0.5)
            step = 1e-4 / np.linalg.norm(term)
            ahead, behind = (symmetry(W + sign * step * term) for sign in (1, -1))
            assert slope == pytest.approx((ahead - behind) / (2 * step), rel=1e-4, abs=1e-9)
        assert (np.diff(arm.terms.norm) <= 0).all()


def test_shares_and_sums(arms):
    for arm in arms:
        assert arm.terms.share.sum() == pytest.approx(1)
        x, G = arm.update.x[0, 0], arm.total
        first = np.outer(x[arm.terms.query[0]], x[arm.terms.key[0]]) * arm.terms.beta[0]
        distances, cosines = arm.running
        assert distances[0] == pytest.approx(np.linalg.norm(first - G) / np.linalg.norm(G))
        assert distances[-1] < 1e-12
        assert cosines[-1] == pytest.approx(1)
        for family, side in (("as_key", arm.terms.key), ("as_query", arm.terms.query)):
            for symbol, share in arm.symbol_shares[family].items():
                own = [arm.tokens[place] == symbol for place in side]
                assert share == pytest.approx(arm.terms.share[own].sum(), abs=1e-12)


def test_arms_see_the_same_tokens(arms):
    causal, bidirectional, masked_causal = arms
    assert bidirectional.tokens == masked_causal.tokens
    assert "■" in bidirectional.tokens
    assert "■" not in causal.tokens
    shown = zip(causal.tokens, bidirectional.tokens[:-1], strict=True)
    assert all(one in (other, "■") or other == "■" for one, other in shown)


def test_a_wrong_total_shows_in_the_claims(arms):
    claims = {claim.claim: claim.verdict for claim in sim.judge_all(arms)}
    assert set(claims.values()) == {"holds"}
    update = replace(arms[1].update)
    vars(update)["total"] = 1.001 * update.total  # kept beside the coefficients, once computed
    wrong = {c.claim: c.verdict for c in sim.judge_all([arms[0], replace(arms[1], update=update)])}
    assert wrong["the running sum of the terms ends at Ghat"] == "does not hold"
    assert wrong["tokens', positions' and cross contributions add up to Ghat"] == "does not hold"
    assert wrong["shares sum to 1 over the symbols as keys"] == "does not hold"


def test_untrained_models_have_no_change(tmp_path, no_figures):
    out = tmp_path / "run"
    sim.main([*TINY, "--steps", "0", "--source", "lag1", "--out", str(out)])
    for arm in json.loads((out / "summary.json").read_text())["arms"]:
        assert arm["loss"] == arm["loss_untrained"]
        assert list(arm["forms"]) == ["Ghat"]


def test_upper_layers_have_no_blocks(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        report, "draw", lambda arms, folder: drawn.append(figures.parts(arms, "here"))
    )
    out = tmp_path / "run"
    sim.main([*TINY, "--layers", "2", "--layer", "1", "--source", "text", "--out", str(out)])
    summary = json.loads((out / "summary.json").read_text())
    assert [claim["verdict"] for claim in summary["claims"]] == ["holds"] * 8
    assert all("block_share" not in arm["forms"]["Ghat"] for arm in summary["arms"])
    assert len(drawn[0].axes) == 1


def test_the_same_seed_gives_the_same_numbers(tmp_path, no_figures):
    found = []
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        sim.main([*TINY, "--seed", seed, "--out", str(tmp_path / name)])
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        found.append((summary["arms"], (tmp_path / name / "terms.csv").read_text()))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--source", "lag3"], "--source"),
        (["--steps", "-1"], "--steps"),
        (["--steps", "many"], "--steps"),
        (["--length", "3"], "--length"),
        (["--width", "0"], "--width"),
        (["--layers", "0"], "--layers"),
        (["--layer", "1"], "--layer"),
        (["--top", "-1"], "--top"),
        (["--seed", "-1"], "--seed"),
        (["--engine", "abacus"], "--engine"),
        (["--text", "no such file", "--source", "text"], "no such file"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_bad_options_are_one_clear_line(options, message, refused):
    assert message in refused(sim.main, *TINY, *options)


def test_ctrl_c_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "draw", interrupted)
    with pytest.raises(SystemExit) as ending:
        sim.experiment.run(lambda: sim.main([*TINY, "--out", str(tmp_path / "run")]))
    assert ending.value.code == 130
    assert list(tmp_path.iterdir()) == []

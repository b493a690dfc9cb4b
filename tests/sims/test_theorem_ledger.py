import csv
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import theorem_ledger as sim
from parts.theorem_ledger import figures, report

from minattn import theorems
from minattn.theorems import bidirectional, dominance
from minattn.theorems.trained import trained_models

ROOT = Path(__file__).parents[2]
COLUMNS = ["statement", "source", "method", "predicted", "measured", "interval", "verdict"]
COLUMNS += ["found", "function", "seconds"]
FAST = ["--only", "Def 3.1, Remark A.13", "--only", "App. A.5.5"]


def ledger(folder):
    return json.loads((folder / "ledger.json").read_text(), parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A run of all statements on two draws each, without figures."""
    out = tmp_path_factory.mktemp("all") / "run"
    with pytest.MonkeyPatch.context() as patch:
        for module in (sim, report):
            patch.setattr(module, "FIGURES", {})
        for module in (bidirectional, dominance):  # two steps of training will do
            patch.setattr(module, "trained_models", lambda seed, _, n: trained_models(seed, 2, n))
        sim.main(["--draws", "2", "--out", str(out)])
    return out


def test_every_statement_has_a_row(everything):
    rows = ledger(everything)
    assert len(rows) == len(theorems.names())
    for name, row in zip(theorems.names(), rows, strict=True):
        assert list(row) == COLUMNS
        assert row["statement"].startswith(f"{name}: ")
        module, _, function = row["function"].rpartition(".")
        assert callable(getattr(import_module(module), function))
        assert row["seconds"] >= 0
        assert row["interval"] is None or len(row["interval"]) == 2


def test_the_csv_says_the_same(everything):
    with (everything / "ledger.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    for row, flat in zip(ledger(everything), table, strict=True):
        assert list(flat) == COLUMNS
        assert flat["statement"] == row["statement"]
        assert flat["found"] == row["found"]
        assert float(flat["measured"]) == float(row["measured"])
        assert json.loads(flat["interval"]) == row["interval"]


def test_the_page_leads_from_each_row_to_its_section(everything):
    page = (everything / "README.md").read_text()
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page, flags=re.S | re.M))
    assert list(sections) == theorems.names()
    for row, (name, text) in zip(ledger(everything), sections.items(), strict=True):
        statement = next(s for s in theorems.statements() if s.name == name)
        assert f"[{name}](#{report._anchor(name)})" in page
        assert f"`{row['function']}`" in text
        for words in (statement.assumptions, statement.rule, row["found"], row["verdict"]):
            assert report._plain(words) in text
    rows = [line for line in page.splitlines() if line.startswith("| [")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 4 for line in rows)


def test_anchors_are_those_of_markdown_viewers():
    names = {"Thm 2.3 (17)": "thm-23-17", "App. A.5.5": "app-a55", "S25": "s25"}
    assert {name: report._anchor(name) for name in names} == names


def test_a_run_from_the_command_line(tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, ROOT / "sims" / "theorem_ledger.py", *FAST, "--quick", "--out", out]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "Traceback" not in run.stderr
    assert "holds only if its" in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 100
    files = {"summary.json", "ledger.json", "ledger.csv", "README.md"}
    assert {path.name for path in out.iterdir()} == files
    names = [row["statement"].split(":")[0] for row in ledger(out)]
    assert names == ["Def 3.1", "Remark A.13", "App. A.5.5"]
    summary = json.loads((out / "summary.json").read_text(), parse_constant=pytest.fail)
    assert {"name", "config", "seeds", "engine", "threads", "versions"} <= summary.keys()
    assert [claim["verdict"] for claim in summary["claims"]] == [r["verdict"] for r in ledger(out)]
    assert sum(summary["verdicts"].values()) == 3
    assert summary["config"]["statements"]["App. A.5.5"] == sim.QUICK_DRAWS


def test_the_same_seed_gives_the_same_ledger_but_for_the_seconds(tmp_path):
    found, pages = [], []
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        out = tmp_path / name
        sim.main([*FAST, "--seed", seed, "--draws", "50", "--out", str(out)])
        found.append([{**row, "seconds": None} for row in ledger(out)])
        pages.append((out / "README.md").read_text())
    assert found[0] == found[1] != found[2]
    assert pages[0] == pages[1]


def test_draws_are_a_limit_for_all_and_a_number_for_those_asked_for():
    def draws(*arguments):
        return sim.said(sim.parse(arguments))["statements"]

    own = {statement.name: statement.draws for statement in theorems.statements()}
    assert draws() == own
    assert draws("--draws", "5") == {name: min(5, number) for name, number in own.items()}
    assert draws("--draws", "100", "--only", "S25") == {"S25": 100}
    assert own["S25"] < 100
    quick = draws("--quick")
    assert quick == {name: min(sim.QUICK_DRAWS, number) for name, number in own.items()}
    assert quick != own


@pytest.mark.parametrize("name", sim.FIGURES)
def test_figures(name, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "STEPS", 2)
    monkeypatch.setattr(figures, "REPLICAS", 2)
    stem, draw = sim.FIGURES[name]
    path = tmp_path / f"{stem}.png"
    sim.plots.save(draw(0, True), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert name in theorems.names()


def test_a_statement_with_a_figure_shows_it(tmp_path):
    out = tmp_path / "run"
    sim.main(["--only", "Lemma A.11", "--quick", "--out", str(out)])
    assert (out / "lemma_a11.png").exists()
    assert "(lemma_a11.png)" in (out / "README.md").read_text()


def test_statements_go_by_names_as_pages_spell_them():
    options = sim.parse(["--only", "Thm. 2.4, Prop. A.7", "--only", "App A.3"])
    assert options.statements == ("Prop A.7", "Thm 2.4", "App. A.3")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "Prop A.99"], "Prop A.99"),
        (["--only", "S25,S27"], "S27"),
        (["--only", ""], "--only"),
        (["--draws", "1"], "--draws"),
        (["--draws", "many"], "--draws"),
        (["--seed", "-1"], "--seed"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_bad_options_are_one_clear_line(options, message, refused):
    assert message in refused(sim.main, *options)


def test_ctrl_c_leaves_what_was_there(tmp_path, capsys, monkeypatch):
    out = tmp_path / "run"
    sim.main([*FAST, "--draws", "2", "--out", str(out)])
    before = (out / "ledger.json").read_bytes()
    real = theorems.check

    def check(name, *arguments):
        if name == "App. A.5.5":
            raise KeyboardInterrupt
        return real(name, *arguments)

    monkeypatch.setattr(theorems, "check", check)
    with pytest.raises(SystemExit) as ending:
        sim.experiment.run(lambda: sim.main([*FAST, "--draws", "2", "--out", str(out)]))
    assert ending.value.code == 130
    assert (out / "ledger.json").read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]

"""What holds of every sim: a run can be repeated, also a published one."""

import csv
import importlib
import json
import re
from pathlib import Path

import pytest

from minattn.data import load_text

ROOT = Path(__file__).parents[2]
SMALL = ["--steps", "3", "--replicas", "2", "--width", "4"]
TINY = {
    "bidirectional_vs_causal": [*SMALL, "--sources", "lag2,text"],
    "column_dominance": SMALL,
    "depth": [*SMALL, "--depths", "2"],
    "modalities": [*SMALL, "--modalities", "sound"],
    "score_checkpoint": ["--draws", "3", "--fold-norm"],
    "symmetric_init": [*SMALL, "--sources", "text", "--penalty-weight", "0.5"],
    "term_by_term": ["--steps", "3", "--width", "4", "--length", "7", "--source", "text"],
    "theorem_ledger": ["--only", "Prop 2.1", "--only", "S26,Lemma A.11", "--draws", "5"],
    "time_reversal": [*SMALL, "--lag", "2"],
}
NAMES = sorted(TINY)


def test_every_sim_is_here_but_for_those_that_measure_time():
    names = {path.stem for path in (ROOT / "sims").glob("*.py")}
    assert names - TINY.keys() == {name for name in names if name.startswith("benchmark")}


def results(folder):
    """Return all that a run says, but for how long it took and which options were free."""
    summary = json.loads((folder / "summary.json").read_text())
    tables = {}
    for path in folder.glob("*.csv"):
        with path.open(newline="") as file:
            tables[path.name] = list(csv.DictReader(file))
        for row in tables[path.name]:
            row.pop("seconds", None)
    return summary, tables


def listed(sim, file):
    """Whether --help lists a file; figures by their stem, capitals for a name that varies."""
    shown = file.stem if file.suffix in (".png", ".pdf") else file.name
    words = re.findall(r"[\w.]+", sim.__doc__.partition("\nFiles, ")[2])
    patterns = (re.sub("_[A-Z]{4,}", r"_\\w+", re.escape(word.rstrip("."))) for word in words)
    return any(re.fullmatch(pattern, shown) for pattern in patterns)


@pytest.mark.parametrize("name", NAMES)
def test_help_states_question_rules_run_time_and_files(name, capsys):
    sim = importlib.import_module(name)
    question, _, rest = sim.__doc__.partition("\n")
    assert question.endswith("?")
    assert re.search(r"^(Primary claims|Claims|Verdicts|There are no claims)\b", rest, re.MULTILINE)
    assert re.search(r"The default run takes [\w\s]+ on\s+two\s+quiet\s+cores\b", rest)
    assert re.search(r"^Files, in the result folder;.*\n  summary\.json ", rest, re.MULTILINE)
    with pytest.raises(SystemExit):
        sim.parse(["--help"])
    shown = capsys.readouterr().out
    assert sim.__doc__.strip() in shown
    for option in ("--quick", "--seed", "--out DIR", "--from SUMMARY", "--format", "--publish"):
        assert option in shown
    assert max(map(len, sim.__doc__.splitlines())) <= 100


@pytest.mark.parametrize("name", NAMES)
def test_a_run_repeated_from_its_summary_gives_every_number_again(name, tmp_path, capsys):
    sim = importlib.import_module(name)
    sim.main(["--quick", "--seed", "1", *TINY[name], "--out", str(tmp_path / "one")])
    path = tmp_path / "one" / "summary.json"
    sim.main(["--from", str(path), "--out", str(tmp_path / "two"), "--format", "pdf"])
    capsys.readouterr()
    one, two = results(tmp_path / "one"), results(tmp_path / "two")
    for summary, _ in (one, two):
        assert summary["config"].pop("engine", one[0]["engine"]) in ("auto", one[0]["engine"])
    assert one == two
    for file in (tmp_path / "one").iterdir():
        assert listed(sim, file), f"{file.name} is not in the docstring"
    figures = [{p.stem for p in (tmp_path / run).glob(f"*.{ending}")}
               for run, ending in (("one", "png"), ("two", "pdf"))]  # fmt: skip
    assert figures[0] == figures[1] != set()


@pytest.mark.parametrize("name", NAMES)
def test_published_runs_can_be_repeated(name):
    """Up to the text, which differs between versions of Python, all is as this version has it."""
    sim = importlib.import_module(name)
    path = ROOT / "results" / "published" / name / "summary.json"
    models = json.loads(path.read_text())["config"].get("models", [])
    options = sim.parse(["--from", str(path), *(f"{name}=." for name in models)])
    engine = options.again["engine"]
    sim.experiment.check_rerun(options, sim.said(options), engine)


def test_a_published_run_on_another_text_is_refused(tmp_path, capsys):
    import bidirectional_vs_causal as sim

    text = tmp_path / "own.txt"
    text.write_text("to be or not to be, that is the question. " * 40)
    path = ROOT / "results" / "published" / sim.NAME / "summary.json"
    with pytest.raises(ValueError, match=load_text(text).sha256):
        sim.main(["--from", str(path), "--text", str(text), "--out", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()

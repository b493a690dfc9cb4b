"""Every option of every sim: a bad value is one clear line, before any work, and leaves nothing."""

import importlib
from pathlib import Path

import pytest

import minattn as ma
from minattn import experiment
from minattn.saving import save_arrays

SIMS = Path(__file__).parents[2] / "sims"
NAMES = sorted(p.stem for p in SIMS.glob("*.py") if not p.stem.startswith("benchmark"))

TEXTS = ["", "x", "nan", "1.5", "1e3", "True", "9" * 30]
COUNT = [*TEXTS, "-1", "0"]
CHOICE = ["", "no such name", "1"]
FILE = ["/no/such/file", "\0"]

# By option: values that it refuses. Those that only turn something on are not here.
REFUSED = {
    "--seed": [*TEXTS[:-1], "-1"],
    "--out": [__file__, "/proc/no/such/folder", "."],
    **dict.fromkeys(
        ("--replicas", "--steps", "--width", "--layers", "--length", "--lag", "--draws"), COUNT
    ),
    "--layer": [*TEXTS, "-1", "99"],
    "--top": [*TEXTS, "-1"],
    "--workers": COUNT,
    "--scheduler": ["no-such-scheme://host:1"],
    **dict.fromkeys(("--engine", "--dtype", "--source", "--family"), CHOICE),
    **dict.fromkeys(("--sources", "--arms", "--modalities", "--depths", "--only"), CHOICE),
    "--penalty-weight": ["", "x", "nan", "inf", "-1"],
    "--text": FILE,
    "--wav": FILE,
    # How to read a checkpoint: what does not fit one is refused when it is opened.
    **dict.fromkeys(("--heads", "--key-heads", "--head-width", "--rotary-width"), COUNT),
    "--rotary-base": ["", "x", "nan", "inf", "-1", "0"],
    "--rotary-offset": TEXTS[:-1],
    "--replica": [*TEXTS[:-1], "-1"],
    "--prefix": ["no such prefix."],
    "--format": CHOICE,
    "--film": CHOICE,
    "--from": FILE,
}
ALLOWED = {("term_by_term", "--steps"): ["0"]}  # there, an untrained model is a question too
# Options that a sim looks at only together with another.
BESIDE = {
    ("bidirectional_vs_causal", "--text"): ["--sources", "text"],
    ("symmetric_init", "--text"): ["--sources", "text"],
    ("term_by_term", "--text"): ["--source", "text"],
    ("score_checkpoint", "--rotary-base"): ["--rotary-offset", "1"],
    ("score_checkpoint", "--rotary-width"): ["--rotary-offset", "1"],
}
# Options beside others with which nothing would look at them.
IDLE = [
    ("bidirectional_vs_causal", ["--text", __file__, "--sources", "lag1,iid"]),
    ("modalities", ["--text", __file__, "--modalities", "sound"]),
    ("modalities", ["--wav", __file__, "--modalities", "text"]),
    ("score_checkpoint", ["--rotary-base", "100"]),
    ("score_checkpoint", ["--rotary-width", "2"]),
    ("score_checkpoint", ["--pre-norm"]),
    ("symmetric_init", ["--text", __file__, "--sources", "lag2"]),
    ("term_by_term", ["--text", __file__]),
    ("term_by_term", ["--text", __file__, "--source", "iid"]),
]
SWEPT = ("column_dominance", "depth", "modalities", "symmetric_init", "time_reversal")
IDLE += [(name, ["--workers", "2", "--scheduler", "tcp://localhost:1"]) for name in SWEPT]


def parser_of(sim, monkeypatch):
    """Return the parser that a sim's `parse` makes."""
    made = []
    parser = experiment.parser
    with monkeypatch.context() as patched:
        patched.setattr(experiment, "parser", lambda *a: made.append(parser(*a)) or made[-1])
        sim.parse(["--quick"])
    return made[0]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Path of a model to score."""
    path = tmp_path_factory.mktemp("model") / "run"
    config = ma.TransformerConfig(vocab_size=2, width=4, layers=1, heads=2, max_length=2)
    params = {f"params.{name}": value for name, value in ma.init_params(config).items()}
    save_arrays(path, params, {"settings": {}})
    return path


@pytest.mark.parametrize("name", NAMES)
def test_bad_options_are_refused_in_one_line_before_any_work(
    name, tmp_path, monkeypatch, capsys, model
):
    sim = importlib.import_module(name)
    monkeypatch.chdir(tmp_path)
    actions = parser_of(sim, monkeypatch)._actions
    options = [a.option_strings[-1] for a in actions if a.option_strings and a.nargs != 0]
    assert set(options) <= set(REFUSED)
    for option in options:
        for value in set(REFUSED[option]) - set(ALLOWED.get((name, option), [])):
            beside = list(BESIDE.get((name, option), []))
            beside += [str(model)] if name == "score_checkpoint" else []
            arguments = ["--quick", "--out", "run", *beside, f"{option}={value}"]
            with pytest.raises(SystemExit) as ending:
                experiment.run(lambda a=arguments: sim.main(a))
            error = capsys.readouterr().err.splitlines()[-1]
            assert ending.value.code == 2, (option, value)
            assert error.startswith("error: "), (option, value)
            assert ": got " in error or option in error, (option, value, error)
            assert list(tmp_path.iterdir()) == [], (option, value)


@pytest.mark.parametrize(("name", "arguments"), IDLE)
def test_an_option_that_nothing_would_look_at_is_refused_before_any_work(
    name, arguments, tmp_path, monkeypatch, capsys
):
    sim = importlib.import_module(name)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ending:
        experiment.run(lambda: sim.main(["--quick", *arguments]))
    error = capsys.readouterr().err.splitlines()[-1]
    assert ending.value.code == 2
    assert error.startswith("error: ")
    assert arguments[0] in error
    assert any(other in error for other in (": got a value that nothing would look at", "allowed"))
    assert list(tmp_path.iterdir()) == []

"""--from: which runs can be repeated, and what is refused."""

import json

import pytest

from minattn import experiment
from minattn.data import load_text
from minattn.engines import get_threads

FULL, QUICK = {"steps": 100, "length": 24}, {"steps": 5, "length": 8}


@pytest.fixture
def parser():
    made = experiment.parser("own", "A sim.")
    made.add_sizes(FULL, QUICK, steps=1)
    made.add_argument("--kinds", default="a,b", metavar="LIST")
    made.add_argument("--rate", type=float, default=0.5)
    made.add_argument("--only", action="append")
    made.add_argument("--engine", choices=("auto", "numpy"), default="auto")
    made.add_argument("--workers", type=int)
    made.add_text()
    return made


@pytest.fixture
def run(parser, tmp_path):
    """Write the summary of a run with these arguments, altered by `change`; return its path."""

    def write(*arguments, **change):
        options = parser.parse_args(arguments)
        settings = experiment.config(options, constant=[1, 2])
        summary = experiment.summary("own", settings, options.seed, "numpy", [])
        summary["text"] = experiment.text_facts(load_text())
        path = tmp_path / "summary.json"
        experiment.write_json(path, summary | change)
        return path

    return write


def check(options, digest=None, constant=(1, 2), engine="numpy"):
    settings = experiment.config(options, constant=constant)
    experiment.check_rerun(options, settings, engine, {"text": digest or load_text().sha256})


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--quick"],
        ["--seed", "3", "--steps", "7", "--rate=-1e-7"],
        ["--kinds", "b", "--only", "one, two", "--only", "three"],
        ["--quick", "--engine", "numpy", "--text", "some file"],
    ],
)
def test_options_are_those_of_the_run(parser, run, arguments):
    path = run(*arguments)
    asked, found = parser.parse_args(arguments), parser.parse_args(["--from", str(path)])
    check(found)
    assert vars(found).keys() == vars(asked).keys()
    for name, value in vars(asked).items():
        if name == "engine":
            assert found.engine == "numpy"  # "auto" has become what it was there
        elif name not in ("again", "workers"):
            assert getattr(found, name) == value, name


def test_sizes_are_of_the_run_even_if_their_defaults_have_changed(parser, run):
    path = run("--quick")
    parser.sizes = (FULL, {"steps": 6, "length": 9})
    found = parser.parse_args(["--from", str(path)])
    assert (found.steps, found.length) == (5, 8)


def test_threads_are_those_of_the_run(parser, run):
    check(parser.parse_args(["--from", str(run(threads=3))]))
    assert get_threads() == 3


def test_what_no_number_depends_on_is_free_beside_it(parser, run, tmp_path):
    free = ["--out", str(tmp_path), "--workers", "4", "--format", "pdf", "--text", "moved"]
    found = parser.parse_args(["--from", str(run("--quick", "--text", "here")), *free])
    check(found)
    assert (found.out, found.workers, found.format) == (tmp_path, 4, "pdf")
    assert str(found.text) == "moved"


@pytest.mark.parametrize(
    "argument", ["--quick", "--seed=0", "--steps=5", "--kinds=a,b", "--only=a", "--engine=auto"]
)
def test_options_that_change_numbers_are_refused_beside_it(parser, run, argument):
    option = argument.partition("=")[0]
    with pytest.raises(ValueError, match=f"^{option}: got a value beside --from"):
        parser.parse_args(["--from", str(run("--quick")), argument])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "other"}, "a run of other, needs the summary.json of a run of own"),
        ({"config": []}, "which is none, needs the summary.json of a run of own"),
        ({"threads": "two"}, "which is none"),
        ({"format": 0}, f"in format 0, needs format {experiment.FORMAT}"),
    ],
)
def test_runs_of_another_sim_or_format_are_refused(parser, run, change, message):
    with pytest.raises(ValueError, match=message):
        parser.parse_args(["--from", str(run(**change))])


@pytest.mark.parametrize("content", [None, b"no JSON", b"\xff", b"[]", b'{"name": "own"}'])
def test_what_is_no_summary_is_refused(parser, tmp_path, content):
    path = tmp_path / "some.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^--from: got .*some\.json.* of a run of own"):
        parser.parse_args(["--from", str(path)])


def test_another_text_constant_option_or_engine_is_refused(parser, run):
    path = run()
    found = parser.parse_args(["--from", str(path)])
    with pytest.raises(ValueError, match=r"whose text has sha256 \w{64}, needs .* sha256 other"):
        check(found, digest="other")
    with pytest.raises(ValueError, match=r"with constant = \[1, 2\], needs .* with \[1, 3\]"):
        check(found, constant=(1, 3))
    with pytest.raises(ValueError, match="computed by numpy, needs a run by numba"):
        check(found, engine="numba")
    summary = json.loads(path.read_text())
    path = run(config=summary["config"] | {"forgotten": 1})
    with pytest.raises(ValueError, match="forgotten = 1, needs one whose every option is known"):
        check(parser.parse_args(["--from", str(path)]))


def test_versions_that_may_round_otherwise_are_said(parser, run, capsys):
    check(parser.parse_args(["--from", str(run())]))
    assert not capsys.readouterr().out
    versions = experiment.versions() | {"numpy": "1.0"}
    check(parser.parse_args(["--from", str(run(versions=versions))]))
    assert "instead of 1.0" in capsys.readouterr().out


def test_without_it_nothing_is_checked(parser):
    threads = get_threads()
    check(parser.parse_args([]), digest="other", engine="none")
    assert get_threads() == threads

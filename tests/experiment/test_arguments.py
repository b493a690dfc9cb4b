from pathlib import Path

import pytest

from minattn import experiment


def test_parser_complaints_are_value_errors():
    parser = experiment.parser("own", "A sim.")
    for arguments in (["--seed", "x"], ["--unknown"], ["--see", "1"], ["--qui"]):
        with pytest.raises(ValueError, match=r"argument|unrecognized"):
            parser.parse_args(arguments)
    assert parser.parse_args([]).out == Path("results") / "own"


def test_what_cannot_be_published_is_refused_before_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parser = experiment.parser("own", "A sim.")
    assert parser.parse_args(["--publish"]).publish
    (tmp_path / "results" / "published" / "own").mkdir()
    (tmp_path / "results" / "published" / "own" / "notes.txt").write_text("dear")
    with pytest.raises(ValueError, match="no run has written"):
        parser.parse_args(["--publish"])
    assert not parser.parse_args([]).publish


def test_pages_show_pngs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parser = experiment.parser("own", "A sim.")
    with pytest.raises(ValueError, match=r"^--format: got pdf beside --publish"):
        parser.parse_args(["--publish", "--format", "pdf"])
    assert parser.parse_args(["--format", "pdf"]).format == "pdf"
    with pytest.raises(ValueError, match="--format"):
        parser.parse_args(["--format", "jpg"])


def test_sizes_are_smaller_with_quick_and_checked():
    parser = experiment.parser("own", "A sim.")
    parser.add_sizes({"steps": 9, "length": 5}, {"steps": 3, "length": 2}, steps=2)
    for arguments, found in (([], (9, 5)), (["--quick"], (3, 2)), (["--steps", "4"], (4, 5))):
        options = parser.parse_args(arguments)
        assert (options.steps, options.length) == found
    for arguments in (["--steps", "1"], ["--seed", "-1"], ["--length", "5"]):
        with pytest.raises(ValueError, match=arguments[0]):
            parser.parse_args(arguments)


def test_a_quick_run_leaves_the_results_of_a_full_one_alone():
    parser = experiment.parser("own", "A sim.")
    assert parser.parse_args([]).out == Path("results/own")
    assert parser.parse_args(["--quick"]).out == Path("results/own_quick")
    assert parser.parse_args(["--quick", "--out", "there"]).out == Path("there")


def test_names():
    assert experiment.names("b, a", "--letters", "abc") == ("a", "b")
    for text in ("d", "a,d", "", ","):
        with pytest.raises(ValueError, match="--letters"):
            experiment.names(text, "--letters", "abc")


@pytest.mark.parametrize(
    ("message", "said"),
    [("path: got 3", "--text: got 3"), ("path2: got 3",) * 2, ("levels: got a path: 3",) * 2],
)
def test_only_errors_about_the_argument_speak_of_the_option(message, said):
    with pytest.raises(ValueError) as error, experiment.given_as("--text", "path"):  # noqa: PT011
        raise ValueError(message)
    assert str(error.value) == said

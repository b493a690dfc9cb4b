from pathlib import Path

import pytest

from minattn import experiment


def test_parser_complaints_are_value_errors():
    parser = experiment.parser("own", "A sim.")
    for arguments in (["--seed", "x"], ["--unknown"]):
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


def test_names():
    assert experiment.names("b, a", "--letters", "abc") == ("a", "b")
    for text in ("d", "a,d", "", ","):
        with pytest.raises(ValueError, match="--letters"):
            experiment.names(text, "--letters", "abc")

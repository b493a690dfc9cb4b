"""The README shows files as they are and its code runs; what pages make of results is current."""

import doctest
import importlib
import os
import pkgutil
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import minattn

ROOT = Path(__file__).parent.parent
GALLERY = ROOT / "results" / "published" / "gallery.py"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON, SHELL = (
    re.findall(rf"^```{kind}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    for kind in ("python", "sh")
)
EXAMPLES = {
    path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("tests/examples/*.py")
}
MODULES = ["minattn", *(m.name for m in pkgutil.walk_packages(minattn.__path__, "minattn."))]


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_shown_as_they_are(name):
    assert EXAMPLES[name] in PYTHON
    assert EXAMPLES[name].count("\n") <= 26  # about twenty lines


@pytest.mark.parametrize("code", PYTHON, ids=lambda code: code.splitlines()[0][:40])
def test_python_blocks_run(code, capsys):
    if code == EXAMPLES["own_statement.py"]:  # would stay in the ledger
        run("tests/examples/own_statement.py")
    else:
        exec(compile(code, "README.md", "exec"), {"__name__": "README"})


@pytest.mark.parametrize("command", SHELL[2:])
def test_shell_blocks_run(command, tmp_path):
    for name in ("sims", "results/published"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(ROOT / name)
    programme, *arguments = command.split()
    assert programme == "python"
    run(*arguments, cwd=tmp_path)


def run(*arguments, cwd=ROOT):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_the_update_is_read_to_its_end():
    *terms, proof = run("tests/examples/one_update.py")
    assert terms[-1].endswith("left 0%")
    residuals = [float(word) for word in re.findall(r"\S+e-\d+", proof)]
    assert len(residuals) == 2
    assert max(residuals) < 1e-12


@pytest.mark.parametrize(
    ("name", "starts"),
    [("own_source", ["bidirectional:", "causal:"]), ("own_objective", ["previous:", "next:"])],
)
def test_own_sources_and_objectives_are_measured(name, starts):
    assert [line.split()[0] for line in run(f"tests/examples/{name}.py")] == starts


def test_an_own_statement_holds_under_its_assumption_alone():
    assert run("tests/examples/own_statement.py") == ["holds exactly", "does not hold"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    if "cupy" in name:
        pytest.importorskip("cupy")
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_gallery_is_what_was_published():
    made = runpy.run_path(str(GALLERY))
    for name, (path, make) in made["MADE"].items():
        page = path.read_text(encoding="utf-8")
        assert made["placed"](page, name) == page
        assert f"\n{make()}\n" in page
    names = {path.stem for path in (ROOT / "sims").glob("*.py")}
    asking = {name for name in names if not name.startswith("benchmark")}
    assert made["SHOWN"].keys() == asking


def test_a_sentence_whose_verdicts_have_changed_is_refused():
    made = runpy.run_path(str(GALLERY))
    for name, (_, sentence) in made["SHOWN"].items():
        published = made["Published"](name)
        for claim in published.summary["claims"]:
            claim["verdict"] = "undertrained"
        if name not in ("theorem_ledger", "term_by_term", "score_checkpoint"):  # numbers alone
            with pytest.raises(ValueError, match="or new words"):
                sentence(published)


def test_primary_claims_that_a_correction_would_leave_open_are_listed():
    published = runpy.run_path(str(GALLERY))["Published"]("depth")
    for number, claim in enumerate(published.primary):
        assert "Holm" not in claim.rule
        one = next(c for c in published.summary["claims"] if c["claim"] == claim.claim)
        one |= {"p_value": 0.9, "verdict": "inconclusive"}
        if number == 0:
            one |= {"p_value": 0.04, "verdict": "holds"}
    assert [claim.p_value for claim in published.unsettled] == [0.04]
    for one in published.summary["claims"]:
        one["p_value"] = one.get("p_value") and 1e-4
    assert published.unsettled == []


def test_links_and_paths_exist():
    targets = re.findall(r"\]\((?!https?:)([^)#]+)(?:#\w+)?\)", README)
    targets += re.findall(r'<img src="([^"]+)"', README)
    targets += re.findall(r"`((?:minattn|sims|tests|results)/[\w/.]+)`", README)
    assert len(targets) > 40
    for target in targets:
        if "NAME" not in target and not target.startswith("results/bidirectional"):
            assert (ROOT / target).exists(), target


def test_links_into_the_page_of_results_name_one_of_its_headings():
    page = (ROOT / "results/published/README.md").read_text(encoding="utf-8")
    headings = {title.strip().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", page, re.M)}
    anchors = set(re.findall(r"\(results/published/README\.md#([\w-]+)\)", README))
    assert len(anchors) > 5
    assert anchors <= headings


def test_the_two_commands_come_first():
    assert [block.split()[0] for block in SHELL[:2]] == ["pip", "pip"]
    assert "sims/bidirectional_vs_causal.py" in SHELL[0]
    assert "pytest" in SHELL[1]

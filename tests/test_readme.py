"""The README shows files as they are, and its code runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["test_own_identity.py", "own_source.py"])
def test_examples_are_shown_as_they_are(name):
    text = (ROOT / "tests" / "examples" / name).read_text(encoding="utf-8")
    assert text in BLOCKS
    assert text.count("\n") <= 26  # about twenty lines


def test_the_tour_runs():
    exec(compile(BLOCKS[2], "README.md", "exec"), {})


def test_the_own_source_runs():
    script = ROOT / "tests" / "examples" / "own_source.py"
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    lines = run.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["bidirectional:", "causal:"]


def test_links_and_paths_exist():
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", README):
        assert (ROOT / target).exists(), target

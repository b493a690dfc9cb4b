"""Mutation testing of the mathematics: change the code a little, and see whether a test notices.

    pip install -e '.[test,mutation]'
    python tests/mutants.py                             all mutants, some minutes
    python tests/mutants.py 'minattn.layers.*'          those of some modules
    python tests/mutants.py --minutes 5                 as many as that takes, drawn at random

mutmut makes the mutants and picks the tests that reach each; pyproject.toml says which modules and
which tests. It works on a copy, in the folder mutants/. Compiled loops run as the plain functions
that they are. The score is the share of mutants that a test notices; what it does not is listed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
from collections import Counter

ENVIRONMENT = {
    "NUMBA_DISABLE_JIT": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "CI": "true",  # Hypothesis then draws the same examples for every mutant
}
NOTICED = ("killed", "timeout", "suspicious", "segfault", "caught by type check")


def mutmut(*arguments: str, seconds: float | None = None) -> str:
    """Run mutmut at the lowest priority; return what it printed, as far as the time went."""
    command = ["nice", "-n", "19", sys.executable, "-m", "mutmut", *arguments]
    try:
        run = subprocess.run(
            command,
            env=os.environ | ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return ""
    return run.stdout


def results() -> dict[str, str]:
    """Return what became of every mutant, by name."""
    listed = re.findall(r"^\s*(\S+__mutmut_\d+): (.+)$", mutmut("results", "--all", "true"), re.M)
    return dict(listed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="of mutants, with * for any part (default all)")
    parser.add_argument("--minutes", type=float, help="stop then, and report what there is")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default 0)")
    options = parser.parse_args()
    names = options.names
    if options.minutes is not None:
        mutmut("run", "--max-children", "1", "no.such.mutant")  # makes them, and runs none
        names = sorted(results())
        random.Random(options.seed).shuffle(names)
    out = mutmut(
        "run", "--max-children", "1", *names, seconds=options.minutes and 60 * options.minutes
    )
    found = {name: state for name, state in results().items() if state != "not checked"}
    if not found:
        sys.exit(f"no mutant was checked:\n{out[-3000:]}")
    report(found)


def report(found: dict[str, str]) -> None:
    """Print the score of each module, and the mutants that nothing noticed."""
    counts: Counter[tuple[str, bool]] = Counter()
    for name, state in found.items():
        counts[name.rpartition(".")[0], state in NOTICED] += 1
    for module in sorted({module for module, _ in counts}):
        noticed, missed = counts[module, True], counts[module, False]
        print(
            f"{module:32} {noticed:4} of {noticed + missed:4} {noticed / (noticed + missed):6.1%}"
        )
    noticed = sum(state in NOTICED for state in found.values())
    print(f"{'all':32} {noticed:4} of {len(found):4} {noticed / len(found):6.1%}")
    for name, state in found.items():
        if state not in NOTICED:
            print(f"{state}: {name}")


if __name__ == "__main__":
    main()

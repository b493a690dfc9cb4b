"""Which of the theory's numbered statements hold, and under which conditions?

Every statement that minattn.theorems knows is measured, and a rule that was fixed beforehand turns
the numbers into its verdict. Source of the statements: "The underlying structures of
self-attention: symmetry, directionality, and emergent dynamics in Transformer training", ICML 2025.

Verdicts:
  holds exactly         an identity or a count, met to rounding in every instance drawn
  holds in expectation  a mean, met within a tenth; its interval contains the prediction
  holds only if ...     as stated it does not hold, under the condition named it does
  does not hold         an instance or an interval refutes it
  inconclusive          too few draws, or too little training; "found" says what would do
Each statement draws from a stream of its own: its numbers depend on the seed and on the number of
its draws, not on what else is checked. Intervals are those of the rule: 99.99% where expectations
are measured, 95% over trained replicas, otherwise the range over the instances drawn.

The default run takes about half a minute on two quiet cores; --quick draws less and leaves some
expectations inconclusive.

Files, in the result folder; figures are PNG or, with --format pdf, vector graphics:
  summary.json           how it was run; every claim
  README.md              a page with assumptions, rule, numbers and function of each statement
  ledger.json            a row a statement; ledger.csv: the same as a table
  prop_a7, remark_a10, lemma_a11, theorem_2_3_17, theorem_2_4
                         the statements whose outcome is best seen
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from time import perf_counter
from typing import Any

from parts.theorem_ledger.figures import FIGURES
from parts.theorem_ledger.report import Entry, kind, page, report
from tqdm import tqdm

from minattn import checks, experiment, plots, theorems
from minattn.engines import choose
from minattn.saving import write_bytes
from minattn.theorems import Statement
from minattn.theorems.registry import registered

NAME = "theorem_ledger"
QUICK_DRAWS = 4000


def main(arguments: list[str] | None = None) -> None:
    """Check the statements, then print and write the ledger."""
    options = parse(arguments)
    chosen = [s for s in theorems.statements() if s.name in options.statements]
    figures = [s.name for s in chosen if s.name in FIGURES]
    experiment.check_rerun(options, said(options), choose("auto", "float64").name)
    with experiment.result_folder(options.out, options.format) as folder:
        with tqdm(total=len(chosen) + len(figures), unit="item", dynamic_ncols=True) as bar:
            entries = list(check(chosen, options, bar))
            for name in figures:
                bar.set_description(f"figure of {name}")
                stem, draw = FIGURES[name]
                plots.save(draw(options.seed, options.quick), folder.figure(stem))
                bar.update()
        write(entries, options, folder)
        folder.complete()
    report(entries)
    experiment.finish(options, NAME)


def parse(arguments: list[str] | None) -> Namespace:
    """Read the options; `statements` are the names asked for, all of them by default."""
    parser = experiment.parser(NAME, __doc__)
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help='a statement, such as "Prop A.7"; repeatable, or comma-separated (default all)',
    )
    parser.add_argument(
        "--draws",
        type=int,
        help="at most so many draws a statement; with --only exactly so many, also more than its "
        f"default (default: its own; with --quick at most {QUICK_DRAWS})",
    )
    options = parser.parse_args(arguments)
    if options.draws is not None:
        checks.integer("--draws", options.draws, minimum=2)
    known = theorems.names()
    asked = ",".join(known if options.only is None else options.only)
    spelled = ",".join(registered(name.strip()) for name in asked.split(","))
    options.statements = experiment.names(spelled, "--only", known)
    return options


def said(options: Namespace) -> dict[str, Any]:
    """Return what a summary says of the settings: under `statements`, the draws of each."""
    chosen = [s for s in theorems.statements() if s.name in options.statements]
    draws = {statement.name: draws_of(statement, options) for statement in chosen}
    return experiment.config(options) | {"statements": draws}


def draws_of(statement: Statement, options: Namespace) -> int:
    """Return how many draws the options give a statement."""
    if options.draws is not None and options.only is not None:
        return int(options.draws)
    most = options.draws or (QUICK_DRAWS if options.quick else statement.draws)
    return min(most, statement.draws)


def check(statements: list[Statement], options: Namespace, bar: tqdm) -> Iterator[Entry]:
    """Measure the statements one after the other."""
    for statement in statements:
        bar.set_description(statement.name)
        draws = draws_of(statement, options)
        start = perf_counter()
        claim = theorems.check(statement.name, options.seed, draws)
        yield Entry(statement, claim, draws, perf_counter() - start)
        bar.update()


def write(entries: list[Entry], options: Namespace, folder: experiment.ResultFolder) -> None:
    """Write summary.json, ledger.json, ledger.csv and README.md."""
    rows = [entry.as_dict() for entry in entries]
    claims = [entry.claim for entry in entries]
    engine = choose("auto", "float64").name
    summary = experiment.summary(NAME, said(options), options.seed, engine, claims)
    summary["verdicts"] = Counter(kind(entry) for entry in entries)
    experiment.write_json(folder.path("summary.json"), summary)
    experiment.write_json(folder.path("ledger.json"), rows)
    flat = [row | {"interval": json.dumps(row["interval"])} for row in rows]
    experiment.write_csv(folder.path("ledger.csv"), rows[0], (row.values() for row in flat))
    write_bytes(folder.path("README.md"), page(entries, options.seed, options.format).encode())


if __name__ == "__main__":
    sys.exit(experiment.run(main))

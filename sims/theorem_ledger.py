"""Which of the theory's numbered statements hold, and under which conditions?

Every statement that minattn.theorems knows is measured, and a rule that was fixed beforehand turns
the numbers into its verdict. Source of the statements: "The underlying structures of
self-attention: symmetry, directionality, and emergent dynamics in Transformer training", ICML 2025.

Verdicts:
  holds exactly         an identity or a count, met to rounding in every instance drawn
  holds in expectation  a mean, met within a tenth; its interval contains the prediction
  holds only if ...     as stated it does not hold, under the condition named it does
  does not hold         an instance or an interval refutes it
  inconclusive          too few draws; "found" says about how many would do
Each statement draws from a stream of its own: its numbers depend on the seed and on the number of
its draws, not on what else is checked. Intervals are those of the rule: 99.99% where expectations
are measured, 95% over trained replicas, otherwise the range over the instances drawn.

The default run takes about twenty seconds on two cores; --quick, about ten, draws less and leaves
some expectations inconclusive.

Files, in the result folder; figures are PNG or, with --format pdf, vector graphics:
  summary.json           how it was run; every claim
  README.md              a page with assumptions, rule, numbers and function of each statement
  ledger.json            a row a statement; ledger.csv: the same as a table
  prop_a7, remark_a10, lemma_a11, theorem_2_3_17, theorem_2_4
                         the statements whose outcome is best seen
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import textwrap
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from parts.theorem_ledger.figures import FIGURES
from tqdm import tqdm

from minattn import checks, experiment, plots, theorems
from minattn.claims import Claim
from minattn.engines import choose
from minattn.saving import write_bytes
from minattn.theorems import Statement

NAME = "theorem_ledger"
QUICK_DRAWS = 4000


@dataclass(frozen=True)
class Entry:
    """A statement, its claim, and how it was measured."""

    statement: Statement
    claim: Claim
    draws: int
    seconds: float

    @property
    def name(self) -> str:
        """The name by which the statement is found."""
        return self.statement.name

    @property
    def function(self) -> str:
        """Dotted path of the function that carries the check."""
        measure = self.statement.measure
        return f"{measure.__module__}.{measure.__qualname__}"

    def as_dict(self) -> dict[str, Any]:
        """Return the row of the ledger; infinities are the strings "inf" and "-inf"."""
        claim = self.claim.as_dict()
        return {
            "statement": claim["claim"],
            "source": self.claim.source,
            "method": self.claim.method,
            "predicted": claim["predicted"],
            "measured": claim["measured"],
            "interval": claim["interval"],
            "verdict": claim["verdict"],
            "found": self.claim.found,
            "function": self.function,
            "seconds": round(self.seconds, 3),
        }


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
    print(f"results in {options.out}")
    if options.publish:
        print(f"published in {experiment.publish(options.out, NAME)}")


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
    options.statements = experiment.names(asked, "--only", known)
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


def report(entries: list[Entry]) -> None:
    """Print the ledger as a table of at most 100 columns."""
    print()
    print(table(entries))
    count = Counter(kind(entry) for entry in entries)
    print("\n" + "; ".join(f"{verdict}: {number}" for verdict, number in count.items()) + ".")
    print("Intervals are those of each rule. What was found, assumptions and rules: README.md\n")


def kind(entry: Entry) -> str:
    """Return the verdict without its condition."""
    verdict, condition, _ = entry.claim.verdict.partition(" only if ")
    return f"{verdict} under a condition" if condition else verdict


def table(entries: list[Entry]) -> str:
    """Lay the entries out as plain text, long cells wrapped."""
    widths = (13, 30, 9, 19, 21)
    header = ("statement", "predicted", "measured", "interval", "verdict")
    lines = [_line(header, widths), _line(["-" * width for width in widths], widths)]
    for entry in entries:
        measured, interval = numbers(entry.claim, 3)
        cells = (entry.name, entry.claim.predicted, measured, interval, entry.claim.verdict)
        columns = [textwrap.wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
        for number in range(max(map(len, columns))):
            lines.append(
                _line(["".join(column[number : number + 1]) for column in columns], widths)
            )
    return "\n".join(lines)


def _line(cells: Iterable[str], widths: tuple[int, ...]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    return "  ".join(padded).rstrip()


def numbers(claim: Claim, digits: int) -> tuple[str, str]:
    """Return what was measured and its interval, as text of so many digits; "-" for none."""
    measured = "-" if claim.measured is None else f"{claim.measured + 0.0:.{digits}g}"
    if claim.interval is None:
        return measured, "-"
    low, high = (f"{end + 0.0:.{digits}g}" for end in claim.interval)
    return measured, f"[{low}, {high}]"


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


def page(entries: list[Entry], seed: int, figures: str = "png") -> str:
    """Return the ledger as a Markdown page: an overview, then a section each."""
    overview = [
        f"| [{entry.name}](#{_anchor(entry.name)}) | {_plain(entry.claim.verdict)} "
        f"| {_plain(entry.claim.found)} |"
        for entry in entries
    ]
    parts = [
        "# The ledger of the theory's statements",
        'Statements of "The underlying structures of self-attention: symmetry, directionality, and '
        'emergent dynamics in Transformer training" (ICML 2025), in our own words, each with what '
        "was measured and the verdict of a rule fixed beforehand. Made by "
        f"`python sims/theorem_ledger.py`, seed {seed}; `--help` explains the verdicts. The same "
        "rows, for programs, are in `ledger.json`; versions and settings in `summary.json`.",
        "\n".join(["| statement | verdict | found |", "|---|---|---|", *overview]),
        *(section(entry, seed, figures) for entry in entries),
    ]
    return "\n\n".join(parts) + "\n"


def section(entry: Entry, seed: int, figures: str) -> str:
    """Return one statement's section: what a reader who doubts the row needs."""
    claim = entry.claim
    measured, interval = numbers(claim, 6)
    ingredients = list(inspect.signature(entry.statement.measure).parameters)[1:]
    rows = {
        "source": _plain(claim.source),
        "method": f"{claim.method}, {entry.draws} draws",
        "assumptions": _plain(claim.assumptions),
        "predicted": _plain(claim.predicted),
        "measured": measured,
        "interval": interval,
        "rule": _plain(claim.rule),
        "verdict": f"**{_plain(claim.verdict)}**",
        "function": f"`{entry.function}`",
        "can be altered": ", ".join(f"`{name}`" for name in ingredients) or "nothing",
        "check it alone": f"`minattn.theorems.check({entry.name!r}, seed={seed}, "
        f"draws={entry.draws})`",
    }
    text = claim.claim.removeprefix(f"{entry.name}: ")
    parts = [
        f"## {entry.name}",
        f"{_plain(text[:1].upper() + text[1:])}.",
        "\n".join(["| | |", "|---|---|", *(f"| {key} | {row} |" for key, row in rows.items())]),
        f"{_plain(claim.found)}",
    ]
    if entry.name in FIGURES:
        parts.append(f"![{entry.name}]({FIGURES[entry.name][0]}.{figures})")
    return "\n\n".join(parts)


def _plain(text: str) -> str:
    """Escape what Markdown would read as emphasis, code, HTML or the end of a cell."""
    return re.sub(r"([\\`*<|~])", r"\\\1", text)


def _anchor(name: str) -> str:
    """Return the anchor that Markdown viewers give a heading."""
    return re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-")


if __name__ == "__main__":
    sys.exit(experiment.run(main))

"""What `theorem_ledger.py` prints, and the page that it writes."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from parts.theorem_ledger.figures import FIGURES

from minattn.claims import Claim
from minattn.tables import line_below, row_lines
from minattn.theorems import Statement


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
    lines = [*row_lines(header, widths), line_below(widths)]
    for entry in entries:
        claim = entry.claim
        cells = (entry.name, claim.predicted, *numbers(claim, 3), claim.verdict)
        lines += row_lines(cells, widths)
    return "\n".join(lines)


def numbers(claim: Claim, digits: int) -> tuple[str, str]:
    """Return what was measured and its interval, as text of so many digits; "-" for none."""
    measured = "-" if claim.measured is None else f"{claim.measured + 0.0:.{digits}g}"
    if claim.interval is None:
        return measured, "-"
    low, high = (f"{end + 0.0:.{digits}g}" for end in claim.interval)
    return measured, f"[{low}, {high}]"


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
    ingredients = entry.statement.ingredients
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

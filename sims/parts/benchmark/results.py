"""What the parts of the benchmark give, and how it is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from parts.benchmark.contestants import NAMES
from parts.benchmark.timing import CALM, Times, quartiles

from minattn.arrays import Array
from minattn.claims import DOES_NOT_HOLD, HOLDS, Claim
from minattn.tables import line_below, row_lines

OUTCOMES = {HOLDS: "met", DOES_NOT_HOLD: "not met"}
TOO_NOISY, NO_PEER = "too noisy", "no peer"
STEPS = ("standard", "replicas", "feed_forward")  # parts that time steps against peers
Rows = Sequence[dict[str, Any]]
HEADER = ("target", "measured", "quartiles", "limit", "outcome")
WIDTHS = (49, 8, 18, 8, 9)


@dataclass
class Found:
    """What was measured: rows of the table, targets judged, lines to print, what was left out."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, other: Found) -> None:
        """Append what another part found."""
        self.rows += other.rows
        self.claims += other.claims
        self.lines += other.lines
        self.left_out |= other.left_out


def row(
    part: str, of: str, values: Array, unit: str, setting: Any = None, **more: Any
) -> dict[str, Any]:
    """Return one measured row: median and quartiles over rounds, and the setting's sizes."""
    sizes = {} if setting is None else {"setting": str(setting)} | dataclasses.asdict(setting)
    # Six digits: there are no more in a time.
    spread = {name: float(f"{end:.6g}") for name, end in quartiles(values)._asdict().items()}
    return {"part": part, "of": of, "unit": unit, **spread, "rounds": len(values), **sizes, **more}


def timed(part: str, times: Times, setting: Any, **more: Any) -> list[dict[str, Any]]:
    """Return a row of seconds for every contestant."""
    return [row(part, of, values, "s", setting, **more) for of, values in times.seconds.items()]


def cells(claim: Claim) -> tuple[str, ...]:
    """Return a target's cells, in the order of `HEADER`."""
    measured, ends = "-", "-"
    if claim.measured is not None and claim.interval is not None:
        measured, ends = f"{claim.measured:.3g}", "{:.3g} to {:.3g}".format(*claim.interval)
    return claim.claim, measured, ends, claim.predicted, outcome(claim)


def outcome(claim: Claim) -> str:
    """Return whether a target is met."""
    return NO_PEER if claim.measured is None else OUTCOMES.get(claim.verdict, TOO_NOISY)


def targets(claims: Iterable[Claim]) -> str:
    """Lay the targets out as a table of at most 100 columns."""
    lines = [*row_lines(HEADER, WIDTHS), line_below(WIDTHS)]
    for claim in claims:
        lines += row_lines(cells(claim), WIDTHS)
    return "\n".join(lines)


def noise(times: Times) -> list[str]:
    """Say so if the machine was too noisy."""
    if times.calm:
        return []
    return [f"  too noisy: other processes took up to {times.others:.0%} of the cores"]


def remarks(found: Found) -> list[str]:
    """Say in plain sentences what could not be told, and who was left out."""
    made = [f"Left out: {name} ({reason})." for name, reason in found.left_out.items()]
    unclear = sum(outcome(claim) == TOO_NOISY for claim in found.claims)
    if unclear:
        made.append(
            f"The machine was too noisy to tell about {unclear} of {len(found.claims)} targets: "
            f"their quartiles lie on both sides of the limit, or other processes took more than "
            f"{CALM:.0%} of the cores."
        )
    return made


def page(found: Found, threads: int, figures: Iterable[str], form: str = "png") -> str:
    """Return a Markdown page: targets, times of a step, and where the faster engine changes."""
    parts = [
        "# Speed of a training step",
        f"Made by `python sims/benchmark.py`, {threads} threads; `--help` says what is "
        "timed and how it is judged. Medians over rounds, with quartiles; versions are in "
        "`summary.json`, and every measured row is in its `measured`.",
        markdown(HEADER, map(cells, found.claims)),
        *remarks(found),
        *(f"![{name}]({name}.{form})" for name in figures),
        _times(found.rows),
        _crossover(found.rows),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _times(rows: Rows) -> str:
    steps = [row for row in rows if row["part"] in STEPS and row["unit"] == "s"]
    names = [name for name in (*NAMES, "floor") if any(row["of"] == name for row in steps)]
    medians: dict[str, dict[str, str]] = {}
    for row in steps:
        medians.setdefault(row["setting"], {})[row["of"]] = f"{1e3 * row['median']:.3g}"
    lines = [[setting, *(ms.get(name, "-") for name in names)] for setting, ms in medians.items()]
    table = markdown(("setting", *names), lines)
    return f"## Milliseconds a step\n\n{table}" if steps else ""


def _crossover(rows: Rows) -> str:
    chosen = [row for row in rows if row["part"] == "crossover" and row["unit"] == "1"]
    numbers = [[f"{row[name]:.2f}" for name in ("median", "low", "high")] for row in chosen]
    lines = [[row["setting"], *cells] for row, cells in zip(chosen, numbers, strict=True)]
    table = markdown(("setting", "numba / numpy", "quartile", "quartile"), lines)
    return f"## Small models: which engine is faster\n\n{table}" if chosen else ""

"""What the parts of the benchmark give, and how it is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from benchmark_timing import CALM, Times, quartiles

from minattn.arrays import Array
from minattn.claims import DOES_NOT_HOLD, HOLDS, Claim

OUTCOMES = {HOLDS: "met", DOES_NOT_HOLD: "not met"}


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
    what: str, of: str, values: Array, unit: str, setting: Any = None, **more: Any
) -> dict[str, Any]:
    """Return one measured row: its median and quartiles, and the setting's sizes."""
    sizes = {} if setting is None else dataclasses.asdict(setting)
    spread = {name: round_off(value) for name, value in quartiles(values)._asdict().items()}
    return {"part": what, "of": of, "unit": unit, **spread, "rounds": len(values), **sizes, **more}


def round_off(value: float) -> float:
    """Keep six digits: there is no more in a time."""
    return float(f"{value:.6g}")


def targets(claims: Iterable[Claim]) -> str:
    """Lay the targets out as a table of at most 100 columns."""
    lines = [_line("target", "measured", "quartiles", "limit", "outcome")]
    lines.append(_line("-" * 56, "-" * 8, "-" * 14, "-" * 7, "-" * 9))
    for claim in claims:
        measured = "-" if claim.measured is None else f"{claim.measured:.3g}"
        ends = "-" if claim.interval is None else "{:.3g} to {:.3g}".format(*claim.interval)
        lines.append(_line(claim.claim, measured, ends, claim.predicted, outcome(claim)))
    return "\n".join(lines)


def outcome(claim: Claim) -> str:
    """Return whether a target is met."""
    if claim.measured is None:
        return "no peer"
    return OUTCOMES.get(claim.verdict, "too noisy")


def _line(*cells: str) -> str:
    widths = (56, 8, 14, 7, 9)
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    return " ".join(padded).rstrip()


def noise(times: Times) -> list[str]:
    """Say in a line that the machine was too noisy, if it was."""
    if times.calm:
        return []
    return [
        f"  too noisy: other processes took up to {times.others:.0%} of the cores (> {CALM:.0%})"
    ]

"""Tables in plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

GAP = "  "  # between columns


def row_lines(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return the lines of one row: each cell wrapped to its width, the shorter ones padded."""
    columns = [textwrap.wrap(cell, size) for cell, size in zip(cells, widths, strict=True)]
    height = max(map(len, columns))
    padded = [column + [""] * (height - len(column)) for column in columns]
    return [
        GAP.join(part.ljust(size) for part, size in zip(parts, widths, strict=True)).rstrip()
        for parts in zip(*padded, strict=True)
    ]


def line_below(widths: Sequence[int]) -> str:
    """Return the line below a header."""
    return GAP.join("-" * size for size in widths)

"""What a run leaves as numbers: a summary.json that says how it was made, and tables."""

from __future__ import annotations

import contextlib
import csv
import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import minattn
from minattn.arrays import Array
from minattn.claims import Claim
from minattn.data import Corpus
from minattn.engines import get_threads
from minattn.intervals import mean_interval
from minattn.saving import write_bytes

FORMAT = 1  # of summary.json; another number, if an older run can no longer be read
_LIBRARIES = ("numpy", "numba", "scipy", "matplotlib")


def summary(
    name: str, settings: dict[str, Any], seed: int, engine: str, claims: Iterable[Claim]
) -> dict[str, Any]:
    """Return what every summary.json says; a sim adds its own numbers."""
    return {
        "name": name,
        "format": FORMAT,
        "config": settings,
        "seeds": [seed],
        "engine": engine,
        "threads": get_threads(),
        "versions": versions(),
        "claims": [claim.as_dict() for claim in claims],
    }


def versions() -> dict[str, str]:
    """Return the versions that numbers may depend on."""
    found = {"minattn": minattn.__version__, "python": platform.python_version()}
    for library in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[library] = version(library)
    return found


def write_json(path: Path, content: Any) -> None:
    """Write strict JSON; NaN and infinities, which it lacks, become null."""
    text = json.dumps(plain(content), indent=2, allow_nan=False, ensure_ascii=False)
    # Names of files may hold bytes that are no UTF-8; \udcff is how JSON writes one of them.
    write_bytes(path, (text + "\n").encode("utf-8", "backslashreplace"))


def write_csv(path: Path, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a table with a header line."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def plain(value: Any) -> Any:
    """Turn arrays, NumPy numbers, tuples and paths into what JSON knows."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    return str(value) if isinstance(value, Path) else value


def text_facts(corpus: Corpus) -> dict[str, Any]:
    """Return what a summary says of a text."""
    return {"name": corpus.name, "sha256": corpus.sha256, "n_symbols": corpus.n_symbols}


def estimates(rows: Array) -> list[dict[str, float] | None]:
    """Return mean and 95% interval over replicas of each row (rows, R); None where undefined."""
    found = (mean_interval(row) if np.isfinite(row).all() else None for row in rows)
    return [row and {"mean": row.mean, "low": row.low, "high": row.high} for row in found]


def curve_rows(
    key: tuple[Any, ...], steps: Array, metrics: Mapping[str, Array]
) -> Iterator[tuple[Any, ...]]:
    """Yield rows of a table of curves: key, replica, layer, step, metric and value.

    Metrics are (records, R), or (records, layers, R); the layer is empty for the former.
    """
    for name, values in metrics.items():
        for index, value in np.ndenumerate(values):
            layer = index[1] if values.ndim == 3 else ""
            yield *key, index[-1], layer, steps[index[0]], name, float(value)

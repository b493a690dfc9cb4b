"""What `time_reversal.py` prints and writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from parts.time_reversal.figures import draw
from parts.time_reversal.training import CURVES, OBJECTIVES, Key, Results, last, share_removed

from minattn import experiment
from minattn.arrays import Array
from minattn.claims import Claim, table


def report(results: Results, claims: list[Claim]) -> None:
    """Print what every setting came to, and the table of claims."""
    header = f"{'objective':30}{'positions':>10}{'net flux':>9}{'removed':>9}"
    print(f"\n{header}{'agreement, lower/top':>22}{'symmetry of change':>20}")
    for (objective, positions, flux), result in results.items():
        removed = f"{share_removed(result).mean():.0%}"
        agreement = " / ".join(f"{layer.mean():.2f}" for layer in result["trained_agreement"])
        symmetry = " / ".join(f"{layer.mean():.2f}" for layer in result["change_symmetry"][-1])
        row = (
            f"{OBJECTIVES[objective]:30}{'yes' if positions else 'no':>10}{flux:>9.2f}{removed:>9}"
        )
        print(f"{row}{agreement.replace('nan', '-'):>22}{symmetry:>20}")
    print("\nRemoved: share of the initial loss above the best reachable one.\n")
    print(table(claims))
    print(
        "\nIntervals are over replicas. Rows below the controls are corrected for their number by"
    )
    print("Holm's method: their verdicts, not their intervals.\n")


def write(results: Results, summary: dict[str, Any], folder: experiment.ResultFolder) -> None:
    """Write summary.json, metrics.csv and the figures."""
    summary |= {"threads": 1, "complete": True}  # threads of every setting
    summary["results"] = [final_numbers(key, result) for key, result in results.items()]
    experiment.write_json(folder.path("summary.json"), summary)
    header = ("objective", "positions", "flux", "replica", "layer", "step", "metric", "value")
    experiment.write_csv(folder.path("metrics.csv"), header, metric_rows(results))
    draw(results, folder)


def final_numbers(key: Key, result: dict[str, Array]) -> dict[str, Any]:
    """Return mean and interval, by layer, of every number of the end."""
    objective, positions, flux = key
    row: dict[str, Any] = {"objective": objective, "positions": positions, "flux": flux}
    row["share_removed"] = experiment.estimates(share_removed(result)[None])[0]
    row["loss"] = experiment.estimates(result["loss"][-1:])[0]
    row["optimum"] = result["optimum"].mean()
    shots = [name for name in result if name.startswith(("untrained_", "trained_"))]
    for name in (*CURVES, *shots):
        row[name] = experiment.estimates(last(result, name))
    return row


def metric_rows(results: Results) -> Iterator[tuple[Any, ...]]:
    """Yield metrics.csv."""
    for key, result in results.items():
        curves = {name: result[name] for name in ("loss", *CURVES)}
        yield from experiment.curve_rows(key, result["steps"], curves)

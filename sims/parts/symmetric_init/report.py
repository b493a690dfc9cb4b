"""What `symmetric_init.py` prints and writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from parts.symmetric_init.figures import draw
from parts.symmetric_init.training import (
    STARTS,
    Results,
    form_symmetry,
    net_speed_up,
    speed_up,
)

from minattn import experiment
from minattn.claims import Claim, table

METRICS = ("loss", "symmetry", "symmetry_heads", "norm")


def report(results: Results, claims: list[Claim]) -> None:
    """Print what every setting came to, and the table of claims."""
    print(f"\n{'source':7}{'mask':15}{'start':34}{'loss':>7}{'speed-up (net)':>18}{'symmetry':>19}")
    for (source, mask, start), result in results.items():
        plain = results[source, mask, "random"]
        speed = f"{speed_up(result, plain).mean():.0%} ({net_speed_up(result, plain).mean():+.0%})"
        shares = (0.0, 0.25, 1.0)
        symmetry = " > ".join(f"{form_symmetry(result, share).mean():.2f}" for share in shares)
        print(
            f"{source:7}{mask:15}{STARTS[start].title:34}{result['loss'][-1].mean():>7.3f}"
            f"{'-' if start == 'random' else speed:>18}{symmetry:>19}"
        )
    print("\nHeld-out loss in nats; speed-up over plain; symmetry of W_qk before training, after a")
    print("quarter of it, and at the end.\n")
    print(table(claims))
    print("\nIntervals are over replicas. Rows from the final losses on are corrected for their")
    print("number by Holm's method: their verdicts, not their intervals.\n")


def write(results: Results, summary: dict[str, Any], folder: experiment.ResultFolder) -> None:
    """Write summary.json, metrics.csv and the figures."""
    summary |= {"threads": 1, "complete": True}  # threads of every setting
    summary["results"] = [final_numbers(results, key) for key in results]
    experiment.write_json(folder.path("summary.json"), summary)
    header = ("source", "mask", "start", "replica", "layer", "step", "metric", "value")
    experiment.write_csv(folder.path("metrics.csv"), header, metric_rows(results))
    draw(results, folder)


def final_numbers(results: Results, key: tuple[str, str, str]) -> dict[str, Any]:
    """Return mean and interval of a setting's numbers; scores of W_qk by layer."""
    result, plain = results[key], results[(*key[:2], "random")]
    row: dict[str, Any] = dict(zip(("source", "mask", "start"), key, strict=True))
    row["optimum"] = result["optimum"].mean()
    row["loss"] = experiment.estimates(result["loss"][-1][None])[0]
    row["speed_up"] = experiment.estimates(speed_up(result, plain)[None])[0]
    row["net_speed_up"] = experiment.estimates(net_speed_up(result, plain)[None])[0]
    for metric in ("symmetry", "symmetry_heads", "norm"):
        for when, record in (("before", 0), ("after", -1)):
            row[f"{metric}_{when}"] = experiment.estimates(result[metric][record])
    return row


def metric_rows(results: Results) -> Iterator[tuple[Any, ...]]:
    """Yield metrics.csv."""
    for key, result in results.items():
        curves = {name: result[name] for name in METRICS}
        yield from experiment.curve_rows(key, result["steps"], curves)

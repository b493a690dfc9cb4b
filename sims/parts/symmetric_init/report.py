"""What `symmetric_init.py` prints, writes and draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from parts.symmetric_init.training import (
    MASKS,
    STARTS,
    Results,
    form_symmetry,
    net_speed_up,
    speed_up,
)

from minattn import experiment, plots
from minattn.arrays import Array
from minattn.claims import Claim, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    pages = {"overview": overview(results), "speed_up": speed_ups(results)}
    for name, page in pages.items():
        plots.save(page, folder.figure(name))


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


def columns(results: Results) -> Iterator[tuple[int, str, str, dict[str, dict[str, Array]]]]:
    """Yield number, source, mask and the runs by start, of each column of panels."""
    sources = dict.fromkeys(source for source, *_ in results)
    for number, (source, mask) in enumerate((s, m) for s in sources for m in MASKS):
        runs = {start: r for (*other, start), r in results.items() if other == [source, mask]}
        yield number, source, mask, runs


def overview(results: Results) -> Figure:
    """Draw loss, loss above the plain run's, and symmetry over training."""
    shown = list(columns(results))
    made = plots.figure(3.4 * len(shown) + 0.6, 8.6)
    made.suptitle(
        "Masked training from plain and symmetric starts\nmean over replicas with its 95% interval"
    )
    panels = made.subplots(3, len(shown), sharex=True, squeeze=False)
    for column, source, mask, runs in shown:
        steps, plain = runs["random"]["steps"], runs["random"]["loss"]
        for number, (start, result) in enumerate(runs.items()):
            values = (result["loss"], result["loss"] - plain, result["symmetry"].mean(axis=1))
            for axes, value in zip(panels[:, column], values, strict=True):
                plots.curve(axes, steps, value, STARTS[start].title, number)
        panels[1, column].axhline(0, color="0.6", linewidth=0.8)
        panels[2, column].axhline(0, color="0.6", linewidth=0.8)
        panels[2, column].set_ylim(-0.3, 1.05)
        for row, axes in enumerate(panels[:, column]):
            plots.tidy(axes, title=f"{source}, {mask} mask" if row == 0 else "")
        panels[-1, column].set_xlabel("step")
    labels = ("held-out loss\n(nats)", "loss - loss of plain\n(nats)", "symmetry of W_qk")
    for axes, label in zip(panels[:, 0], labels, strict=True):
        axes.set_ylabel(label)
    plots.legend_below(made, panels[0, 0], 3)
    return made


def speed_ups(results: Results) -> Figure:
    """Draw the net speed-up over plain of each start, a dot a replica."""
    shown = list(columns(results))
    made = plots.figure(2.6 * len(shown) + 2.4, 3.6)
    made.suptitle("Net speed-up over the plain start: mean, 95% interval, replicas")
    panels = made.subplots(1, len(shown), sharex=True, sharey=True, squeeze=False)[0]
    titles = [start.title for start in STARTS.values()]  # all, so that each keeps its colour
    for (_, source, mask, runs), axes in zip(shown, panels, strict=True):
        values = {
            STARTS[start].title: net_speed_up(result, runs["random"])
            for start, result in runs.items()
            if start != "random"
        }
        plots.intervals(axes, titles, values)
        plots.tidy(axes, title=f"{source}, {mask} mask", xlabel="net speed-up")
    return made

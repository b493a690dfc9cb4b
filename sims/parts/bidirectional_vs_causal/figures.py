"""The figures of `bidirectional_vs_causal.py`."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from parts.bidirectional_vs_causal.claims import Runs

from minattn import plots
from minattn.comparison import ARMS
from minattn.experiment import ResultFolder
from minattn.params import W_qk
from minattn.step import loss_and_grad
from minattn.update import implicit_update

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORES = {
    "symmetry": ("symmetry", (-0.3, 1.05)),
    "dispersion": ("dispersion (log ratio)\n> 0: columns more spread", None),
    "directionality": ("directionality\n< 0: columns dominate", (-1.05, 1.05)),
    "directionality_published": ("directionality\n(published variant)", (-1.05, 1.05)),
}
UPDATE = {
    "update_symmetry": ("symmetry of Ghat", (-1.05, 1.05)),
    "agreement": ("agreement of beta_ij\nwith beta_ji", (-1.05, 1.05)),
}


def draw(runs: Runs, folder: ResultFolder) -> None:
    """Write every figure."""
    change = {f"change_{name}": shown for name, shown in SCORES.items()}
    title = "What training adds to W_qk"
    overview = {name: change[name] for name in ("change_symmetry", "change_dispersion")}
    pages = {
        "overview": grid(runs, overview, title),
        "scores_of_change": grid(runs, change, f"{title}: every score"),
        "scores_of_W_qk": grid(runs, SCORES, "W_qk itself: every score"),
        "update": grid(runs, UPDATE, "The update of W_qk, on the batches of training"),
        "loss": losses(runs),
    }
    for source in dict.fromkeys(source for source, _ in runs):
        pages[f"matrices_{source}"] = matrices(runs, source)
        pages[f"beta_{source}"] = coefficients(runs, source)
    with warnings.catch_warnings():  # a character that the font lacks is drawn as a box
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        for name, page in pages.items():
            plots.save(page, folder.figure(name))


def grid(runs: Runs, metrics: dict[str, tuple[str, Any]], title: str) -> Figure:
    """Draw metrics (rows) for each source (columns), a curve an arm."""
    tasks = {run.task.name: run.task for run in runs.values()}
    made = plots.figure(2.9 * len(tasks) + 1.0, 2.7 * len(metrics) + 1.1)
    made.suptitle(f"{title}\nmean over replicas with its 95% interval, mean over layers")
    panels = made.subplots(len(metrics), len(tasks), squeeze=False, sharex="col", sharey="row")
    for row, (metric, (label, limits)) in enumerate(metrics.items()):
        for column, (name, task) in enumerate(tasks.items()):
            axes = panels[row, column]
            axes.axhline(0, color="0.6", linewidth=0.8)
            for number, arm in enumerate(ARMS):
                if (name, arm) in runs:
                    run = runs[name, arm]
                    values = run.metric(metric)
                    plots.curve(axes, run.history.steps, values, ARMS[arm].title, number)
            plots.tidy(axes, title=task.title if row == 0 else "")
            if limits:
                axes.set_ylim(limits)
        panels[row, 0].set_ylabel(label)
    for axes in panels[-1]:
        axes.set_xlabel("step")
    plots.legend_below(made, panels[0, 0], len(ARMS))
    return made


def losses(runs: Runs) -> Figure:
    """Draw the held-out loss; on chains, above the best reachable one."""
    tasks = {run.task.name: run.task for run in runs.values()}
    made = plots.figure(2.9 * len(tasks) + 1.0, 4.1)
    made.suptitle("Held-out loss over training\nmean over replicas with its 95% interval")
    panels = made.subplots(1, len(tasks), squeeze=False)[0]
    for axes, (name, task) in zip(panels, tasks.items(), strict=True):
        for number, arm in enumerate(ARMS):
            if (name, arm) in runs:
                run = runs[name, arm]
                values = run.excess if task.has_optimum else run.loss
                plots.curve(axes, run.history.steps, values, ARMS[arm].title, number)
        if task.name == "text":
            free = task.context_free_loss
            dots = (0, (1, 1))
            name = "symbol frequencies alone"
            axes.axhline(free, color="0.4", linewidth=1, linestyle=dots, label=name)
        label = "loss - best reachable (nats)" if task.has_optimum else "loss (nats)"
        plots.tidy(axes, title=task.title, xlabel="step", ylabel=label)
        if task.has_optimum:
            axes.axhline(0, color="black", linewidth=1, label="best reachable")
    named: dict[str, Any] = {}  # of all panels: not every one has every line
    for axes in panels:
        named |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    made.legend(
        named.values(), named.keys(), loc="outside lower center", ncols=len(ARMS), frameon=False
    )
    return made


def matrices(runs: Runs, source: str) -> Figure:
    """Draw W_qk of the first replica's first layer, untrained and after each arm."""
    chosen = {arm: run for (name, arm), run in runs.items() if name == source}
    first = next(iter(chosen.values()))
    panels = [("untrained", W_qk(first.initial)[0])]
    panels += [(ARMS[arm].title, W_qk(run.history.params)[0]) for arm, run in chosen.items()]
    title = f"W_qk after training: {first.task.title}, first replica, first layer"
    return plots.matrices(panels, title)


def coefficients(runs: Runs, source: str) -> Figure:
    """Draw beta of one held-out sequence in the first layer of each trained model."""
    chosen = {arm: run for (name, arm), run in runs.items() if name == source}
    task = next(iter(chosen.values())).task
    masked = [run for arm, run in chosen.items() if arm != "next_causal"]
    hidden = masked[0].test.weights[0].sum(axis=1) if masked else np.zeros(1)
    index = int(np.argmax(hidden))  # the same sequence in every arm, with most to predict
    panels = []
    for arm, run in chosen.items():
        one = run.test.sequences(slice(index, index + 1))
        params = run.history.params
        _, _, tape = loss_and_grad(run.config, params, one, run.history.engine)
        beta = implicit_update(run.config, params, tape, layer=0).beta[0, 0, 0]
        tokens = [task.written(int(token)) for token in one.inputs[0, 0]]
        panels.append((ARMS[arm].title, beta, tokens))
    where = "after training, first replica, first layer"
    title = f"Coefficients of the update of W_qk, one sequence (■: masked)\n{task.title}, {where}"
    return plots.coefficients(panels, title)

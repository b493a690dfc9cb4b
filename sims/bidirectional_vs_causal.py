"""What do bidirectional and causal training do to W_qk = W_q W_k^T?

The same transformer, from the same initial parameters and on the same tokens, is trained in three
arms: next token under the causal mask, masked token under the bidirectional mask, and masked token
under the causal mask. The last two differ in the mask alone. Sources: random Markov chains in which
x_t depends on x_{t-1} (lag1) or on x_{t-2} (lag2), one chain a replica; text; and, as a control,
i.i.d. symbols, from whose context there is nothing to learn.

Primary claims, each decided by the 95% interval over replicas, arms paired by replica:
  1. The mask alone makes the change of W_qk more symmetric: symmetry under the bidirectional mask
     minus under the causal one is above 0, for each source.
  2. Columns are more spread than rows under the causal mask: the dispersion of the change is
     above 0, for each source and causal arm.
  3. Next-token training makes the change of W_qk symmetric on lag-1 chains (symmetry above 0.5),
     where attending to oneself is enough, and does not on lag-2 chains (below 0.5).
  4. <Ghat, D> equals minus the loss's derivative along a random full-rank D: relative residual at
     most 1e-9 in float64, in every replica, layer and source, for each arm.
Secondary claims and controls, corrected for their number by Holm's method:
  5. Claim 1 at matched progress: each replica's arms are compared where both had removed the same
     share of the initial loss above the best reachable one (chains).
  6. Columns dominate rows after next-token training: directionality of the change below 0.
  7. Masked bidirectional training has beta_ij agree with beta_ji: mean over the last quarter of
     training above 0.
  8. Controls: an untrained W_qk is not symmetric (below 0.1); on an i.i.d. source W_qk changes
     less than half as much as on lag-1 chains (ratio of the norms of the change below 0.5).
"Undertrained": on a chain, training removed less than half of the initial loss above the best
reachable one; on text, whose best loss is not known, the held-out loss is not below that of the
symbols' frequencies (means over replicas). No verdict is drawn from such an arm. Of i.i.d. symbols,
from whose context there is nothing to learn, nothing is asked. Scores are of the sum over heads and
the mean over layers; replicas of the text share it.

Training is in float32 unless --dtype says otherwise. The default run takes one to two minutes on
two quiet cores, --quick about ten seconds.

Files, in the result folder; figures are PNG or, with --format pdf, vector graphics:
  summary.json           how it was run; every claim, loss and final score
  metrics.csv            every metric, a row a source, arm, replica, layer and step
  overview               symmetry and dispersion of the change over training
  scores_of_change       every score of the change over training; scores_of_W_qk: of W_qk
  update                 symmetry of the update, and agreement of beta_ij with beta_ji
  loss                   held-out loss over training
  matrices_SOURCE        W_qk before and after training; beta_SOURCE: of one sequence, beta
  film_SOURCE.gif        with --film: W_qk and its scores over training
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from parts.bidirectional_vs_causal.claims import CONTROL, Runs, judge_all, undertrained
from parts.bidirectional_vs_causal.figures import draw
from parts.bidirectional_vs_causal.film import Camera, shoot
from tqdm import tqdm

from minattn import checks, experiment
from minattn.claims import Claim, table
from minattn.comparison import ARMS, Run, Task, Training, chain_task, text_task, train
from minattn.data import Corpus
from minattn.engines import choose
from minattn.optim import AdamW

NAME = "bidirectional_vs_causal"
SOURCES = ("lag1", "lag2", "text", "iid")
FILMED = "lag2"


@dataclass(frozen=True)
class Size:
    """What --quick makes smaller."""

    replicas: int
    steps: int
    width: int
    n_symbols: int
    length: int
    record_every: int
    held_out_windows: int


FULL = Size(8, 800, 32, 16, 32, 20, 64)
QUICK = Size(3, 60, 16, 8, 16, 10, 32)


def main(arguments: list[str] | None = None) -> None:
    """Run every arm on every source, then report."""
    options = parse(arguments)
    how = training(options)
    tasks, corpus = make_tasks(options)
    digests = {"text": corpus.sha256} if corpus is not None else {}
    experiment.check_rerun(options, said(options), how.engine, digests)
    with experiment.result_folder(options.out, options.format) as folder:
        runs: Runs = {}
        cameras: dict[str, Camera] = {arm: Camera() for arm in options.arms}
        try:
            for run in run_all(tasks, options.arms, how, options.film, cameras):
                runs[run.task.name, run.arm] = run
        except KeyboardInterrupt:
            if not runs:
                raise
        complete = len(runs) == len(tasks) * len(options.arms)
        claims = judge_all(runs)
        try:
            write(runs, claims, corpus, options, how, folder, complete)
            if options.film and complete:
                filmed = [run for (source, _), run in runs.items() if source == options.film]
                frames = [cameras[run.arm].frames for run in filmed]
                shoot(filmed, frames, folder.path(f"film_{options.film}.gif"))
        except KeyboardInterrupt:  # while drawing: the numbers are there
            print(f"interrupted: what is done is in {folder.keep_interrupted()}")
            raise
        # Files first: a table that nobody reads to the end (| head) loses nothing.
        if complete:
            folder.complete()
            report(runs, claims)
        else:
            kept = folder.keep_interrupted()
            report(runs, claims)
            print(f"interrupted: what is done is in {kept}")
            raise KeyboardInterrupt
    experiment.finish(options, NAME)


def parse(arguments: list[str] | None) -> Namespace:
    """Read the options; what --quick makes smaller has defaults of its own."""
    parser = experiment.parser(NAME, __doc__)
    known = {"sources": SOURCES, "arms": tuple(ARMS)}
    for name, values in known.items():
        text = f"comma-separated, of {', '.join(values)} (default all)"
        parser.add_argument(f"--{name}", default=",".join(values), metavar="LIST", help=text)
    parser.add_argument("--layers", type=int, help="default 1 on chains, 2 on text")
    parser.add_sizes(vars(FULL), vars(QUICK), width=1, replicas=1, steps=1)
    parser.add_engine()
    parser.add_dtype("of training; proofs are in float64")
    parser.add_text()
    parser.add_argument(
        "--film",
        nargs="?",
        const=FILMED,
        choices=SOURCES,
        help=f"also film_SOURCE.gif: W_qk and its scores over training (default {FILMED})",
    )
    options = parser.parse_args(arguments)
    for name, values in known.items():
        setattr(options, name, experiment.names(getattr(options, name), f"--{name}", values))
    if options.film is not None:
        checks.one_of("--film", options.film, options.sources)
    if options.layers is not None:
        checks.integer("--layers", options.layers, minimum=1)
    experiment.beside(options, "text", "text among --sources", "text" in options.sources)
    return options


def training(options: Namespace) -> Training:
    """Return how every arm is trained."""
    return Training(
        width=options.width,
        heads=1,
        length=options.length,
        batch_size=16,
        steps=options.steps,
        record_every=options.record_every,
        held_out_windows=options.held_out_windows,
        optimizer=AdamW(3e-3),
        seed=options.seed,
        engine=choose(options.engine, options.dtype).name,
        dtype=options.dtype,
    )


def said(options: Namespace) -> dict[str, Any]:
    """Return what a summary says of the settings."""
    how = training(options)
    return experiment.config(options, training=asdict(how), optimizer=repr(how.optimizer))


def make_tasks(options: Namespace) -> tuple[list[Task], Corpus | None]:
    """Return the tasks asked for, and the text if it is among them."""
    tasks, corpus = [], None
    for name in options.sources:
        layers = options.layers or (2 if name == "text" else 1)
        if name == "text":
            corpus = experiment.load_windows(options)
            tasks.append(text_task(name, options.replicas, corpus, layers))
        else:
            lag = {"lag1": 1, "lag2": 2, "iid": None}[name]
            sizes = (options.replicas, options.n_symbols)
            tasks.append(chain_task(name, *sizes, lag, layers, options.seed))
    return tasks, corpus


def run_all(
    tasks: list[Task],
    arms: tuple[str, ...],
    how: Training,
    film: str | None = None,
    cameras: Mapping[str, Camera] | None = None,
) -> Iterator[Run]:
    """Train every arm on every task under one progress bar, and film those of one task."""
    total = len(tasks) * len(arms) * how.steps
    with tqdm(total=total, unit="step", dynamic_ncols=True, smoothing=0.05) as bar:
        for task in tasks:
            for arm in arms:
                bar.set_description(f"{task.name}, {ARMS[arm].title}")
                observe = [cameras[arm]] if cameras and task.name == film else []
                yield train(task, arm, how, progress=bar, observe=observe)


def report(runs: Runs, claims: list[Claim]) -> None:
    """Print how far each arm was trained, and the table of claims."""
    print(f"\n{'source':8}{'arm':30}{'loss':>15}{'best':>9}{'excess removed':>17}")
    for row in training_rows(runs):
        best = "-" if row["best"] is None else f"{row['best']:.3f}"
        share = "-" if row["share_removed"] is None else f"{row['share_removed']:.0%}"
        loss = f"{row['loss_initial']:.3f} > {row['loss_final']:.3f}"
        note = "  undertrained" if row["undertrained"] else ""
        note = note if row["source"] != CONTROL else "  not judged"
        print(f"{row['source']:8}{row['title']:30}{loss:>15}{best:>9}{share:>17}{note}")
    print(
        "\nHeld-out loss in nats; best: the best reachable one, where it is known. Whether enough"
    )
    print("was learnt is not judged where the context has nothing to teach.\n")
    print(table(claims))
    print("\nIntervals are over replicas; of residuals, the range. Rows below the residuals are")
    print("corrected for their number by Holm's method: their verdicts, not their intervals.\n")


def training_rows(runs: Runs) -> list[dict[str, Any]]:
    """Return for each arm its losses and the share of the excess that training removed."""
    rows = []
    for (source, arm), run in runs.items():
        share = run.share_removed[-1].mean() if run.task.has_optimum else None
        rows.append(
            {
                "source": source,
                "arm": arm,
                "title": ARMS[arm].title,
                "loss_initial": run.loss[0].mean(),
                "loss_final": run.loss[-1].mean(),
                "best": run.optimum.mean() if run.optimum is not None else None,
                "share_removed": share,
                "undertrained": undertrained(run),
            }
        )
    return rows


def write(
    runs: Runs,
    claims: list[Claim],
    corpus: Corpus | None,
    options: Namespace,
    how: Training,
    folder: experiment.ResultFolder,
    complete: bool,
) -> None:
    """Write summary.json, metrics.csv and the figures."""
    summary = experiment.summary(NAME, said(options), options.seed, how.engine, claims)
    summary["complete"] = complete
    summary["training"] = training_rows(runs)
    summary["scores"] = final_scores(runs)
    if corpus is not None:
        summary["text"] = experiment.text_facts(corpus)
    experiment.write_json(folder.path("summary.json"), summary)
    header = ("source", "arm", "replica", "layer", "step", "metric", "value")
    experiment.write_csv(folder.path("metrics.csv"), header, metric_rows(runs))
    draw(runs, folder)


def final_scores(runs: Runs) -> dict[str, Any]:
    """Return mean and interval of every metric's last record, by source, arm and layer."""
    scores: dict[str, Any] = {}
    for (source, arm), run in runs.items():
        entry = scores.setdefault(source, {}).setdefault(arm, {})
        for metric, values in run.history.metrics.items():
            last = values[-1].reshape(-1, values.shape[-1])  # (layers or 1, R)
            entry[metric] = experiment.estimates(last)
    return scores


def metric_rows(runs: Runs) -> Iterator[tuple[Any, ...]]:
    """Yield metrics.csv."""
    for key, run in runs.items():
        yield from experiment.curve_rows(key, run.history.steps, run.history.metrics)


if __name__ == "__main__":
    sys.exit(experiment.run(main))

"""How fast is a training step, and what does watching W_qk cost?

Before anything is timed, gradients are compared: minattn's engines and their peers on the same
parameters and tokens, each within 1e-9 (float64) or 1e-4 (float32) of the reference's in float64,
relative to the largest entry. A peer that disagrees is left out, an engine that does is an error.

Peers are PyTorch, eager with explicit attention, with its fused attention (SDPA) and compiled, and
JAX, jitted; for several replicas their batched forms (pip install 'minattn[bench]'; what is missing
is named). All have the same cores and --threads. A step is forward and backward, as `fit` makes it:
on a batch that is checked already, in buffers of the step before. Peers get tensors.

All contestants are timed in every round, in an order that turns, after untimed steps of their own.
Tables have medians and quartiles over rounds; a ratio is taken round by round. A target is met if
both quartiles are within its limit, and not met if neither is. It is "too noisy" to tell if they
lie on either side, or if other processes took more than a tenth of the cores in too many rounds.

  standard      time of engine "numba" over that of the fastest peer, at most 0.5 (d 64), and over
                the floor, at most 1.2 (d 256). The floor is what the matrix products alone would
                take, forward and backward and with whole blocks of scores, at the rate of a product
                of 1024 x 1024 matrices in the same rounds
  replicas      16 toy models, each with parameters and data of its own: at most 0.35 of the fastest
                peer's
  feed_forward  with pre-norm and a feed-forward part of width 4 d: at most 0.8 of the fastest peer
  account       share of training spent on `account`: at most 0.15 at every tenth step; with one
                head at every step
  scores        scores from factors over scores of the product: at most 0.1
  curves        slope of log time against log size at the upper end: at most 1.1 in batch, layers
                and replicas, at most 2 in length
  crossover     time of engine "numba" over "numpy" in small models; no target
  memory        peak memory of a step, above the level before it, in a fresh process, over that of
                PyTorch eager: at most 1
  compilation   how much longer a process's first training run takes with an empty cache: at most
                15 seconds

d: width, N: tokens a sequence, B: sequences, L: layers, H: heads, R: replicas. The result folder
holds README.md, a page with the tables; benchmark.csv and summary.json with every measured row; and
figures. The default run takes about ten minutes on two cores, --quick less than half a minute
without peers.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import textwrap
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import benchmark_curves as curves
import benchmark_processes as processes
import benchmark_steps as steps
import benchmark_training as training
from benchmark_contestants import makers
from benchmark_figures import draw
from benchmark_results import Found, page, remarks, targets
from tqdm import tqdm

from minattn import checks, experiment, plots
from minattn.engines.threads import available_cores, get_threads, set_threads
from minattn.saving import write_bytes

NAME = "benchmark"
THREADS = min(2, available_cores())
ROUNDS, QUICK_ROUNDS = 9, 3


class Part(NamedTuple):
    """A part of the benchmark: independent items, and what measures one."""

    items: Callable[[bool], list[Any]]  # of a quick run or not
    measure: Callable[[Any, Namespace], Found]


PARTS = {
    "standard": Part(
        steps.standard, partial(steps.measure, "standard", steps.against_peer_or_floor)
    ),
    "replicas": Part(steps.replicas, partial(steps.measure, "replicas", steps.against_peer(0.35))),
    "feed_forward": Part(
        steps.feed_forward, partial(steps.measure, "feed_forward", steps.against_peer(0.8))
    ),
    "account": Part(training.accounts, training.measure_account),
    "scores": Part(training.factors, training.measure_scores),
    "curves": Part(curves.curves, curves.measure),
    "crossover": Part(curves.crossings, curves.measure_crossing),
    "memory": Part(processes.models, processes.measure_memory),
    "compilation": Part(processes.runs, processes.measure_compilation),
}


def main(arguments: list[str] | None = None) -> None:
    """Measure the parts, then print and write what was found."""
    options = parse(arguments)
    with experiment.result_folder(options.out) as folder, limited(options.threads):
        options.makers, missing = makers(options.threads)
        found = measure(options)
        found.left_out = missing | found.left_out
        write(found, options, folder)
        folder.complete()
    report(found)
    print(f"results in {options.out}")
    if options.publish:
        print(f"published in {experiment.publish(options.out, NAME)}")


def parse(arguments: list[str] | None) -> Namespace:
    """Read the options; `only` becomes a tuple of parts, all of them by default."""
    parser = experiment.parser(NAME, __doc__)
    known = ", ".join(PARTS)
    parser.add_argument("--only", default=known, metavar="PART", help=f"some of: {known}")
    parser.add_argument("--threads", type=int, default=THREADS, help=f"default {THREADS}")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}, with --quick {QUICK_ROUNDS}")
    options = parser.parse_args(arguments)
    checks.integer("--seed", options.seed, minimum=0)
    checks.integer("--threads", options.threads, minimum=1)
    if options.threads > available_cores():
        checks.fail("--threads", options.threads, f"at most the {available_cores()} cores here")
    if options.rounds is None:
        options.rounds = QUICK_ROUNDS if options.quick else ROUNDS
    checks.integer("--rounds", options.rounds, minimum=1)
    options.only = experiment.names(options.only, "--only", PARTS)
    return options


@contextlib.contextmanager
def limited(threads: int) -> Iterator[None]:
    """Give every contestant as many cores, and BLAS and minattn as many threads."""
    from threadpoolctl import threadpool_limits

    before = get_threads()
    with cores(threads), threadpool_limits(threads, user_api="blas"):
        set_threads(threads)
        try:
            yield
        finally:
            set_threads(before)


@contextlib.contextmanager
def cores(count: int) -> Iterator[None]:
    """Keep this process to so many cores, where the system can: some peers take all they see."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    _keep_to(set(sorted(before)[:count]))
    try:
        yield
    finally:
        _keep_to(before)


def _keep_to(chosen: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), chosen)


def measure(options: Namespace) -> Found:
    """Measure the parts that are asked for, item by item."""
    work = [(name, item) for name in options.only for item in PARTS[name].items(options.quick)]
    found = Found()
    with tqdm(work, unit="item", dynamic_ncols=True) as bar:
        for name, item in bar:
            bar.set_description(name)
            new = PARTS[name].measure(item, options)
            bar.write("\n".join(new.lines), file=sys.stdout)
            found.add(new)
    return found


def report(found: Found) -> None:
    """Print the targets, what could not be told, and who was left out."""
    print()
    print(targets(found.claims))
    print()
    for remark in remarks(found):
        print(textwrap.fill(remark, 100))


def write(found: Found, options: Namespace, folder: experiment.ResultFolder) -> None:
    """Write summary.json, benchmark.csv, the page and the figures."""
    left_out = ("out", "makers")  # names of folders are nobody's business
    settings = {key: value for key, value in vars(options).items() if key not in left_out}
    summary = experiment.summary(NAME, settings, options.seed, "numba", found.claims)
    summary |= {"cpu": platform.processor() or platform.machine(), "left_out": found.left_out}
    summary["versions"] |= peers_versions()
    summary["measured"] = found.rows
    experiment.write_json(folder.path("summary.json"), summary)
    header = dict.fromkeys(key for row in found.rows for key in row)
    rows = ([row.get(key, "") for key in header] for row in found.rows)
    experiment.write_csv(folder.path("benchmark.csv"), header, rows)
    figures = draw(found.rows)
    for name, figure in figures.items():
        plots.save(figure, folder.path(f"{name}.png"))
    text = page(found, options.threads, list(figures))
    write_bytes(folder.path("README.md"), text.encode())


def peers_versions() -> dict[str, str]:
    """Return the versions of the peers that are installed."""
    found = {}
    for library in ("torch", "jax"):
        with contextlib.suppress(PackageNotFoundError):
            found[library] = version(library)
    return found


if __name__ == "__main__":
    sys.exit(experiment.run(main))

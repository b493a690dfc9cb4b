"""The benchmark: its parts, what they find, and where that goes."""

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

from parts.benchmark import curves, processes, steps, training
from parts.benchmark.contestants import makers
from parts.benchmark.figures import draw
from parts.benchmark.results import Found, page, remarks, targets
from tqdm import tqdm

from minattn import checks, experiment, plots
from minattn.engines.threads import available_cores, get_threads, set_threads
from minattn.saving import write_bytes

NAME = "benchmark"
THREADS = min(2, available_cores())
ROUNDS, QUICK_ROUNDS = 7, 3


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


def main(arguments: list[str], description: str) -> None:
    """Measure the parts, then print and write what was found."""
    options = parse(arguments, description)
    with experiment.result_folder(options.out, options.format) as folder, limited(options.threads):
        options.makers, missing = makers(options.threads)
        found = measure(options)
        found.left_out = missing | found.left_out
        write(found, options, folder)
        folder.complete()
    report(found)
    experiment.finish(options, NAME)


def parse(arguments: list[str], description: str = "") -> Namespace:
    """Read the options; `only` becomes a tuple of parts, all of them by default."""
    parser = experiment.parser(NAME, description)
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
        plots.save(figure, folder.figure(name))
    text = page(found, options.threads, list(figures), options.format)
    write_bytes(folder.path("README.md"), text.encode())


def peers_versions() -> dict[str, str]:
    """Return the versions of the peers that are installed."""
    found = {}
    for library in ("torch", "jax"):
        with contextlib.suppress(PackageNotFoundError):
            found[library] = version(library)
    return found

"""Mutation testing of the mathematics: make a small mistake, and see whether a test notices.

    python -m pip install -e '.[test,mutation]'
    python tests/mutants.py                            every mistake that mutmut knows
    python tests/mutants.py terms layers.attention     those in some modules
    python tests/mutants.py --minutes 1                a sample, as many as that takes

One process imports and collects everything. For each mistake it forks another, which makes it in
the living module, runs the tests of that module until one fails, and ends. mutmut's own runner,
which starts pytest anew for each, takes ten times as long. A mistake that no test notices is shown,
and fails the run, unless `survivors.md` says why none can.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import random
import re
import resource
import sys
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["CI"] = "true"  # Hypothesis then draws the same examples every time
os.environ["PYTEST_ADDOPTS"] = ""
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pytest
from mutations import Mutation, install, mutations
from tqdm import tqdm

import minattn as ma
from minattn.engines import numba_cpu

# Where what engines do besides arithmetic is asked for.
PLUMBING = ["engines/test_choice", "layers/test_embedding", "layers/test_block", "test_tasks"]
# Each module, and the tests that answer for it, the quickest first.
ANSWERS = {
    "layers.attention": ["layers/test_attention", "test_update"],
    "layers.block": ["layers/test_block", "test_model"],
    "layers.embedding": ["layers/test_embedding"],
    "layers.feed_forward": ["layers/test_feed_forward", "layers/test_block"],
    "layers.linear": ["layers/test_linear"],
    "layers.loss": ["layers/test_loss"],
    "layers.norm": ["layers/test_norm"],
    "engines.kernels": ["engines/test_primitives"],
    "engines.numba_cpu": ["engines/test_primitives", *PLUMBING],
    "engines.reference": ["engines/test_primitives", *PLUMBING],
    "arrays": ["test_arrays", "test_blocks", "test_descent"],
    "masks": ["test_masks"],
    "objectives": ["test_objectives"],
    "params": ["test_params"],
    "terms": ["test_terms", "test_update"],
    "blocks": ["test_blocks"],
    "descent": ["test_descent"],
    "update": ["test_terms", "test_update"],
    "scores": ["test_scores", "test_squares"],
    "squares": ["test_squares", "test_scores"],
    "model": ["test_model", "test_step", "engines/test_cupy_gpu"],
    "step": ["test_step", "test_tasks", "test_model", "engines/test_cupy_gpu"],
    "tasks": ["test_tasks", "test_step"],
    "observers": ["test_observers"],
    "optim": ["test_optim", "engines/test_primitives"],
}
TESTS = Path(__file__).resolve().parent
ARGUED = TESTS / "survivors.md"
# Of one test. No clock on the wall: the machine may be busy, or stand still for a while.
CPU_SECONDS = 60
EVERYWHERE = "everywhere"  # the heading of what is argued wherever a line has it
ADDRESS_SPACE = 16 * 2**30


class Hunt:
    """A pytest plugin that runs the collected tests again for one mistake after another."""

    def __init__(self, modules: list[str], minutes: float | None, seed: int) -> None:
        self.begin, self.minutes = time.monotonic(), minutes
        self.texts = {name: file_of(name).read_text() for name in modules}
        self.changes = [c for name in modules for c in mutations(name, self.texts[name])]
        self.made = {change.key for change in self.changes}
        self.argued = arguments()
        if minutes is not None:
            self.changes = [change for change in self.changes if not self.argues(change)]
            random.Random(seed).shuffle(self.changes)
        self.noticed: list[Mutation] = []
        self.survived: list[Mutation] = []
        self.kills = Counter[str]()  # by test; those in it pass where there is no mistake
        self.seconds = Counter[str]()  # what a test took when it last ran, if it did
        self.answer = -1  # where a forked process tells how tests went
        self.running: pytest.Item
        self.since = 0.0  # in seconds of that process

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        queues = {name: answering(name, session.items) for name in self.texts}
        for test in {item.obj for item in session.items}:
            if hasattr(test, "hypothesis"):
                self.fail_at_once(test)
        load_kernels()
        gc.freeze()  # Hypothesis collects garbage before each test: not in all that is there
        for change in tqdm(self.changes, desc="mistakes", mininterval=2):
            noticed = self.notices(queues[change.module], change)
            if self.late():
                break
            (self.noticed if noticed else self.survived).append(change)
            if not noticed and not self.argues(change):
                tqdm.write(shown(change), file=sys.stdout)
        return True

    def late(self) -> bool:
        return self.minutes is not None and time.monotonic() - self.begin > 60 * self.minutes

    def notices(self, queue: list[pytest.Item], change: Mutation) -> bool:
        """Return whether a test fails after a change, and only after it."""
        text = self.texts[change.module]
        while failed := self.run(queue, change.module, change.made(text)):
            item = next((item for item in queue if item.nodeid == failed), None)
            if item is None:  # the process has crashed, or the module cannot be imported
                return True
            if failed in self.kills or not self.run([item], change.module, text):
                self.kills[failed] += 1
                queue.sort(key=self.price)
                return True
            queue.remove(item)
        return False

    def price(self, item: pytest.Item) -> float:
        """Return what a test takes for each mistake that it has noticed."""
        return self.seconds[item.nodeid] / (1 + self.kills[item.nodeid])

    def run(self, items: list[pytest.Item], module: str, text: str) -> str:
        """Run tests in a forked process, with this text of a module; return what failed, or ""."""
        reading, self.answer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                self.run_here(items, module, text)
            finally:
                os._exit(1)
        os.close(self.answer)
        failed = ""
        with os.fdopen(reading) as answer:
            for line in answer:
                result, seconds, name = line.rstrip("\n").split(" ", 2)
                self.seconds[name] = float(seconds)
                failed = name if result == "failed" else ""
        status = os.waitpid(child, 0)[1]
        return failed or ("a crash" if status else "")

    def run_here(self, items: list[pytest.Item], module: str, text: str) -> None:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        install(import_module(f"minattn.{module}"), text)
        if module == "engines.kernels":  # compiled from what they were: take them as they are
            for name, kernel in list(vars(numba_cpu).items()):
                setattr(numba_cpu, name, getattr(kernel, "py_func", kernel))
        for item, following in zip(items, [*items[1:], None], strict=True):
            if self.late():
                break
            self.running, self.since = item, time.process_time()
            limit = int(self.since) + CPU_SECONDS
            resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            self.tell("passed")
        os._exit(0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        if call.excinfo and not call.excinfo.errisinstance(pytest.skip.Exception):
            self.fail()

    def fail(self) -> NoReturn:
        """End this forked process without a report, for which nobody asks."""
        self.tell("failed")
        os._exit(1)

    def tell(self, result: str) -> None:
        seconds = time.process_time() - self.since
        os.write(self.answer, f"{result} {seconds} {self.running.nodeid}\n".encode())

    def fail_at_once(self, test: Any) -> None:
        """Have Hypothesis not look again at an example that failed."""
        from hypothesis.errors import HypothesisException  # after pytest has

        inner = test.hypothesis.inner_test

        @functools.wraps(inner)
        def tried(*args: Any, **kwargs: Any) -> None:
            try:
                inner(*args, **kwargs)
            except HypothesisException:
                raise
            except (Exception, pytest.fail.Exception):
                self.fail()

        test.hypothesis.inner_test = tried

    def pytest_sessionfinish(self) -> None:
        """Show how many mistakes were tried, and the score of each module."""
        noticed = Counter(change.module for change in self.noticed)
        argued = Counter(c.module for c in self.survived if self.argues(c))
        survived = Counter(c.module for c in self.missed())
        tried = len(self.noticed) + len(self.survived)
        print(f"\n{tried} of {len(self.changes)} mistakes tried")
        print(f"{'module':24} mistakes noticed  argued survived")
        for name in [*self.texts, "all"]:
            counts = [c.total() if name == "all" else c[name] for c in (noticed, argued, survived)]
            total = sum(counts)
            if total:
                share = counts[0] / total
                print(f"{name:24} {total:8} {share:7.1%} {counts[1]:7} {counts[2]:8}")

    def argues(self, change: Mutation) -> bool:
        """Return whether `survivors.md` says why no test can notice a change."""
        return change.key in self.argued or any(
            change.after == change.before[: place.start()] + after + change.before[place.end() :]
            for function, before, after in self.argued
            if function == EVERYWHERE
            for place in re.finditer(re.escape(before), change.before)
        )

    def missed(self) -> list[Mutation]:
        return [change for change in self.survived if not self.argues(change)]

    def stale(self) -> list[tuple[str, str, str]]:
        """Return the arguments about mistakes that there are no more, or that a test notices."""
        modules = tuple(f"{name}." for name in self.texts)
        about = [key for key in self.argued if f"{key[0]}.".startswith(modules)]
        seen = {c.key for c in self.noticed} - {c.key for c in self.survived}
        return [key for key in about if key not in self.made or key in seen]


def load_kernels() -> None:
    """Have the compiled kernels ready for all processes forked from here on."""
    from minattn.testing.strategies import build_case  # after pytest has

    ma.set_threads(1)
    sizes = {"vocab_size": 3, "width": 4, "heads": 2, "max_length": 4, "feed_forward": 4}
    config = ma.TransformerConfig(layers=1, norm="pre", bias=True, **sizes)
    _, params, batch = build_case(config, length=4)
    for kind in ("float64", "float32"):
        typed = {name: value.astype(kind) for name, value in params.items()}
        ma.loss_and_grad(config, typed, batch, "numba")


def file_of(module: str) -> Path:
    return TESTS.parent / "minattn" / (module.replace(".", "/") + ".py")


def answering(module: str, items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that answer for a module, those that take longest last."""
    files = [TESTS / f"{name}.py" for name in ANSWERS[module]]
    found = [item for file in files for item in items if item.path == file]
    return sorted(found, key=lambda item: hasattr(item.obj, "hypothesis"))


def arguments() -> dict[tuple[str, str, str], str]:
    """Read `survivors.md`: a heading for each function, `line` → `line`: why, for each mistake."""
    found, function = {}, ""
    for line in ARGUED.read_text().splitlines():
        if line.startswith("## "):
            function = line.removeprefix("## ")
        elif match := re.fullmatch(r"- ``? ?(.+?) ?``? → ``? ?(.+?) ?``?: (.+)", line):
            found[function, match[1], match[2]] = match[3]
        elif line.startswith("-"):
            raise SystemExit(f"{ARGUED.name}: {line!r} is no '- `line` → `line`: why'")
    return found


def shown(change: Mutation) -> str:
    """Return a mistake as `survivors.md` would begin with it."""
    function, before, after = change.key
    return f"\n## {function}\n- `{before}` → `{after}`: "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("modules", nargs="*", help="such as terms, layers.attention (default all)")
    parser.add_argument("--minutes", type=float, help="stop then; the order is drawn at random")
    parser.add_argument("--seed", type=int, help="of that order (default: a new one)")
    options = parser.parse_args()
    modules = options.modules or list(ANSWERS)
    if unknown := set(modules) - set(ANSWERS):
        parser.error(f"no tests answer for {', '.join(sorted(unknown))}")
    seed = random.randrange(10**6) if options.seed is None else options.seed
    hunt = Hunt(modules, options.minutes, seed)
    files = dict.fromkeys(f"{TESTS}/{file}.py" for name in modules for file in ANSWERS[name])
    plain = ["-s", "-p", "no:randomly", "-p", "no:cacheprovider"]
    code = pytest.main([f"--rootdir={TESTS.parent}", *plain, *files], plugins=[hunt])
    if options.minutes is not None:
        print(f"in the order of --seed {seed}")
    for function, before, after in (stale := hunt.stale()):
        print(f"argued in {ARGUED.name} for nothing: {function}: {before} → {after}")
    sys.exit(int(code) or bool(hunt.missed() or stale))


if __name__ == "__main__":
    main()

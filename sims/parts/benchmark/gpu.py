"""Is the engine "cupy" right on this GPU, and how fast? Against NumPy, then against PyTorch.

python sims/benchmark.py --gpu-check [--out DIR]

At most five minutes on a data-centre GPU. Needs NumPy, CuPy and, for the times, PyTorch; minattn
need not be installed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from parts.benchmark import gpu_checks
from parts.benchmark.contestants import check
from parts.benchmark.results import targets
from parts.benchmark.settings import Setting
from parts.benchmark.timing import claim

from minattn import experiment
from minattn.arrays import Array
from minattn.claims import Claim
from minattn.engines import Buffers, availability, choose
from minattn.step import pose, take

DEVICE = "cuda"  # as PyTorch calls it
OURS, EAGER, SDPA, COMPILED = "cupy", "torch eager", "torch SDPA", "torch compiled"
TOY = ("toy", (16, 16, 8, 16)), ("toy", (32, 32, 16, 16))
SMALL, LARGE = ("small", (64, 64, 32, 64)), ("large", (256, 128, 16, 1024))
REPLICAS = 1, 64
ROUNDS, SECONDS = 5, 0.05  # rounds, and seconds that a contestant has in each
PEERS = {"cupy", "torch"}  # whose versions matter as well
LEVEL = 1.1  # times that count as equal
BUDGET = 240.0  # seconds after which nothing more is compiled

Step = Callable[[], Any]
Times = dict[str, Array]  # milliseconds of a step, (rounds,)


def settings() -> list[tuple[str, Setting]]:
    """Return what is timed, by kind: toy, small, large."""
    cases = [(*TOY[0], 1, 1), (*TOY[1], 2, 2)]
    cases += [(*SMALL, layers, heads) for layers in (1, 4) for heads in (1, 4)]
    cases += [(*LARGE, layers, 4) for layers in (1, 4)]
    return [(kind, _setting(*sizes, layers, heads)) for kind, sizes, layers, heads in cases]


def _setting(d: int, N: int, batch: int, V: int, layers: int, heads: int) -> Setting:
    return Setting(width=d, length=N, batch=batch, vocabulary=V, layers=layers, heads=heads)


def gpu_check(out: Path) -> list[Claim]:
    """Check and time the engine "cupy", print a table, and write it to the folder `out`.

    Files: summary.json, benchmark_gpu.csv. Returns the targets with their verdicts.

    Raises
    ------
    ValueError
        If the engine cannot run here, or `out` cannot be written.
    RuntimeError
        If it gives wrong numbers; they have been printed.
    """
    choose("cupy")
    out.mkdir(parents=True, exist_ok=True)
    start = perf_counter()
    found = []
    for one in gpu_checks.checks():
        found.append(one)
        print(f"{'ok   ' if one.passed else 'WRONG'} {one.error:8.1e}  {one.name}", flush=True)
    alone = gpu_checks.replica_alone()
    print(f"      {alone:8.1e}  difference of a replica that is trained alone")
    wrong = [one.name for one in found if not one.passed]
    if wrong:
        raise RuntimeError(f"the engine 'cupy' gives wrong numbers on this device: {wrong}")
    rows, claims, left_out = measure(start)
    print(targets(claims))
    for name, reason in left_out.items():
        print(f"left out: {name} ({reason})")
    summary = experiment.summary("benchmark_gpu", {"dtype": "float32"}, 0, "cupy", claims)
    summary["versions"] |= {
        name: sys.modules[name].__version__ for name in PEERS & set(sys.modules)
    }
    summary |= {"device": device(), "checks": [one._asdict() for one in found]}
    summary |= {"replica_alone": alone, "left_out": left_out, "measured": rows}
    experiment.write_json(out / "summary.json", summary)
    experiment.write_csv(out / "benchmark_gpu.csv", rows[0], (row.values() for row in rows))
    print(f"{perf_counter() - start:.0f} s on {device()}; results in {out}")
    return claims


def measure(start: float) -> tuple[list[dict[str, Any]], list[Claim], dict[str, str]]:
    """Time every setting with every number of replicas; judge, and say who was left out."""
    peers, left_out = torch_makers()
    rows: list[dict[str, Any]] = []
    claims: list[Claim] = []
    for kind, setting in settings():
        alone: Array | None = None
        for replicas in REPLICAS:
            many = Setting(**vars(setting) | {"replicas": replicas})
            late = perf_counter() - start > BUDGET
            chosen = {
                name: make
                for name, make in peers.items()
                if name != COMPILED or (kind == "toy" and not late)
            }
            times = time_steps(many, chosen, left_out)
            row = {"kind": kind, "setting": str(many)}
            row |= {f"{name} ms": round(float(np.median(t)), 4) for name, t in times.items()}
            rows.append({key: row.get(key, "") for key in COLUMNS})
            print("  ".join(f"{value}" for value in rows[-1].values()), flush=True)
            claims += against_peers(kind, many, times)
            if alone is None:
                alone = times[OURS]
            elif kind == "toy":
                text = f"{many}: over one replica"
                claims.append(claim(text, times[OURS] / alone, 4))
    return rows, claims, left_out


COLUMNS = ("kind", "setting", *(f"{name} ms" for name in (OURS, EAGER, SDPA, COMPILED)))


def against_peers(kind: str, setting: Setting, times: Times) -> Iterator[Claim]:
    """Judge a setting by its peers."""
    limits = {"toy": {EAGER: 0.5, COMPILED: LEVEL}, "large": {SDPA: LEVEL}}.get(kind, {})
    for peer, limit in limits.items():
        if peer in times:
            yield claim(f"{setting}: over {peer}", times[OURS] / times[peer], limit)


def time_steps(setting: Setting, peers: dict[str, Any], left_out: dict[str, str]) -> Times:
    """Return the times of all contestants; at one replica, their gradients must agree."""
    params, batch = setting.numbers(seed=0)
    engine = choose("cupy", setting.dtype)
    problem = engine.put(pose(setting.config, params, batch)[0])
    weights, buffers = engine.put(params), Buffers()

    def ours() -> Any:
        return take(engine, setting.config, weights, problem, buffers)

    steps: dict[str, Step] = {OURS: ours}
    for name, make in peers.items():
        try:
            stepper = make(setting, params, batch)
            grads = stepper.read(tuple(grad.cpu() for grad in stepper.step()))
            if setting.replicas == 1:
                check(name, grads, engine.get(ours().grads), setting.dtype)
            steps[name] = stepper.step
        except Exception as error:  # a compiler that is missing, an operation that is not there
            left_out[f"{name} at {setting}"] = " ".join(f"{type(error).__name__}: {error}".split())
    counts = {name: max(1, round(1e3 * SECONDS / elapsed(step, 5))) for name, step in steps.items()}
    rounds = [
        {name: elapsed(steps[name], counts[name]) for name in (steps, reversed(steps))[turn % 2]}
        for turn in range(ROUNDS)
    ]
    return {name: np.array([times[name] for times in rounds]) for name in steps}


def elapsed(step: Step, count: int) -> float:
    """Return the milliseconds a step takes on the device, after a step that is not timed."""
    import cupy

    step()
    before, after = cupy.cuda.Event(), cupy.cuda.Event()
    before.record()
    for _ in range(count):
        step()
    after.record()
    after.synchronize()
    return cupy.cuda.get_elapsed_time(before, after) / count


def torch_makers() -> tuple[dict[str, Any], dict[str, str]]:
    """Return what makes each of PyTorch's steps on the device, and why it is missing."""
    try:
        import torch
        from parts.benchmark import torch_steps
    except ImportError as error:
        return {}, {"torch": f"{error}"}
    if DEVICE == "cuda" and not torch.cuda.is_available():
        return {}, {"torch": "it sees no CUDA device"}

    def on_device(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*problem: Any) -> Any:
            with torch.device(DEVICE):
                return make(*problem)

        return made

    return {name: on_device(make) for name, make in torch_steps.makers(1).items()}, {}


def device() -> str:
    """Return the device's name."""
    import cupy

    return str(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())


def main(arguments: list[str] | None = None) -> None:
    """Read the folder, then check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=experiment.RESULTS / "benchmark_gpu")
    options = parser.parse_args(arguments)
    lack = availability()["cupy"]
    if lack is not None:
        parser.error(f"the engine 'cupy' cannot run here: it needs {lack}")
    gpu_check(options.out)

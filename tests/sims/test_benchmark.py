"""The benchmark: what it counts, compares and concludes; no time is asserted."""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "sims"))

from parts.benchmark import (  # noqa: E402
    contestants,
    curves,
    figures,
    processes,
    results,
    steps,
    timing,
    training,
)
from parts.benchmark import run as sim  # noqa: E402
from parts.benchmark.settings import Setting  # noqa: E402

from minattn.claims import VERDICTS  # noqa: E402
from minattn.engines import Reference  # noqa: E402
from minattn.scores import scores, scores_from_factors  # noqa: E402
from minattn.step import pose, take  # noqa: E402

TINY = Setting(width=4, length=3, batch=2, vocabulary=5, layers=2, heads=2, dtype="float64")
VARIANTS = (TINY, replace(TINY, replicas=3), replace(TINY, feed_forward=True))


def test_a_quick_run_from_the_command_line(tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, ROOT / "sims" / "benchmark.py", "--quick", "--out", out]
    run = subprocess.run(
        [*command, "--rounds", "1", "--format", "pdf"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert "Traceback" not in run.stderr
    assert max(map(len, run.stdout.splitlines())) <= 100
    summary = json.loads((out / "summary.json").read_text(), parse_constant=pytest.fail)
    assert {"name", "config", "seeds", "engine", "threads", "versions"} <= summary.keys()
    assert {claim["verdict"] for claim in summary["claims"]} <= set(VERDICTS)
    assert {row["part"] for row in summary["measured"]} >= set(sim.PARTS) - {"memory"}
    assert all(row["low"] <= row["median"] <= row["high"] for row in summary["measured"])
    with (out / "benchmark.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == len(summary["measured"])
    assert {"steps.pdf", "curves.pdf"} <= {path.name for path in out.iterdir()}
    for text in ("| target |", "| setting | numba | numpy |", "| numba / numpy |", "(steps.pdf)"):
        assert text in (out / "README.md").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "everything"], "--only"),
        (["--rounds", "0"], "--rounds"),
        (["--threads", "0"], "--threads"),
        (["--threads", "100000"], "--threads"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_bad_options_are_one_clear_line(options, message, tmp_path, capsys):
    out = tmp_path / "run"
    with pytest.raises(SystemExit) as ending:
        sim.experiment.run(lambda: sim.main(["--quick", "--out", str(out), *options], ""))
    assert ending.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_flops_by_hand():
    """Tokens 6: q, k, v, o 4 x 192; q k^T and A v 2 x 144; in two layers; unembedding 240."""
    assert TINY.flops == 3 * (2 * (4 * 192 + 2 * 144) + 240)
    # W_in (4, 16) and W_out (16, 4): 2 x 768 in each layer.
    assert replace(TINY, feed_forward=True).flops - TINY.flops == 3 * 2 * 2 * 768


@pytest.mark.parametrize("setting", VARIANTS, ids=str)
def test_flops_are_those_that_the_reference_spends(setting):
    spent = []

    class Counting(Reference):
        def matmul(self, a, b, out=None):
            found = super().matmul(a, b, out)
            spent.append(2 * found.size * a.shape[-1])
            return found

    params, batch = setting.numbers(seed=0)
    problem, _ = pose(setting.config, params, batch)
    take(Counting(), setting.config, params, problem)
    assert sum(spent) == setting.flops


def test_the_settings():
    standard = steps.standard(quick=False)
    assert len(set(standard)) == 12
    assert {(s.width, s.layers, s.heads, s.dtype) for s in standard} == {
        (d, layers, heads, dtype)
        for d, allowed in ((64, (1, 4)), (256, (4,)))
        for layers in (1, 4)
        for heads in allowed
        for dtype in ("float32", "float64")
    }
    assert {s.replicas for s in steps.replicas(quick=False)} == {16}
    assert all(s.config.norm == "pre" for s in steps.feed_forward(quick=False))


@pytest.mark.parametrize(
    ("values", "calm", "outcome"),
    [
        ([0.4, 0.45, 0.49], True, "met"),
        ([0.4, 0.4, 0.4, 0.4, 9.0], True, "met"),  # one round that went wrong
        ([0.51, 0.6, 0.7], True, "not met"),
        ([0.4, 0.45, 0.7], True, "too noisy"),
        ([0.4, 0.45, 0.49], False, "too noisy"),
        ([0.51, 0.6, 0.7], False, "too noisy"),
    ],
)
def test_outcomes(values, calm, outcome):
    claim = timing.claim("made up", np.array(values), 0.5, calm)
    assert results.outcome(claim) == outcome
    assert claim.measured == np.median(values)
    assert (outcome == "too noisy") == any("too noisy" in r for r in remarks_on(claim))


def remarks_on(claim):
    return results.remarks(results.Found(claims=[claim]))


def times(others=0.0, **seconds):
    return timing.Times({name: np.array(value) for name, value in seconds.items()}, others)


def test_targets_compare_with_the_fastest_peer_and_the_floor():
    made = times(numba=[1.0, 1.1, 1.2], numpy=[0.1] * 3, slow=[9.0] * 3, fast=[4.0] * 3)
    made.seconds[steps.PRODUCT] = np.full(3, 2 * steps.SIDE**3 / TINY.flops)  # the floor is 1 s
    assert steps.against_peer(0.5)(TINY, made).measured == pytest.approx(1.1 / 4)
    assert steps.against_floor(1.2)(TINY, made).measured == pytest.approx(1.1)
    large = replace(TINY, width=256)
    assert "floor" in steps.against_peer_or_floor(large, made).claim
    assert "peer" in steps.against_peer_or_floor(replace(TINY, width=64), made).claim


def test_without_peers_nothing_is_claimed():
    claim = steps.against_peer(0.5)(TINY, times(numba=[1.0], numpy=[0.1]))
    assert claim.measured is None
    assert results.outcome(claim) == "no peer"


def made_up_rows():
    ones = np.ones(3)
    for name in contestants.NAMES:
        for setting in VARIANTS:
            yield results.row("standard", name, 0.002 * ones, "s", setting)
            yield results.row("standard", name, 2 * ones, "floors", setting)
            yield results.row("curves", name, ones, "s", setting, curve="replicas")
            yield results.row("memory", name, ones, "MiB", setting)
        yield results.row("curves", name, ones, "slope", curve="replicas")
    yield results.row("crossover", "numba over numpy", 0.5 * ones, "1", TINY)


def test_figures_and_page_of_all_contestants(tmp_path):
    rows = list(made_up_rows())
    made = figures.draw(rows)
    assert made.keys() == {"steps", "curves", "memory"}
    for name, figure in made.items():
        sim.plots.save(figure, tmp_path / f"{name}.png")
    page = results.page(results.Found(rows), threads=2, figures=made)
    assert f"| {TINY} |" + " 2 |" * len(contestants.NAMES) in page
    assert f"| {TINY} | 0.50 | 0.50 | 0.50 |" in page
    assert all(f"({name}.png)" in page for name in made)


def test_slopes_are_exponents():
    values = (1, 2, 4, 8, 16)
    seconds = [3.0 * value ** np.array([1.0, 2.0]) for value in values]
    np.testing.assert_allclose(curves.upper_slopes(values, seconds), [1, 2])


class Clock:
    """A machine on which steps take no time and other processes what `shares` say, by round."""

    def __init__(self, shares):
        self.shares, self.now = iter(shares), 0.0

    def share(self, before, after):
        return next(self.shares)


@pytest.mark.parametrize(
    ("shares", "rounds", "worst"),
    [
        ([0.0, 0.0, 0.0], 3, 0.0),
        ([0.0, 0.9, 0.05, 0.0], 3, 0.05),  # the second round is made again
        ([0.9, 0.9, 0.0, 0.0, 0.9, 0.9], 6, 0.9),  # too few calm ones: all are kept
        ([0.9, 0.9, 0.9, 0.9], 4, 0.9),  # there is no use in going on
        ([np.nan] * 3, 3, np.nan),  # a system that does not say
    ],
)
def test_disturbed_rounds_are_made_again(shares, rounds, worst, monkeypatch):
    monkeypatch.setattr(timing, "_share_of_others", Clock(shares).share)
    monkeypatch.setattr(timing, "WARM", 0)
    monkeypatch.setattr(timing, "BLOCK", 0)
    order = []
    made = [timing.Contestant(name=name, step=lambda n=name: order.append(n)) for name in "ab"]
    found = timing.take_turns(made, rounds=3)
    assert {name: len(seconds) for name, seconds in found.seconds.items()} == dict.fromkeys(
        "ab", rounds
    )
    np.testing.assert_equal(found.others, worst)
    assert found.calm == (not worst > timing.CALM)
    assert bool(results.noise(found)) == (not found.calm)
    assert order[:8] == ["b", "b", "a", "a", "a", "a", "b", "b"]  # untimed, then timed


@pytest.mark.parametrize("setting", VARIANTS, ids=str)
def test_packing_can_be_undone(setting):
    params, _ = setting.numbers(seed=0)
    packed = contestants.pack(params)
    assert len(packed) == len(params) - 2 * setting.layers
    found = contestants.unpack(packed, params)
    assert found.keys() == params.keys()
    for name, value in params.items():
        np.testing.assert_array_equal(found[name], value)


def altered(name, change):
    def make(*problem):
        made = contestants.engine_step("numpy", *problem)

        def read(outcome):
            return {
                key: value + change * abs(value).max() for key, value in made.read(outcome).items()
            }

        return replace(made, name=name, read=read)

    return make


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_who_disagrees_is_not_timed(dtype):
    tolerance = contestants.TOLERANCE[dtype]
    makers = {"right": altered("right", tolerance / 2), "wrong": altered("wrong", 2 * tolerance)}
    admitted, left_out = contestants.admit(makers, replace(TINY, dtype=dtype), seed=0)
    assert [one.name for one in admitted] == ["right"]
    assert "off by" in left_out["wrong"]
    with pytest.raises(ValueError, match="numba: got a gradient"):
        contestants.admit({"numba": altered("numba", 2 * tolerance)}, replace(TINY, dtype=dtype), 0)


def test_a_missing_gradient_is_noticed():
    with pytest.raises(ValueError, match="no gradient of b"):
        contestants.check("one", {"a": np.ones(2)}, {"a": np.ones(2), "b": np.ones(2)}, "float64")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("setting", VARIANTS, ids=str)
@pytest.mark.parametrize("name", ["numba", "torch eager", "torch SDPA", "jax"])
def test_gradients_of_all_are_equal(name, setting, dtype):
    if name.split()[0] in ("torch", "jax"):
        pytest.importorskip(name.split()[0])
    makers, _ = contestants.makers(threads=1)
    admitted, left_out = contestants.admit({name: makers[name]}, replace(setting, dtype=dtype), 0)
    assert [one.name for one in admitted] == [name], left_out


def test_products_are_what_scores_from_factors_speaks_of():
    sizes = training.Factors(6, 4, 2, 3)
    W_q, W_k = (factor.astype(np.float64) for factor in sizes.draw(seed=0))
    expected = scores_from_factors(W_q, W_k)
    for M in (training.product(W_q, W_k), training.product(*training.group_sums(W_q, W_k))):
        np.testing.assert_allclose(scores(M), expected)
    single = [scores(M) for M in training.products(W_q, W_k)]
    np.testing.assert_allclose(np.transpose(single), scores_from_factors(W_q, W_k, per_head=True))


@pytest.mark.skipif(not processes.PEAK.exists(), reason="the system does not tell peaks")
def test_memory_has_room_for_the_gradients():
    small, large = (replace(TINY, vocabulary=V) for V in (5, 100_000))
    params, _ = large.numbers(seed=0)
    gradients = sum(value.nbytes for value in params.values()) / 2**20
    found = [processes.ask("memory", setting, "numpy", "1") for setting in (small, large)]
    assert found[0] < gradients < found[1] < 10 * gradients


def test_a_failing_process_says_why():
    with pytest.raises(ChildProcessError, match=r"memory of d 4.*: KeyError: 'abacus'"):
        processes.ask("memory", TINY, "abacus", "1")

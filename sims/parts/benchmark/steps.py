"""Steps of training against peers and against the floor of their matrix products."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from itertools import product
from textwrap import fill

import numpy as np
from parts.benchmark.contestants import ENGINES, admit
from parts.benchmark.results import Found, noise, row, timed
from parts.benchmark.settings import Setting
from parts.benchmark.timing import Contestant, Times, claim, take_turns

from minattn.arrays import Array
from minattn.claims import INCONCLUSIVE, Claim

PRODUCT = "matrix product"
SIDE = 1024  # of the matrices whose product gives the floor its rate

SMALL = {"width": 64, "length": 64, "batch": 32, "vocabulary": 64}
LARGE = {"width": 256, "length": 128, "batch": 16, "vocabulary": 1024}
DTYPES = ("float32", "float64")

Judge = Callable[[Setting, Times], Claim]


def standard(quick: bool) -> list[Setting]:
    """Return the twelve settings of the standard model: no norm, no feed-forward."""
    small = product((SMALL,), (1, 4), (1, 4), DTYPES)
    large = product((LARGE,), (1, 4), (4,), DTYPES)
    made = [
        Setting(**sizes, layers=layers, heads=heads, dtype=dtype)
        for sizes, layers, heads, dtype in (*small, *large)
    ]
    return made[1:3] if quick else made


def replicas(quick: bool) -> list[Setting]:
    """Return two toy models, 16 replicas of each with parameters and data of their own."""
    sizes = (
        {"width": 16, "length": 16, "batch": 8, "vocabulary": 16, "layers": 1, "heads": 1},
        {"width": 32, "length": 32, "batch": 16, "vocabulary": 16, "layers": 2, "heads": 2},
    )
    made = [Setting(**s, replicas=16, dtype=dtype) for s, dtype in product(sizes, DTYPES)]
    return made[:1] if quick else made


def feed_forward(quick: bool) -> list[Setting]:
    """Return two widths with pre-norm and a feed-forward part."""
    made = [
        Setting(**sizes, layers=2, heads=4, dtype=dtype, feed_forward=True)
        for sizes, dtype in product((SMALL, LARGE), DTYPES)
    ]
    return made[:1] if quick else made


def against_peer(limit: float) -> Judge:
    """Judge the time over that of the fastest peer."""

    def judge(setting: Setting, times: Times) -> Claim:
        peers = [name for name in times.seconds if name not in (*ENGINES, PRODUCT)]
        text = f"{setting}: over fastest peer"
        if not peers:
            rule = "there is no peer to compare with"
            return Claim(text, f"<= {limit:g}", None, None, rule, INCONCLUSIVE)
        ratio = times.seconds["numba"] / times.seconds[times.fastest(peers)]
        return claim(text, ratio, limit, times.calm)

    return judge


def against_floor(limit: float) -> Judge:
    """Judge the time over that of the matrix products alone."""

    def judge(setting: Setting, times: Times) -> Claim:
        ratio = times.seconds["numba"] / floor(setting, times)
        return claim(f"{setting}: over floor", ratio, limit, times.calm)

    return judge


def against_peer_or_floor(setting: Setting, times: Times) -> Claim:
    """Judge small models against peers, and large ones, where products dominate, by the floor."""
    judge = against_peer(0.5) if setting.width == SMALL["width"] else against_floor(1.2)
    return judge(setting, times)


def measure(part: str, judge: Judge, setting: Setting, options: Namespace) -> Found:
    """Time all contestants on one setting."""
    contestants, left_out = admit(options.makers, setting, options.seed)
    times = take_turns([*contestants, matrix_product(setting.dtype)], options.rounds)
    least = floor(setting, times)
    rows = [*timed(part, times, setting), row(part, "floor", least, "s", setting)]
    for one in contestants:
        rows.append(row(part, one.name, times.seconds[one.name] / least, "floors", setting))
    return Found(rows, [judge(setting, times)], told(setting, times, least), left_out)


def told(setting: Setting, times: Times, least: Array) -> list[str]:
    """Say how long each took."""
    named = {name: seconds for name, seconds in times.seconds.items() if name != PRODUCT}
    medians = [f"{name} {1e3 * np.median(s):.3g}" for name, s in (named | {"floor": least}).items()]
    text = fill("ms: " + ", ".join(medians), 98, initial_indent="  ", subsequent_indent="  ")
    return [str(setting), text, *noise(times)]


def matrix_product(dtype: str) -> Contestant:
    """Make the product whose rate, with as many threads as the others have, sets the floor."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, SIDE, SIDE)).astype(dtype)
    out = np.empty_like(a)
    return Contestant(name=PRODUCT, step=lambda: np.matmul(a, b, out=out))


def floor(setting: Setting, times: Times) -> Array:
    """Return the seconds that the setting's matrix products take at that rate, (rounds,)."""
    return setting.flops / (2 * SIDE**3) * times.seconds[PRODUCT]

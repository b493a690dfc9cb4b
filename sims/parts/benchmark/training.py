"""What watching W_qk costs: the account of the update within training, scores from factors."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from parts.benchmark.results import Found, noise, row, timed
from parts.benchmark.settings import Setting
from parts.benchmark.steps import SMALL
from parts.benchmark.timing import FEW, Contestant, claim, quartiles, take_turns

from minattn import fit, next_token
from minattn.arrays import Array
from minattn.data import MarkovChain
from minattn.observers import account
from minattn.scores import scores, scores_from_factors

STEPS, QUICK_STEPS = 100, 10
SHARE = 0.15  # of training, at most


@dataclass(frozen=True)
class Factors:
    """W_q (d, H, h) and W_k (d, H_kv, h) in float32, whose product is scored."""

    width: int
    heads: int
    key_heads: int
    head_width: int
    per_head: bool = False

    def __str__(self) -> str:
        of = "each head" if self.per_head else "sum over heads"
        return f"d {self.width}, {self.heads} and {self.key_heads} heads, {of}"

    def draw(self, seed: int) -> tuple[Array, Array]:
        """Draw the factors."""
        rng = np.random.default_rng(seed)
        heads = (self.heads, self.key_heads)
        shapes = [(self.width, count, self.head_width) for count in heads]
        W_q, W_k = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
        return W_q, W_k


def accounts(quick: bool) -> list[Setting]:
    """Return the models whose training is watched."""
    made = [Setting(**SMALL, layers=1, heads=heads, dtype="float64") for heads in (1, 4)]
    return made[:1] if quick else made


def measure_account(setting: Setting, options: Namespace) -> Found:
    """Time training without an observer, and with the account at some and at all steps."""
    steps = QUICK_STEPS if options.quick else STEPS
    times = take_turns(trainings(setting, options.seed, steps), min(options.rounds, FEW))
    found = Found(timed("account", times, setting), lines=[str(setting), *noise(times)])
    for name in ("every 10 steps", "every step"):
        share = 1 - times.seconds["no observer"] / times.seconds[name]
        found.rows.append(row("account", name, share, "share", setting))
        found.lines.append(f"  account {name}: {quartiles(share).median:.3f} of training")
        if name == "every 10 steps" or setting.heads == 1:
            text = f"account {name}: share of training, H {setting.heads}"
            found.claims.append(claim(text, share, SHARE, times.calm))
    return found


def trainings(setting: Setting, seed: int, steps: int) -> list[Contestant]:
    """Return training runs that differ in how often they are watched."""
    params, _ = setting.numbers(seed)
    chain = MarkovChain.random(setting.vocabulary, concentration=0.1, seed=seed)
    sizes = {"steps": steps, "batch_size": setting.batch, "length": setting.length + 1}
    train = partial(fit, setting.config, params, chain, next_token, engine="numba", **sizes)
    watch = {"observe": account(setting.config, params)}
    return [
        Contestant(name="no observer", step=train),
        Contestant(name="every 10 steps", step=partial(train, record_every=10, **watch)),
        Contestant(name="every step", step=partial(train, record_every=1, **watch)),
    ]


def factors(quick: bool) -> list[Factors]:
    """Return what is scored: the sum over heads, and single heads that share a key head."""
    if quick:
        return [Factors(512, 8, 2, 32, per_head=True)]
    return [Factors(4096, 32, 8, 128), Factors(4096, 4, 1, 128, per_head=True)]


def measure_scores(sizes: Factors, options: Namespace) -> Found:
    """Time scores from factors against scores of their product, formed in either order."""
    W_q, W_k = sizes.draw(options.seed)
    per_head = sizes.per_head
    steps = {"factors": lambda: scores_from_factors(W_q, W_k, per_head)}
    if per_head:
        steps["products"] = lambda: [scores(M) for M in products(W_q, W_k)]
    else:
        steps["product"] = lambda: scores(product(W_q, W_k))
        steps["product of group sums"] = lambda: scores(product(*group_sums(W_q, W_k)))
    contestants = [Contestant(name=name, step=step) for name, step in steps.items()]
    times = take_turns(contestants, min(options.rounds, FEW))
    lines = [f"scores: {sizes}", *noise(times)]
    for name, seconds in times.seconds.items():
        lines.append(f"  {name}: {1e3 * quartiles(seconds).median:.4g} ms")
    rivals = [name for name in times.seconds if name != "factors"]
    ratio = times.seconds["factors"] / times.seconds[times.fastest(rivals)]
    judged = claim(f"scores from factors over product, {sizes}", ratio, 0.1, times.calm)
    return Found(timed("scores", times, sizes), [judged], lines)


def product(W_q: Array, W_k: Array) -> Array:
    """Return the sum over heads of W_q W_k^T, as one product of all heads' columns."""
    keys = np.repeat(W_k, W_q.shape[1] // W_k.shape[1], axis=1)
    return W_q.reshape(len(W_q), -1) @ keys.reshape(len(W_k), -1).T


def group_sums(W_q: Array, W_k: Array) -> tuple[Array, Array]:
    """Add the query heads that share a key head, which leaves the sum over heads as it is."""
    d, key_heads, h = W_k.shape
    return W_q.reshape(d, key_heads, -1, h).sum(axis=2), W_k


def products(W_q: Array, W_k: Array) -> Iterator[Array]:
    """Yield W_q W_k^T of every head."""
    group = W_q.shape[1] // W_k.shape[1]
    for head in range(W_q.shape[1]):
        yield W_q[:, head] @ W_k[:, head // group].T

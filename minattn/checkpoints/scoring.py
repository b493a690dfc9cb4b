"""Scores of a layer, and what random factors of the same shape would score."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from minattn import checks
from minattn.arrays import Array
from minattn.checkpoints.layer import Layer
from minattn.engines.threads import get_threads, run_in_threads
from minattn.scores import Scores, scores_from_factors

DRAWS = 39  # a further random layer lies outside their range with probability 2 / (39 + 1)


class Band(NamedTuple):
    """The range of each score over random factors."""

    low: Scores
    high: Scores


def score(layer: Layer) -> Scores:
    """Score the bilinear form of a layer, summed over its heads (Remark A.5).

    Parameters
    ----------
    layer : Layer

    Returns
    -------
    Scores
        Numbers.

    Raises
    ------
    ValueError
        If a weight is not finite.
    """
    checks.instance("layer", layer, Layer)
    return _scores(layer, layer.W_q, layer.W_k)


def score_heads(layer: Layer) -> Scores:
    """Score the bilinear form of every query head; arguments and errors as in `score`.

    Returns
    -------
    Scores
        Each of shape (H,).
    """
    # Products of single heads are too small for BLAS to share out, so threads take heads each.
    threads = min(get_threads(), checks.instance("layer", layer, Layer).key_heads)
    group = layer.heads // layer.key_heads
    cuts = [layer.key_heads * thread // threads for thread in range(1, threads)]
    W_k = np.split(layer.W_k, cuts, axis=1)
    W_q = np.split(layer.W_q, [group * cut for cut in cuts], axis=1)
    shares = zip(W_q, W_k, strict=True)
    found = run_in_threads([partial(_scores, layer, *share, per_head=True) for share in shares])
    return Scores(*(np.concatenate(part) for part in zip(*found, strict=True)))


def _scores(layer: Layer, W_q: Array, W_k: Array, per_head: bool = False) -> Scores:
    try:
        return scores_from_factors(W_q, W_k, per_head)
    except ValueError as error:
        raise ValueError(f"{layer.label}: {error}") from None


def null_band(layer: Layer, per_head: bool = False, draws: int = DRAWS, seed: int = 0) -> Band:
    """Range of the scores of random normal factors of a layer's shape.

    Parameters
    ----------
    layer : Layer
        Its shape decides; layers of one shape share their draws.
    per_head : bool
        Whether of one head or of the sum over all.
    draws : int
        How many random layers; a further one lies outside their range with probability
        2 / (draws + 1).
    seed : int

    Returns
    -------
    Band
        Numbers, for each score.

    Raises
    ------
    ValueError
        If `draws` is below 2 or `seed` negative.

    Notes
    -----
    Scores do not depend on the scale of the factors. A sum of i.i.d. normal queries that share a
    key is again i.i.d. normal, so the sum is drawn. Turning queries by rotary positions changes
    nothing in law; folding a norm in does, and the band leaves the gains out.
    """
    checks.instance("layer", layer, Layer)
    checks.flag("per_head", per_head)
    draws = checks.integer("draws", draws, minimum=2)
    seed = checks.seed("seed", seed)
    columns = layer.head_width * (1 if per_head else layer.key_heads)
    return _null_band(layer.width, columns, draws, seed)


@lru_cache(maxsize=64)
def _null_band(d: int, columns: int, draws: int, seed: int) -> Band:
    rng = np.random.default_rng([seed, d, columns])
    found = []
    for _ in range(draws):
        W_q, W_k = (rng.standard_normal((d, columns), dtype=np.float32) for _ in range(2))
        found.append(scores_from_factors(W_q, W_k))
    values = np.array(found)  # (draws, scores)
    return Band(Scores(*values.min(axis=0)), Scores(*values.max(axis=0)))

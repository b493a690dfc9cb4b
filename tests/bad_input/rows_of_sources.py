"""Rows of the table: chains, text, images, sound, the best loss; other people's checkpoints."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import numpy as np
from values import (
    COUNT,
    FLAG,
    FOLDER,
    GENERATOR,
    INDEX,
    INTEGERS,
    NAME,
    NUMBER,
    POSITIVE,
    RAGGED,
    REALS,
    SEED,
    TEXT,
    Fresh,
    Says,
    row,
)

import minattn as ma
from minattn import checkpoints, data
from minattn.saving import save_arrays

CHAIN = data.MarkovChain.random(3, 1.0)
DRIFTING = data.DriftingChain(CHAIN, length=6, earliness=[1.0, 0.0, -1.0], drift=0.5)
TEXT_SOURCE = data.TextSource([0, 1, 2, 1], 3)
IMAGES = data.ImageSource(np.zeros((2, 3, 4), int), 2)
RNG = Fresh(lambda: np.random.default_rng(0))
MASKED = ma.MaskedToken(mask_symbol=3, rate=0.5)
TOKENS = CHAIN.sample(2, 6, np.random.default_rng(0))
NEXT, HIDDEN = ma.next_token(TOKENS), MASKED(TOKENS, np.random.default_rng(1))
LAYER = checkpoints.Layer(
    "hand",
    "decoder",
    0,
    np.random.default_rng(0).standard_normal((4, 2, 2)),
    np.random.default_rng(1).standard_normal((4, 1, 2)),
    norm=checkpoints.Norm(np.ones(4)),
    pre_norm=True,
    rotary=checkpoints.Rotary(np.array([0.5])),
)

CHAINS = [None, 3, "chain", TEXT_SOURCE, [[1.0]]]
SIZES = {"B": COUNT, "N": COUNT, "rng": GENERATOR}
LAWS = [
    None,
    "text",
    RAGGED,
    [],
    [[]],
    [["a"]],
    [[True]],
    [[1j]],
    [[None]],
    [0.5, 0.5],
    3,
    [[[1.0]]],
    [[0.3, 0.3, 0.39]] * 3,
    [[0.5, 0.6, -0.1]] * 3,
    [[np.nan, 1], [0.5, 0.5]],
    [[np.inf, 1], [0.5, 0.5]],
    [[0, 0], [0.5, 0.5]],
    [[0.5, 0.5]],
    np.eye(2),
]
PER_SYMBOL = [*REALS[1:], [1.0, 2.0], 3.0, np.ones((3, 1)), ["1", "2", "3"]]


def other(batch, **changes):
    fields = {name: getattr(batch, name) for name in ("inputs", "targets", "weights", "mask")}
    return ma.Batch(**fields | changes)


def wav(samples=(0.5, -0.5, 0.25)):
    file = io.BytesIO()
    data.write_wav(file, np.array(samples), 8000)
    return io.BytesIO(file.getvalue())


SAVED = Path(tempfile.mkdtemp()) / "run.safetensors"
SAVED_CONFIG = ma.TransformerConfig(vocab_size=3, width=4, layers=1, heads=2, max_length=3)


def saved():
    params = ma.init_params(SAVED_CONFIG, replicas=2)
    save_arrays(SAVED, {f"params.{n}": v for n, v in params.items()}, {"settings": {}})
    return SAVED


ROWS = [
    row(
        data.MarkovChain,
        {"transition": [[0.9, 0.1], [0.2, 0.8]]},
        transition=LAWS,
        lag=COUNT,
    ),
    row(
        data.MarkovChain.random,
        {"n_symbols": 3},
        n_symbols=COUNT,
        concentration=[*POSITIVE, 1e-10, 1e10],
        lag=COUNT,
        reversible=FLAG,
        seed=SEED,
    ),
    row(
        data.MarkovChain.independent,
        {"probabilities": [0.5, 0.5]},
        probabilities=[
            None,
            "text",
            RAGGED,
            [],
            np.eye(2),
            3,
            [0.5, 0.4],
            [1.5, -0.5],
            [np.nan, 1],
        ],
    ),
    row(CHAIN.sample, {"B": 2, "N": 3, "rng": RNG}, **SIZES),
    row(
        CHAIN.log_likelihood,
        {"tokens": [[0, 1, 2]]},
        tokens=[*INTEGERS, [0, 1], 3, [[0, 3]], [[-1]], []],
    ),
    row(CHAIN.reversed),
    row(
        data.DriftingChain,
        {"chain": CHAIN, "length": 6, "earliness": [1.0, 0.0, -1.0], "drift": 0.5},
        chain=CHAINS,
        length=[*COUNT, 1],
        earliness=[None, *PER_SYMBOL],
        drift=NUMBER,
        bonus=PER_SYMBOL,
    ),
    row(DRIFTING.step_law, {"t": 2}, t=[*INDEX, 6]),
    row(DRIFTING.position_law, {"N": 3}, N=[*COUNT, 7]),
    row(DRIFTING.next_token_optimum, {"N": 3}, N=[*COUNT, 7, 1]),
    row(DRIFTING.sample, {"B": 2, "N": 3, "rng": RNG}, **SIZES | {"N": [*COUNT, 7]}),
    row(
        data.count_ratio,
        {"position_law": DRIFTING.position_law(6)},
        position_law=[*REALS, [0.5, 0.5], [[-0.5, 1.5]], 3.0],
        diagonal=FLAG,
    ),
    row(
        data.TextSource,
        {"tokens": [0, 1, 2], "n_symbols": 3},
        tokens=[*INTEGERS, [[0, 1]], 3, [0, 3], [-1]],
        n_symbols=[*COUNT, Says("tokens", 2)],
    ),
    row(TEXT_SOURCE.windows, {"N": 2}, N=COUNT),
    row(TEXT_SOURCE.sample, {"B": 2, "N": 3, "rng": RNG}, **SIZES | {"N": [*COUNT, 5]}),
    row(
        data.load_text,
        {"level": "char"},
        path=[v for v in FOLDER if v is not None],
        level=NAME,
        vocab_size=[v for v in COUNT if v is not None],
    ),
    row(data.load_text().encode, {"text": "a text"}, text=[*TEXT, "\0"]),
    row(data.load_text().decode, {"tokens": [0, 1]}, tokens=[*INTEGERS, [[0]], 3, [10**6], [-1]]),
    row(
        data.ImageSource,
        {"tokens": np.zeros((2, 3, 4), int), "n_symbols": 2},
        tokens=[*INTEGERS, [], 3, np.zeros((3, 4), int), np.full((1, 1, 1), 2)],
        n_symbols=COUNT,
    ),
    row(IMAGES.sample, {"B": 2, "N": 3, "rng": RNG}, **SIZES | {"N": [*COUNT, 13]}),
    row(data.load_digits, {}, levels=[*COUNT, 1, 18]),
    row(
        data.load_wav,
        {"file": Fresh(wav)},
        file=[Says("wav", v) for v in (None, 3, "", "/no/such", b"\0", Path("/"), "a\0b")],
        levels=[*COUNT, 1],
        name=[None, 3],
    ),
    row(
        data.write_wav,
        {"file": Fresh(io.BytesIO), "samples": [0.5, -0.5], "rate": 8000},
        file=[None, 3, "", "/no/such/folder/a.wav", Path("/"), "a\0b"],
        samples=[*REALS, 0.5, [[0.5]]],
        rate=[*COUNT, 2**40],
    ),
    row(
        data.posterior,
        {"chain": CHAIN, "evidence": np.ones((2, 4, 3))},
        chain=CHAINS,
        evidence=[*REALS, np.ones((4, 3)), np.ones((2, 4, 2)), -np.ones((2, 4, 3))],
        mask=[*NAME, "strictly_causal", np.ones((4, 4), bool)],
    ),
    row(
        data.masked_posterior,
        {"chain": CHAIN, "inputs": [[0, 3, 2]], "mask_symbol": 3},
        chain=CHAINS,
        inputs=[*INTEGERS, [[0, 4]], [[-1]], [0, 1], 3, []],
        mask_symbol=[*COUNT, 2],
        mask=[*NAME, "strictly_causal"],
    ),
    row(data.next_token_optimum, {"chain": CHAIN, "length": 6}, chain=CHAINS, length=[*COUNT, 1]),
    row(
        data.next_token_loss,
        {"chain": CHAIN, "batch": NEXT},
        chain=CHAINS,
        batch=[
            None,
            3,
            TOKENS,
            Says("batch.mask", other(NEXT, mask="bidirectional")),
            Says("batch.mask", HIDDEN),
            Says("batch.inputs", other(NEXT, inputs=np.full((2, 5), 3))),
            Says("batch.targets", other(NEXT, targets=np.full((2, 5), 3))),
            Says("batch.inputs", ma.next_token(TOKENS[None])),
        ],
    ),
    row(
        data.masked_token_loss,
        {"chain": CHAIN, "objective": MASKED, "batch": HIDDEN},
        chain=CHAINS,
        objective=[
            None,
            3,
            ma.next_token,
            Says("objective.mask_symbol", ma.MaskedToken(mask_symbol=2)),
        ],
        batch=[
            None,
            3,
            TOKENS,
            Says("batch.mask", other(HIDDEN, mask="strictly_causal")),
            Says("batch.mask", other(HIDDEN, mask=np.ones((6, 6), bool))),
            Says("batch.inputs", other(HIDDEN, inputs=np.full((2, 6), 4))),
            Says("batch.inputs", MASKED(TOKENS[None], np.random.default_rng(0))),
        ],
    ),
    row(
        data.optimal_loss,
        {"chain": CHAIN, "objective": MASKED, "batch": HIDDEN},
        chain=CHAINS,
        objective=[None, 3, "next_token"],
        batch=[None, 3, TOKENS],
    ),
    row(
        checkpoints.read,
        {"path": Fresh(saved)},
        path=[v for v in FOLDER if v != ""],
        family=[v for v in NAME if v is not None],
        prefix=[3, b"model.", ["model."], Says("path", "no such prefix.")],
        heads=[v for v in COUNT if v is not None],
        key_heads=[v for v in COUNT if v is not None],
        head_width=[v for v in COUNT if v is not None],
        pre_norm=[v for v in FLAG if v is not None],
        rotary_width=[v for v in COUNT if v is not None],
        rotary_base=[v for v in POSITIVE if v is not None],
        replica=INDEX,
    ),
    row(checkpoints.score, {"layer": LAYER}, layer=[None, 3, LAYER.W_q, "layer"]),
    row(checkpoints.score_heads, {"layer": LAYER}, layer=[None, 3, LAYER.W_q, "layer"]),
    row(
        checkpoints.null_band,
        {"layer": LAYER, "draws": 3},
        layer=[None, 3, LAYER.W_q, "layer"],
        per_head=FLAG,
        draws=[*COUNT, 1],
        seed=SEED,
    ),
    row(
        LAYER.raw_scores,
        {"x": np.ones((3, 4))},
        x=[None, "text", RAGGED, 3, [1.0], np.ones((3, 5)), np.ones((3, 4)) * 1j],
        y=["text", RAGGED, 3, [1.0], np.ones((3, 5)), np.ones((3, 4)) * 1j],
    ),
    row(LAYER.folded),
    row(LAYER.as_published),
    row(
        LAYER.rotated,
        {"offset": -1},
        offset=[Says("rotary offset", v) for v in (None, "3", True, 0.5, np.nan, [1])],
    ),
]

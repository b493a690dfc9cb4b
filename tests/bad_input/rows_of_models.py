"""Rows of the table: models, batches, training, the update of W_qk."""

from __future__ import annotations

import numpy as np
from values import (
    AMOUNT,
    ANYTHING,
    COUNT,
    DTYPE,
    FLAG,
    FUNCTION,
    GENERATOR,
    INDEX,
    INTEGERS,
    NAME,
    POSITIVE,
    RAGGED,
    SEED,
    SHARE,
    Fresh,
    Says,
    row,
)

import minattn as ma
from minattn import blocks, descent, engines, optim, update
from minattn.engines import choose

CONFIG = ma.TransformerConfig(vocab_size=3, width=4, layers=2, heads=2, max_length=5)
PRE_NORM = ma.TransformerConfig(vocab_size=3, width=4, layers=2, heads=2, max_length=5, norm="pre")
PLACELESS = ma.TransformerConfig(
    vocab_size=3, width=4, layers=2, heads=2, max_length=5, positions=False
)
LINEAR = ma.TransformerConfig(
    vocab_size=3, width=4, layers=2, heads=2, max_length=5, attention="linear"
)
PARAMS = ma.init_params(CONFIG, replicas=2, seed=1)
TOKENS = np.random.default_rng(0).integers(3, size=(2, 5))
BATCH = ma.next_token(TOKENS)
LOSS, GRADS, TAPE = ma.loss_and_grad(CONFIG, PARAMS, BATCH, engine="numpy")
LOGITS, BARE_TAPE = ma.forward(CONFIG, PARAMS, TOKENS, engine="numpy", tape=True)


def new_tape():
    return ma.forward(CONFIG, PARAMS, TOKENS, engine="numpy", tape=True)[1]


UPDATE = ma.implicit_update(CONFIG, PARAMS, TAPE)
ABOVE = ma.implicit_update(CONFIG, PARAMS, TAPE, layer=1)
CHAIN = ma.data.MarkovChain.random(3, 1.0)
FOUR = ma.data.MarkovChain.random(4)


def with_array(name, change):
    """Parameters of which one array is changed."""
    return PARAMS | {name: change(PARAMS[name])}


def batch(**changes):
    fields = {name: getattr(BATCH, name) for name in ("inputs", "targets", "weights", "mask")}
    return ma.Batch(**fields | changes)


CONFIGS = [None, {}, "config", ma.TransformerConfig, vars(CONFIG)]
PARAMETERS = [
    None,
    {},
    list(PARAMS),
    {name: value for name, value in PARAMS.items() if name != "unembedding"},
    PARAMS | {"spare": PARAMS["unembedding"]},
    PARAMS | {3: PARAMS["unembedding"]},
    with_array("unembedding", lambda W: W.tolist()),
    with_array("unembedding", lambda W: None),
    with_array("unembedding", lambda W: W[..., :1]),
    with_array("unembedding", lambda W: W[:1]),
    with_array("unembedding", lambda W: W[0]),
    with_array("unembedding", lambda W: W.astype(int)),
    with_array("unembedding", lambda W: W.astype(object)),
    with_array("unembedding", lambda W: W.astype(np.float32)),
    with_array("unembedding", lambda W: W.astype(">f8")),
    {name: value[:0] for name, value in PARAMS.items()},
]
FITTING = [*PARAMETERS, ma.init_params(PLACELESS, 2)]
MASKS = [
    None,
    3,
    "diagonal",
    np.ones((4, 4)),
    np.ones((3, 3), bool),
    np.ones((2, 4, 4), bool),
    np.ones(4, bool),
    RAGGED,
]
ENGINES = [None, 3, "abacus", "cupy-or-so", ["numpy"], engines.Reference]
WINDOWS = [*INTEGERS, 3, [0, 1], [], [[]], [[0, -1]], np.zeros((0, 5), int)]
INPUTS = [
    *WINDOWS,
    np.zeros((1, 1, 1, 5), int),
    [[0, 4]],
    np.array([[2**63]], np.uint64),
    np.zeros((3, 1, 5), int),
    np.zeros((1, 6), int),
]
LAYER = [*INDEX, 2, 2**70]
TAPES = [None, {}, LOGITS, "tape"]
BATCHES = [
    None,
    TOKENS,
    (TOKENS, TOKENS, TOKENS),
    Says("batch.inputs", batch(inputs=np.full((2, 4), 4))),
    Says("batch.targets", batch(targets=np.full((2, 4), 3))),
    Says("batch.targets", batch(targets=np.full((2, 4), -1))),
    Says("batch.inputs", ma.next_token(np.zeros((2, 7), int))),
    Says("batch.inputs", ma.next_token(np.zeros((3, 2, 5), int))),
]
FORMS = [None, UPDATE.total, "update", TAPE]

OPTIMIZERS = [
    row(ma.SGD, {"lr": 0.1, "momentum": 0.5}, lr=AMOUNT, momentum=[*SHARE, 1, 1.0]),
    row(
        ma.AdamW,
        {"lr": 0.1},
        lr=AMOUNT,
        weight_decay=AMOUNT,
        beta1=[*SHARE, 1],
        beta2=[*SHARE, 1],
        epsilon=POSITIVE,
    ),
    row(
        optim.LinearDecay,
        {"peak": 0.1, "steps": 5, "warmup": 2},
        peak=AMOUNT,
        steps=[*COUNT, 2],
        warmup=SEED,
    ),
    row(
        optim.CosineDecay,
        {"peak": 0.1, "steps": 5, "warmup": 2},
        peak=AMOUNT,
        steps=[*COUNT, 2],
        warmup=SEED,
    ),
    row(ma.AdamW().init, {"params": PARAMS}, params=[None, [1], "params", PARAMS["unembedding"]]),
    row(
        ma.AdamW().step,
        {"params": PARAMS, "grads": GRADS, "state": ma.AdamW().init(PARAMS)},
        params=[None, [1], "params"],
        grads=[
            None,
            {},
            [1],
            {3: GRADS["unembedding"]},
            GRADS | {"spare": GRADS["unembedding"]},
            GRADS | {"unembedding": GRADS["unembedding"][:1]},
            GRADS | {"unembedding": None},
            GRADS | {"unembedding": GRADS["unembedding"] * 1j},
        ],
        state=[None, {}, PARAMS, ma.SGD(0.1).init(PARAMS)],
    ),
]

ROWS = [
    row(
        ma.TransformerConfig,
        {"vocab_size": 3, "width": 4, "layers": 2, "heads": 2, "max_length": 5},
        vocab_size=COUNT,
        width=[*COUNT, 5],
        layers=COUNT,
        heads=[*COUNT, Says("width", 3)],
        max_length=COUNT,
        head_width=[value for value in COUNT if value is not None],
        attention=NAME,
        norm=NAME,
        feed_forward=SEED,
        positions=FLAG,
        bias=FLAG,
    ),
    row(ma.parameter_shapes, {"config": CONFIG}, config=CONFIGS),
    row(
        ma.init_params,
        {"config": CONFIG, "replicas": 2},
        config=CONFIGS,
        replicas=[*COUNT[:4], COUNT[5], -1, 0, [], [0, 0], [-1], [0.5], [True], ["0"], [[0]]],
        seed=SEED,
        qk_init=NAME,
        embedding_scale=AMOUNT,
        qk_scale=AMOUNT,
        dtype=DTYPE,
    ),
    row(
        ma.W_qk,
        {"params": PARAMS, "layer": 1},
        params=[None, list(PARAMS), "params"],
        layer=LAYER,
        per_head=FLAG,
    ),
    row(
        ma.forward,
        {"config": CONFIG, "params": PARAMS, "tokens": TOKENS[:, :4]},
        config=CONFIGS,
        params=FITTING,
        tokens=INPUTS,
        mask=MASKS,
        engine=ENGINES,
        tape=FLAG,
    ),
    row(
        ma.backward,
        {"config": CONFIG, "params": PARAMS, "tape": Fresh(new_tape), "dlogits": LOGITS},
        config=[*CONFIGS, Says("params", PRE_NORM)],
        params=[*FITTING, Says("tape", {name: value[:1] for name, value in PARAMS.items()})],
        tape=TAPES,
        dlogits=[None, [1], RAGGED, LOGITS[:1], LOGITS[0], LOGITS * 1j, LOGITS.astype(str)],
    ),
    row(
        ma.loss_and_grad,
        {"config": CONFIG, "params": PARAMS, "batch": BATCH},
        config=CONFIGS,
        params=FITTING,
        batch=BATCHES,
        engine=ENGINES,
    ),
    row(
        ma.mean_loss,
        {"config": CONFIG, "params": PARAMS, "batch": BATCH},
        config=CONFIGS,
        params=FITTING,
        batch=BATCHES,
        engine=ENGINES,
        W_qk_offsets=[3, [1], {2: UPDATE.total}, {0: 1.0}, {0: UPDATE.total[:, 0]}, {"0": None}],
    ),
    row(
        ma.Batch,
        {"inputs": TOKENS, "targets": TOKENS, "weights": np.ones((2, 5)), "mask": "causal"},
        inputs=[
            *(np.asarray(v) if v != RAGGED else v for v in INTEGERS[:4]),
            TOKENS - 1,
            TOKENS + 0.5,
            TOKENS > 0,
            TOKENS[0],
            TOKENS[None, None],
            TOKENS[:0],
        ],
        targets=[*INTEGERS, [0, 1], TOKENS[:1]],
        weights=[
            None,
            "text",
            RAGGED,
            np.ones(5),
            np.ones((2, 4)),
            np.full((2, 5), -1.0),
            np.full((2, 5), np.nan),
            np.full((2, 5), np.inf),
            np.full((2, 5), 1j),
            np.full((2, 5), "1"),
            np.full((2, 5), None),
        ],
        mask=MASKS,
    ),
    row(
        BATCH.sequences,
        {"chosen": slice(1)},
        chosen=[None, 0, "all", [0], Says("inputs", slice(0)), Says("inputs", slice(2, 3))],
    ),
    row(ma.next_token, {"tokens": TOKENS}, tokens=[*WINDOWS, [[0]]], rng=ANYTHING, mask=MASKS[:-1]),
    row(
        ma.MaskedToken,
        {"mask_symbol": 3},
        rate=SHARE,
        mask_symbol=COUNT,
        mask=[None, 3, "diagonal", np.ones((4, 4)), np.ones(4, bool), RAGGED],
        replace=[None, 3, "abc", (), (1.0,), (0.5, 0.5), (0.5, 0.5, 0.5), (2, -1, 0), RAGGED],
    ),
    row(
        ma.MaskedToken(mask_symbol=3).__call__,
        {"tokens": TOKENS, "rng": Fresh(lambda: np.random.default_rng(0))},
        tokens=[*WINDOWS, Says("mask_symbol", [[0, 3]])],
        rng=GENERATOR,
    ),
    row(
        ma.implicit_update,
        {"config": CONFIG, "params": PARAMS, "tape": TAPE},
        config=[*CONFIGS, Says("params", PRE_NORM)],
        params=[*FITTING, Says("tape", {name: value[:1] for name, value in PARAMS.items()})],
        tape=[*TAPES, BARE_TAPE],
        layer=LAYER,
    ),
    row(
        ma.prove_update,
        {"config": CONFIG, "params": PARAMS, "batch": BATCH},
        config=CONFIGS,
        params=FITTING,
        batch=BATCHES,
        layer=LAYER,
        seed=SEED,
        engine=ENGINES,
    ),
    row(
        update.covariance_rows,
        {"config": CONFIG, "tape": TAPE},
        config=[Says("attention", LINEAR)],
        tape=[*TAPES, BARE_TAPE],
        layer=LAYER,
    ),
    row(UPDATE.as_context, {"symbol": 1}, symbol=INDEX),
    row(UPDATE.as_query, {"symbol": 1}, symbol=INDEX),
    row(UPDATE.context_terms, {"n_symbols": 4}, n_symbols=[v for v in COUNT if v is not None]),
    row(UPDATE.query_terms, {"n_symbols": 4}, n_symbols=[v for v in COUNT if v is not None]),
    row(UPDATE.pair_terms),
    row(UPDATE.agreement),
    row(
        blocks.form_blocks,
        {"config": CONFIG, "params": PARAMS},
        config=[*CONFIGS, Says("params", PRE_NORM)],
        params=FITTING,
        layer=[*LAYER, 1],
        initial=[v for v in FITTING if v is not None],
        length=[*(v for v in COUNT if v is not None), 6],
    ),
    row(
        blocks.update_blocks,
        {"config": CONFIG, "params": PARAMS, "update": UPDATE},
        config=[*CONFIGS, Says("norm", PRE_NORM), Says("positions", PLACELESS)],
        params=FITTING,
        update=[*FORMS, Says("layer", ABOVE)],
        length=[*(v for v in COUNT if v is not None), 6],
    ),
    row(
        blocks.grouped_coefficients,
        {"config": CONFIG, "update": UPDATE},
        config=[*CONFIGS, Says("norm", PRE_NORM), Says("positions", PLACELESS)],
        update=[*FORMS, Says("layer", ABOVE)],
    ),
    row(
        descent.product_change,
        {"params": PARAMS, "update": UPDATE, "eta": 0.1},
        params=[None, [1], Says("layer", {}), Says("update", ma.init_params(CONFIG))],
        update=FORMS,
        eta=AMOUNT,
    ),
    row(
        descent.conserved,
        {"params": PARAMS},
        params=[None, [1], "params"],
        layer=LAYER,
    ),
    row(
        descent.conserved_change,
        {"params": PARAMS, "update": UPDATE, "eta": 0.1},
        params=[None, [1], Says("layer", {}), Says("update", ma.init_params(CONFIG))],
        update=FORMS,
        eta=AMOUNT,
    ),
    row(
        descent.cosine,
        {"A": UPDATE.total, "B": UPDATE.total},
        A=[Says("A, B", v) for v in (None, 3.0, [1.0], "text", RAGGED, UPDATE.total[:1])],
        B=[Says("A, B", v) for v in (None, 3.0, [1.0], "text", RAGGED, UPDATE.total[:1])],
    ),
    *OPTIMIZERS,
    row(
        ma.account,
        {"config": CONFIG, "initial": PARAMS},
        config=[*CONFIGS, Says("initial", PRE_NORM)],
        initial=FITTING,
    ),
    row(
        ma.held_out_loss,
        {"config": CONFIG, "batch": BATCH},
        config=CONFIGS,
        batch=BATCHES[:3],
        name=[None, 3],
        engine=ENGINES,
    ),
    row(
        ma.fit,
        {
            "config": CONFIG,
            "params": PARAMS,
            "source": CHAIN,
            "objective": ma.next_token,
            "steps": 2,
            "batch_size": 2,
            "length": 5,
            "engine": "numpy",
        },
        config=CONFIGS,
        params=FITTING,
        source=[None, 3, TOKENS, [CHAIN], [CHAIN] * 3, [], ma.data.MarkovChain, "lag1", FOUR],
        objective=[*FUNCTION, ma.MaskedToken, lambda tokens: tokens],
        steps=COUNT,
        batch_size=COUNT,
        length=[*COUNT, Says("batch.inputs", 7), Says("tokens", 1)],
        optimizer=["SGD", 0.1, ma.SGD],
        seed=SEED,
        engine=ENGINES,
        replicas=[1, 3, 0, -1, 2.0, True, "12", [0], [0, 0], [-1, 0], [0.5, 1], [None, 1]],
        record_every=COUNT,
        observe=[3, [3], ["loss"], None, lambda step, params: {}],
        frozen=[3, [3], "no_such_name", ["unembedding", "no_such_name"], [None]],
        penalty=[3, "penalty", [1], lambda: None],
        save=[3, b"run", True, "/no/such/folder/run", "/", "a\0b", ""],
        resume=[3, b"run", True, "/no/such/file", "/", "a\0b", ""],
        save_every=COUNT,
        progress=[3, True, [1]],
    ),
    row(ma.set_threads, {"n": 1}, n=COUNT),
    row(engines.get_threads),
    row(engines.availability),
    row(
        choose,
        {"engine": "numpy"},
        engine=ENGINES,
        dtype=[Says("engine", "float16"), Says("engine", "int64"), "no such type", 3, [1]],
    ),
]

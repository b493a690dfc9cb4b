"""Rows of the table: scores, claims, statements, gradient checks, strategies, figures."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np
from rows_of_models import CONFIG, CONFIGS, MASKS
from values import (
    AMOUNT,
    ANYTHING,
    COUNT,
    FLAG,
    FUNCTION,
    NAME,
    NO_NUMBER,
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
from minattn import claims, intervals, plots, scores, theorems
from minattn.testing import check_gradient, strategies
from minattn.theorems import verdicts

RNG = np.random.default_rng(0)
SQUARE = RNG.standard_normal((2, 4, 4))
FACTORS = {"W_q": RNG.standard_normal((4, 2, 3)), "W_k": RNG.standard_normal((4, 1, 3))}
MATRICES = [
    *REALS,
    3.0,
    [1.0, 2.0],
    np.ones((2, 3)),
    np.ones((0, 0)),
    np.ones((2, 2), np.longdouble),
]
VALUES = [0.1, 0.3, 0.2]
SAMPLES = [*REALS, 3.0, [["a"]]]
CLAIM = claims.judge("a claim", "above 0", VALUES, claims.above(0.0))
CLAIMS = [None, 3, [3], "claims", [None]]
ENDS = [None, "text", RAGGED, [None]]

SCORES = [
    row(ma.symmetry, {"M": SQUARE}, M=MATRICES),
    row(ma.directionality, {"M": SQUARE}, M=MATRICES, variant=NAME, gamma=AMOUNT),
    row(ma.dispersion, {"M": SQUARE}, M=MATRICES),
    row(scores.scores, {"M": SQUARE}, M=MATRICES, gamma=AMOUNT),
    row(scores.squares_of, {"M": SQUARE}, M=MATRICES),
    row(
        ma.scores_from_factors,
        FACTORS,
        W_q=[
            *REALS,
            Says("W_q, W_k", np.ones((4, 3))),
            Says("W_q, W_k", np.ones((4, 2, 2))),
            Says("W_q, W_k", np.ones(4)),
        ],
        W_k=[
            *REALS,
            Says("W_q, W_k", np.ones((4, 3))),
            Says("W_q, W_k", np.ones((5, 1, 3))),
            Says("W_q, W_k", np.ones((4, 3, 3))),
        ],
        per_head=FLAG,
        gamma=AMOUNT,
    ),
]

CLAIMED = [
    row(
        ma.Claim,
        {
            "claim": "c",
            "predicted": "p",
            "measured": 1.0,
            "interval": (0.5, 1.5),
            "rule": "r",
            "verdict": "holds",
        },
        claim=TEXT,
        predicted=TEXT,
        measured=["3", 1j, [1.0], {}, True],
        interval=[3, "ab", (1.0,), (1.0, 0.5), (np.nan, 1.0), (None, 1.0), (0.0, 1.0, 2.0)],
        rule=TEXT,
        verdict=[*TEXT, "perhaps", "holdsn't"],
        p_value=["3", np.nan, -0.1, 1.1, True, [0.5]],
        source=TEXT,
        method=TEXT,
        assumptions=TEXT,
        found=TEXT,
    ),
    row(CLAIM.as_dict),
    row(claims.above, {"threshold": 0.0}, threshold=NUMBER),
    row(claims.below, {"threshold": 0.0}, threshold=NUMBER),
    row(claims.at_most, {"limit": 0.0}, limit=NUMBER),
    row(
        claims.judge,
        {"claim": "c", "predicted": "p", "values": VALUES, "rule": claims.above(0.0)},
        claim=TEXT,
        predicted=TEXT,
        values=[*SAMPLES, [VALUES, VALUES]],
        rule=[None, "above 0", 0.0, claims.above],
        undertrained=FLAG,
    ),
    row(claims.holm, {"claims": [CLAIM, CLAIM]}, claims=CLAIMS),
    row(claims.table, {"claims": [CLAIM]}, claims=CLAIMS, width=[*COUNT, 71]),
    row(
        intervals.mean_interval,
        {"values": VALUES},
        values=SAMPLES,
        level=[*NO_NUMBER, 0.0, 1.0, -0.5, 1.5],
    ),
    row(
        intervals.finite,
        {"values": [0.5, np.inf, np.nan]},
        values=[None, "text", ["a"], RAGGED, [1j], {}],
    ),
    row(intervals.replicates, {"values": VALUES}, values=SAMPLES, infinite=ANYTHING),
]

STATED = {
    "text": "t",
    "source": "s",
    "assumptions": "a",
    "method": "identity",
    "predicted": "p",
    "rule": "r",
    "draws": 5,
}
STATEMENT = "Prop A.9"
NUMBERS = itertools.count()


def own_statement():
    name = f"Own statement {next(NUMBERS)}"
    theorems.statement(name, **STATED)(lambda trial: None)
    return name


STATEMENTS = [
    row(
        theorems.statement,
        {"name": "a name of no statement"} | STATED,
        name=[None, 3, STATEMENT, ""],
        **{name: TEXT for name in STATED if name not in ("method", "draws")},
        method=NAME,
        draws=[*COUNT, 1],
    ),
    row(
        theorems.check,
        {"name": STATEMENT, "draws": 5},
        name=NAME,
        seed=SEED,
        draws=[v for v in [*COUNT, 1] if v is not None],
        altered=ANYTHING,  # see `test_an_unknown_ingredient` beside the registry's tests
    ),
    row(
        theorems.check_all,
        {"draws": 2},
        seed=SEED,
        draws=[v for v in [*COUNT, 1] if v is not None],
        progress=[3, True, [1]],
    ),
    row(theorems.forget, {"name": Fresh(own_statement)}, name=NAME),
    row(theorems.names),
    row(theorems.statements),
    row(verdicts.only_if, {"condition": "so"}, condition=TEXT),
    row(verdicts.is_exact, {"residuals": [0.0]}, residuals=ENDS, limit=NUMBER),
    row(verdicts.identity_rule, {"residuals": [0.0]}, residuals=ENDS, limit=NUMBER),
    row(
        verdicts.expectation_rule,
        {"low": [0.9], "high": [1.1]},
        low=ENDS,
        high=ENDS,
        predicted=NUMBER,
        margin=AMOUNT,
    ),
    row(
        verdicts.threshold_rule,
        {"low": 0.1, "high": 0.2, "threshold": 0.0},
        low=["3", None, [1.0, 2.0]],
        high=["3", None, [1.0, 2.0]],
        threshold=NUMBER,
    ),
    row(
        verdicts.misprint_rule,
        {"printed": [1.0], "mended": [0.0], "condition": "so"},
        printed=ENDS,
        mended=ENDS,
        condition=TEXT,
    ),
    row(
        verdicts.mended_rule,
        {"printed": "does not hold", "mended": "holds in expectation", "condition": "so"},
        printed=TEXT,
        mended=TEXT,
        condition=TEXT,
    ),
]

X = np.array([0.5, 1.5])
LENGTH = {"length": 3}
CHECKED = [
    row(
        check_gradient,
        {"f": lambda x: (x**3).sum(), "grad": lambda x: 3 * x**2, "x": X},
        f=[*FUNCTION, lambda x: "text", lambda x: None, lambda x: 1.0, lambda x: x.sum() * 1j],
        grad=FUNCTION,
        x=[None, 3.0, [1.0], X.astype(int), X.astype(np.float32), X * 1j, np.ones(0), {}, {"x": 3}],
        method=NAME,
        seed=SEED,
        tolerance=[v for v in AMOUNT if v is not None],
    ),
    row(
        strategies.build_params,
        {"config": CONFIG},
        config=CONFIGS,
        replicas=[v for v in COUNT if v != [1]],
        seed=SEED,
    ),
    row(
        strategies.build_batch,
        {"config": CONFIG, "batch_size": 2, "length": 4},
        config=CONFIGS,
        replicas=[v for v in COUNT if v is not None],
        batch_size=COUNT,
        length=COUNT,
        mask=MASKS,
        seed=SEED,
    ),
    row(
        strategies.build_case,
        {"config": CONFIG, "length": 4},
        config=CONFIGS,
        replicas=COUNT,
        batch_size=COUNT,
        length=[*COUNT, 6],
        mask=MASKS,
        seed=SEED,
    ),
    row(strategies.configs, {"layers": 1}, fixed=ANYTHING),
    row(strategies.masks, LENGTH, length=COUNT),
    row(strategies.tokens, {"config": CONFIG}, config=CONFIGS, replicas=COUNT[1:], max_batch=COUNT),
    row(strategies.params, {"config": CONFIG}, config=CONFIGS, replicas=COUNT),
    row(
        strategies.batches, {"config": CONFIG}, config=CONFIGS, replicas=COUNT[1:], max_batch=COUNT
    ),
    row(
        strategies.cases,
        {},
        max_replicas=COUNT,
        max_batch=COUNT,
        mask=[3, "diagonal", [1]],
        fixed=ANYTHING,
    ),
    row(strategies.markov_chains, {}, max_symbols=[*COUNT, 1], max_lag=COUNT),
]

BAND = (np.zeros(2), np.ones(2))
PANELS = [None, 3, "ab", [], [("M", RAGGED)], [("M", [1.0])], [("M", [[np.nan]])], [("M", None)]]


def axes():
    return plots.figure(3, 3).subplots()


def labelled():
    found = axes()
    found.plot([0, 1], label="a line")
    return found


DRAWN = [
    row(plots.figure, {"width": 3, "height": 2.5}, width=POSITIVE, height=POSITIVE),
    row(
        plots.save,
        {"made": Fresh(lambda: plots.figure(1, 1)), "path": Path(tempfile.mkdtemp()) / "a.png"},
        made=ANYTHING,
        path=[None, 3, "", b"a.png", "a\0b"],
    ),
    row(
        plots.curve,
        {
            "axes": Fresh(axes),
            "steps": np.arange(2),
            "values": np.ones((2, 3)),
            "label": "a",
            "number": 7,
        },
        axes=ANYTHING,
        steps=[None, "ab", [], RAGGED, 3, [[0, 1]], [1j, 2j]],
        values=[None, "ab", [], RAGGED, 3, [0, 1], np.ones((2, 0)), np.ones((3, 3)), [[1j], [2j]]],
        label=ANYTHING,
        number=ANYTHING,
        marker=ANYTHING,
    ),
    row(
        plots.matrices,
        {"panels": [("M", np.eye(2))], "title": "t"},
        panels=PANELS,
        title=ANYTHING,
    ),
    row(
        plots.coefficients,
        {"panels": [("M", np.eye(2), ["a", "b"])], "title": "t"},
        panels=[*PANELS[:4], [("M", np.eye(2), ["a"])], [("M", [[np.inf]], ["a"])]],
        title=ANYTHING,
    ),
    row(
        plots.intervals,
        {"axes": Fresh(axes), "names": ["a"], "values": {"a": np.arange(3.0)}},
        axes=ANYTHING,
        names=ANYTHING,
        values=[{"a": value} for value in SAMPLES],
    ),
    row(
        plots.legend_below,
        {"made": Fresh(lambda: plots.figure(3, 3)), "axes": Fresh(labelled), "columns": 2},
        made=ANYTHING,
        axes=ANYTHING,
        columns=ANYTHING,
    ),
    row(plots.tidy, {"axes": Fresh(axes)}, axes=ANYTHING, settings=ANYTHING),
    row(
        plots.against_depth,
        {
            "axes": Fresh(axes),
            "depth": np.arange(2),
            "values": np.array([0.5, np.inf]),
            "band": BAND,
            "label": "a",
            "number": 1,
        },
        axes=ANYTHING,
        depth=[None, "ab", [], RAGGED, 3, [[0, 1]], [1j, 2j]],
        values=[None, "ab", [], RAGGED, 3, [0], [1j, 2j]],
        band=ANYTHING,
        label=ANYTHING,
        number=ANYTHING,
        parts=ANYTHING,
    ),
]

ROWS = [*SCORES, *CLAIMED, *STATEMENTS, *CHECKED, *DRAWN]

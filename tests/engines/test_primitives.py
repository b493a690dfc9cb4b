"""Every primitive against plain loops, on both engines, in every memory layout."""

import cmath
import math
from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minattn.engines import Reference, Workspace, choose, kernels, numba_cpu
from minattn.engines.compiling import compiled
from minattn.engines.reference import GELU_CUBIC, GELU_SCALE, NORM_EPSILON
from minattn.layers import attention
from minattn.masks import allowed_pairs

ENGINES = ("numpy", "numba")
TOLERANCE = {"float64": 1e-13, "float32": 1e-5}
SCALE = 0.7
HOLES = np.array([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 0, 1], [0, 1, 1, 1]], bool)
MASKS = {"causal": np.tri(4, dtype=bool), "strict": np.tri(4, k=-1, dtype=bool), "holes": HOLES}
under_masks = pytest.mark.parametrize("allowed", MASKS.values(), ids=MASKS)
ADAMW = (0.9, 0.99, 0.05, 1 / (1 - 0.99**3), 1e-8, 0.98)
ADAMW_NAMES = ("beta1", "beta2", "step_size", "inverse_correction", "epsilon", "shrink")


def close(found, expected, dtype="float64", inputs=()):
    """Equal up to rounding, relative to the largest entry, and of the dtype that went in."""
    expected = np.asarray(expected)
    assert found.dtype == dtype
    assert found.shape == expected.shape
    tolerance = TOLERANCE[dtype]
    scale = max(np.abs(array).max(initial=0) for array in (expected, *inputs))
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale)


# The primitives once more, one entry at a time


def slow_masked_softmax(scores, allowed):
    out = np.zeros(scores.shape)
    for row in np.ndindex(scores.shape[:-1]):
        keys = [j for j in range(scores.shape[-1]) if allowed[row[-1], j]]
        weights = [math.exp(SCALE * scores[(*row, j)]) for j in keys]
        for j, weight in zip(keys, weights, strict=True):
            out[(*row, j)] = weight / math.fsum(weights)
    return (out,)


def slow_masked_softmax_backward(weights, d_weights, allowed):
    out = np.zeros(weights.shape)
    size = weights.shape[-1]
    for row in np.ndindex(weights.shape[:-1]):
        A, dA = weights[row].tolist(), d_weights[row].tolist()
        for j in range(size):
            jacobian = [A[k] * ((k == j) - A[j]) for k in range(size)]
            out[(*row, j)] = SCALE * math.fsum(dA[k] * jacobian[k] for k in range(size))
    return (out,)


def slow_masked_scale(scores, allowed):
    out = np.zeros(scores.shape)
    for entry in np.ndindex(scores.shape):
        if allowed[entry[-2:]]:
            out[entry] = SCALE * scores[entry]
    return (out,)


def slow_cross_entropy(logits, targets, weights):
    R, T, V = logits.shape
    losses, gradient = np.zeros(R), np.zeros(logits.shape)
    for r, t in np.ndindex(R, T):
        exponentials = [math.exp(logits[r, t, v]) for v in range(V)]
        total = math.fsum(exponentials)
        losses[r] -= weights[r, t] * math.log(exponentials[targets[r, t]] / total)
        for v in range(V):
            p = exponentials[v] / total
            gradient[r, t, v] = weights[r, t] * (p - (v == targets[r, t]))
    return losses, gradient


def slow_embedding(table, tokens):
    out = np.zeros((*tokens.shape, table.shape[2]))
    for r, t in np.ndindex(tokens.shape):
        out[r, t] = table[r, tokens[r, t]]
    return (out,)


def slow_embedding_gradient(tokens, dx):
    out = np.zeros((dx.shape[0], 6, dx.shape[2]))
    for r, t, c in np.ndindex(dx.shape):
        out[r, tokens[r, t], c] += dx[r, t, c]
    return (out,)


def slow_layer_norm(x, gain, shift):
    y, normed, inverse = np.zeros(x.shape), np.zeros(x.shape), np.zeros(x.shape[:2])
    for r, t in np.ndindex(x.shape[:2]):
        row = x[r, t].tolist()
        mean = math.fsum(row) / len(row)
        variance = math.fsum((entry - mean) ** 2 for entry in row) / len(row)
        inverse[r, t] = 1 / math.sqrt(variance + 1e-5)
        for c, entry in enumerate(row):
            normed[r, t, c] = (entry - mean) * inverse[r, t]
            y[r, t, c] = gain[r, c] * normed[r, t, c] + shift[r, c]
    return y, normed, inverse


def slow_layer_norm_backward(dy, gain, normed, inverse):
    dx, dgain, dshift = np.zeros(dy.shape), np.zeros(gain.shape), np.zeros(gain.shape)
    d = dy.shape[2]
    for r, t, c in np.ndindex(dy.shape):
        n = normed[r, t].tolist()
        dgain[r, c] += dy[r, t, c] * n[c]
        dshift[r, c] += dy[r, t, c]
        for e in range(d):
            jacobian = inverse[r, t] * ((e == c) - 1 / d - n[e] * n[c] / d)
            dx[r, t, c] += dy[r, t, e] * gain[r, e] * jacobian
    return dx, dgain, dshift


def gelu_of(u):
    return 0.5 * u * (1 + cmath.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))


def slow_gelu(u):
    return (np.array([gelu_of(entry).real for entry in u.flat]).reshape(u.shape),)


def slow_gelu_backward(u, dy):
    slopes = [gelu_of(complex(entry, 1e-30)).imag / 1e-30 for entry in u.flat]
    return (dy * np.array(slopes).reshape(u.shape),)


def slow_matmul(a, b):
    out = np.zeros((*a.shape[:-1], b.shape[-1]))
    for *lead, i, k in np.ndindex(out.shape):
        products = (a[(*lead, i, j)] * b[(*lead, j, k)] for j in range(a.shape[-1]))
        out[(*lead, i, k)] = math.fsum(products)
    return (out,)


def slow_sgd(value, gradient):
    return (np.array([v - 0.1 * g for v, g in zip(value.flat, gradient.flat, strict=True)]),)


def slow_momentum(value, gradient, velocity):
    values, velocities = [], []
    for v, g, u in zip(value.flat, gradient.flat, velocity.flat, strict=True):
        velocities.append(0.8 * u + g)
        values.append(v - 0.1 * velocities[-1])
    return np.array(values), np.array(velocities)


def slow_adamw(value, gradient, mean, square):
    beta1, beta2, step_size, inverse_correction, epsilon, shrink = ADAMW
    out = []
    for v, g, m, s in zip(value.flat, gradient.flat, mean.flat, square.flat, strict=True):
        m = beta1 * m + (1 - beta1) * g
        s = beta2 * s + (1 - beta2) * g**2
        out.append(
            (shrink * v - step_size * m / (math.sqrt(s * inverse_correction) + epsilon), m, s)
        )
    return tuple(np.array(column) for column in zip(*out, strict=True))


def slow_row_sums(rows):
    out = np.zeros((rows.shape[0], rows.shape[2]))
    for r, t, c in np.ndindex(rows.shape):
        out[r, c] += rows[r, t, c]
    return (out,)


def slow_only_where(chosen, rows):
    out = np.zeros(rows.shape)
    for r, t in np.argwhere(chosen[..., 0]):
        out[r, t] = rows[r, t]
    return (out,)


# Inputs, for R leading, T rows and d columns


def masked(rng, R, T, d):
    allowed = rng.random((T, T)) < 0.6
    allowed[T // 2] = False
    return {"scores": rng.normal(size=(R, 2, T, T)), "allowed": allowed}


def masked_backward(rng, R, T, d):
    scores, allowed = masked(rng, R, T, d).values()
    (weights,) = slow_masked_softmax(scores, allowed)
    return {"weights": weights, "d_weights": rng.normal(size=scores.shape), "allowed": allowed}


def scored(rng, R, T, d):
    weights = rng.random((R, T)) * (rng.random((R, T)) < 0.7)
    logits, targets = rng.normal(size=(R, T, d)), rng.integers(d, size=(R, T))
    return {"logits": logits, "targets": targets, "weights": weights}


def looked_up(rng, R, T, d):
    return {"table": rng.normal(size=(R, 6, d)), "tokens": rng.integers(6, size=(R, T))}


def embedded(rng, R, T, d):
    return {"tokens": rng.integers(6, size=(R, T)), "dx": rng.normal(size=(R, T, d))}


def rows(rng, R, T, d):
    return {"x": rng.normal(size=(R, T, d))} | dict(
        zip(("gain", "shift"), rng.normal(size=(2, R, d)), strict=True)
    )


def rows_backward(rng, R, T, d):
    x, gain, shift = rows(rng, R, T, d).values()
    _, normed, inverse = slow_layer_norm(x, gain, shift)
    return {"dy": rng.normal(size=x.shape), "gain": gain, "normed": normed, "inverse": inverse}


def normal(*names):
    def make(rng, R, T, d):
        arrays = {name: rng.normal(size=(R, T, d)) for name in names}
        if "square" in arrays:
            arrays["square"] **= 2
        return arrays

    return make


def factors(rng, R, T, d):
    return {"a": rng.normal(size=(R, 2, T, d)), "b": rng.normal(size=(R, 2, d, T + 1))}


def half_chosen(rng, R, T, d):
    return {"chosen": rng.random((R, T, 1)) < 0.5, "rows": rng.normal(size=(R, T, d))}


def pairs(rng, R, T, d):
    return normal("a", "b")(rng, R, T, d) | {"allowed": rng.random((T, T)) < 0.6}


def weighted(rows):
    def make(rng, R, T, d):
        allowed = rng.random((T, T)) < 0.6
        W = np.where(allowed, rng.normal(size=(R, T, T)), 0)
        return {"W": W, rows: rng.normal(size=(R, T, d)), "allowed": allowed}

    return make


@dataclass(frozen=True)
class Primitive:
    """One primitive: how to draw its arrays, how to call it, and the slow form of it."""

    make: Callable
    call: Callable
    slow: Callable

    def arrays(self, seed, shape, dtype="float64"):
        drawn = self.make(np.random.default_rng(seed), *shape)
        return {n: a.astype(dtype) if a.dtype.kind == "f" else a for n, a in drawn.items()}

    def results(self, engine, arrays):
        found = self.call(engine, **arrays)
        return found if isinstance(found, tuple) else (found,)


def mutual(rng, R, T, d):
    """Weights (R, B, 2, T, T) of a mask, two sequences if d is odd; some rows are zero."""
    allowed, B = rng.random((T, T)) < 0.8, 1 + d % 2
    W = rng.normal(size=(R, B, 2, T, T)) * allowed * (rng.random((R, B, 2, T, 1)) < 0.7)
    return {"W": W, "allowed": allowed}


def slow_mutual_sums(W, allowed):
    sums = np.zeros((len(W), 3))
    for r, b, h, i, j in np.ndindex(W.shape):
        A = W[r, b, h]
        if i != j and allowed[i, j] and allowed[j, i] and A[i].any() and A[j].any():
            sums[r] += A[i, j] * A[j, i], A[i, j] ** 2, 1
    return (sums,)


PURE = {
    "masked_softmax": Primitive(
        masked, lambda e, **a: e.masked_softmax(**a, scale=SCALE), slow_masked_softmax
    ),
    "masked_softmax_backward": Primitive(
        masked_backward,
        lambda e, **a: e.masked_softmax_backward(**a, scale=SCALE),
        slow_masked_softmax_backward,
    ),
    "masked_scale": Primitive(
        masked, lambda e, **a: e.masked_scale(**a, scale=SCALE), slow_masked_scale
    ),
    "cross_entropy": Primitive(scored, lambda e, **a: e.cross_entropy(**a), slow_cross_entropy),
    "embedding": Primitive(looked_up, lambda e, **a: e.embedding(**a), slow_embedding),
    "embedding_gradient": Primitive(
        embedded, lambda e, **a: e.embedding_gradient(**a, rows=6), slow_embedding_gradient
    ),
    "layer_norm": Primitive(rows, lambda e, **a: e.layer_norm(**a), slow_layer_norm),
    "layer_norm_backward": Primitive(
        rows_backward, lambda e, **a: e.layer_norm_backward(**a), slow_layer_norm_backward
    ),
    "gelu": Primitive(normal("u"), lambda e, **a: e.gelu(**a), slow_gelu),
    "gelu_backward": Primitive(
        normal("u", "dy"), lambda e, **a: e.gelu_backward(**a), slow_gelu_backward
    ),
    "matmul": Primitive(factors, lambda e, **a: e.matmul(**a), slow_matmul),
    "pair_products": Primitive(
        pairs,
        lambda e, a, b, allowed: e.xp.where(
            e.xp.asarray(allowed), e.pair_products(a, b, allowed), 0
        ),
        lambda a, b, allowed: (np.where(allowed, *slow_matmul(a, b.swapaxes(-2, -1)), 0),),
    ),
    "key_sums": Primitive(
        weighted("b"),
        lambda e, **a: e.key_sums(**a),
        lambda W, b, allowed: slow_matmul(W, b),
    ),
    "query_sums": Primitive(
        weighted("a"),
        lambda e, **a: e.query_sums(**a),
        lambda W, a, allowed: slow_matmul(W.swapaxes(-2, -1), a),
    ),
    "mutual_sums": Primitive(
        mutual,
        lambda e, W, allowed: e.mutual_sums(W, allowed).astype(W.dtype, copy=False),
        slow_mutual_sums,
    ),
    "row_sums": Primitive(normal("rows"), lambda e, **a: e.row_sums(**a), slow_row_sums),
    "only_where": Primitive(half_chosen, lambda e, **a: e.only_where(**a), slow_only_where),
}


def updated(names, call):
    """Call a primitive that works in place, and return what it has changed."""

    def run(engine, **arrays):
        call(engine, **arrays)
        return tuple(arrays[name] for name in names)

    return run


IN_PLACE = {
    "sgd_update": Primitive(
        normal("value", "gradient"),
        updated(["value"], lambda e, **a: e.sgd_update(**a, velocity=None, lr=0.1, momentum=0.0)),
        slow_sgd,
    ),
    "sgd_update with momentum": Primitive(
        normal("value", "gradient", "velocity"),
        updated(["value", "velocity"], lambda e, **a: e.sgd_update(**a, lr=0.1, momentum=0.8)),
        slow_momentum,
    ),
    "adamw_update": Primitive(
        normal("value", "gradient", "mean", "square"),
        updated(
            ["value", "mean", "square"],
            lambda e, **a: e.adamw_update(**a, **dict(zip(ADAMW_NAMES, ADAMW, strict=True))),
        ),
        slow_adamw,
    ),
}

pure = pytest.mark.parametrize("primitive", PURE.values(), ids=PURE)
in_place = pytest.mark.parametrize("primitive", IN_PLACE.values(), ids=IN_PLACE)
in_precisions = pytest.mark.parametrize("dtype", TOLERANCE)
in_shapes = pytest.mark.parametrize("shape", [(3, 5, 4), (1, 20, 1), (2, 1, 3)], ids=str)


@pure
@in_precisions
@in_shapes
def test_a_primitive_is_its_plain_loop(primitive, engine, dtype, shape):
    arrays = primitive.arrays(0, shape, dtype)
    found = primitive.results(choose(engine, dtype), arrays)
    for value, expected in zip(found, primitive.slow(**arrays), strict=True):
        close(value, expected, dtype, arrays.values())


@in_place
@in_precisions
@in_shapes
def test_an_update_is_its_plain_loop(primitive, engine, dtype, shape):
    arrays = primitive.arrays(1, shape, dtype)
    expected = primitive.slow(**arrays)
    gradient = arrays["gradient"].copy()
    for value, wanted in zip(
        primitive.results(choose(engine, dtype), arrays), expected, strict=True
    ):
        close(value.reshape(-1), wanted, dtype)
    np.testing.assert_array_equal(arrays["gradient"], gradient)


@pytest.mark.parametrize("primitive", (PURE | IN_PLACE).values(), ids=PURE | IN_PLACE)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 6)),
)
def test_the_engines_agree_on_any_shape(primitive, seed, shape):
    found, expected = (
        primitive.results(choose(name), primitive.arrays(seed, shape)) for name in ENGINES
    )
    for value, wanted in zip(found, expected, strict=True):
        close(value, wanted, inputs=primitive.arrays(seed, shape).values())


# Memory layouts


def every_second(a):
    wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)
    wide[..., ::2] = a
    return wide[..., ::2]


def transposed(a):
    return a.swapaxes(-2, -1).copy().swapaxes(-2, -1)


def backwards(a):
    return a[::-1].copy()[::-1]


def read_only(a):
    a = a.copy()
    a.setflags(write=False)
    return a


LAYOUTS = {
    "C-contiguous": np.ascontiguousarray,
    "X[..., ::2]": every_second,
    "X.T": transposed,
    "Fortran": np.asfortranarray,
    "X[::-1]": backwards,
    "read-only": read_only,
}
in_layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
thick_and_thin = pytest.mark.parametrize("shape", [(3, 5, 4), (2, 10, 1)], ids=str)


@pure
@in_layouts
@thick_and_thin
def test_the_layout_of_an_input_does_not_matter_and_no_input_is_modified(
    primitive, engine, layout, shape
):
    arrays = primitive.arrays(2, shape)
    expected = primitive.results(choose(engine), arrays)
    laid_out = {key: layout(array) for key, array in arrays.items()}
    found = primitive.results(choose(engine), laid_out)
    for value, wanted in zip(found, expected, strict=True):
        close(value, wanted)
    for key, array in arrays.items():
        np.testing.assert_array_equal(laid_out[key], array, err_msg=key)


@in_place
@in_layouts
@thick_and_thin
def test_an_update_reaches_an_array_of_any_layout_or_says_that_it_cannot(
    primitive, engine, layout, shape
):
    arrays = primitive.arrays(3, shape)
    laid_out = {key: layout(array) for key, array in arrays.items()}
    expected = primitive.results(choose(engine), {key: a.copy() for key, a in arrays.items()})
    try:
        found = primitive.results(choose(engine), laid_out)
    except ValueError:
        assert layout is not np.ascontiguousarray
        np.testing.assert_array_equal(laid_out["value"], arrays["value"])
        return
    assert layout is not read_only
    for value, wanted in zip(found, expected, strict=True):
        close(value, wanted)


@pure
def test_a_workspace_changes_no_result(primitive, engine):
    arrays = primitive.arrays(17, (3, 5, 4))
    plain, workspace = choose(engine), Workspace()
    expected, own = primitive.results(plain, arrays), plain.using(workspace)
    for _ in range(2):
        workspace.restart()
        for value, wanted in zip(primitive.results(own, arrays), expected, strict=True):
            close(value, wanted)


def test_outputs_are_taken_from_a_workspace_and_scratch_is_given_back(engine):
    arrays = PURE["matmul"].arrays(18, (3, 5, 4))
    own = choose(engine).using(Workspace())
    with own.scratch():
        product = own.matmul(**arrays)
    assert own.matmul(**arrays) is product
    assert own.matmul(**arrays) is not product
    with choose(engine).scratch():  # without a workspace all is kept
        product = choose(engine).matmul(**arrays)
    assert choose(engine).matmul(**arrays) is not product


def test_calls_that_are_noted_can_be_repeated_on_other_numbers(engine):
    calls = []
    own, rng = choose(engine).using(Workspace(), calls), np.random.default_rng(19)
    rows, chosen, total = rng.normal(size=(2, 4, 3)), rng.random((4, 1)) < 0.5, np.full((2, 3), 9.0)
    own.assign(total, 1)
    own.add(total, rows[:, 0])
    sums, part = own.row_sums(rows), own.only_where(chosen, rows)
    for _ in range(2):
        np.testing.assert_array_equal(total, 1 + rows[:, 0])
        np.testing.assert_allclose(sums, [sum(row) for row in rows], rtol=1e-14)
        np.testing.assert_array_equal(part, rows * chosen)
        rows += 1
        for call in calls:
            call()


@pytest.mark.parametrize("name", sorted(PURE.keys() - {"pair_products"}))  # whose call here copies
def test_an_engine_that_replays_notes_all_that_it_computes(name, engine):
    if choose(engine).replays:
        calls, arrays = [], PURE[name].arrays(20, (3, 5, 4))
        found = PURE[name].results(choose(engine).using(Workspace(), calls), arrays)
        for array, other in zip(
            arrays.values(), PURE[name].arrays(21, (3, 5, 4)).values(), strict=True
        ):
            if array.dtype == np.float64:
                array[...] = other
        for call in calls:
            call()
        for value, wanted in zip(found, PURE[name].results(choose(engine), arrays), strict=True):
            close(value, wanted)


with_out = pytest.mark.parametrize(
    "primitive",
    [
        *("masked_softmax", "masked_softmax_backward", "masked_scale", "cross_entropy"),
        *("matmul", "key_sums", "query_sums"),
    ],
)


def result_of(primitive, engine, arrays, out=None):
    """Return the array that `out` stands for."""
    found = PURE[primitive].call(engine, **arrays, out=out)
    return found[1] if isinstance(found, tuple) else found


@with_out
def test_out_is_what_is_returned(primitive, engine):
    arrays = PURE[primitive].arrays(4, (3, 5, 4))
    expected = result_of(primitive, choose(engine), arrays)
    out = np.full_like(expected, 7.0)
    assert result_of(primitive, choose(engine), arrays, out) is out
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    ("primitive", "argument"),
    [
        ("masked_softmax", "scores"),
        ("masked_softmax_backward", "d_weights"),
        ("masked_scale", "scores"),
        ("cross_entropy", "logits"),
    ],
)
def test_out_may_be_the_input(primitive, argument, engine):
    arrays = PURE[primitive].arrays(5, (3, 5, 4))
    expected = PURE[primitive].results(choose(engine), arrays)
    found = PURE[primitive].call(choose(engine), **arrays, out=arrays[argument])
    found = found if isinstance(found, tuple) else (found,)
    for value, wanted in zip(found, expected, strict=True):
        close(value, wanted)
    assert found[-1] is arrays[argument]


@pytest.mark.parametrize("layout", [every_second, transposed, read_only])
@pytest.mark.parametrize(
    "primitive", ["masked_softmax", "masked_softmax_backward", "masked_scale", "cross_entropy"]
)
def test_numba_refuses_an_out_that_it_cannot_write(primitive, layout):
    arrays = PURE[primitive].arrays(6, (3, 5, 4))
    out = layout(np.zeros(result_of(primitive, choose("numba"), arrays).shape))
    with pytest.raises(ValueError, match="out: got a strided or read-only array"):
        result_of(primitive, choose("numba"), arrays, out)


@pytest.mark.parametrize("out", [np.zeros((3, 2, 5, 4)), np.zeros((3, 2, 5, 5), np.float32)])
def test_numba_refuses_an_out_of_another_shape_or_dtype(out):
    arrays = PURE["masked_softmax"].arrays(6, (3, 5, 4))
    with pytest.raises(ValueError, match=r"^out: got float(32|64) of shape .*, needs float64"):
        result_of("masked_softmax", choose("numba"), arrays, out)


@pytest.mark.parametrize("name", ["value", "mean", "square"])
def test_numba_names_what_an_update_cannot_write(name):
    arrays = IN_PLACE["adamw_update"].arrays(7, (3, 5, 4))
    arrays[name] = read_only(arrays[name])
    with pytest.raises(ValueError, match=f"^{name}: got a strided or read-only array"):
        IN_PLACE["adamw_update"].call(choose("numba"), **arrays)


# Worked values


def test_rows_without_a_key_are_zero_forward_and_backward(engine):
    engine = choose(engine)
    S = np.arange(1.0, 10.0).reshape(3, 3)
    allowed = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1]], bool)
    V = np.arange(9.0).reshape(3, 3)
    G = np.array([[1.0, -1, 2], [5, 5, 5], [0, 1, 0]])
    A = engine.masked_softmax(S, allowed, 1.0)
    expected = [
        [0.119202922, 0, 0.880797078],
        [0, 0, 0],
        [0.0900305732, 0.2447284711, 0.6652409558],
    ]
    np.testing.assert_allclose(A, expected, rtol=0, atol=1e-9)
    dS = engine.masked_softmax_backward(A, G @ V.T, allowed, 1.0)
    expected = [
        [-1.2599230248, 0, 1.2599230248],
        [0, 0, 0],
        [-0.4254512808, -0.4223110724, 0.8477623532],
    ]
    np.testing.assert_allclose(dS, expected, rtol=0, atol=1e-9)
    for array in (A, dS):
        assert (array[1] == 0).all()
        assert array[0, 1] == 0


@in_precisions
def test_a_row_without_a_key_in_a_compiled_kernel_is_zero(dtype):
    S = np.full((1, 3, 3), -np.inf, dtype)
    allowed = np.zeros((3, 3), bool)
    out = np.full_like(S, np.nan)
    numba_cpu._softmax(S, allowed, np.zeros(3, np.int64), 1.0, out)
    assert (out == 0).all()
    d_weights = np.full_like(S, np.nan)
    numba_cpu._softmax_backward(out, d_weights, allowed, np.zeros(3, np.int64), 1.0, S)
    assert (S == 0).all()


@pytest.mark.parametrize("kind", ["softmax", "linear"])
def test_a_value_that_no_query_may_see_reaches_nothing(engine, kind):
    V = np.array([[[2.0, 3.0], [np.nan, 4.0]]])
    eye = np.eye(2)[None]
    p = {"W_q": np.zeros((1, 2, 1, 2)), "W_k": np.zeros((1, 2, 1, 2))}
    p |= {"W_v": eye.reshape(1, 2, 1, 2), "W_o": eye.reshape(1, 1, 2, 2)}
    p["W_q"][0, 0] = p["W_k"][0, 0] = 2**0.25
    allowed = np.array([[True, False], [False, False]])
    y, tape = attention.forward(choose(engine), attention.joined(p), V, allowed, kind)
    weight = 1.0 if kind == "softmax" else 8.0
    np.testing.assert_allclose(y, weight * np.array([[[2.0, 3.0], [0.0, 0.0]]]), rtol=1e-14)
    assert np.isfinite(tape.A).all()


def test_an_impossible_symbol_has_probability_zero(engine):
    logits = np.array([[[0.0, math.log(3), -np.inf]]])
    loss, dlogits = choose(engine).cross_entropy(logits, np.array([[1]]), np.ones((1, 1)))
    np.testing.assert_allclose(dlogits[0, 0], [0.25, -0.25, 0], rtol=0, atol=1e-15)
    assert loss[0] == pytest.approx(0.2876820725, abs=1e-10)
    p = dlogits[0, 0] + [0, 1, 0]
    assert -sum(q * math.log(q) for q in p if q > 0) == pytest.approx(0.5623351446, abs=1e-10)


@in_precisions
@pytest.mark.parametrize("shift", [-1000, 0, 1000])
def test_large_scores_do_not_overflow(engine, dtype, shift):
    engine, everything = choose(engine, dtype), np.ones((3, 3), bool)
    S = np.tile(np.array([89, 88, 0], dtype) + shift, (3, 1)).astype(dtype)
    A = engine.masked_softmax(S, everything, 1.0)
    np.testing.assert_allclose(A, np.tile([0.7310586, 0.2689414, 0], (3, 1)), rtol=0, atol=1e-7)


@in_precisions
@under_masks
def test_what_all_scores_or_logits_of_a_row_have_in_common_moves_nothing(engine, dtype, allowed):
    engine, rng = choose(engine, dtype), np.random.default_rng(16)
    shifts = np.array([[0], [1000], [-1000], [500]], dtype)
    S = (rng.integers(-32, 32, size=(1, 4, 4)) / 16).astype(dtype)  # so that all sums are exact
    expected = engine.masked_softmax(S, allowed, 1.0)
    close(engine.masked_softmax(S + shifts, allowed, 1.0), expected, dtype)
    arguments = (rng.integers(4, size=(1, 4)), rng.random((1, 4)).astype(dtype))
    for found, wanted in zip(
        engine.cross_entropy(S + shifts, *arguments),
        engine.cross_entropy(S, *arguments),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1000 * TOLERANCE[dtype])


def test_the_gelu_of_large_entries(engine):
    u = np.array([[[-1e5, -100.0, -20.0, 20.0, 1e5]]])
    np.testing.assert_allclose(choose(engine).gelu(u), np.maximum(u, 0), rtol=0, atol=1e-200)
    slopes = choose(engine).gelu_backward(u, np.ones_like(u))
    np.testing.assert_allclose(slopes, u > 0, rtol=0, atol=1e-200)


@pytest.mark.parametrize(
    ("logits", "target", "loss"),
    [([0, -200], 1, 200.0), ([1000, 1000, 0], 2, 1000.693147), ([1000, 1000], 0, 0.693147181)],
)
def test_large_float32_logits_do_not_overflow(engine, logits, target, loss):
    logits = np.array([[logits]], np.float32)
    found, _ = choose(engine, "float32").cross_entropy(
        logits, np.array([[target]]), np.ones((1, 1), np.float32)
    )
    assert found.dtype == np.float32
    assert found[0] == np.float32(loss)


def test_the_softmax_gradient_of_a_cotangent_that_is_not_constant(engine):
    weights = np.tile([0.2, 0.3, 0.5], (3, 1))
    dS = choose(engine).masked_softmax_backward(weights, np.eye(3), np.ones((3, 3), bool), 1.0)
    np.testing.assert_allclose(dS[0], [0.16, -0.06, -0.10], rtol=0, atol=1e-15)
    np.testing.assert_allclose(dS[2], [-0.10, -0.15, 0.25], rtol=0, atol=1e-15)


def test_the_norm_of_a_constant_row(engine):
    engine = choose(engine)
    gain, shift = np.ones((1, 4)), np.zeros((1, 4))
    y, normed, inverse = engine.layer_norm(np.full((1, 1, 4), 3.0), gain, shift)
    assert (y == 0).all()
    dx, _, _ = engine.layer_norm_backward(np.arange(1.0, 5.0)[None, None], gain, normed, inverse)
    np.testing.assert_allclose(
        dx[0, 0], [-474.3416, -158.1139, 158.1139, 474.3416], rtol=0, atol=5e-5
    )


def test_the_norm_of_a_row_whose_variance_overflows_is_no_number(engine):
    gain, shift = np.ones((1, 2)), np.zeros((1, 2))
    with np.errstate(over="ignore"):
        found = choose(engine).layer_norm(np.array([[[1e200, -1e200]]]), gain, shift)
    assert all(np.isnan(array).all() for array in found)


def test_whether_all_entries_are_finite(engine):
    engine, finite = choose(engine), [np.ones((2, 3)), np.ones(2)]
    assert engine.all_finite(finite)
    for bad in (np.nan, np.inf, -np.inf):
        for place in np.ndindex(2, 3):
            array = np.ones((2, 3))
            array[place] = bad
            assert not engine.all_finite([*finite, array])
    assert not engine.all_finite([np.array([np.inf, -np.inf])])
    engine.all_finite([np.full((2, 3), 1e308)])  # is no warning


# What may not be read


@under_masks
@pytest.mark.parametrize("primitive", ["masked_softmax", "masked_scale"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e308])
def test_forbidden_scores_have_no_effect(engine, allowed, primitive, poison):
    S = np.random.default_rng(7).normal(size=(2, 4, 4))
    weigh = getattr(choose(engine), primitive)
    poisoned = np.where(allowed, S, poison)
    np.testing.assert_array_equal(weigh(poisoned, allowed, SCALE), weigh(S, allowed, SCALE))


@under_masks
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_gradients_of_forbidden_weights_have_no_effect(engine, allowed, poison):
    engine, rng = choose(engine), np.random.default_rng(8)
    A = engine.masked_softmax(rng.normal(size=(2, 4, 4)), allowed, SCALE)
    dA = rng.normal(size=A.shape)
    expected = engine.masked_softmax_backward(A, dA, allowed, SCALE)
    found = engine.masked_softmax_backward(A, np.where(allowed, dA, poison), allowed, SCALE)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["causal", "strictly_causal"])
def test_nothing_is_mutual_under_causal_masks(name, engine):
    allowed = allowed_pairs(name, 5)
    W = np.where(allowed, np.random.default_rng(8).normal(size=(2, 3, 5, 5)), 0)
    assert not choose(engine).mutual_sums(W, allowed).any()


def test_mutual_pairs_are_counted_in_double_precision(engine):
    """Single precision cannot count beyond 2^24."""
    sums = choose(engine).mutual_sums(np.ones((1, 2, 3, 3), np.float32), np.ones((3, 3), bool))
    assert sums.dtype == np.float64
    np.testing.assert_array_equal(sums, [[12, 12, 12]])


def test_rows_of_zero_weight_are_skipped_whatever_they_hold(engine):
    logits = np.array([[[0.0, 1.0], [np.nan, np.inf]]])
    arguments = (np.array([[1, 0]]), np.array([[1.0, 0.0]]))
    loss, dlogits = choose(engine).cross_entropy(logits, *arguments)
    assert loss[0] == pytest.approx(math.log1p(math.exp(-1)), rel=1e-14)
    np.testing.assert_array_equal(dlogits[0, 1], [0, 0])


@pytest.mark.parametrize("spans_of", [kernels.row_spans, numba_cpu._row_spans])
@pytest.mark.parametrize(
    ("allowed", "starts", "stops"),
    [
        (np.tri(4, dtype=bool), [0, 0, 0, 0], [1, 2, 3, 4]),
        (np.tri(4, k=-1, dtype=bool), [4, 0, 0, 0], [0, 1, 2, 3]),
        (np.ones((4, 4), bool), [0, 0, 0, 0], [4, 4, 4, 4]),
        (HOLES, [0, 4, 0, 1], [3, 0, 4, 4]),
    ],
)
def test_where_rows_start_and_stop(spans_of, allowed, starts, stops):
    found = spans_of(allowed)
    assert [span.tolist() for span in found] == [starts, stops]


@pytest.mark.parametrize(
    ("allowed", "bands"),
    [
        (np.ones((40, 40), bool), [(0, 40, 0, 40)]),
        (np.tri(70, dtype=bool), [(0, 32, 0, 32), (32, 64, 0, 64), (64, 70, 0, 70)]),
        (np.tri(70, dtype=bool).T, [(0, 32, 0, 70), (32, 64, 32, 70), (64, 70, 64, 70)]),
    ],
)
def test_bands_leave_out_what_a_mask_hides(allowed, bands):
    found = [(r.start, r.stop, c.start, c.stop) for r, c in numba_cpu._plan(allowed).by_query]
    assert found == bands


@pytest.mark.parametrize(
    ("allowed", "mutual"),
    [
        (np.tri(4, dtype=bool), False),
        (np.tri(4, k=-1, dtype=bool), False),
        (np.eye(4, dtype=bool), False),
        (np.eye(2, dtype=bool)[::-1], True),  # each sees the other, and not itself
        (np.ones((4, 4), bool), True),
        (HOLES, True),
    ],
)
def test_a_mask_in_which_two_positions_see_each_other(allowed, mutual, engine):
    assert numba_cpu._plan(allowed).mutual is mutual
    W = np.where(allowed, 2.0, 0)[None, None, None]
    (expected,) = slow_mutual_sums(W, allowed)
    np.testing.assert_array_equal(choose(engine).mutual_sums(W, allowed), expected)
    assert expected.any() == mutual


def test_kernels_get_a_mask_in_their_own_layout():
    plan = numba_cpu._plan(np.asfortranarray(HOLES))
    assert plan.allowed.flags.carray
    np.testing.assert_array_equal(plan.allowed, HOLES)


def test_a_mask_is_planned_anew_when_it_has_changed():
    allowed = np.tri(3, dtype=bool)
    assert numba_cpu._plan(allowed).stops.tolist() == [1, 2, 3]
    allowed[:] = True
    assert numba_cpu._plan(allowed).stops.tolist() == [3, 3, 3]
    allowed[0] = False
    allowed.setflags(write=False)
    assert numba_cpu._plan(allowed).stops.tolist() == [0, 3, 3]
    masks = [read_only(allowed) for _ in range(2)]
    plans = [numba_cpu._plan(mask) for mask in masks]
    assert all(numba_cpu._plan(mask) is plan for mask, plan in zip(masks, plans, strict=True))
    for _ in range(3 * numba_cpu.PLANS_REMEMBERED):
        numba_cpu._plan(read_only(allowed))
    assert len(numba_cpu._plans) <= numba_cpu.PLANS_REMEMBERED


LONG_MASKS = {
    "causal": np.tri(80, dtype=bool),
    "strictly causal": np.tri(80, k=-1, dtype=bool),
    "window": np.tri(80, dtype=bool) & ~np.tri(80, k=-30, dtype=bool),
    "anticausal": np.tri(80, dtype=bool).T,
    "full": np.ones((80, 80), bool),
    "empty": np.zeros((80, 80), bool),
    "sparse": np.random.default_rng(13).random((80, 80)) < 0.05,
}


@pytest.mark.parametrize("allowed", LONG_MASKS.values(), ids=LONG_MASKS)
def test_products_over_the_pairs_of_a_mask(engine, allowed):
    engine, rng = choose(engine), np.random.default_rng(14)
    a, b = rng.normal(size=(2, 2, 3, 80, 5))
    products = np.where(allowed, engine.pair_products(a, b, allowed), 0)
    W = np.where(allowed, a @ b.swapaxes(-2, -1), 0)
    np.testing.assert_allclose(products, W, rtol=0, atol=1e-13)
    close(engine.key_sums(W, b, allowed), W @ b)
    close(engine.query_sums(W, a, allowed), W.swapaxes(-2, -1) @ a)


@pytest.mark.parametrize("size", range(1, 14))
def test_the_largest_of_a_row_wherever_it_stands(size):
    for place in range(size):
        row = np.full(size + 2, -2.0)
        row[place], row[size:] = -1.0, 5.0
        assert kernels.largest(row, size) == -1.0
    assert kernels.largest(row, 0) == -np.inf


@pytest.mark.parametrize("of", [kernels.exponential, compiled(kernels.exponential)])
def test_the_exponential_is_within_its_bound(of):
    rng = np.random.default_rng(15)
    draws = np.concatenate(
        [rng.uniform(-708, 709, 2000), -(10.0 ** rng.uniform(-17, 2, 2000)), [0, -709, -math.inf]]
    )
    for x in draws.tolist():
        exact = math.exp(max(x, -708.0))
        assert abs(of(x) - exact) <= 1.5 * math.ulp(exact), x
    assert math.isnan(of(math.nan))


# Compiled code


KERNELS = {
    "masked_softmax": ("_softmax", "_row_spans"),
    "masked_softmax_backward": ("_softmax_backward", "_row_spans"),
    "masked_scale": ("_scale",),
    "pair_products": ("_row_spans",),
    "key_sums": ("_row_spans",),
    "query_sums": ("_row_spans",),
    "mutual_sums": ("_mutual", "_row_spans"),
    "cross_entropy": ("_cross_entropy",),
    "embedding_gradient": ("_embedding_gradient",),
    "layer_norm": ("_layer_norm",),
    "layer_norm_backward": ("_layer_norm_backward",),
    "gelu": ("_gelu",),
    "gelu_backward": ("_gelu_backward",),
    "adamw_update": ("_adamw",),
}
PLAIN = {  # as they are in every engine
    *("matmul", "embedding", "add", "assign", "row_sums", "only_where"),
    *("all_finite", "sgd_update"),
}
PLUMBING = {"using", "run", "call", "empty", "session", "scratch", "put", "get", "on_host"}


def test_the_numba_engine_compiles_all_that_gains_by_it():
    primitives = {name for name in vars(Reference) if not name.startswith("_")} - PLUMBING
    primitives -= {"name", "xp", "dtypes", "threads", "divides", "replays"}
    own = primitives & vars(numba_cpu.NumbaCPU).keys()
    assert own == KERNELS.keys(), "a primitive with an override of its own is in KERNELS"
    assert primitives - own == PLAIN, "one without is in PLAIN"


@pytest.mark.parametrize(
    ("primitive", "kernel"), [(name, kernel) for name in KERNELS for kernel in KERNELS[name]]
)
def test_a_primitive_calls_its_compiled_kernel(primitive, kernel, monkeypatch):
    compiled, calls = getattr(numba_cpu, kernel), []

    def spy(*arguments):
        calls.append(arguments)
        return compiled(*arguments)

    monkeypatch.setattr(numba_cpu, kernel, spy)
    case = (PURE | IN_PLACE)[primitive]
    case.results(choose("numba"), case.arrays(10, (2, 3, 4)))
    assert len(calls) == (2 if kernel == "_row_spans" else 1)  # of queries and of keys
    if not numba.config.DISABLE_JIT:
        assert isinstance(compiled, numba.core.dispatcher.Dispatcher)
        assert compiled.signatures
        assert compiled.targetoptions["nogil"]


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
@pytest.mark.parametrize("primitive", ["masked_softmax", "layer_norm"])
def test_other_layouts_need_no_further_compilation(primitive):
    case, kernel = PURE[primitive], getattr(numba_cpu, KERNELS[primitive][0])
    engine, arrays = choose("numba"), case.arrays(11, (2, 3, 4))
    case.results(engine, arrays)
    before = list(kernel.signatures)
    for layout in LAYOUTS.values():
        case.results(engine, {name: layout(array) for name, array in arrays.items()})
    assert kernel.signatures == before


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
def test_masks_are_read_in_one_layout():
    for allowed in (HOLES, np.asfortranarray(HOLES)):
        numba_cpu._plan(allowed)
    assert {kinds[0].layout for kinds in numba_cpu._row_spans.signatures} == {"C"}


def kernel_arguments():
    rng = np.random.default_rng(12)
    A, dA, S = (np.ascontiguousarray(a) for a in rng.random((3, 2, 4, 4)))
    stops, x = kernels.row_spans(HOLES)[1], rng.normal(size=(2, 5, 4))
    gain, shift = np.ascontiguousarray(rng.normal(size=(2, 2, 4)))
    tokens, weights = rng.integers(4, size=(2, 5)), rng.random((2, 5)) * (rng.random((2, 5)) < 0.6)
    inverse, u, du = rng.random((2, 5)), rng.normal(size=9), rng.normal(size=9)
    empty = np.zeros
    return {
        "softmax_rows": (S, HOLES, stops, SCALE, empty((2, 4, 4))),
        "softmax_rows_backward": (A, dA, HOLES, stops, SCALE, empty((2, 4, 4))),
        "scale_rows": (S, HOLES, SCALE, empty((2, 4, 4))),
        "mutual_entries": (A[None], HOLES, empty((1, 3))),
        "cross_entropy_rows": (x, tokens, weights, empty(2), empty(x.shape)),
        "embedding_gradient_rows": (tokens, x, empty((2, 4, 4))),
        "layer_norm_rows": (
            *(x, gain, shift, NORM_EPSILON),
            *(empty(x.shape), empty(x.shape), empty((2, 5))),
        ),
        "layer_norm_rows_backward": (
            *(x, gain, rng.normal(size=x.shape), inverse),
            *(empty(x.shape), empty((2, 4)), empty((2, 4))),
        ),
        "gelu_entries": (u, GELU_SCALE, GELU_CUBIC, empty(9)),
        "gelu_entries_backward": (u, du, GELU_SCALE, GELU_CUBIC, empty(9)),
        "adamw_entries": (u, du, rng.normal(size=9), rng.random(9), *ADAMW),
    }


COMPILED = {
    "softmax_rows": "_softmax",
    "softmax_rows_backward": "_softmax_backward",
    "scale_rows": "_scale",
    "mutual_entries": "_mutual",
    "cross_entropy_rows": "_cross_entropy",
    "embedding_gradient_rows": "_embedding_gradient",
    "layer_norm_rows": "_layer_norm",
    "layer_norm_rows_backward": "_layer_norm_backward",
    "gelu_entries": "_gelu",
    "gelu_entries_backward": "_gelu_backward",
    "adamw_entries": "_adamw",
}


@pytest.mark.parametrize("kernel", COMPILED)
def test_a_kernel_is_the_same_compiled_or_not(kernel):
    plain, fast = kernel_arguments()[kernel], kernel_arguments()[kernel]
    untouched = kernel_arguments()[kernel]
    getattr(kernels, kernel)(*plain)
    getattr(numba_cpu, COMPILED[kernel])(*fast)
    changed = 0
    for one, other, before in zip(plain, fast, untouched, strict=True):
        if isinstance(one, np.ndarray) and one.dtype.kind == "f":
            close(other, one)
            changed += not np.array_equal(one, before)
    assert changed


def test_every_kernel_is_compared():
    names = {
        n for n, f in vars(kernels).items() if getattr(f, "__module__", "") == kernels.__name__
    }
    called = {"row_spans", "exponential", "largest"}
    assert names == COMPILED.keys() | called, "a kernel that an engine calls is in COMPILED"

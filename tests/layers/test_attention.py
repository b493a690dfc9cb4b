"""Attention and its backward: heads, masks, biases, and keys that nobody sees."""

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minattn.engines import choose
from minattn.layers import attention
from minattn.testing.strategies import masks

WEIGHTS = ("W_q", "W_k", "W_v", "W_o", "b_q", "b_k", "b_v", "b_o")
KINDS = ("softmax", "linear")


def random_params(rng, R, H, h, d, bias=True):
    shapes = dict.fromkeys(WEIGHTS[:3], (R, d, H, h)) | {"W_o": (R, H, h, d)}
    if bias:
        shapes |= dict.fromkeys(WEIGHTS[4:7], (R, H, h)) | {"b_o": (R, d)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


@st.composite
def attention_cases(draw):
    """Arrays x and parameters, (R, B, N, H, h, d), allowed pairs and kind."""
    R, B, N = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    H, h, d = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    p = random_params(rng, R, H, h, d, draw(st.booleans()))
    x = rng.standard_normal((R, B * N, d))
    dy = rng.standard_normal((R, B * N, d))
    allowed = naive.pairs(draw(masks(N)), N)
    return p, x, dy, (R, B, N, H, h, d), allowed, draw(st.sampled_from(KINDS))


@given(case=attention_cases())
def test_backward_against_complex_step(engine, case):
    p, x, dy, _, allowed, kind = case
    chosen, exact = choose(engine), choose("numpy")

    def functional(arrays):
        weights = {name: value for name, value in arrays.items() if name != "x"}
        return (
            dy * attention.forward(exact, attention.joined(weights), arrays["x"], allowed, kind)[0]
        ).sum()

    _, tape = attention.forward(chosen, attention.joined(p), x, allowed, kind)
    dx, found = attention.backward(chosen, attention.joined(p), tape, dy, allowed, kind)
    found |= {"x": dx}
    expected = naive.gradient(functional, p | {"x": x})
    assert found.keys() == expected.keys()
    largest = max(abs(gradient).max() for gradient in expected.values())
    for name, gradient in expected.items():
        assert found[name].shape == gradient.shape
        assert abs(found[name] - gradient).max() <= 1e-12 * largest, name


@given(case=attention_cases())
def test_forward_and_backward_against_loops(engine, case):
    p, x, dy, (R, B, N, H, h, d), allowed, kind = case
    y, tape = attention.forward(choose(engine), attention.joined(p), x, allowed, kind)
    dx, found = attention.backward(choose(engine), attention.joined(p), tape, dy, allowed, kind)
    assert (y.shape, tape.A.shape) == ((R, B * N, d), (R, B, H, N, N))
    assert tape.q.shape == tape.k.shape == tape.v.shape == (R, B, H, N, h)
    assert tape.output_gradient.shape == (R, B, H, N, h)
    close = {"rtol": 1e-11, "atol": 1e-11}
    for r in range(R):
        alone, expected = naive.replica(p, r), dict.fromkeys(p, 0)
        for b in range(B):
            rows = slice(b * N, (b + 1) * N)
            output, parts = naive.attention(alone, x[r, rows], allowed, kind)
            np.testing.assert_allclose(y[r, rows], output, **close)
            for head, part in enumerate(parts):
                np.testing.assert_allclose(tape.A[r, b, head], part["A"], **close)
            dx_b, grads, G = naive.attention_backward(alone, x[r, rows], allowed, kind, dy[r, rows])
            np.testing.assert_allclose(dx[r, rows], dx_b, **close)
            np.testing.assert_allclose(tape.output_gradient[r, b], G, **close)
            for head in range(H):
                minus_beta = -naive.beta(
                    tape.A[r, b, head], G[head], tape.v[r, b, head], allowed, kind
                )
                np.testing.assert_allclose(tape.score_gradient[r, b, head], minus_beta, **close)
            expected = {name: expected[name] + grads[name] for name in p}
        for name in p:
            np.testing.assert_allclose(found[name][r], expected[name], err_msg=name, **close)


def square(scores, v):
    """A one-head layer of width 3 whose scaled scores, values and output gradient are as given.

    With x = W_k = W_o = 1 the gradient of W_q is that of the raw scores.
    """
    eye = np.eye(3)
    p = {"W_q": np.sqrt(3) * scores, "W_k": eye, "W_v": v}
    return {n: W.reshape(1, 3, 1, 3) for n, W in p.items()} | {"W_o": eye.reshape(1, 1, 3, 3)}


def test_a_row_without_an_allowed_key(engine):
    allowed = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1]], bool)
    p = square(np.arange(1.0, 10).reshape(3, 3), np.arange(9.0).reshape(3, 3))
    dy = np.array([[[1.0, -1, 2], [5, 5, 5], [0, 1, 0]]])
    y, tape = attention.forward(
        choose(engine), attention.joined(p), np.eye(3)[None], allowed, "softmax"
    )
    A = [[0.119202922, 0, 0.880797078], [0, 0, 0], [0.0900305732, 0.2447284711, 0.6652409558]]
    np.testing.assert_allclose(tape.A[0, 0, 0], A, atol=1e-10)
    assert (tape.A[0, 0, 0][~allowed] == 0).all()
    assert np.array_equal(y[0, 1], np.zeros(3))
    _, grads = attention.backward(choose(engine), attention.joined(p), tape, dy, allowed, "softmax")
    dS = np.sqrt(3) * grads["W_q"][0, :, 0]
    expected = [
        [-1.2599230248, 0, 1.2599230248],
        [0, 0, 0],
        [-0.4254512808, -0.4223110724, 0.8477623532],
    ]
    np.testing.assert_allclose(dS, expected, atol=1e-9)
    assert np.array_equal(dS[1], np.zeros(3))


def test_softmax_gradient_by_hand(engine):
    p = square(np.log([[0.2, 0.3, 0.5]] * 3), np.eye(3))
    dy = np.array([[[1.0, 0, 0], [0, 0, 0], [0, 0, 0]]])
    allowed = np.ones((3, 3), bool)
    _, tape = attention.forward(
        choose(engine), attention.joined(p), np.eye(3)[None], allowed, "softmax"
    )
    _, grads = attention.backward(choose(engine), attention.joined(p), tape, dy, allowed, "softmax")
    dS = np.sqrt(3) * grads["W_q"][0, :, 0]
    np.testing.assert_allclose(dS, [[0.16, -0.06, -0.10], [0, 0, 0], [0, 0, 0]], atol=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unseen_key_reaches_nothing_even_if_its_value_is_nan(engine, kind):
    allowed = np.array([[True, False], [True, False]])
    S = np.array([[1.0, np.nan], [1.0, np.inf]]).reshape(1, 1, 1, 2, 2)
    _, v = attention._hide_unseen(choose(engine), *[np.array([[2.0, 3], [np.nan, 4]])] * 2, allowed)
    o, A = attention.attend(choose(engine), S, v.reshape(1, 1, 1, 2, 2), allowed, kind)
    weight = 1.0 if kind == "softmax" else 1 / np.sqrt(2)
    np.testing.assert_allclose(A[0, 0, 0], [[weight, 0], [weight, 0]])
    np.testing.assert_allclose(o[0], weight * np.array([[2.0, 3], [2, 3]]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_non_finite_row_that_nobody_sees_reaches_no_other(engine, kind, bad):
    rng = np.random.default_rng(0)
    p = random_params(rng, R=1, H=2, h=3, d=4)
    x, dy = rng.standard_normal((1, 3, 4)), rng.standard_normal((1, 3, 4))
    allowed = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 0]], bool)
    dy[0, 2] = 0
    clean, tape = attention.forward(choose(engine), attention.joined(p), x, allowed, kind)
    _, expected = attention.backward(choose(engine), attention.joined(p), tape, dy, allowed, kind)
    G = tape.output_gradient
    x[0, 2] = bad
    with np.errstate(invalid="ignore"):
        y, tape = attention.forward(choose(engine), attention.joined(p), x, allowed, kind)
    assert np.array_equal(y[0, :2], clean[0, :2])
    # The row's own query is bad too, and sees: take it out, and leave what came of key and value.
    tape.q[:, :, :, 2] = tape.A[:, :, :, 2] = 0
    tape.x[0, 2] = tape.o[0, 2] = 0
    _, grads = attention.backward(choose(engine), attention.joined(p), tape, dy, allowed, kind)
    assert np.array_equal(tape.output_gradient, G)
    for name in p:
        np.testing.assert_allclose(grads[name], expected[name], atol=1e-14, err_msg=name)


def test_keys_and_values_are_zero_on_the_tape_only_where_nobody_sees_them(engine):
    rng = np.random.default_rng(0)
    p = random_params(rng, R=1, H=1, h=2, d=3)
    allowed = naive.pairs("strictly_causal", 3)  # no query sees the last key
    _, tape = attention.forward(
        choose(engine), attention.joined(p), rng.standard_normal((1, 3, 3)), allowed, "softmax"
    )
    for array in (tape.k, tape.v):
        assert (array[0, 0, 0, :2] != 0).all()
        assert (array[0, 0, 0, 2] == 0).all()
    assert (tape.q != 0).all()


def test_large_scores_do_not_overflow(engine):
    S = np.array([[89, 88, 0]] * 3, np.float32).reshape(1, 1, 1, 3, 3) * np.float32(np.sqrt(3))
    v = np.eye(3, dtype=np.float32).reshape(1, 1, 1, 3, 3)
    o, A = attention.attend(choose(engine, "float32"), S, v, np.ones((3, 3), bool), "softmax")
    assert A.dtype == o.dtype == np.float32
    np.testing.assert_allclose(A[0, 0, 0, 0], [0.7310586, 0.2689414, 0], rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("kind", KINDS)
def test_biases_of_queries_and_keys(engine, kind):
    """A key bias shifts each row of scores by a constant, which only the softmax takes out."""
    rng = np.random.default_rng(0)
    p = random_params(rng, R=2, H=2, h=3, d=4)
    x, dy = rng.standard_normal((2, 10, 4)), rng.standard_normal((2, 10, 4))
    allowed = naive.pairs("causal", 5)

    def run(**changes):
        y, tape = attention.forward(choose(engine), attention.joined(p | changes), x, allowed, kind)
        return y, attention.backward(
            choose(engine), attention.joined(p | changes), tape, dy, allowed, kind
        )[1]

    y, grads = run()
    assert abs(run(b_q=p["b_q"] + 1)[0] - y).max() > 1e-2
    assert abs(grads["b_q"]).min() > 1e-4
    moved = abs(run(b_k=p["b_k"] + 1)[0] - y).max()
    if kind == "softmax":
        assert moved < 1e-13
        assert abs(grads["b_k"]).max() < 1e-13
    else:
        assert moved > 1e-2
        assert abs(grads["b_k"]).min() > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_an_offset_of_w_qk_acts_as_that_change_of_the_product(engine, kind):
    rng = np.random.default_rng(0)
    p = random_params(rng, R=2, H=3, h=2, d=4, bias=False)
    x, allowed = rng.standard_normal((2, 6, 4)), naive.pairs("causal", 3)
    change = rng.standard_normal(p["W_q"].shape)
    offset = np.einsum("rdhk,rehk->rhde", change, p["W_k"])
    y, _ = attention.forward(choose(engine), attention.joined(p), x, allowed, kind, offset)
    expected, _ = attention.forward(
        choose(engine), attention.joined(p | {"W_q": p["W_q"] + change}), x, allowed, kind
    )
    np.testing.assert_allclose(y, expected, atol=1e-12)
    plain, _ = attention.forward(choose(engine), attention.joined(p), x, allowed, kind)
    assert abs(y - plain).max() > 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_and_replicas_do_not_mix(engine, kind):
    rng = np.random.default_rng(0)
    R, B, N, d = 2, 3, 4, 5
    p = random_params(rng, R, H=2, h=3, d=d)
    x, allowed = rng.standard_normal((R, B * N, d)), naive.pairs("bidirectional", N)
    before, _ = attention.forward(choose(engine), attention.joined(p), x, allowed, kind)
    x[1, 2 * N] += 1
    after, _ = attention.forward(choose(engine), attention.joined(p), x, allowed, kind)
    changed = (after != before).any(axis=-1).reshape(R, B, N).any(axis=-1)
    assert changed.tolist() == [[False] * 3, [False, False, True]]


@pytest.mark.parametrize("kind", KINDS)
def test_backward_reads_but_does_not_write_the_tape(engine, kind):
    rng = np.random.default_rng(0)
    p = random_params(rng, R=1, H=2, h=2, d=3)
    x, dy = rng.standard_normal((1, 8, 3)), rng.standard_normal((1, 8, 3))
    for array in (x, dy, *p.values()):
        array.setflags(write=False)
    allowed = naive.pairs("causal", 4)
    _, tape = attention.forward(choose(engine), attention.joined(p), x, allowed, kind)
    before = {name: np.copy(array) for name, array in vars(tape).items() if array is not None}
    first = attention.backward(choose(engine), attention.joined(p), tape, dy, allowed, kind)[1]
    second = attention.backward(choose(engine), attention.joined(p), tape, dy, allowed, kind)[1]
    assert all(np.array_equal(getattr(tape, name), value) for name, value in before.items())
    assert all(np.array_equal(first[name], second[name]) for name in p)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_kept(engine, kind):
    p = {
        n: v.astype(np.float32)
        for n, v in random_params(np.random.default_rng(0), 1, 2, 2, 3).items()
    }
    x = np.ones((1, 4, 3), np.float32)
    allowed = naive.pairs("strictly_causal", 4)
    y, tape = attention.forward(choose(engine, "float32"), attention.joined(p), x, allowed, kind)
    dx, grads = attention.backward(
        choose(engine, "float32"), attention.joined(p), tape, y, allowed, kind
    )
    arrays = [y, dx, tape.q, tape.k, tape.v, tape.A, tape.o, tape.output_gradient]
    arrays += [tape.score_gradient, *grads.values()]
    assert {array.dtype for array in arrays} == {np.dtype(np.float32)}


def test_what_is_joined_is_written_over_when_it_is_joined_again():
    p = attention.joined(random_params(np.random.default_rng(0), 2, 2, 3, 4))
    before = {name: p[name] for name in ("W_qkv", "b_qkv")}
    p["W_q"][...], p["b_v"][...] = 1, 2
    attention.join(p)
    for name, expected in attention.joined({name: p[name] for name in WEIGHTS}).items():
        np.testing.assert_array_equal(p[name], expected)
    assert all(p[name] is array for name, array in before.items())


@pytest.mark.parametrize("kind", KINDS)
def test_weights_take_the_place_of_scores(engine, kind):
    S, v = np.zeros((1, 1, 2, 3, 3)), np.ones((1, 1, 2, 3, 4))
    assert attention.attend(choose(engine), S, v, np.tri(3, dtype=bool), kind)[1] is S


def test_parameters_are_joined_by_the_module_of_their_arrays():
    class Module:
        def concatenate(self, parts, axis, out):
            return "joined", len(parts), axis, out

    p = attention.joined(random_params(np.random.default_rng(0), R=1, H=1, h=2, d=2), Module())
    assert p["W_qkv"] == p["b_qkv"] == ("joined", 3, -1, None)

"""The embedding and its backward."""

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minattn.engines import choose
from minattn.layers import embedding

SIZES = st.integers(1, 4)


def random_case(seed, R, B, N, d, positions, symbols=5, spare=2):
    rng = np.random.default_rng(seed)
    p = {"token_embedding": rng.standard_normal((R, symbols, d))}
    if positions:
        p["position_embedding"] = rng.standard_normal((R, N + spare, d))
    return p, rng.integers(symbols, size=(R, B, N)), rng.standard_normal((R, B * N, d))


@given(seed=st.integers(0, 999), R=SIZES, B=SIZES, N=SIZES, d=SIZES, positions=st.booleans())
def test_against_complex_step_and_loops(engine, seed, R, B, N, d, positions):
    p, tokens, dx = random_case(seed, R, B, N, d, positions)
    x = embedding.forward(choose(engine), p, tokens)
    found = embedding.backward(choose(engine), p, tokens, dx)
    assert x.shape == (R, B * N, d)
    assert found.keys() == p.keys()
    for r, b, n in np.ndindex(tokens.shape):
        row = p["token_embedding"][r, tokens[r, b, n]]
        row = row + p["position_embedding"][r, n] if positions else row
        assert np.array_equal(x[r, b * N + n], row)
    exact = choose("numpy")
    expected = naive.gradient(lambda a: (dx * embedding.forward(exact, a, tokens)).sum(), p)
    for name, gradient in expected.items():
        assert found[name].shape == p[name].shape
        assert abs(found[name] - gradient).max() <= 1e-12 * abs(gradient).max(), name


def test_a_token_that_repeats_gathers_all_its_gradients(engine):
    p = {"token_embedding": np.zeros((1, 3, 2))}
    dx = np.arange(8.0).reshape(1, 4, 2)
    grads = embedding.backward(choose(engine), p, np.array([[[2, 0, 2, 2]]]), dx)
    assert np.array_equal(grads["token_embedding"][0], [[2, 3], [0, 0], [10, 13]])


def test_positions_beyond_the_sequence_get_exactly_zero(engine):
    p, tokens, dx = random_case(0, R=2, B=3, N=4, d=3, positions=True)
    grads = embedding.backward(choose(engine), p, tokens, dx)["position_embedding"]
    assert np.array_equal(grads[:, 4:], np.zeros((2, 2, 3)))
    assert (grads[:, :4] != 0).all()


@pytest.mark.parametrize("replica", [0, 1])
def test_each_replica_reads_its_own_table(engine, replica):
    p, tokens, _ = random_case(0, R=2, B=2, N=3, d=4, positions=True)
    before = embedding.forward(choose(engine), p, tokens)
    p["token_embedding"][replica] += 1
    changed = (embedding.forward(choose(engine), p, tokens) != before).all(axis=(1, 2))
    assert changed.tolist() == [replica == 0, replica == 1]


def test_gradients_are_of_the_precision_of_dx(engine):
    p, tokens, dx = random_case(0, R=1, B=2, N=3, d=4, positions=True)
    p = {name: table.astype(np.float32) for name, table in p.items()}
    grads = embedding.backward(choose(engine), p, tokens, dx.astype(np.float32))
    assert {gradient.dtype for gradient in grads.values()} == {np.dtype(np.float32)}

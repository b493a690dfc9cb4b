"""The loss of weighted positions and the gradient of its logits."""

import math

import naive
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minattn.engines import choose
from minattn.layers import loss

SIZES = st.integers(1, 5)


@given(seed=st.integers(0, 999), R=SIZES, T=SIZES, V=SIZES, in_place=st.booleans())
def test_against_complex_step_and_loops(engine, seed, R, T, V, in_place):
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((R, T, V)) * 3
    targets = rng.integers(V, size=(R, T))
    shares = loss.shares(rng.random((R, T)) * (rng.random((R, T)) < 0.7))
    exact = choose("numpy")
    cotangent = rng.standard_normal(R)
    expected = naive.gradient(
        lambda a: (cotangent * loss.forward(exact, a["l"], targets, shares)[0]).sum(),
        {"l": logits},
    )["l"]
    loops = [
        sum(shares[r, t] * naive.cross_entropy(logits[r, t], targets[r, t]) for t in range(T))
        for r in range(R)
    ]
    scratch = logits.copy()
    value, dlogits = loss.forward(
        choose(engine), scratch, targets, shares, out=scratch if in_place else None
    )
    assert dlogits is scratch if in_place else np.array_equal(scratch, logits)
    np.testing.assert_allclose(value, loops, atol=1e-13)
    error = abs(cotangent[:, None, None] * dlogits - expected).max()
    assert error <= 1e-12 * max(abs(expected).max(), 1e-3)
    assert (dlogits[shares == 0] == 0).all()


def test_shares_sum_to_one_per_replica_or_are_all_zero():
    weights = np.array([[[1.0, 3], [0, 4]], [[0, 0], [0, 0]], [[1, 1], [1, 1]], [[0, 5], [0, 0]]])
    sums = np.array([8, 1, 4, 5])[:, None, None]
    assert np.array_equal(loss.shares(weights), weights / sums)


def test_the_scale_of_each_replica_s_weights_does_not_matter():
    weights = np.random.default_rng(0).random((3, 2, 5))
    scales = 2.0 ** np.array([1023, 0, -1000])[:, None, None]
    np.testing.assert_array_equal(loss.shares(scales * weights), loss.shares(weights))


def test_rows_without_weight_reach_nothing_even_if_they_are_nan(engine):
    logits = np.array([[[np.nan, 1.0, np.inf], [0.0, 1.0, 2.0]]])
    arrays = (np.array([[0, 2]]), np.array([[0.0, 1.0]]))
    value, dlogits = loss.forward(choose(engine), logits, *arrays)
    alone, expected = loss.forward(choose(engine), logits[:, 1:], *(a[:, 1:] for a in arrays))
    assert np.array_equal(value, alone)
    assert np.array_equal(dlogits[0], [[0, 0, 0], *expected[0]])


def test_one_symbol_leaves_nothing_to_learn(engine):
    arrays = (np.zeros((2, 3), int), np.full((2, 3), 1 / 3))
    value, dlogits = loss.forward(choose(engine), np.full((2, 3, 1), 4.0), *arrays)
    assert np.array_equal(value, [0, 0])
    assert np.array_equal(dlogits, np.zeros((2, 3, 1)))


def test_a_symbol_of_probability_zero(engine):
    logits = np.array([[[0.0, math.log(3), -np.inf]]])
    value, dlogits = loss.forward(choose(engine), logits, np.array([[1]]), np.ones((1, 1)))
    np.testing.assert_allclose(value, [0.2876820725], atol=1e-10)
    np.testing.assert_allclose(dlogits, [[[0.25, -0.25, 0]]], atol=1e-15)


def test_large_logits_do_not_overflow(engine):
    def value(row, target):
        logits = np.array([[row]], np.float32)
        found, dlogits = loss.forward(
            choose(engine, "float32"), logits, np.array([[target]]), np.ones((1, 1), np.float32)
        )
        assert found.dtype == dlogits.dtype == np.float32
        return found[0]

    assert value([0, -200], 1) == 200
    np.testing.assert_allclose(value([1000, 1000], 0), math.log(2), atol=1e-4)  # ulp of 1000
    np.testing.assert_allclose(value([89, 88, 0], 1), 1 + math.log(1 + math.exp(-1)), rtol=1e-5)

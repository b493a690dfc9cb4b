"""Layer norm and its backward."""

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minattn.engines import choose
from minattn.layers import norm


@given(
    seed=st.integers(0, 999),
    R=st.integers(1, 3),
    T=st.integers(1, 4),
    d=st.integers(3, 7),
    offset=st.sampled_from([0.0, 5.0]),
)
def test_against_complex_step_and_loops(engine, seed, R, T, d, offset):
    rng = np.random.default_rng(seed)
    arrays = {
        "gain": rng.standard_normal((R, d)),
        "shift": rng.standard_normal((R, d)),
        "x": offset + rng.standard_normal((R, T, d)),
    }
    dy = rng.standard_normal((R, T, d))
    y, tape = norm.forward(choose(engine), **arrays)
    dx, dgain, dshift = norm.backward(choose(engine), arrays["gain"], tape, dy)
    found = {"gain": dgain, "shift": dshift, "x": dx}

    exact = choose("numpy")
    expected = naive.gradient(lambda a: (dy * norm.forward(exact, **a)[0]).sum(), arrays)
    for name, gradient in expected.items():
        assert found[name].shape == arrays[name].shape
        assert abs(found[name] - gradient).max() <= 1e-12 * abs(gradient).max(), name
    for r in range(R):
        p = naive.replica(arrays, r)
        np.testing.assert_allclose(y[r], naive.layer_norm(**p), atol=1e-12)
        loops = naive.layer_norm_backward(p["x"], p["gain"], dy[r])
        for one, other in zip((dx[r], dgain[r], dshift[r]), loops, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-11)


def test_constant_row(engine):
    x = np.full((1, 1, 4), 3.0)
    gain, shift = np.ones((1, 4)), np.zeros((1, 4))
    y, tape = norm.forward(choose(engine), gain, shift, x)
    dx, dgain, dshift = norm.backward(
        choose(engine), gain, tape, np.array([[[1.0, 2.0, 3.0, 4.0]]])
    )
    assert np.array_equal(y, np.zeros((1, 1, 4)))
    np.testing.assert_allclose(dx[0, 0], [-474.3416, -158.1139, 158.1139, 474.3416], atol=1e-4)
    assert np.array_equal(dgain, np.zeros((1, 4)))
    assert np.array_equal(dshift, [[1.0, 2.0, 3.0, 4.0]])


def test_rows_are_standardised_with_the_population_variance(engine):
    x = np.array([[[1.0, 2.0, 3.0, 6.0]]]) * 1e4  # so that epsilon is nothing
    y, _ = norm.forward(choose(engine), np.ones((1, 4)), np.zeros((1, 4)), x)
    np.testing.assert_allclose(y.mean(), 0, atol=1e-12)
    np.testing.assert_allclose((y**2).mean(), 1, rtol=1e-10)


@pytest.mark.parametrize(
    ("name", "dtype", "scale"),
    [("numpy", "float32", 1e30), ("numpy", "float64", 1e200), ("numba", "float64", 1e200)],
)
def test_rows_beyond_the_root_of_the_largest_number_are_no_zeros(name, dtype, scale):
    x = np.array([[[1.0, 2.0, 3.0, 6.0]]])
    gain, shift = np.ones((1, 4), dtype), np.zeros((1, 4), dtype)
    expected, _ = norm.forward(choose("numpy"), np.ones((1, 4)), np.zeros((1, 4)), x * 1e4)
    with np.errstate(over="ignore"):
        y, _ = norm.forward(choose(name), gain, shift, (x * scale).astype(dtype))
    assert not np.isfinite(y).any() or np.allclose(y, expected, atol=1e-5)

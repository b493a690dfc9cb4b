"""The linear map and its backward."""

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minattn.engines import choose
from minattn.layers import linear

SIZES = st.integers(1, 5)


@given(seed=st.integers(0, 999), R=SIZES, T=SIZES, d=SIZES, k=SIZES, bias=st.booleans())
def test_backward_against_complex_step_and_forward_against_loops(engine, seed, R, T, d, k, bias):
    rng = np.random.default_rng(seed)
    arrays = {"x": rng.standard_normal((R, T, d)), "W": rng.standard_normal((R, d, k))}
    if bias:
        arrays["b"] = rng.standard_normal((R, k))
    cotangent = rng.standard_normal((R, T, k))
    chosen, exact = choose(engine), choose("numpy")

    y = linear.forward(chosen, **arrays)
    for r in range(R):
        p = naive.replica(arrays, r)
        np.testing.assert_allclose(y[r], naive.affine(**p), atol=1e-13)

    dx, dW = linear.backward(chosen, arrays["x"], arrays["W"], cotangent)
    found = {"x": dx, "W": dW}
    if bias:
        found["b"] = linear.bias_gradient(chosen, cotangent)
    expected = naive.gradient(lambda a: (cotangent * linear.forward(exact, **a)).sum(), arrays)
    for name, gradient in expected.items():
        assert found[name].shape == arrays[name].shape
        assert abs(found[name] - gradient).max() <= 1e-12 * abs(gradient).max(), name


def test_inputs_are_not_written(engine):
    rng = np.random.default_rng(0)
    x, W, b = (rng.standard_normal(s) for s in ((2, 4, 3), (2, 3, 5), (2, 5)))
    for array in (x, W, b):
        array.setflags(write=False)
    y = linear.forward(choose(engine), x, W, b)
    linear.backward(choose(engine), x, W, y)
    assert y.dtype == np.float64


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_is_kept(engine, dtype):
    x, W, b = (np.ones(s, dtype) for s in ((1, 2, 3), (1, 3, 4), (1, 4)))
    y = linear.forward(choose(engine, dtype), x, W, b)
    assert {y.dtype, *(a.dtype for a in linear.backward(choose(engine, dtype), x, W, y))} == {
        np.dtype(dtype)
    }

"""The feed-forward part and its backward."""

import naive
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minattn.engines import choose
from minattn.layers import feed_forward

SIZES = st.integers(1, 4)


@given(seed=st.integers(0, 999), R=SIZES, T=SIZES, d=SIZES, f=SIZES, bias=st.booleans())
def test_against_complex_step_and_loops(engine, seed, R, T, d, f, bias):
    rng = np.random.default_rng(seed)
    arrays = {"x": rng.standard_normal((R, T, d)), "W_in": rng.standard_normal((R, d, f))}
    arrays["W_out"] = rng.standard_normal((R, f, d))
    if bias:
        arrays |= {"b_in": rng.standard_normal((R, f)), "b_out": rng.standard_normal((R, d))}
    dy = rng.standard_normal((R, T, d))

    def forward(a, engine):
        return feed_forward.forward(engine, {n: v for n, v in a.items() if n != "x"}, a["x"])

    y, tape = forward(arrays, choose(engine))
    dx, found = feed_forward.backward(choose(engine), arrays, tape, dy)
    found["x"] = dx
    assert found.keys() == arrays.keys()
    exact = choose("numpy")
    expected = naive.gradient(lambda a: (dy * forward(a, exact)[0]).sum(), arrays)
    # In its lower tail GELU is a difference of terms of order one.
    largest = max(1.0, *(abs(gradient).max() for gradient in expected.values()))
    for name, gradient in expected.items():
        assert found[name].shape == arrays[name].shape
        assert abs(found[name] - gradient).max() <= 1e-12 * largest, name
    for r in range(R):
        p = naive.replica(arrays, r)
        np.testing.assert_allclose(y[r], naive.feed_forward(p, p["x"]), atol=1e-13)

"""Batched products from strided arrays, with cuBLAS replaced by its definition."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def products(device):
    from minattn.engines import cupy_products

    return cupy_products


@pytest.fixture
def calls(device, monkeypatch):
    """Count the calls of cuBLAS, and the copies."""
    counted = {"gemm": 0, "copies": 0}
    gemm, contiguous = device.cuda.cublas.dgemmStridedBatched, device.ascontiguousarray

    def counting(*arguments):
        counted["gemm"] += 1
        return gemm(*arguments)

    def copying(value):
        counted["copies"] += not value.flags.c_contiguous
        return contiguous(value)

    monkeypatch.setattr(device.cuda.cublas, "dgemmStridedBatched", counting)
    monkeypatch.setattr(device, "ascontiguousarray", copying)
    return counted


@st.composite
def strided(draw, shape, dtype):
    """Draw an array of a shape out of a larger one: axes permuted, entries left out."""
    order = draw(st.permutations(range(len(shape))))
    steps = draw(st.tuples(*[st.integers(1, 2) for _ in shape]))
    whole = np.zeros([shape[axis] * steps[axis] for axis in order], dtype)
    view = whole.transpose(np.argsort(order))[tuple(slice(None, None, step) for step in steps)]
    assert view.shape == tuple(shape)
    view[...] = np.random.default_rng(draw(st.integers(0, 99))).normal(size=shape)
    return view


@st.composite
def problems(draw):
    lead = draw(st.lists(st.integers(1, 3), max_size=3))
    m, k, n = draw(st.tuples(*[st.integers(1, 4)] * 3))
    dtype = draw(st.sampled_from(["float64", "float32"]))
    return [draw(strided((*lead, *size), dtype)) for size in ((m, k), (k, n), (m, n))]


@given(problem=problems(), most=st.sampled_from([2, 65535]), calls=st.sampled_from([1, 16]))
def test_any_strides_give_the_product(device, products, problem, most, calls):
    a, b, out = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "MOST_MATRICES", most)
        patch.setattr(products, "MOST_CALLS", calls)
        there = device.ndarray(out)
        assert products.matmul(device.ndarray(a), device.ndarray(b), there) is there
    tolerance = 1e-12 if out.dtype == np.float64 else 1e-5
    np.testing.assert_allclose(out, a @ b, rtol=tolerance, atol=10 * tolerance)


def test_neighbours_of_the_result_are_left_alone(device, products):
    whole = np.zeros((2, 3, 9))
    a, b = np.ones((2, 3, 4)), np.ones((2, 4, 3))
    products.matmul(*map(device.ndarray, (a, b, whole[..., 3:6])))
    np.testing.assert_array_equal(whole, 4 * np.repeat([0, 1, 0], 3) * np.ones((2, 3, 1)))


@pytest.mark.parametrize("heads", [1, 3])
def test_heads_side_by_side_are_read_and_written_where_they_are(device, products, calls, heads):
    R, B, N, h = 2, 4, 5, 3
    qkv = device.asarray(np.random.default_rng(0).normal(size=(R, B, N, 3, heads, h)))
    q, k, v = (qkv[:, :, :, i].swapaxes(2, 3) for i in range(3))
    S = products.matmul(q, k.swapaxes(-2, -1), device.empty((R, B, heads, N, N), np.float64))
    o = device.empty((R, B, N, heads, h), np.float64).swapaxes(2, 3)
    products.matmul(S.swapaxes(-2, -1), v, o)
    assert calls == {"gemm": 2 * heads, "copies": 0}
    q, k, v, S, o = map(device.asnumpy, (q, k, v, S, o))
    np.testing.assert_allclose(S, q @ k.swapaxes(-2, -1))
    np.testing.assert_allclose(o, S.swapaxes(-2, -1) @ v)


@pytest.mark.parametrize("transposed", list(itertools.product([False, True], repeat=2)))
def test_a_transposed_matrix_is_not_copied(device, products, calls, transposed):
    rng = np.random.default_rng(1)
    sides = []
    for shape, turn in zip(((6, 4), (4, 5)), transposed, strict=True):
        x = rng.normal(size=(3, *(shape[::-1] if turn else shape)))
        sides.append(x.swapaxes(-2, -1) if turn else x)
    out = device.empty((3, 6, 5), np.float64)
    products.matmul(*map(device.ndarray, sides), out)
    np.testing.assert_allclose(device.asnumpy(out), sides[0] @ sides[1])
    assert calls == {"gemm": 1, "copies": 0}


def test_many_small_calls_become_copies_and_one(device, products, calls):
    whole = np.random.default_rng(2).normal(size=(5, 8, 9, 3, 4, 2))
    a = device.ndarray(whole[..., 0])[:, ::2, ::2]
    out = device.empty((5, 4, 5, 3, 3), np.float64)
    products.matmul(a, a.swapaxes(-2, -1), out)
    a = device.asnumpy(a)
    np.testing.assert_allclose(device.asnumpy(out), a @ a.swapaxes(-2, -1))
    assert calls == {"gemm": 1, "copies": 2}

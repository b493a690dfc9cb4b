"""What an SGD step does to W_qk, and what it keeps. The identities themselves: E4, E5."""

import dataclasses

import numpy as np
import pytest

import minattn as ma
from minattn.descent import conserved, conserved_change, cosine, product_change
from minattn.testing.strategies import build_case

CONFIG = ma.TransformerConfig(
    vocab_size=4, width=5, layers=2, heads=2, head_width=3, max_length=6, bias=True
)
CHANGES = ("cosine_to_first_order", "cosine_to_update", "first_order_to_update", "dropped")


def step_of(config=CONFIG, layer=1, **changed):
    case = build_case(config, replicas=2, batch_size=3, length=6, mask="bidirectional")
    params = case.params | changed
    _, grads, tape = ma.loss_and_grad(config, params, case.batch)
    return params, grads, ma.implicit_update(config, params, tape, layer)


def after(params, grads, eta):
    sgd = ma.SGD(lr=eta)
    return sgd.step(params, grads, sgd.init(params))[0]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("eta", [0.0, 0.5, 30.0])
def test_change_and_conserved_quantity_of_a_real_step(bias, eta):
    config = dataclasses.replace(CONFIG, bias=bias)
    params, grads, update = step_of(config)
    moved = after(params, grads, eta)
    change = product_change(params, update, eta)
    found = ma.W_qk(moved, 1, per_head=True) - ma.W_qk(params, 1, per_head=True)
    assert change.total.shape == (2, 2, 5, 5)
    np.testing.assert_allclose(change.total, found, atol=1e-12 * max(1, eta**2))
    np.testing.assert_allclose(change.update, update.total, atol=1e-15)
    kept = conserved(moved, 1) - conserved(params, 1)
    assert kept.shape == (2, 2, 3, 3)
    found = conserved_change(params, update, eta)
    np.testing.assert_allclose(found, kept, atol=1e-12 * max(1, eta**2))


def test_conserved_by_hand():
    params, _, _ = step_of()
    W_q, W_k, b_q, b_k = (params[f"layers.1.{name}"][1, ..., 0, :] for name in
                          ("W_q", "W_k", "b_q", "b_k"))  # fmt: skip
    expected = W_q.T @ W_q - W_k.T @ W_k + np.outer(b_q, b_q) - np.outer(b_k, b_k)
    np.testing.assert_allclose(conserved(params, layer=1)[1, 0], expected, atol=1e-14)
    np.testing.assert_array_equal(conserved(params), conserved(params, layer=0))


def test_biases_count():
    """Without their part, the change of W_qk is another."""
    params, _, update = step_of()
    bare = {name: value for name, value in params.items() if ".b_" not in name}
    one, other = (product_change(p, update, 1.0).first_order for p in (params, bare))
    assert abs(one - other).max() > 1e-4


def test_orders_in_eta():
    params, _, update = step_of()
    small, large = (product_change(params, update, eta) for eta in (1e-3, 1.0))
    np.testing.assert_allclose(large.first_order, 1e3 * small.first_order, rtol=1e-12)
    np.testing.assert_allclose(large.second_order, 1e6 * small.second_order, rtol=1e-12)
    kept = [conserved_change(params, update, eta) for eta in (1e-3, 1.0)]
    np.testing.assert_allclose(kept[1], 1e6 * kept[0], rtol=1e-12)


def test_cosines_say_what_the_remark_drops():
    """Small steps mend the second order, not the factors: they turn the direction."""
    params, _, update = step_of()
    small, large = (product_change(params, update, eta) for eta in (1e-6, 100.0))
    assert (small.cosine_to_first_order > 1 - 1e-10).all()
    assert (small.dropped < 1e-5).all()
    assert (large.dropped > 0.1).all()
    for r, head in np.ndindex(2, 2):
        part, whole = (np.linalg.norm(M[r, head]) for M in (large.second_order, large.total))
        assert large.dropped[r, head] == pytest.approx(part / whole)
    assert (large.cosine_to_first_order < 0.999).all()
    np.testing.assert_allclose(small.cosine_to_update, small.first_order_to_update, atol=1e-6)
    assert (small.first_order_to_update < 0.99).all()
    assert (small.first_order_to_update > 0).all()


def test_the_remark_holds_for_orthogonal_factors_and_small_steps():
    config = dataclasses.replace(CONFIG, head_width=5, bias=False)
    draws = np.random.default_rng(0).standard_normal((2, 2, 2, 5, 5))
    W_q, W_k = np.linalg.qr(draws)[0].swapaxes(2, 3)  # (R, d, H, h)
    params, _, update = step_of(config, **{"layers.1.W_q": W_q, "layers.1.W_k": W_k})
    change = product_change(params, update, 1e-6)
    assert (change.cosine_to_update > 1 - 1e-9).all()
    assert (product_change(params, update, 100.0).cosine_to_update < 0.999).all()


def test_nothing_moves_gives_nan():
    params, _, update = step_of()
    change = product_change(params, update, 0.0)
    for name in CHANGES:
        assert np.isnan(getattr(change, name)).all()


def test_cosine():
    A = np.random.default_rng(0).standard_normal((3, 4, 4))
    np.testing.assert_allclose(cosine(A, 2 * A), 1)
    np.testing.assert_allclose(cosine(A, -A), -1)
    np.testing.assert_allclose(cosine(A + A.swapaxes(1, 2), A - A.swapaxes(1, 2)), 0, atol=1e-15)
    tiny = np.float32(1e-30) * A.astype(np.float32)  # squares of it are zero
    np.testing.assert_allclose(cosine(tiny, A.astype(np.float32)), 1, rtol=1e-6)
    assert np.isnan(cosine(np.zeros((2, 2)), np.eye(2)))
    assert cosine([[-1, -2], [-3, -4]], [[-2, -4], [-6, -8]]) == pytest.approx(1)


def test_rounding_leaves_a_cosine_within_its_range():
    A = np.random.default_rng(0).standard_normal((1000, 3, 3))
    for B in (A, -A):
        assert (abs(cosine(A, B)) <= 1).all()


@pytest.mark.parametrize("function", [product_change, conserved_change])
def test_bad_arguments_of_a_step(function):
    params, _, update = step_of()
    for eta in (-1, np.inf, True):
        with pytest.raises(ValueError, match=r"^eta: got "):
            function(params, update, eta)
    with pytest.raises(ValueError, match=r"^update: got ndarray"):
        function(params, update.total, 1.0)
    with pytest.raises(ValueError, match=r"^layer: got 7"):
        function(params, dataclasses.replace(update, layer=7), 1.0)
    fewer = {name: value[:1] for name, value in params.items()}
    with pytest.raises(ValueError, match=r"^update: got 2 replicas, 2 heads, width 5, needs 1, 2"):
        function(fewer, update, 1.0)


def test_bad_arguments():
    params, _, _ = step_of()
    with pytest.raises(ValueError, match=r"^layer: got 2"):
        conserved(params, layer=2)
    with pytest.raises(ValueError, match=r"^A, B: got the shapes"):
        cosine(np.eye(2), np.eye(3))


def test_a_cosine_does_not_depend_on_the_size_of_the_matrices_beside_it():
    M = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    for kind, size in ((np.float32, 1e30), (np.float64, 1e200)):
        sizes = np.array([1 / size, size], kind)[:, None, None]
        np.testing.assert_allclose(cosine(sizes * M, M[None] * np.ones_like(sizes)), 1, rtol=1e-6)


@pytest.mark.parametrize("bias", [False, True])
def test_float32_is_kept(bias):
    config = dataclasses.replace(CONFIG, bias=bias)
    single = {name: p.astype(np.float32) for name, p in ma.init_params(config, 2).items()}
    params, _, update = step_of(config, **single)
    change = product_change(params, update, 0.5)
    found = [change.total, change.update, conserved(params), conserved_change(params, update, 0.5)]
    assert {array.dtype for array in found} == {np.dtype(np.float32)}

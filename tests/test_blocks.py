"""Tokens and positions: the four blocks of a form on x = E[token] + P[position]."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minattn as ma
from minattn.blocks import PARTS, Blocks, form_blocks, grouped_coefficients, update_blocks
from minattn.testing.strategies import build_case, cases

CONFIG = ma.TransformerConfig(vocab_size=4, width=6, layers=2, heads=2, max_length=5)
BLOCKS = ("token_token", "token_position", "position_token", "position_position")


def update_of(case, layer=0):
    config, params, _ = case
    return ma.implicit_update(config, params, ma.loss_and_grad(*case)[2], layer)


def stacked(blocks):
    """The form on the rows of E and P stacked."""
    top, bottom = (
        np.concatenate([getattr(blocks, name) for name in names], axis=-1)
        for names in (BLOCKS[:2], BLOCKS[2:])
    )
    return np.concatenate([top, bottom], axis=-2)


@pytest.mark.parametrize("norm", ["none", "post"])
def test_blocks_are_the_form_on_embeddings(norm):
    config = dataclasses.replace(CONFIG, norm=norm)
    case = build_case(config, replicas=2, length=4)
    params = case.params
    M = ma.W_qk(params)
    blocks = form_blocks(config, params, length=4)
    E, P = params["token_embedding"], params["position_embedding"][:, :4]
    for name, left, right in zip(BLOCKS, (E, E, P, P), (E, P, E, P), strict=True):
        expected = np.einsum("rsd,rde,rte->rst", left, M, right)
        np.testing.assert_allclose(getattr(blocks, name), expected, atol=1e-13)
    assert form_blocks(config, params).position_position.shape == (2, 5, 5)


@given(case=cases(norm=st.sampled_from(("none", "post")), positions=True, bias=False))
def test_blocks_make_up_the_scores_of_layer_0(case):
    """x_i W_qk x_j^T is the sum of four entries, whatever the tokens."""
    config, params, batch = case
    _, tape = ma.forward(config, params, batch.inputs, batch.mask, tape=True)
    blocks = form_blocks(config, params)
    x = tape.layers[0].attention.x.reshape(*batch.inputs.shape, -1)
    for r, b in np.ndindex(batch.inputs.shape[:2]):
        t, n = batch.inputs[r, b], np.arange(batch.inputs.shape[-1])
        found = sum(
            getattr(blocks, name)[r][np.ix_(query, key)]
            for name, (query, key) in zip(BLOCKS, ((t, t), (t, n), (n, t), (n, n)), strict=True)
        )
        expected = x[r, b] @ ma.W_qk(params)[r] @ x[r, b].T
        np.testing.assert_allclose(found, expected, atol=1e-12 * (1 + abs(expected).max()))


def test_shares_and_symmetries():
    case = build_case(CONFIG, replicas=3, length=5, seed=4)
    blocks = form_blocks(CONFIG, case.params)
    assert set(blocks.share) == set(blocks.energy) == set(PARTS)
    np.testing.assert_allclose(sum(blocks.share.values()), 1)
    whole = stacked(blocks)
    found = blocks.symmetry
    np.testing.assert_allclose(found["whole"], ma.symmetry(whole), atol=1e-13)
    np.testing.assert_allclose(found["token"], ma.symmetry(blocks.token_token), atol=1e-13)
    np.testing.assert_allclose(found["position"], ma.symmetry(blocks.position_position), atol=1e-13)
    cross = whole.copy()
    cross[:, :5, :5], cross[:, 5:, 5:] = 0, 0
    np.testing.assert_allclose(found["cross"], ma.symmetry(cross), atol=1e-13)
    assert all((abs(value) > 1e-3).all() for value in found.values())


@pytest.mark.parametrize("sign", [1, -1])
def test_a_symmetric_or_skew_form_is_so_in_every_part(sign):
    config = dataclasses.replace(CONFIG, heads=1, head_width=None)
    params = build_case(config, length=5).params
    R = np.random.default_rng(0).standard_normal((6, 6))
    params |= {"layers.0.W_q": (R + sign * R.T)[None, :, None],
               "layers.0.W_k": np.eye(6)[None, :, None]}  # fmt: skip
    for value in form_blocks(config, params).symmetry.values():
        np.testing.assert_allclose(value, sign, atol=1e-12)


def test_the_change_and_the_zero_form():
    params = build_case(CONFIG, replicas=2).params
    initial = build_case(CONFIG, replicas=2, seed=1).params
    blocks = form_blocks(CONFIG, params, initial=initial)
    change = ma.W_qk(params) - ma.W_qk(initial)
    P = params["position_embedding"]
    expected = P @ change @ P.swapaxes(1, 2)
    np.testing.assert_allclose(blocks.position_position, expected, atol=1e-13)
    nothing = form_blocks(CONFIG, params, initial=params)
    for values in (nothing.share, nothing.symmetry):
        assert all(np.array_equal(value, [0, 0]) for value in values.values())


@pytest.mark.parametrize("size", [1, 1e-100])
def test_shares_do_not_depend_on_the_size_of_the_form(size):
    blocks = Blocks(*(np.full((2, 2), number) * size for number in (1, 2, 3, 4)))
    shares = {name: value.item() for name, value in blocks.share.items()}
    assert shares == pytest.approx({"token": 4 / 120, "position": 64 / 120, "cross": 52 / 120})
    assert blocks.symmetry["cross"] == pytest.approx(2 * 24 / 52)


@given(case=cases(norm=st.sampled_from(("none", "post")), positions=True))
def test_grouped_coefficients_make_up_the_update(case):
    """Ghat = F^T B F, F = [E; P]: what tokens and positions contribute; B counted by loops."""
    config, params, batch = case
    update = update_of(case)
    B = grouped_coefficients(config, update)
    N = batch.inputs.shape[-1]
    F = np.concatenate([params["token_embedding"], params["position_embedding"][:, :N]], axis=1)
    found = F[:, None].swapaxes(-2, -1) @ stacked(B) @ F[:, None]
    np.testing.assert_allclose(found, update.total, atol=1e-11 * (1 + abs(update.total).max()))
    counted = np.zeros_like(B.token_position)
    for r, b, head, i, j in np.ndindex(update.beta.shape):
        counted[r, head, batch.inputs[r, b, i], j] += update.beta[r, b, head, i, j]
    np.testing.assert_allclose(B.token_position, counted, atol=1e-11 * (1 + abs(counted).max()))


def test_update_blocks_are_of_each_head():
    case = build_case(CONFIG, replicas=2, batch_size=2, length=5)
    update = update_of(case)
    blocks = update_blocks(CONFIG, case.params, update, length=3)
    E, P = case.params["token_embedding"], case.params["position_embedding"][:, :3]
    expected = np.einsum("rsd,rhde,rte->rhst", P, update.total, E)
    np.testing.assert_allclose(blocks.position_token, expected, atol=1e-14)
    assert blocks.share["token"].shape == (2, 2)


def test_queries_of_one_masked_layer_are_all_the_mask_symbol():
    """So tokens as queries write into Ghat by a single row, and positions by all of theirs."""
    config = dataclasses.replace(CONFIG, layers=1, vocab_size=6)
    tokens = np.random.default_rng(0).integers(6, size=(40, 5))
    batch = ma.MaskedToken(rate=0.4, mask_symbol=6)(tokens, np.random.default_rng(1))
    update = update_of(build_case(config)._replace(batch=batch))
    B = grouped_coefficients(config, update)
    assert not B.token_token[..., :6, :].any()
    assert B.token_token[..., 6, :].any(axis=-1).all()
    assert B.position_position.any(axis=-1).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"norm": "pre"}, r"^norm: got 'pre', needs 'none' or 'post'"),
        ({"positions": False}, r"^positions: got False, needs a model with position embeddings"),
    ],
)
def test_where_x_is_no_sum(changed, message):
    config = dataclasses.replace(CONFIG, **changed)
    case = build_case(config, length=5)
    update = update_of(case)
    for call in (
        lambda: form_blocks(config, case.params),
        lambda: update_blocks(config, case.params, update),
        lambda: grouped_coefficients(config, update),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_bad_arguments():
    case = build_case(CONFIG, length=5)
    params, upper = case.params, update_of(case, layer=1)
    for call in (
        lambda: form_blocks(CONFIG, params, layer=1),
        lambda: update_blocks(CONFIG, params, upper),
        lambda: grouped_coefficients(CONFIG, upper),
    ):
        with pytest.raises(ValueError, match=r"^layer: got 1, needs 0"):
            call()
    for call in (
        lambda: form_blocks(CONFIG, {}),
        lambda: update_blocks(CONFIG, {}, update_of(case)),
    ):
        with pytest.raises(ValueError, match=r"^params: got names"):
            call()
    with pytest.raises(ValueError, match=r"^initial: got names"):
        form_blocks(CONFIG, params, initial={})
    broken = dataclasses.replace(update_of(case), layer=0.0)
    for call in (
        lambda: form_blocks(CONFIG, params, layer=0.0),
        lambda: grouped_coefficients(CONFIG, broken),
    ):
        with pytest.raises(ValueError, match=r"^layer: got 0\.0"):
            call()
    for length in (0, 6, 1.5):
        with pytest.raises(ValueError, match=r"^length: got "):
            form_blocks(CONFIG, params, length=length)
    two = build_case(CONFIG, replicas=2, length=5)
    with pytest.raises(ValueError, match=r"^initial: got 2 replicas, needs 1"):
        form_blocks(CONFIG, params, initial=two.params)
    with pytest.raises(ValueError, match=r"^update: got 2 replicas, needs 1"):
        update_blocks(CONFIG, params, update_of(two))
    with pytest.raises(ValueError, match=r"^update: got ndarray"):
        grouped_coefficients(CONFIG, upper.total)
    smaller = dataclasses.replace(CONFIG, vocab_size=1)
    with pytest.raises(ValueError, match=r"^update: got width 6 and the token"):
        grouped_coefficients(smaller, update_of(case))


def test_float32_is_kept():
    case = build_case(CONFIG, length=4)
    case = case._replace(params={n: p.astype(np.float32) for n, p in case.params.items()})
    update = update_of(case)
    for blocks in (
        form_blocks(CONFIG, case.params),
        update_blocks(CONFIG, case.params, update),
        grouped_coefficients(CONFIG, update),
    ):
        assert {getattr(blocks, name).dtype for name in BLOCKS} == {np.dtype(np.float32)}

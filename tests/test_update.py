"""The implicit update: identities against loops, and a proof that wrong code does not pass."""

import dataclasses

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minattn as ma
import minattn.update
from minattn.engines import Reference
from minattn.engines.numba_cpu import NumbaCPU
from minattn.terms import weighted_outer_sum, weighted_rows
from minattn.testing.strategies import build_case, cases

CONFIG = ma.TransformerConfig(
    vocab_size=5, width=6, layers=3, heads=2, head_width=3, max_length=6, feed_forward=4
)
VARIANTS = [
    dataclasses.replace(CONFIG, attention=attention, norm=norm, bias=bias)
    for attention in ("softmax", "linear")
    for norm in ("none", "pre", "post")
    for bias in (False, True)
]
variants = pytest.mark.parametrize(
    "config", VARIANTS, ids=lambda c: f"{c.attention}-{c.norm}-{'bias' if c.bias else 'plain'}"
)


def updates_of(case, engine="auto"):
    """The implicit update of every layer."""
    config, params, _ = case
    _, _, tape = ma.loss_and_grad(*case, engine=engine)
    return [ma.implicit_update(config, params, tape, layer) for layer in range(config.layers)], tape


def rounding(update):
    """Relative error (R,) that rounding may leave.

    beta is a difference of terms of order one, and Ghat is smaller than the sum of its terms' sizes
    where keys are alike, as the coefficients of a query sum to zero.
    """
    size = abs(update.beta).max(axis=(1, 2, 3, 4))
    lengths = np.linalg.norm(update.x, axis=-1)
    terms = np.einsum("rbhij,rbi,rbj->r", abs(update.beta), lengths, lengths)
    left = np.linalg.norm(update.total.reshape(len(size), -1), axis=-1)
    cancellation = np.maximum(terms, 1e-300) / np.maximum(left, 1e-300)
    return 1e-12 + 1e-14 * cancellation / np.maximum(size, 1e-300)


def largest(array):
    return max(abs(array).max(), 1e-300)


@settings(max_examples=40)
@given(case=cases())
def test_total_and_coefficients_against_loops(engine, case):
    """E1 in loops, E2 in either order, with A, G and v of the tape."""
    config, _, batch = case
    found, tape = updates_of(case, engine)
    allowed = naive.pairs(batch.mask, batch.inputs.shape[-1])
    for update, layer in zip(found, tape.layers, strict=True):
        taped = layer.attention
        R, B, H, N, _ = update.beta.shape
        assert update.x.shape == (R, B, N, config.width)
        assert np.array_equal(update.tokens, batch.inputs)
        assert np.array_equal(update.allowed, allowed)
        assert (update.beta[..., ~allowed] == 0).all()
        for r, head in np.ndindex(R, H):
            total = np.zeros((config.width, config.width))
            for b in range(B):
                A, G, v = (array[r, b, head] for array in (taped.A, taped.output_gradient, taped.v))
                beta = naive.beta(A, G, v, allowed, config.attention)
                np.testing.assert_allclose(
                    update.beta[r, b, head], beta, atol=1e-13 * max(largest(G @ v.T), 1)
                )
                total += naive.outer_sum(update.x[r, b], update.beta[r, b, head])
            np.testing.assert_allclose(
                update.total[r, head], total, atol=1e-12 * max(largest(total), 1)
            )


@settings(max_examples=60)
@given(case=cases(), data=st.data())
def test_proof_of_random_cases(engine, case, data):
    """E1 as a derivative, in any layer of any model."""
    layer = data.draw(st.integers(0, case.config.layers - 1))
    update = updates_of(case)[0][layer]
    proof = ma.prove_update(*case, layer=layer, seed=data.draw(st.integers(0, 9)), engine=engine)
    assert (proof.residual <= 100 * rounding(update)).all()


@variants
@pytest.mark.parametrize("mask", ["causal", "strictly_causal", "bidirectional", "custom"])
def test_proof_and_residual_of_every_layer(engine, config, mask):
    """E1 and E3."""
    if mask == "custom":  # an empty row, a key that nobody sees, one key only
        mask = np.random.default_rng(3).random((6, 6)) < 0.6
        mask[2], mask[:, 4], mask[1] = False, False, np.arange(6) == 3
    case = build_case(config, replicas=2, batch_size=2, length=6, mask=mask, seed=1)
    for layer, update in enumerate(updates_of(case, engine)[0]):
        proof = ma.prove_update(*case, layer=layer, seed=layer, engine=engine)
        assert proof.predicted.shape == proof.measured.shape == (2,)
        assert abs(proof.measured).min() > 1e-6
        assert proof.residual.max() <= 1e-10
        assert update.residual.max() <= 1e-12


@given(case=cases())
def test_residual_of_random_cases(engine, case):
    """E3."""
    for update in updates_of(case, engine)[0]:
        assert (update.residual <= rounding(update)).all()


@variants
def test_residual_is_of_the_gradients(config):
    """E3 written out, and what the residual says when a gradient is off by a hundredth."""
    case = build_case(config, replicas=2, batch_size=2, length=5)
    params = case.params
    _, tape = updates_of(case)
    for layer in range(config.layers):
        start = f"layers.{layer}."
        update = ma.implicit_update(config, params, tape, layer)
        down_q = np.einsum("rhde,rehk->rdhk", update.total, params[start + "W_k"])
        down_k = np.einsum("rhed,rehk->rdhk", update.total, params[start + "W_q"])
        if config.bias:
            one = np.einsum("rbhij,rbid,rhk->rdhk", update.beta, update.x, params[start + "b_k"])
            other = np.einsum("rbhij,rbjd,rhk->rdhk", update.beta, update.x, params[start + "b_q"])
            assert (abs(one).max() < 1e-13) == (config.attention == "softmax")
            assert abs(other).max() > 1e-6
            down_q, down_k = down_q + one, down_k + other
        for name, down in (("W_q", down_q), ("W_k", down_k)):
            gradient = tape.grads[start + name]
            np.testing.assert_allclose(-gradient, down, atol=1e-12 * largest(down))
            gradient[1] *= 1.01
            off = ma.implicit_update(config, params, tape, layer).residual
            gradient[1] /= 1.01
            assert off[0] < 1e-12
            assert 1e-4 < off[1] < 1e-2


@pytest.mark.parametrize(("times", "residual"), [(0, 1), (4, 0.75)])
def test_a_residual_is_relative_to_the_larger_side(times, residual):
    case = build_case(CONFIG, length=5)
    _, tape = updates_of(case)
    for gradient in tape.grads.values():
        gradient *= times
    found = ma.implicit_update(CONFIG, case.params, tape).residual
    np.testing.assert_allclose(found, [residual], rtol=1e-9)


@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_the_magnitudes_of_coefficients_before_they_cancel(attention):
    config = dataclasses.replace(CONFIG, attention=attention)
    _, tape = updates_of(build_case(config, replicas=2, batch_size=2, length=4))
    found, part = ma.update._uncancelled(config, tape, 0), tape.layers[0].attention
    for *lead, i, j in np.ndindex(found.shape):
        e = abs(part.v[tuple(lead)] @ part.output_gradient[(*lead, i)]) * tape.allowed[i]
        A = part.A[(*lead, i)]
        expected = A[j] * (e[j] + A @ e) if attention == "softmax" else e[j]
        np.testing.assert_allclose(found[(*lead, i, j)], expected / 3**0.5, rtol=1e-12)


@given(case=cases(attention="softmax"))
def test_softmax_rows_sum_to_zero(engine, case):
    """E6; and no update from a query with one key or none."""
    few = naive.pairs(case.batch.mask, case.batch.inputs.shape[-1]).sum(axis=1) <= 1
    for update in updates_of(case, engine)[0]:
        assert abs(update.beta.sum(axis=-1)).max() <= 1e-13 * max(largest(update.beta), 1)
        assert abs(update.beta[..., few, :]).max(initial=0) <= 1e-15 * max(largest(update.beta), 1)


def test_linear_rows_do_not_sum_to_zero_and_factor_through_the_keys(engine):
    """E7: beta_ij = x_j delta_i with delta_i = -W_v G_i^T / sqrt(h)."""
    config = dataclasses.replace(CONFIG, attention="linear")
    case = build_case(config, replicas=2, batch_size=2, length=5)
    found, tape = updates_of(case, engine)
    for number, update in enumerate(found):
        G = tape.layers[number].attention.output_gradient
        W_v = case.params[f"layers.{number}.W_v"]
        delta = -np.einsum("rdhk,rbhik->rbhid", W_v, G) / np.sqrt(config.h)
        expected = np.einsum("rbjd,rbhid->rbhij", update.x, delta) * update.allowed
        np.testing.assert_allclose(update.beta, expected, atol=1e-13 * largest(expected))
        assert abs(update.beta.sum(axis=-1)).max() > 1e-3 * largest(update.beta)


@given(case=cases())
def test_parts_add_up_to_the_total(engine, case):
    """The parts by symbol as key and as query (E11) and by symmetry; the mask symbol is one."""
    symbols = range(case.config.vocab_size + 1)
    for update in updates_of(case, engine)[0]:
        total, scale = update.total, 1e-12 * max(largest(update.total), 1e-3)
        for parts in (
            [update.as_context(symbol) for symbol in symbols],
            [update.as_query(symbol) for symbol in symbols],
            [update.symmetric, update.skew],
        ):
            np.testing.assert_allclose(sum(parts), total, atol=scale)
        assert np.array_equal(update.symmetric, update.symmetric.swapaxes(-1, -2))
        assert np.array_equal(update.skew, -update.skew.swapaxes(-1, -2))


def test_parts_by_symbol_against_loops():
    case = build_case(CONFIG, replicas=2, batch_size=2, length=5, mask="bidirectional")
    update = updates_of(case)[0][1]
    for symbol in (0, 3, CONFIG.mask_symbol):
        as_key, as_query = np.zeros_like(update.total), np.zeros_like(update.total)
        for r, b, head, i, j in np.ndindex(update.beta.shape):
            x, tokens = update.x[r, b], update.tokens[r, b]
            term = update.beta[r, b, head, i, j] * np.outer(x[i], x[j])
            as_key[r, head] += (tokens[j] == symbol) * term
            as_query[r, head] += (tokens[i] == symbol) * term
        np.testing.assert_allclose(update.as_context(symbol), as_key, atol=1e-14)
        np.testing.assert_allclose(update.as_query(symbol), as_query, atol=1e-14)
        assert as_key.any()
        assert as_query.any()


def test_key_and_query_parts_have_rank_one_only_where_x_depends_on_the_symbol_alone():
    """E11: layer 0 without positions."""
    for positions, layer, rank_one in ((False, 0, True), (True, 0, False), (False, 1, False)):
        config = dataclasses.replace(CONFIG, positions=positions)
        case = build_case(config, batch_size=3, length=6, mask="bidirectional")
        update = updates_of(case)[0][layer]
        for part in (update.as_context(1), update.as_query(1)):
            sizes = np.linalg.svd(part[0], compute_uv=False)
            assert ((sizes[:, 1] < 1e-13 * sizes[:, 0]) == rank_one).all()


@given(case=cases(mask="bidirectional", layers=2))
def test_agreement_against_counting(engine, case):
    for update in updates_of(case, engine)[0]:
        value, pairs = update.agreement()
        for r in range(len(value)):
            product, energy, count = 0.0, 0.0, 0
            for beta in update.beta[r].reshape(-1, *update.beta.shape[-2:]):
                for i in range(len(beta)):
                    for j in range(i + 1, len(beta)):
                        if beta[i].any() and beta[j].any():
                            product += 2 * beta[i, j] * beta[j, i]
                            energy += beta[i, j] ** 2 + beta[j, i] ** 2
                            count += 1
            assert pairs[r] == count
            np.testing.assert_allclose(value[r], product / energy if energy else np.nan)


def agreement_of(beta, allowed=None):
    N = beta.shape[-1]
    allowed = np.ones((N, N), bool) if allowed is None else allowed
    beta = np.where(allowed, beta, 0).reshape(1, 1, 1, N, N)
    x, tokens = np.zeros((1, 1, N, 2)), np.zeros((1, 1, N), int)
    value, pairs = ma.terms.ImplicitUpdate(x, beta, tokens, allowed, np.zeros(1)).agreement()
    assert pairs.dtype == int
    return value[0], pairs[0]


def test_agreement_by_hand():
    M = np.random.default_rng(0).standard_normal((4, 4))
    np.testing.assert_allclose(agreement_of(M + M.T), (1, 6))
    np.testing.assert_allclose(agreement_of(M - M.T), (-1, 6))
    assert agreement_of(np.array([[9.0, 2], [1, 9]])) == (2 * 2 / 5, 1)
    assert agreement_of(np.array([[0.0, 3], [0, 0]]))[1] == 0  # the second query gets no gradient
    one_way = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 1]], bool)  # only 0 and 1 see each other
    assert agreement_of(np.ones((3, 3)), one_way) == (1, 1)


@pytest.mark.parametrize("mask", ["causal", "strictly_causal"])
def test_agreement_is_undefined_under_causal_masks(mask):
    case = build_case(CONFIG, replicas=2, batch_size=2, length=5, mask=mask)
    for update in updates_of(case)[0]:
        value, pairs = update.agreement()
        assert np.isnan(value).all()
        assert pairs.dtype == int
        assert np.array_equal(pairs, [0, 0])


def test_agreement_in_one_masked_layer_is_between_masked_positions_only():
    config = dataclasses.replace(CONFIG, layers=1)
    tokens = np.random.default_rng(0).integers(5, size=(1, 4, 6))
    batch = ma.MaskedToken(rate=0.5, mask_symbol=5)(tokens, np.random.default_rng(1))
    masked = batch.weights[0].sum(axis=1)
    case = build_case(config)._replace(batch=batch)
    _, pairs = updates_of(case)[0][0].agreement()
    assert pairs[0] == config.heads * (masked * (masked - 1) / 2).sum() > 0
    deeper = build_case(CONFIG)._replace(batch=batch)
    assert updates_of(deeper)[0][0].agreement()[1] == config.heads * 4 * 15


# Wrong code must show.

WRONG_BACKWARD = {
    "not centred": lambda A, e, allowed, scale: scale * A * np.where(allowed, e, 0),
    "not scaled": lambda A, e, allowed, scale: centred(A, e, allowed),
    "sign": lambda A, e, allowed, scale: -scale * centred(A, e, allowed),
    "transposed": lambda A, e, allowed, scale: scale * centred(A, e, allowed).swapaxes(-1, -2),
    "a plain mean": lambda A, e, allowed, scale: scale * A * (e - e.mean(axis=-1, keepdims=True)),
}


def centred(A, e, allowed):
    e = np.where(allowed, e, 0)
    return A * (e - (A * e).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("fault", WRONG_BACKWARD)
@pytest.mark.parametrize("norm", ["none", "pre"])
def test_a_wrong_softmax_backward_shows(engine, fault, norm, monkeypatch):
    def wrong(self, weights, d_weights, allowed, scale, out=None):
        value = WRONG_BACKWARD[fault](weights, d_weights, allowed, scale)
        if out is None:
            return value
        out[...] = value
        return out

    for kind in (Reference, NumbaCPU):
        monkeypatch.setattr(kind, "masked_softmax_backward", wrong)
    config = dataclasses.replace(CONFIG, norm=norm)
    case = build_case(config, replicas=2, batch_size=2, length=6)
    for layer, update in enumerate(updates_of(case, engine)[0]):
        assert update.residual.min() > 0.05
        proof = ma.prove_update(*case, layer=layer, engine=engine)
        if layer == config.layers - 1:  # beta is made of A, v and G, which are still right
            assert proof.residual.max() < 1e-10
        else:
            assert proof.residual.min() > 1e-5


def coefficients_with(fault):
    right = minattn.update.coefficients

    def wrong(A, G, v, allowed, attention):
        e = np.where(allowed, G @ v.swapaxes(-2, -1), 0)
        root = np.sqrt(v.shape[-1])
        return {
            "sign": lambda: -right(A, G, v, allowed, attention),
            "transposed": lambda: right(A, G, v, allowed, attention).swapaxes(-2, -1),
            "without the root": lambda: right(A, G, v, allowed, attention) * root,
            "not centred": lambda: -A * e / root,
            "linear": lambda: -e / root,
            "one entry": lambda: (
                right(A, G, v, allowed, attention)
                * np.where(np.arange(e.size).reshape(e.shape) == 0, 1 + 1e-6, 1)
            ),
        }[fault]()

    return wrong


@pytest.mark.parametrize(
    "fault", ["sign", "transposed", "without the root", "not centred", "linear"]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_wrong_beta_shows_in_the_proof(fault, seed, monkeypatch):
    case = build_case(CONFIG, replicas=2, batch_size=2, length=6, mask="bidirectional")
    monkeypatch.setattr(minattn.update, "coefficients", coefficients_with(fault))
    for layer in range(CONFIG.layers):
        assert ma.prove_update(*case, layer=layer, seed=seed).residual.min() > 1e-3
        assert updates_of(case)[0][layer].residual.min() > 1e-3


def test_one_coefficient_off_by_a_millionth_shows_in_the_proof(monkeypatch):
    case = build_case(CONFIG, mask="bidirectional", length=6)
    monkeypatch.setattr(minattn.update, "coefficients", coefficients_with("one entry"))
    assert ma.prove_update(*case).residual.min() > 1e-10


def test_directions_of_the_proof():
    case = build_case(CONFIG, replicas=3, length=6, mask="bidirectional")
    D = ma.prove_update(*case, seed=0).direction
    assert D.shape == (3, CONFIG.heads, CONFIG.width, CONFIG.width)
    assert CONFIG.h < CONFIG.width
    assert (np.linalg.matrix_rank(D) == CONFIG.width).all()
    assert len(np.unique(D)) == D.size  # one a replica and head
    assert np.array_equal(D, ma.prove_update(*case, seed=0).direction)
    assert not np.array_equal(D, ma.prove_update(*case, seed=1).direction)
    first = {name: value[:1] for name, value in case.params.items()}
    arrays = {n: getattr(case.batch, n)[:1] for n in ("inputs", "targets", "weights")}
    alone = ma.prove_update(CONFIG, first, dataclasses.replace(case.batch, **arrays), seed=0)
    assert np.array_equal(alone.direction, D[:1])


@pytest.mark.parametrize("fault", [None, "sign", "not centred", "transposed"])
def test_directions_that_the_factors_cannot_reach(fault, monkeypatch):
    """With W_q^T D W_k = 0 no first-order change of W_q and W_k moves W_qk along D."""
    case = build_case(CONFIG, length=6, batch_size=2, mask="bidirectional")
    layer = 1
    W_q, W_k = (case.params[f"layers.{layer}.W_{n}"][0].swapaxes(0, 1) for n in "qk")
    outside_q, outside_k = (np.eye(CONFIG.width) - W @ np.linalg.pinv(W) for W in (W_q, W_k))
    M = np.random.default_rng(0).standard_normal(W_q.shape[:1] + (CONFIG.width,) * 2)
    D = outside_q @ M @ outside_k
    assert abs(W_q.swapaxes(-1, -2) @ D).max() < 1e-14
    assert abs(D @ W_k).max() < 1e-14

    class Draws:
        def standard_normal(self, shape):
            assert shape == D.shape
            return D

    monkeypatch.setattr(minattn.update, "generator", lambda *_: Draws())
    if fault is not None:
        monkeypatch.setattr(minattn.update, "coefficients", coefficients_with(fault))
    proof = ma.prove_update(*case, layer=layer)
    assert abs(proof.measured).min() > 1e-5
    if fault is None:
        assert proof.residual.max() < 1e-9
    else:
        assert proof.residual.min() > 1e-3


def test_a_proof_is_of_layer_0_and_seed_0_unless_others_are_asked_for():
    case = build_case(CONFIG, length=4)
    found, expected = ma.prove_update(*case), ma.prove_update(*case, layer=0, seed=0)
    np.testing.assert_array_equal(found.direction, expected.direction)
    np.testing.assert_array_equal(found.predicted, expected.predicted)


def test_terms_pair_up_into_symmetric_and_skew_parts():
    """E8, E10 and E13 for the terms of one sequence."""
    case = build_case(CONFIG, length=4, mask="bidirectional")
    update = updates_of(case)[0][0]
    x, beta = update.x[0, 0], update.beta[0, 0, 0]
    for i, j in zip(*np.triu_indices(4, k=1), strict=True):
        K = np.outer(x[i], x[j])
        plus, minus = (K + K.T) / 2, (K - K.T) / 2
        pair = beta[i, j] * K + beta[j, i] * K.T
        apart = (beta[i, j] + beta[j, i]) * plus + (beta[i, j] - beta[j, i]) * minus
        np.testing.assert_allclose(pair, apart, atol=1e-15)
        cosine = x[i] @ x[j] / np.linalg.norm(x[i]) / np.linalg.norm(x[j])
        np.testing.assert_allclose(ma.symmetry(beta[i, j] * K), cosine**2, atol=1e-12)
    scores = (beta + beta.T) / 2
    np.testing.assert_allclose(update.symmetric[0, 0], x.T @ scores @ x, atol=1e-14)


def test_nothing_to_learn_gives_no_update_and_no_residual():
    case = build_case(CONFIG, replicas=2, length=4)
    batch = dataclasses.replace(case.batch, weights=np.zeros(case.batch.weights.shape))
    case = case._replace(batch=batch)
    for layer in range(CONFIG.layers):
        update, proof = updates_of(case)[0][layer], ma.prove_update(*case, layer=layer)
        assert not update.total.any()
        for residual in (update.residual, proof.residual):
            assert np.array_equal(residual, [0, 0])


@pytest.mark.parametrize("mask", ["causal", "bidirectional"])
def test_an_update_is_of_the_precision_of_its_model(mask):
    case = build_case(CONFIG, replicas=2, length=4, mask=mask)
    case = case._replace(params={n: p.astype(np.float32) for n, p in case.params.items()})
    update = updates_of(case)[0][0]
    found = [update.beta, update.residual, update.total, update.query_sums, update.agreement()[0]]
    terms = update.query_terms()
    found += [terms.x, terms.spread, terms.weighted, terms.energy, *update.pair_terms()]
    assert {array.dtype for array in found} == {np.dtype(np.float32)}
    assert terms.occurrences.dtype.kind == "i"
    x, beta = update.x, update.beta
    for finer in ((x.astype(np.float64), beta), (x, beta.astype(np.float64))):
        assert weighted_rows(*finer).dtype == weighted_outer_sum(*finer).dtype == np.float64


def test_bad_arguments():
    config, params, batch = build_case(CONFIG, length=4)
    _, _, tape = ma.loss_and_grad(config, params, batch)
    for layer in (-1, 3, 0.5, True):
        with pytest.raises(ValueError, match=r"^layer: got "):
            ma.implicit_update(config, params, tape, layer)
        with pytest.raises(ValueError, match=r"^layer: got "):
            ma.prove_update(config, params, batch, layer)
    _, unfinished = ma.forward(config, params, batch.inputs, tape=True)
    for bad in (unfinished, None, tape.grads):
        with pytest.raises(ValueError, match=r"^tape: got (no backward pass|NoneType|dict), needs"):
            ma.implicit_update(config, params, bad)
    with pytest.raises(ValueError, match=r"^params: got names"):
        ma.implicit_update(config, {}, tape)
    with pytest.raises(ValueError, match=r"^seed: got -1"):
        ma.prove_update(config, params, batch, seed=-1)
    with pytest.raises(ValueError, match=r"^engine: got 'none'"):
        ma.prove_update(config, params, batch, engine="none")
    update = ma.implicit_update(config, params, tape)
    for part in (update.as_context, update.as_query):
        with pytest.raises(ValueError, match=r"^symbol: got -1"):
            part(-1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mask", ["causal", "bidirectional"])
def test_where_all_keys_say_the_same_the_residual_is_that_of_rounding(engine, bias, mask):
    config = ma.TransformerConfig(
        vocab_size=3, width=4, layers=2, heads=2, max_length=5, positions=False, bias=bias
    )
    config, params, batch = build_case(config, replicas=4, length=5, mask=mask)
    batch = dataclasses.replace(batch, inputs=np.ones_like(batch.inputs))
    tape = ma.loss_and_grad(config, params, batch, engine)[2]
    for layer in range(2):
        assert (ma.implicit_update(config, params, tape, layer).residual < 1e-8).all()


@pytest.mark.parametrize("bias", [False, True])
def test_a_residual_is_relative_to_the_magnitudes_before_they_cancel(bias, monkeypatch):
    """One term, and factors along x: nothing cancels, and the magnitudes are the sum itself."""
    x, one = np.array([3.0, 4.0]), np.ones((1, 1, 1))
    params = {f"layers.0.W_{name}": x.reshape(1, 2, 1, 1) for name in "qk"}
    if bias:
        params |= {"layers.0.b_q": one, "layers.0.b_k": one}
    x, beta = x.reshape(1, 1, 1, 2), np.full((1, 1, 1, 1, 1), -2.0)
    tokens, allowed = np.zeros((1, 1, 1), int), np.ones((1, 1), bool)
    update = ma.terms.ImplicitUpdate(x, beta, tokens, allowed, np.zeros(1))
    grads = {name: np.zeros_like(value) for name, value in params.items()}
    monkeypatch.setattr(ma.update, "CANCELLATION", 4.0)
    found = ma.update._factor_residual(params, grads, update, abs(beta))
    weights = 5 / 26**0.5 if bias else 1  # the biases' own part, which no residual has
    np.testing.assert_allclose(found, weights / 4)


@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_what_coefficients_would_be_if_nothing_cancelled(attention):
    config = dataclasses.replace(CONFIG, attention=attention)
    case = build_case(config, replicas=2, batch_size=3, length=4)
    _, _, tape = ma.loss_and_grad(*case)
    found, part = ma.update._uncancelled(config, tape, 1), tape.layers[1].attention
    for *place, i in np.ndindex(found.shape[:-1]):
        A, G, v = (array[tuple(place)] for array in (part.A, part.output_gradient, part.v))
        e = np.array([abs(G[i] @ v[j]) * tape.allowed[i, j] for j in range(4)])
        expected = e if attention == "linear" else A[i] * (e + A[i] @ e)
        np.testing.assert_allclose(found[(*place, i)], expected / config.h**0.5, atol=1e-15)


def test_a_proof_is_relative_to_the_magnitudes_before_they_cancel(monkeypatch):
    monkeypatch.setattr(ma.update, "CANCELLATION", 1e3)
    monkeypatch.setattr(ma.update, "_loss_derivative", lambda *_: np.zeros(2))
    case = build_case(CONFIG, replicas=2, batch_size=3, length=4)
    proof, (_, _, tape) = ma.prove_update(*case, layer=1), ma.loss_and_grad(*case)
    x = tape.layers[1].attention.x.reshape(2, 3, 4, 6)
    along = abs(np.einsum("rbid,rhde,rbje->rbhij", x, proof.direction, x))
    terms = (ma.update._uncancelled(CONFIG, tape, 1) * along).sum(axis=(1, 2, 3, 4))
    np.testing.assert_allclose(proof.residual, abs(proof.predicted) / (1e3 * terms))


@pytest.mark.parametrize("far", [-1e9, 0.0, 1e9])
def test_a_proof_is_relative_to_the_larger_side(far, monkeypatch):
    monkeypatch.setattr(ma.update, "_loss_derivative", lambda *_: np.full(2, far))
    proof = ma.prove_update(*build_case(CONFIG, replicas=2, batch_size=3, length=4))
    np.testing.assert_allclose(proof.residual, 1, rtol=1e-6)

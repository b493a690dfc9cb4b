"""The terms of the update by symbol and by pair. The identities themselves: E8, E11."""

import dataclasses

import numpy as np
import pytest

import minattn as ma
from minattn.terms import ImplicitUpdate, weighted_outer_sum
from minattn.testing.strategies import build_case

CONFIG = ma.TransformerConfig(vocab_size=4, width=7, layers=2, heads=2, head_width=3, max_length=6)


def update_of(layer=1, **changed):
    config = dataclasses.replace(CONFIG, **changed)
    case = build_case(config, replicas=3, batch_size=4, length=6, mask="bidirectional")
    return ma.implicit_update(config, case.params, ma.loss_and_grad(*case)[2], layer)


def test_an_update_is_shown_by_its_shapes():
    shown = "ImplicitUpdate(x: (3, 4, 6, 7), beta: (3, 4, 2, 6, 6), layer=1)"
    assert repr(update_of()) == shown


@pytest.mark.parametrize("role", ["context", "query"])
def test_symbol_terms_by_definition(role):
    update = update_of()
    terms = getattr(update, f"{role}_terms")(7)  # symbols 5 and 6 do not occur
    assert terms.energy.shape == (3, 2, 7)
    for symbol in range(7):
        part = getattr(update, f"as_{role}")(symbol)
        np.testing.assert_allclose(terms.energy[..., symbol], (part**2).sum(axis=(-2, -1)))
        for found, expected in zip(terms.scores, ma.scores.scores(part), strict=True):
            np.testing.assert_allclose(found[..., symbol], expected, atol=1e-9)
        for r in range(3):
            rows = update.x[r][update.tokens[r] == symbol]
            assert terms.occurrences[r, symbol] == len(rows)
            mean = rows.mean(axis=0) if len(rows) else np.zeros(7)
            np.testing.assert_allclose(terms.x[r, symbol], mean, atol=1e-14)
            spread = ((rows - mean) ** 2).sum() / max((rows**2).sum(), 1e-300)
            np.testing.assert_allclose(terms.spread[r, symbol], spread, atol=1e-14)
            c = np.moveaxis(update.query_sums if role == "context" else update.key_sums, 1, 0)
            weighted = c[:, r][:, update.tokens[r] == symbol].sum(axis=1)
            np.testing.assert_allclose(terms.weighted[r, :, symbol], weighted, atol=1e-14)
    assert not terms.energy[..., 5:].any()
    assert (terms.spread[:, :5] > 0.01).any()


def test_symbols_up_to_the_largest_are_split_off_unless_more_are_asked_for():
    update = update_of()
    tokens = np.where(update.tokens < 2, 0, 3)  # 1 and 2 do not occur
    terms = dataclasses.replace(update, tokens=tokens).query_terms()
    assert terms.occurrences.tolist() == [[n, 0, 0, 24 - n] for n in (tokens == 0).sum((1, 2))]


def test_spread_does_not_depend_on_the_size_of_x_and_is_0_for_none():
    update = update_of()
    spread = update.query_terms().spread
    small, nothing = (dataclasses.replace(update, x=size * update.x) for size in (1e-100, 0))
    np.testing.assert_allclose(small.query_terms().spread, spread)
    assert not nothing.query_terms().spread.any()


def test_rank_one_where_x_depends_on_the_symbol_alone():
    update = update_of(layer=0, positions=False)
    for terms in (update.context_terms(), update.query_terms()):
        assert terms.spread.max() < 1e-28
        sizes = (terms.x**2).sum(axis=-1)[:, None] * (terms.weighted**2).sum(axis=-1)
        np.testing.assert_allclose(terms.energy, sizes, rtol=1e-10)


def test_parts_of_the_layer_and_sums_over_one_side():
    update = update_of()
    assert update.layer == 1
    key_sums = np.einsum("rbhij,rbjd->rhbid", update.beta, update.x)
    query_sums = np.einsum("rbhij,rbid->rhbjd", update.beta, update.x)
    np.testing.assert_allclose(update.key_sums, key_sums, atol=1e-15)
    np.testing.assert_allclose(update.query_sums, query_sums, atol=1e-15)


def test_the_total_is_of_the_coefficients_it_stands_beside():
    """What `implicit_update` has computed already is not carried over to an altered update."""
    update = update_of()
    other = dataclasses.replace(update, beta=2 * update.beta)
    np.testing.assert_array_equal(other.total, weighted_outer_sum(update.x, 2 * update.beta))
    np.testing.assert_array_equal(update.total, weighted_outer_sum(update.x, update.beta))


def test_pair_terms_of_parallel_and_orthogonal_rows():
    x = np.array([[3.0, 0], [6, 0], [0, 1]])[None, None]
    beta = np.arange(9.0).reshape(1, 1, 1, 3, 3)
    update = ImplicitUpdate(x, beta, np.zeros((1, 1, 3), int), np.ones((3, 3), bool), np.zeros(1))
    pairs = update.pair_terms()
    symmetric, skew, symmetric_energy, skew_energy = (found[0, 0, 0] for found in pairs)
    np.testing.assert_array_equal(symmetric, [[0, 4, 8], [0, 0, 12], [0, 0, 0]])
    np.testing.assert_array_equal(skew, [[0, -2, -4], [0, 0, -2], [0, 0, 0]])
    # Parallel rows have no skew part; orthogonal ones have two of the same size.
    np.testing.assert_allclose(symmetric_energy, [[0, 16 * 324, 64 * 4.5], [0, 0, 144 * 18],
                                                  [0, 0, 0]])  # fmt: skip
    np.testing.assert_allclose(skew_energy, [[0, 0, 16 * 4.5], [0, 0, 4 * 18], [0, 0, 0]])


def test_pair_terms_by_definition():
    update = update_of()
    pairs = update.pair_terms()
    for r, b, h, i, j in np.ndindex(update.beta.shape):
        if i < j:
            beta = update.beta[r, b, h]
            K = np.outer(update.x[r, b, i], update.x[r, b, j])
            terms = beta[i, j] * K + beta[j, i] * K.T
            symmetric, skew = pairs.symmetric[r, b, h, i, j], pairs.skew[r, b, h, i, j]
            halves = (symmetric * (K + K.T) / 2, skew * (K - K.T) / 2)
            np.testing.assert_allclose(sum(halves), terms, atol=1e-14)
            energies = [pairs.symmetric_energy[r, b, h, i, j], pairs.skew_energy[r, b, h, i, j]]
            expected = [(half**2).sum() for half in halves]
            np.testing.assert_allclose(energies, expected, rtol=1e-9, atol=1e-25)
        else:
            assert not any(part[r, b, h, i, j] for part in pairs)


def test_an_update_by_hand_is_of_layer_0():
    empty = np.zeros((1, 1, 1, 1))
    tokens = np.zeros((1, 1, 1), int)
    assert ImplicitUpdate(empty, empty[None], tokens, np.eye(1, dtype=bool), empty).layer == 0


def test_bad_arguments():
    update = update_of()
    largest = update.tokens.max()
    for terms in (update.context_terms, update.query_terms):
        for n_symbols in (largest, 0, 2.5, True):
            with pytest.raises(ValueError, match=r"^n_symbols: got "):
                terms(n_symbols)


@pytest.mark.parametrize("mask", ["causal", "bidirectional"])
def test_covariance_rows_are_the_key_sums(mask):
    case = build_case(CONFIG, replicas=3, batch_size=2, length=6, mask=mask)
    _, _, tape = ma.loss_and_grad(*case)
    for layer in range(2):
        update = ma.implicit_update(CONFIG, case.params, tape, layer)
        found = ma.update.covariance_rows(CONFIG, tape, layer)
        np.testing.assert_allclose(found, update.key_sums, atol=1e-14)
    np.testing.assert_array_equal(
        ma.update.covariance_rows(CONFIG, tape), ma.update.covariance_rows(CONFIG, tape, 0)
    )
    assert ma.implicit_update(CONFIG, case.params, tape).layer == 0


def test_covariance_rows_needs_a_finished_softmax_tape():
    case = build_case(CONFIG, length=4)
    _, unfinished = ma.forward(CONFIG, case.params, case.batch.inputs, tape=True)
    with pytest.raises(ValueError, match=r"^tape: got no backward pass"):
        ma.update.covariance_rows(CONFIG, unfinished)
    _, _, tape = ma.loss_and_grad(*case)
    with pytest.raises(ValueError, match=r"^layer: got 2"):
        ma.update.covariance_rows(CONFIG, tape, 2)
    linear = dataclasses.replace(CONFIG, attention="linear")
    with pytest.raises(ValueError, match=r"^attention: got 'linear'"):
        ma.update.covariance_rows(linear, tape)
    deeper = dataclasses.replace(CONFIG, layers=3)
    with pytest.raises(ValueError, match=r"^tape: got 2 layers, needs 3"):
        ma.update.covariance_rows(deeper, tape)

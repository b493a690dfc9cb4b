"""The exact identities E1 to E16 of the update, over random models, on every engine.

Each is a function that returns how far it is from holding, in units of what rounding is measured
by; what an identity needs is a keyword argument, and each is altered once to show that it fails.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minattn as ma
from minattn.arrays import Array
from minattn.blocks import grouped_coefficients
from minattn.config import TransformerConfig
from minattn.descent import conserved, conserved_change, product_change
from minattn.layers.attention import AttentionTape
from minattn.model import Tape
from minattn.objectives import Batch
from minattn.scores import scores
from minattn.terms import ImplicitUpdate, weighted_outer_sum
from minattn.testing.strategies import build_case, cases
from minattn.update import coefficients, covariance_rows

TOLERANCE = {"float64": 1e-10, "float32": 1e-4}
both_precisions = pytest.mark.parametrize("dtype", TOLERANCE)
property_test = settings(max_examples=12)


class At(NamedTuple):
    """One layer of one model after a step."""

    config: TransformerConfig
    params: dict[str, Array]
    batch: Batch
    tape: Tape
    layer: int
    update: ImplicitUpdate
    taped: AttentionTape

    def weight(self, name: str) -> Array:
        """A parameter of the layer, with heads before rows: (R, H, d, h), biases (R, H, h)."""
        value = self.params[f"layers.{self.layer}.{name}"]
        return value.swapaxes(1, 2) if name.startswith("W") else value

    def augmented(self, name: str) -> Array:
        """Weight and bias as one (R, H, d + 1, h); without biases a row of zeros."""
        W = self.weight("W_" + name)
        b = self.weight("b_" + name) if self.config.bias else np.zeros_like(W[:, :, 0])
        return np.concatenate([W, b[:, :, None]], axis=2)

    @property
    def sizes(self) -> Array:
        """|beta_ij| (R, B, H, N, N) if nothing in it cancelled."""
        norms = [np.linalg.norm(M, axis=-1) for M in (self.taped.output_gradient, self.taped.v)]
        e = np.where(self.tape.allowed, norms[0][..., :, None] * norms[1][..., None, :], 0)
        if self.config.attention == "softmax":
            e = self.taped.A * (e + (self.taped.A * e).sum(axis=-1, keepdims=True))
        return e / self.config.h**0.5

    @property
    def scale(self) -> Array:
        """|Ghat| (R, H) if no two terms cancelled, of rows with a 1 appended."""
        rows = np.sqrt((self.update.x**2).sum(axis=-1) + 1)[:, :, None]
        return (self.sizes * rows[..., :, None] * rows[..., None, :]).sum(axis=(1, 3, 4))


def layers_of(case, engine="auto", dtype="float64"):
    config, params, batch = case
    params = {name: value.astype(dtype) for name, value in params.items()}
    _, _, tape = ma.loss_and_grad(config, params, batch, engine)
    for layer in range(config.layers):
        update = ma.implicit_update(config, params, tape, layer)
        assert update.beta.dtype == update.total.dtype == dtype
        yield At(config, params, batch, tape, layer, update, tape.layers[layer].attention)


def off(found, expected, scale):
    """Largest norm of a difference over the last two axes, relative to the scale."""
    error = np.linalg.norm(np.asarray(found) - expected, axis=(-2, -1))
    scale = np.broadcast_to(scale, error.shape)
    return np.divide(error, scale, out=np.where(error > 0, np.inf, 0.0), where=scale > 0).max()


def norm(M):
    return np.linalg.norm(M, axis=(-2, -1))


def transposed(M):
    return M.swapaxes(-2, -1)


# E1 to E5: the update, its two orders of summation, the factors, and a step on them.


def e1(at, beta=None):
    """<sum beta K, D> against the loss's own derivative along D, by complex step."""
    proof = ma.prove_update(at.config, at.params, at.batch, at.layer, seed=at.layer)
    total = weighted_outer_sum(at.update.x, at.update.beta if beta is None else beta)
    predicted = (total * proof.direction).sum(axis=(1, 2, 3))
    scale = (at.scale * norm(proof.direction)).sum(axis=1)
    return off(predicted[:, None, None], proof.measured[:, None, None], scale)


def e2(at, seen=lambda allowed: allowed):
    """By queries i and the keys C_i that each sees, or by keys j and the queries P_j of each."""
    x, beta, allowed = at.update.x, at.update.beta, at.tape.allowed
    by_query, by_key = np.zeros((2, *at.update.total.shape))
    for i, row in enumerate(allowed):
        keys = np.flatnonzero(row)
        sums = np.einsum("rbhj,rbjd->rbhd", beta[:, :, :, i, keys], x[:, :, keys])
        by_query += np.einsum("rbd,rbhe->rhde", x[:, :, i], sums)
    for j, column in enumerate(seen(allowed).T):
        queries = np.flatnonzero(column)
        sums = np.einsum("rbhi,rbid->rbhd", beta[:, :, :, queries, j], x[:, :, queries])
        by_key += np.einsum("rbhd,rbe->rhde", sums, x[:, :, j])
    return max(off(by_query, by_key, at.scale), off(at.update.total, by_key, at.scale))


def e3(at, query_bias=True):
    """Backprop's gradients of the factors, from the total and the bias terms."""
    update, total = at.update, at.update.total
    W_q, W_k = at.weight("W_q"), at.weight("W_k")
    down_q, down_k = total @ W_k, transposed(total) @ W_q
    if at.config.bias:
        of_queries = np.einsum("rbhij,rbid->rhd", update.beta, update.x)
        of_keys = np.einsum("rbhij,rbjd->rhd", update.beta, update.x)
        added = np.einsum("rhd,rhk->rhdk", of_queries, at.weight("b_k"))
        if at.config.attention == "softmax":
            assert off(added, 0, at.scale * norm(at.augmented("k"))) <= TOLERANCE[total.dtype.name]
        down_q = down_q + added
        if query_bias:
            down_k = down_k + np.einsum("rhd,rhk->rhdk", of_keys, at.weight("b_q"))
    found = {}
    for name, down, other in (("q", down_q, "k"), ("k", down_k, "q")):
        gradient = -at.tape.grads[f"layers.{at.layer}.W_{name}"].swapaxes(1, 2)
        found[name] = off(gradient, down, at.scale * norm(at.augmented(other)))
    return max(found.values())


def stepped(at, eta):
    """Parameters before and after one SGD step in float64."""
    before = {name: value.astype(np.float64) for name, value in at.params.items()}
    grads = {name: value.astype(np.float64) for name, value in at.tape.grads.items()}
    sgd = ma.SGD(lr=eta)
    return before, sgd.step(before, grads, sgd.init(before))[0]


def large_step(at):
    """A learning rate at which the second order is as large as the first."""
    return float(1 / max(norm(at.update.total).max(), 1e-6))


def step_scale(at, eta):
    q, k, G = norm(at.augmented("q")), norm(at.augmented("k")), eta * at.scale
    return G * (q**2 + k**2) + G**2 * q * k


def e4(at, second_order=True, first_order=True):
    """The change of the product in a real step, of any size."""
    eta = large_step(at)
    before, after = stepped(at, eta)
    change = product_change(at.params, at.update, eta)
    assert np.array_equal(change.update, at.update.total) or at.config.bias
    predicted = first_order * change.first_order + second_order * change.second_order
    if first_order and second_order:
        assert np.array_equal(predicted, change.total)
    found = ma.W_qk(after, at.layer, per_head=True) - ma.W_qk(before, at.layer, per_head=True)
    products = norm(at.augmented("q")) * norm(at.augmented("k"))
    return off(found, predicted, step_scale(at, eta) + products)


def e5(at, change=conserved_change):
    """The conserved quantity of gradient flow, in a step that is far from it."""
    eta = large_step(at)
    before, after = stepped(at, eta)
    moved = conserved(after, at.layer) - conserved(before, at.layer)
    q, k, G = norm(at.augmented("q")), norm(at.augmented("k")), eta * at.scale
    return off(moved, change(at.params, at.update, eta), (1 + G**2 + G) * (q**2 + k**2))


@both_precisions
@property_test
@given(case=cases())
def test_E1_update_is_minus_the_derivative_in_W_qk(engine, dtype, case):
    for at in layers_of(case, engine, dtype):
        assert e1(at) <= TOLERANCE[dtype]


@both_precisions
@property_test
@given(case=cases())
def test_E2_by_queries_or_by_keys(engine, dtype, case):
    for at in layers_of(case, engine, dtype):
        assert e2(at) <= TOLERANCE[dtype]


@both_precisions
@property_test
@given(case=cases())
def test_E3_gradients_of_the_factors(engine, dtype, case):
    for at in layers_of(case, engine, dtype):
        assert e3(at) <= TOLERANCE[dtype]


@both_precisions
@property_test
@given(case=cases())
def test_E4_one_step_on_the_factors(engine, dtype, case):
    for at in layers_of(case, engine, dtype):
        assert e4(at) <= TOLERANCE[dtype]


@both_precisions
@property_test
@given(case=cases())
def test_E5_conserved_quantity(engine, dtype, case):
    for at in layers_of(case, engine, dtype):
        assert e5(at) <= TOLERANCE[dtype]


# E6, E7: the coefficients of softmax and of linear attention.


def e6(at, keys_shift=1.0, queries_shift=0.0):
    """Rows sum to zero, are covariances, and do not see a shift of all keys."""
    x, beta = at.update.x, at.update.beta
    sums = off(beta.sum(axis=-1)[..., None, None], 0, at.sizes.sum(axis=-1))
    rows = covariance_rows(at.config, at.tape, at.layer)
    scale = np.einsum("rbhij,rbj->rhbi", at.sizes, np.linalg.norm(x, axis=-1))
    covariances = off(rows[..., None], at.update.key_sums[..., None], scale)
    few = at.tape.allowed.sum(axis=1) <= 1
    alone = off(beta[..., few, :, None], 0, at.sizes[..., few, :].sum(axis=-1)) if few.any() else 0
    vector = np.ones(x.shape[-1], x.dtype)
    queries, keys = x + queries_shift * vector, x + keys_shift * vector
    shifted = np.einsum("rbhij,rbid,rbje->rhde", beta, queries, keys)
    size = at.scale * (1 + abs(keys_shift) + abs(queries_shift)) * (1 + len(vector))
    return max(sums, covariances, alone, off(shifted, at.update.total, size))


def e7(at, own_bias=0.0):
    """Linear: beta_ij = x_j delta_i with delta_i = -W_v G_i^T / sqrt(h)."""
    G, W_v = at.taped.output_gradient, at.weight("W_v")
    delta = -np.einsum("rhdk,rbhik->rbhid", W_v, G) / at.config.h**0.5
    expected = np.einsum("rbjd,rbhid->rbhij", at.update.x, delta) + own_bias
    rows = np.linalg.norm(at.update.x, axis=-1)[:, :, None, None, :, None, None]
    sizes = np.linalg.norm(delta, axis=-1)[..., None, None, None] * rows
    allowed = at.tape.allowed[..., None, None]
    expected = np.where(allowed, expected[..., None, None], 0)
    return off(at.update.beta[..., None, None], expected, sizes[..., 0, 0])


def e7_uniform(G, v, allowed, divide=True):
    """At uniform attention the softmax beta is the linear one, centred and divided by n."""
    n = allowed.sum(axis=1, keepdims=True)
    linear = coefficients(allowed.astype(float), G, v, allowed, "linear")
    softmax = coefficients(allowed / np.maximum(n, 1), G, v, allowed, "softmax")
    centred = linear - linear.sum(axis=-1, keepdims=True) / np.maximum(n, 1)
    expected = np.where(allowed, centred, 0) / (np.maximum(n, 1) if divide else 1)
    return off(softmax, expected, norm(linear) + 1e-300)


@both_precisions
@property_test
@given(case=cases(attention="softmax"))
def test_E6_softmax_rows_are_covariances(engine, dtype, case):
    for at in layers_of(case, engine, dtype):
        assert e6(at) <= TOLERANCE[dtype]


@both_precisions
@property_test
@given(case=cases(attention="linear", bias=False), seed=st.integers(0, 99))
def test_E7_linear_coefficients_factor_through_the_keys(engine, dtype, case, seed):
    for at in layers_of(case, engine, dtype):
        assert e7(at) <= TOLERANCE[dtype]
        G, v = np.random.default_rng(seed).standard_normal((2, *at.taped.v.shape))
        assert e7_uniform(G, v, at.tape.allowed) <= 1e-12


# E8 to E10, E12, E13: symmetry of pairs, of the total, and of single terms.


def outer_products(x):
    """K_ij = x_i^T x_j: (R, B, 1, N, N, d, d)."""
    return np.einsum("rbid,rbje->rbijde", x, x)[:, :, None]


def e8(at, sign=1.0):
    """Pairs by symmetry, and their energies; pairs and diagonal make up the total."""
    K, beta = outer_products(at.update.x), at.update.beta[..., None, None]
    pairs = at.update.pair_terms()
    plus, minus = (K + transposed(K)) / 2, (K - transposed(K)) / 2
    terms = beta * K + beta.swapaxes(3, 4) * transposed(K)
    upper = np.triu(np.ones(K.shape[3:5]), k=1)[..., None, None]
    even = pairs.symmetric[..., None, None] * plus
    odd = sign * pairs.skew[..., None, None] * minus
    sizes = (at.sizes + transposed(at.sizes)) * norm(K)
    least = np.finfo(sizes.dtype).tiny  # below it, numbers lose digits
    found = [off(even + odd, upper * terms, np.maximum(sizes, least))]
    squares = np.maximum(sizes**2, least)
    for energy, part in ((pairs.symmetric_energy, even), (pairs.skew_energy, odd)):
        found.append(off(energy[..., None, None], norm(part)[..., None, None] ** 2, squares))
    diagonal = np.einsum("rbhii,rbid,rbie->rhde", at.update.beta, at.update.x, at.update.x)
    whole = (even + odd).sum(axis=(1, 3, 4)) + diagonal
    return max(*found, off(whole, at.update.total, at.scale))


def e9(at, part=lambda beta: (beta + transposed(beta)) / 2):
    """The symmetric part of Ghat is that of beta, between the rows."""
    rest = at.update.beta - part(at.update.beta)
    even = weighted_outer_sum(at.update.x, part(at.update.beta))
    odd = weighted_outer_sum(at.update.x, rest)
    parts = off(even, at.update.symmetric, at.scale), off(odd, at.update.skew, at.scale)
    return max(parts)


def overlap_and_energy(M):
    """tr(M M) and |M|^2, which make the symmetry; (..., 1, 2)."""
    M = M.astype(np.float64)
    found = (M * transposed(M)).sum(axis=(-2, -1)), (M * M).sum(axis=(-2, -1))
    return np.stack(found, axis=-1)[..., None, :]


def orthonormal(size):
    return np.linalg.qr(np.random.default_rng(size).standard_normal((size, size)))[0]


def e9_orthonormal(at, rows=orthonormal):
    """One sequence, orthonormal rows: the symmetry of Ghat is that of beta; or, by symbol, of B."""
    one = dataclasses.replace(at.update, beta=at.update.beta[:, :1], tokens=at.update.tokens[:, :1])
    R, _, H, N, _ = one.beta.shape
    scale = at.sizes[:, 0].sum(axis=(-2, -1)) ** 2
    x = np.broadcast_to(rows(N), (R, 1, N, N))
    total = dataclasses.replace(one, x=x).total
    expected = overlap_and_energy(one.beta[:, 0])
    found = [off(overlap_and_energy(total), expected, scale)]
    if not np.triu(at.tape.allowed, k=1).any():  # causal
        diagonal = np.diagonal(one.beta[:, 0], axis1=-2, axis2=-1).astype(np.float64)
        found.append(abs(expected[..., 0, 0] - (diagonal**2).sum(axis=-1)).max(initial=0))
    S = at.config.vocab_size + 1
    symbols = TransformerConfig(vocab_size=S - 1, width=S, layers=1, heads=H, max_length=N,
                                head_width=1)  # fmt: skip
    grouped = dataclasses.replace(one, x=rows(S)[one.tokens], layer=0)
    B = grouped_coefficients(symbols, grouped).token_token
    found.append(off(overlap_and_energy(grouped.total), overlap_and_energy(B), scale))
    return max(found)


def e10(at, power=2):
    """A term by itself has the symmetry cos^2(x_i, x_j)."""
    x = at.update.x.astype(np.float64)
    lengths = np.linalg.norm(x, axis=-1)
    sized = lengths[..., :, None] * lengths[..., None, :]
    inner = x @ transposed(x)
    cosines = np.divide(inner, sized, out=np.zeros_like(inner), where=sized > 0)
    beta = at.update.beta[:, :, :1, ..., None, None]  # one head will do
    found = ma.symmetry(beta * outer_products(x))[:, :, 0]
    expected = np.where(beta[:, :, 0, ..., 0, 0] != 0, cosines**power, 0)
    assert (found >= -1e-6).all()
    return abs(found - expected).max()


def e12(at, power=2):
    """Columns and rows have one sum of squared norms."""
    M = at.update.total.astype(np.float64)
    rows, columns = (np.linalg.norm(M, axis=axis) ** power for axis in (-1, -2))
    difference = rows.sum(axis=-1) - columns.sum(axis=-1)
    return off(difference[..., None, None], 0, norm(M) ** power)


def e13(at, agreeing=True):
    """Diagonal terms are symmetric and of one sign; so is their sum, if all signs agree."""
    x = at.update.x.astype(np.float64)
    diagonal = np.diagonal(at.update.beta, axis1=-2, axis2=-1).astype(np.float64)
    scale = np.einsum("rbhi,rbi->rh", abs(diagonal), (x * x).sum(axis=-1))
    worst = 0.0
    for sign in (1, -1):
        chosen = np.where(sign * diagonal > 0, diagonal, 0) if agreeing else diagonal
        total = np.einsum("rbhi,rbid,rbie->rhde", chosen, x, x)
        negative = np.minimum(np.linalg.eigvalsh(sign * total), 0)[..., None]
        worst = max(worst, off(negative, 0, scale), off(total, transposed(total), scale))
        terms = chosen[..., None, None] * np.einsum("rbid,rbie->rbide", x, x)[:, :, None]
        least = np.linalg.eigvalsh(np.sign(chosen)[..., None, None] * terms)[..., :1, None]
        worst = max(worst, off(np.minimum(least, 0), 0, norm(terms)))
    return worst


@both_precisions
@property_test
@given(case=cases(max_replicas=2))
def test_E8_pairs_split_into_symmetric_and_skew(engine, dtype, case):
    for at in layers_of(case, engine, dtype):
        assert e8(at) <= TOLERANCE[dtype]


@both_precisions
@property_test
@given(case=cases())
def test_E9_symmetry_of_the_total_is_that_of_beta(engine, dtype, case):
    for at in layers_of(case, engine, dtype):
        assert e9(at) <= TOLERANCE[dtype]
        assert e9_orthonormal(at) <= TOLERANCE[dtype]


@pytest.mark.parametrize("mask", ["causal", "strictly_causal"])
def test_E9_causal_symmetry_is_the_share_of_the_diagonal(engine, mask):
    for at in layers_of(build_case(RICH, replicas=2, length=6, mask=mask), engine):
        beta = at.update.beta[:, 0]
        share = (np.diagonal(beta, axis1=-2, axis2=-1) ** 2).sum(axis=-1) / norm(beta) ** 2
        x = np.broadcast_to(orthonormal(6), (2, 1, 6, 6))
        found = ma.symmetry(dataclasses.replace(at.update, x=x).total)
        np.testing.assert_allclose(found, share, atol=1e-12)
        assert (share == 0).all() if mask == "strictly_causal" else (share > 1e-3).all()


@both_precisions
@property_test
@given(case=cases(max_replicas=2))
def test_E10_a_single_term_has_the_symmetry_of_its_cosine(engine, dtype, case):
    for at in layers_of(case, engine, dtype):
        assert e10(at) <= TOLERANCE[dtype]


@both_precisions
@property_test
@given(case=cases())
def test_E12_columns_do_not_beat_rows_on_average(engine, dtype, case):
    for at in layers_of(case, engine, dtype):
        assert e12(at) <= TOLERANCE[dtype]


@both_precisions
@property_test
@given(case=cases(max_replicas=2))
def test_E13_diagonal_terms_are_semidefinite(engine, dtype, case):
    for at in layers_of(case, engine, dtype):
        assert e13(at) <= TOLERANCE[dtype]


# E11: by symbol.


def e11(at, families=("context", "query")):
    """Either family makes up the total (both make it twice); the factors are the terms'."""
    update, S = at.update, at.config.vocab_size + 1
    as_context = np.stack([update.as_context(s) for s in range(S)], axis=2)  # (R, H, S, d, d)
    as_query = np.stack([update.as_query(s) for s in range(S)], axis=2)
    parts = {"context": as_context, "query": as_query}
    found = [off(parts[name].sum(axis=2), update.total, at.scale) for name in families]
    found.append(off(sum(parts[name] for name in families).sum(axis=2),
                     len(families) * update.total, at.scale))  # fmt: skip
    turned = dataclasses.replace(update, beta=transposed(update.beta))
    for name, terms in (("context", update.context_terms(S)), ("query", update.query_terms(S))):
        energy = norm(parts[name].astype(np.float64)) ** 2
        scale = at.scale[..., None]
        found.append(off(terms.energy[..., None, None], energy[..., None, None], scale**2))
        dual = getattr(turned, "as_query" if name == "context" else "as_context")
        for s in range(S):
            assert np.array_equal(terms.occurrences[:, s], (update.tokens == s).sum(axis=(1, 2)))
            found.append(off(transposed(parts[name][:, :, s]), dual(s), at.scale))
    return max(found)


def e11_rank_one(at):
    """Eqs. 13-16: columns of context terms, rows of query terms, in proportion to x."""
    update, S = at.update, at.config.vocab_size + 1
    found = []
    for terms, part in (
        (update.context_terms(S), lambda s: transposed(update.as_context(s))),
        (update.query_terms(S), update.as_query),
    ):
        products = terms.x[:, None, ..., None] * terms.weighted[..., None, :]
        found += [off(products[:, :, s], part(s), at.scale) for s in range(S)]
    return max(found)


@both_precisions
@property_test
@given(case=cases(max_replicas=2))
def test_E11_parts_by_symbol_make_up_the_total(engine, dtype, case):
    for at in layers_of(case, engine, dtype):
        assert e11(at) <= TOLERANCE[dtype]


@both_precisions
@property_test
@given(case=cases(max_replicas=2, positions=False))
def test_E11_terms_of_layer_0_without_positions_have_rank_one(engine, dtype, case):
    at = next(layers_of(case, engine, dtype))
    assert e11_rank_one(at) <= TOLERANCE[dtype]
    assert at.update.context_terms().spread.max() <= TOLERANCE[dtype]


# E14 to E16: what exchanging, shifting and tying the factors does.


def e14(params, layer, exchange=("W", "b")):
    """Exchanged queries and keys: symmetry stays, directionality and dispersion turn."""
    other = dict(params)
    for letter in exchange:
        names = [f"layers.{layer}.{letter}_{side}" for side in "qk"]
        if names[0] in params:
            other[names[0]], other[names[1]] = params[names[1]], params[names[0]]
    forms = [ma.W_qk(p, layer, per_head=True) for p in (params, other)]
    scale = norm(forms[0])
    transposes = off(transposed(forms[1]), forms[0], scale)
    here, there = (scores(form.astype(np.float64), gamma=0.5) for form in forms)
    signs = (1, -1, -1, -1)
    turned = [np.where(np.isfinite(b), a - sign * b, a != sign * b)
              for a, b, sign in zip(here, there, signs, strict=True)]  # fmt: skip
    return max(transposes, *(abs(difference).max() for difference in turned))


def e15(at, side="k"):
    """Softmax: another key bias gives the same loss, and its gradient is zero."""
    name = f"layers.{at.layer}.b_{side}"
    other = at.params | {name: at.params[name] + np.float32(0.7)}
    losses = [ma.mean_loss(at.config, p, at.batch) for p in (at.params, other)]
    sizes = at.scale * norm(at.augmented("q" if side == "k" else "k"))
    gradient = off(at.tape.grads[name][:, :, None], 0, sizes)
    difference = abs(losses[1] - losses[0]) / np.maximum(losses[0], 1e-300)
    return max(gradient, difference.max())


def e16(at, tie=True):
    """Tied factors: W_qk is symmetric and positive semidefinite."""
    names = [f"layers.{at.layer}.W_{side}" for side in "qk"]
    tied = at.params | ({names[1]: at.params[names[0]].copy()} if tie else {})
    M = ma.W_qk(tied, at.layer, per_head=True)
    lowest = np.linalg.eigvalsh((M + transposed(M)) / 2)[..., :1, None]
    negative = off(np.minimum(lowest, 0), 0, norm(M))
    return max(off(M, transposed(M), norm(M)), negative, abs(ma.symmetry(M) - 1).max())


@both_precisions
@property_test
@given(case=cases())
def test_E14_exchanging_queries_and_keys_transposes(dtype, case):
    for at in layers_of(case, "auto", dtype):
        assert e14(at.params, at.layer) <= TOLERANCE[dtype]


@both_precisions
@property_test
@given(case=cases(attention="softmax", bias=True))
def test_E15_a_key_bias_changes_nothing_under_softmax(engine, dtype, case):
    for at in layers_of(case, engine, dtype):
        assert e15(at) <= TOLERANCE[dtype]


@both_precisions
@property_test
@given(case=cases())
def test_E16_tied_factors_are_symmetric_and_semidefinite(dtype, case):
    for at in layers_of(case, "auto", dtype):
        assert e16(at) <= TOLERANCE[dtype]


# Each identity fails when what it needs is altered.

RICH = TransformerConfig(
    vocab_size=4, width=6, layers=2, heads=2, head_width=3, max_length=6, bias=True
)
LINEAR = dataclasses.replace(RICH, attention="linear")
PLAIN = dataclasses.replace(LINEAR, bias=False)
ALTERED = {
    "E1 transposed": (RICH, lambda at: e1(at, transposed(at.update.beta))),
    "E1 one per cent": (RICH, lambda at: e1(at, 1.01 * at.update.beta)),
    "E2 keys miss a query": (RICH, lambda at: e2(at, lambda seen: seen & ~np.eye(6, dtype=bool))),
    "E3 without query bias": (RICH, lambda at: e3(at, query_bias=False)),
    "E4 without second order": (RICH, lambda at: e4(at, second_order=False)),
    "E4 without first order": (RICH, lambda at: e4(at, first_order=False)),
    "E5 nothing moves": (RICH, lambda at: e5(at, lambda *_: 0)),
    "E5 sides exchanged": (RICH, lambda at: e5(at, lambda *a: -conserved_change(*a))),
    "E6 queries shifted": (RICH, lambda at: e6(at, queries_shift=1.0)),
    "E7 value bias": (LINEAR, e7),
    "E7 softmax": (dataclasses.replace(PLAIN, attention="softmax"), e7),
    "E8 sign": (RICH, lambda at: e8(at, sign=-1.0)),
    "E9 parts exchanged": (RICH, lambda at: e9(at, lambda beta: (beta - transposed(beta)) / 2)),
    "E9 rows not orthonormal": (
        RICH,
        lambda at: e9_orthonormal(at, lambda n: np.random.default_rng(n).standard_normal((n, n))),
    ),
    "E10 cosine not squared": (RICH, lambda at: e10(at, power=1)),
    "E11 positions": (RICH, e11_rank_one),
    "E12 norms not squared": (RICH, lambda at: e12(at, power=1)),
    "E13 mixed signs": (RICH, lambda at: e13(at, agreeing=False)),
    "E14 not exchanged": (RICH, lambda at: e14(at.params, at.layer, exchange="b")),
    "E15 query bias": (RICH, lambda at: e15(at, side="q")),
    "E15 key bias under linear attention": (LINEAR, e15),
    "E16 not tied": (RICH, lambda at: e16(at, tie=False)),
}


@pytest.mark.parametrize("name", ALTERED)
def test_altered_identities_fail(name):
    config, residual = ALTERED[name]
    case = build_case(config, replicas=2, batch_size=2, length=6, mask="bidirectional", seed=1)
    for at in layers_of(case):
        assert residual(at) > 1e4 * TOLERANCE["float64"]


def test_altered_E6_fails_for_linear_attention():
    case = build_case(LINEAR, batch_size=2, length=6)
    for at in layers_of(case):
        with pytest.raises(ValueError, match=r"^attention: got 'linear'"):
            e6(at)
        assert abs(at.update.beta.sum(axis=-1)).max() > 1e-3 * abs(at.update.beta).max()


def test_altered_E7_fails_without_the_division_by_n():
    G, v = np.random.default_rng(0).standard_normal((2, 1, 2, 1, 6, 3))
    allowed = np.tri(6, dtype=bool)
    assert e7_uniform(G, v, allowed) <= 1e-14
    assert e7_uniform(G, v, allowed, divide=False) > 0.1

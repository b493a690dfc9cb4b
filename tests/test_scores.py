"""Scores against hand-worked values, explicit loops, explicit products and null distributions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minattn import squares
from minattn.scores import (
    Scores,
    _spread,
    _tail_sums,
    directionality,
    dispersion,
    scores,
    scores_from_factors,
    scores_from_squares,
    squares_of,
    symmetry,
)

seeds = st.integers(0, 2**32 - 1)
outer = np.outer([1.0] * 7 + [4.0], [1.0, 1.2, 0.9, 1.0, 1.1, 1.0, 1.0, 2.0])
dominant_column = np.ones((8, 8))
dominant_column[:, 0] = 5.0


def orthogonal(d, seed, dtype=np.float64):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)).astype(dtype))[0]


def assert_scores_equal(found, expected, **tolerance):
    for name in Scores._fields:
        np.testing.assert_allclose(
            getattr(found, name), getattr(expected, name), err_msg=name, **tolerance
        )


# The definitions, one entry at a time


def naive_symmetry(M):
    d = len(M)
    symmetric = skew = whole = 0.0
    for m in range(d):
        for k in range(d):
            symmetric += ((M[m][k] + M[k][m]) / 2) ** 2
            skew += ((M[m][k] - M[k][m]) / 2) ** 2
            whole += M[m][k] ** 2
    return (symmetric - skew) / whole


def naive_tail(norms, gamma, published):
    n = len(norms)
    mean = math.fsum(norms) / n
    std = math.sqrt(math.fsum((norm - mean) ** 2 for norm in norms) / (n - 1))
    total = 0.0
    for norm in norms:
        if norm > mean + gamma * std:
            total += norm - (mean + gamma * std) if published else norm
    return total


def naive_norms(M):
    d = len(M)
    rows = [math.sqrt(math.fsum(M[m][k] ** 2 for k in range(d))) for m in range(d)]
    columns = [math.sqrt(math.fsum(M[m][k] ** 2 for m in range(d))) for k in range(d)]
    return rows, columns


def naive_directionality(M, gamma, published):
    r, c = (naive_tail(norms, gamma, published) for norms in naive_norms(M))
    return (r - c) / (r + c) if r + c > 0 else 0.0


def naive_dispersion(M):
    spreads = []
    for norms in naive_norms(M):
        mean = math.fsum(norm**2 for norm in norms) / len(norms)
        spreads.append(math.fsum((norm**2 - mean) ** 2 for norm in norms))
    return math.log(spreads[1] / spreads[0])


def naive_scores(M, gamma):
    M = M.tolist()
    return Scores(
        naive_symmetry(M),
        naive_directionality(M, gamma, published=False),
        naive_directionality(M, gamma, published=True),
        naive_dispersion(M),
    )


@settings(deadline=None, max_examples=60)
@given(seed=seeds, d=st.integers(2, 12), gamma=st.sampled_from([0.0, 0.5, 0.8, 2.0]))
def test_scores_follow_the_definitions(seed, d, gamma):
    M = np.random.default_rng(seed).normal(size=(d, d))
    assert_scores_equal(scores(M, gamma), naive_scores(M, gamma), rtol=1e-9, atol=1e-12)


def test_each_function_returns_its_field_of_scores():
    found = scores(outer, gamma=0.1)
    assert symmetry(outer) == found.symmetry
    assert dispersion(outer) == found.dispersion
    assert directionality(outer, gamma=0.1) == found.directionality
    assert directionality(outer, "published", 0.1) == found.directionality_published
    assert len({*found, directionality(outer), directionality(outer, "published")}) == 6


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_squares_can_be_scored_later_and_together(dtype):
    matrices = [np.asarray(M, dtype) for M in (outer, dominant_column, orthogonal(8, 0))]
    kept = [squares_of(M) for M in matrices]
    together = squares.Squares(*map(np.stack, zip(*(found for found, _ in kept), strict=True)))
    found = scores_from_squares(together, kept[0][1])
    np.testing.assert_array_equal(found, np.transpose([scores(M) for M in matrices]))
    assert found.directionality.any()


# Values worked by hand


def test_directionality_of_an_outer_product():
    assert directionality(outer) == pytest.approx(0.1707273103, abs=1e-9)
    assert directionality(outer, "published") == pytest.approx(0.4324229380, abs=1e-9)


@pytest.mark.parametrize("variant", ["definition", "published"])
def test_a_dominant_column_is_negative_and_a_dominant_row_positive(variant):
    assert directionality(dominant_column, variant) == pytest.approx(-1.0, abs=1e-12)
    assert directionality(dominant_column.T, variant) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1.0, 1e20, 1e-25])
def test_symmetry_of_small_matrices_at_any_scale(dtype, scale):
    for M, expected in [([[1, 2], [2, 1]], 1), ([[0, 1], [-1, 0]], -1), ([[1, 2], [0, 1]], 1 / 3)]:
        scaled = np.array(M, dtype=dtype) * dtype(scale)
        assert symmetry(scaled) == pytest.approx(expected, abs=1e-6)
    assert symmetry(np.array([[1, 2], [0, 1]])) == pytest.approx(1 / 3, abs=1e-15)


def test_zero_and_single_entry_matrices():
    for d in (1, 2, 7):
        assert scores(np.zeros((d, d))) == (0, 0, 0, 0)
    assert scores([[3.0]]) == (1, 0, 0, 0)
    assert scores([[-3]], gamma=0.0) == (1, 0, 0, 0)


def test_one_query_head_reads_the_key_head_of_its_group():
    W_q = np.eye(8).reshape(8, 4, 2)
    W_k = np.zeros((8, 2, 2))
    W_k.reshape(8, 4)[range(4), range(4)] = 1.0
    M = np.zeros((8, 8))
    M[range(8), [0, 1, 0, 1, 2, 3, 2, 3]] = 1.0
    found = scores_from_factors(W_q, W_k)
    assert found.symmetry == pytest.approx(0.25, abs=1e-14)  # pairing by i mod H_kv gives 0.5
    assert_scores_equal(found, scores(M), rtol=1e-12)
    per_head = [scores(W_q[:, i] @ W_k[:, i // 2].T) for i in range(4)]
    expected = Scores(*np.transpose(per_head))
    assert_scores_equal(scores_from_factors(W_q, W_k, per_head=True), expected, rtol=1e-12)


def test_rows_are_the_query_side():
    # Linear layers store (out, in): transposed, they are W_q and W_k; M is [[0, 0], [2, 0]].
    W_q, W_k = np.array([[0.0, 2.0], [0.0, 0.0]]).T, np.array([[1.0, 0.0], [1.0, 1.0]]).T
    assert (W_q @ W_k.T).tolist() == [[0, 0], [2, 0]]
    wide_q, wide_k = np.zeros((8, 2)), np.ones((8, 2))
    wide_q[:2] = W_q  # only row 1 of W_qk is not zero
    assert scores_from_factors(wide_q, wide_k).directionality == pytest.approx(1.0)
    assert scores_from_factors(wide_q, wide_k).dispersion == -np.inf
    assert scores_from_factors(wide_k, wide_q).directionality == pytest.approx(-1.0)
    assert scores_from_factors(wide_k, wide_q).dispersion == np.inf


def test_gains_folded_into_the_factors():
    W_q = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    W_k = np.array([[1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    gains = np.array([[2.0], [1.0], [0.5]])
    assert scores_from_factors(W_q, W_k).symmetry == pytest.approx(0.7, abs=1e-14)
    folded = scores_from_factors(gains * W_q, gains * W_k).symmetry
    assert folded == pytest.approx(0.8004750594, abs=1e-10)


# Properties


@settings(deadline=None, max_examples=40)
@given(seed=seeds, d=st.integers(1, 40))
def test_transposing_keeps_symmetry_and_turns_the_other_signs(seed, d):
    M = np.random.default_rng(seed).normal(size=(d, d)) ** 3
    one, other = scores(M), scores(M.T)
    # Exactly: both sides are summed in the same order.
    assert one.symmetry == pytest.approx(other.symmetry, abs=1e-14)
    assert one[1:] == tuple(-score for score in other[1:])


@settings(deadline=None, max_examples=40)
@given(seed=seeds, d=st.integers(1, 40), skew=st.booleans())
def test_full_symmetry_leaves_no_room_for_the_other_scores(seed, d, skew):
    M = np.random.default_rng(seed).normal(size=(d, d)) ** 3
    M = M - M.T if skew else M + M.T
    empty = skew and d == 1
    assert scores(M) == (0 if empty else -1 if skew else 1, 0, 0, 0)


@settings(deadline=None, max_examples=40)
@given(seed=seeds, exponent=st.integers(-150, 150), sign=st.sampled_from([1.0, -1.0]))
def test_scale_does_not_matter(seed, exponent, sign):
    M = np.random.default_rng(seed).normal(size=(9, 9))
    assert_scores_equal(scores(sign * 10.0**exponent * M), scores(M), rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(seed=seeds, d=st.integers(1, 12), gamma=st.floats(0.0, 3.0))
def test_ranges_and_small_matrices(seed, d, gamma):
    M = np.random.default_rng(seed).standard_cauchy(size=(3, d, d))
    found = scores(M, gamma)
    for score in found[:3]:
        assert np.all(np.abs(score) <= 1)
    if d <= 5:
        assert not np.any(directionality(M)), "no norm of five exceeds mean + 2 std"


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_equal_norms_up_to_rounding_are_no_direction(dtype):
    rotation = orthogonal(256, 0, np.float64 if dtype == np.float64 else np.float32).astype(dtype)
    permutation = np.eye(256, dtype=dtype)[np.random.default_rng(1).permutation(256)]
    constant = np.full((256, 256), 0.3, dtype=dtype)
    for M in (rotation, permutation, np.eye(256, dtype=dtype), constant):
        for gamma in (0.0, 2.0):
            for matrices in (M, M[None, None]):
                assert not np.any(scores(matrices, gamma)[1:])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_orthogonal_factors_are_no_direction(dtype):
    found = scores_from_factors(orthogonal(128, 0, dtype), orthogonal(128, 1, dtype))
    assert found[1:] == (0, 0, 0)


def test_a_real_difference_just_above_rounding_is_seen():
    M = np.eye(16)
    M[3, 3] = 1 + 1e-12
    M[3, 4] = 1e-5  # adds to row 3 and column 4
    assert directionality(M, gamma=0.0) != 0
    assert dispersion(M) != 0
    M32 = np.eye(16, dtype=np.float32)
    M32[3, 3] = 1 + 1e-6  # eight units in the last place: could be rounding
    assert scores(M32, gamma=0.0)[1:] == (0, 0, 0)


def test_norms_are_spread_if_one_square_is_off_by_more_than_twice_what_rounding_explains():
    M = np.random.default_rng(3).choice([-1.0, 1.0], size=(64, 64))
    unit = squares.rounding(64, M)
    for share, spread in ((1.6, False), (2.4, True), (-1.6, False), (-2.4, True)):
        M[3] = np.sign(M[3]) * (1 + share * unit / 2)  # off by this share in the square
        assert dispersion(M) == (-np.inf if spread else 0)
        assert dispersion(M.T) == (np.inf if spread else 0)


def test_what_lies_at_the_limit_of_rounding_is_rounding():
    # Norms 0 and 4: the larger exceeds its mean by half of itself.
    for floor, norm, excess in ((0.5, 0, 0), (0.49, 4, 2)):
        np.testing.assert_array_equal(_tail_sums(np.array([0.0, 16.0]), 0.0, floor), (norm, excess))
    # Squares 1 and 3: both differ from their mean by half of it, which is twice the limit.
    for floor, variance in ((0.25, 0), (0.24, 2)):
        assert _spread(np.array([1.0, 3.0]), floor) == variance


def test_rounding_leaves_symmetry_within_its_range():
    A, B = np.random.default_rng(0).normal(size=(2, 1000, 6, 1, 3))
    for sign in (1.0, -1.0):
        W_q, W_k = np.concatenate([A, sign * B], axis=-1), np.concatenate([B, A], axis=-1)
        found = scores_from_factors(W_q, W_k).symmetry
        np.testing.assert_allclose(found, sign, rtol=1e-12)
        assert (abs(found) <= 1).all()


def test_dispersion_is_infinite_where_one_side_is_constant():
    signs = np.random.default_rng(3).choice([-1.0, 1.0], size=(64, 64))
    columns_vary = signs * np.random.default_rng(4).uniform(size=64)
    assert dispersion(columns_vary) == np.inf
    assert dispersion(columns_vary.T) == -np.inf
    assert dispersion(signs) == 0
    both = dispersion([columns_vary, columns_vary.T, signs, signs @ columns_vary])
    assert both[:3].tolist() == [np.inf, -np.inf, 0]
    assert np.isfinite(both[3])


def test_arrays_are_read_in_any_layout_and_never_written():
    M = np.random.default_rng(0).normal(size=(2, 3, 20, 20))
    expected = scores(M)
    fortran = np.asfortranarray(M)
    strided = np.repeat(np.repeat(M, 2, axis=-1), 3, axis=-2)[..., ::3, ::2]
    flipped = M[..., ::-1, ::-1][..., ::-1, ::-1]
    swapped = np.ascontiguousarray(np.swapaxes(M, -1, -2)).swapaxes(-1, -2)
    big_endian = M.astype(">f8")
    for layout in (fortran, strided, flipped, swapped, big_endian):
        layout.flags.writeable = False
        before = layout.copy()
        assert_scores_equal(scores(layout), expected, rtol=1e-13)
        np.testing.assert_array_equal(layout, before)
    assert expected.symmetry.shape == (2, 3)
    assert expected.symmetry.dtype == np.float64
    assert isinstance(symmetry(M[0, 0].astype(np.float32)), np.float64)
    assert expected.dispersion[1, 2] == dispersion(M[1, 2])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_lower_precision_costs_only_its_own_rounding(dtype):
    M = np.random.default_rng(4).normal(size=(64, 64)).astype(dtype)
    assert_scores_equal(scores(M), scores(M.astype(np.float64)), rtol=1e-12)


# From factors


def explicit(W_q, W_k, per_head):
    """The scores of the product itself, with the key heads written out once a query head."""
    W_q, W_k = W_q.astype(np.float64), W_k.astype(np.float64)
    W_k = np.repeat(W_k, W_q.shape[-2] // W_k.shape[-2], axis=-2)
    return scores(
        np.einsum("...mih,...kih->...imk" if per_head else "...mih,...kih->...mk", W_q, W_k)
    )


@settings(deadline=None, max_examples=60)
@given(
    seed=seeds,
    d=st.integers(2, 24),
    key_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    h=st.integers(1, 6),
    leading=st.sampled_from([(), (1,), (3,), (2, 2)]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_factors_agree_with_their_product(seed, d, key_heads, group, h, leading, dtype):
    rng = np.random.default_rng(seed)
    W_q = rng.normal(size=(*leading, d, key_heads * group, h)).astype(dtype)
    W_k = rng.normal(size=(*leading, d, key_heads, h)).astype(dtype)
    for per_head in (False, True):
        found = scores_from_factors(W_q, W_k, per_head=per_head)
        assert_scores_equal(found, explicit(W_q, W_k, per_head), rtol=1e-10, atol=1e-10)
        expected_shape = (*leading, key_heads * group) if per_head else leading
        assert np.shape(found.symmetry) == np.shape(found.dispersion) == expected_shape


@settings(deadline=None, max_examples=30)
@given(seed=seeds, gamma=st.sampled_from([0.5, 1.0, 2.0]))
def test_exchanging_the_factors_transposes(seed, gamma):
    W_q, W_k = np.random.default_rng(seed).normal(size=(2, 30, 2, 4))
    one, other = (
        scores_from_factors(W_q, W_k, gamma=gamma),
        scores_from_factors(W_k, W_q, gamma=gamma),
    )
    mirrored = Scores(other.symmetry, *(-score for score in other[1:]))
    assert_scores_equal(one, mirrored, rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(seed=seeds, heads=st.integers(1, 3), h=st.integers(1, 8))
def test_equal_factors_are_fully_symmetric(seed, heads, h):
    W = np.random.default_rng(seed).normal(size=(20, heads, h))
    for per_head in (False, True):
        found = scores_from_factors(W, W, per_head=per_head)
        np.testing.assert_allclose(found.symmetry, 1.0, rtol=1e-12)
        assert np.all(np.asarray(found.symmetry) <= 1.0)
        np.testing.assert_allclose(found[1:], 0.0, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_factors_of_any_scale_head_by_head(dtype):
    W_q, W_k = np.random.default_rng(2).normal(size=(2, 12, 3, 4)).astype(dtype)
    expected = scores_from_factors(W_q, W_k)
    limit = 2.0**100 if dtype == np.float32 else 2.0**900
    balance = np.array([limit, 1.0, 1 / limit], dtype=dtype)[:, None]
    # Large queries beside small keys: the same product, beyond the range of any square.
    assert_scores_equal(scores_from_factors(W_q * balance, W_k / balance), expected, rtol=1e-12)
    both = scores_from_factors(W_q * dtype(limit), W_k * dtype(limit))
    assert_scores_equal(both, expected, rtol=1e-12)
    tiny = scores_from_factors(W_q / dtype(limit), W_k / dtype(limit), per_head=True)
    per_head = scores_from_factors(W_q, W_k, per_head=True)
    assert_scores_equal(tiny, per_head, rtol=1e-12)
    # Heads with nothing in common, each scored by itself.
    apart = scores_from_factors(W_q * balance, W_k * balance, per_head=True)
    assert_scores_equal(apart, per_head, rtol=1e-12)


def test_dead_columns_do_not_set_the_scale():
    W_q, W_k = np.random.default_rng(3).normal(size=(2, 12, 4))
    expected = scores_from_factors(W_q, W_k)
    zeros = np.zeros((12, 1))
    found = scores_from_factors(
        np.hstack([W_q * 1e-200, zeros, np.ones((12, 1))]), np.hstack([W_k * 1e-100, zeros, zeros])
    )
    assert_scores_equal(found, expected, rtol=1e-9)
    assert scores_from_factors(np.zeros((12, 2)), np.ones((12, 2))) == (0, 0, 0, 0)


@pytest.mark.parametrize("seed", range(8))
def test_a_product_that_cancels(seed):
    W_q, W_k, step_q, step_k = np.random.default_rng(seed).normal(size=(4, 40, 8))

    def change(step):
        """The change of W_qk after a step, as the product of factors side by side."""
        queries, keys = W_q + step * step_q, W_k + step * step_k
        return np.hstack([queries, -W_q]), np.hstack([keys, W_k]), queries @ keys.T - W_q @ W_k.T

    # In one order of columns the squares cancel exactly by luck; in another they leave rounding.
    order = np.random.default_rng(seed).permutation(16)
    queries, keys, _ = change(0.0)
    assert scores_from_factors(queries[:, order], keys[:, order]) == (0, 0, 0, 0)
    queries, keys, product = change(1e-4)
    assert_scores_equal(scores_from_factors(queries, keys), scores(product), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_rows_that_cancel_are_zero_and_not_the_root_of_a_negative_number(seed):
    rng = np.random.default_rng(seed)
    half, other, W_k = rng.normal(size=(3, 40, 8))
    order = rng.permutation(16)
    W_q = np.hstack([half, -half])[:, order]
    W_q[0] = other.ravel()[:16]  # the one row that is left
    W_k = np.hstack([W_k, W_k])[:, order]
    found = scores_from_factors(W_q, W_k)
    assert_scores_equal(found, scores(W_q @ W_k.T), rtol=1e-6)


def test_factors_are_read_in_any_layout_and_never_written():
    W_q, W_k = np.random.default_rng(5).normal(size=(2, 3, 10, 4, 6))
    expected = scores_from_factors(W_q, W_k)
    for layout in (np.asfortranarray, lambda W: np.repeat(W, 2, axis=-1)[..., ::2]):
        queries, keys = layout(W_q), layout(W_k)
        queries.flags.writeable = keys.flags.writeable = False
        assert_scores_equal(scores_from_factors(queries, keys), expected, rtol=1e-11)
        np.testing.assert_array_equal(queries, W_q)
        np.testing.assert_array_equal(keys, W_k)


def test_plain_matrices_are_one_head():
    W_q, W_k = np.random.default_rng(7).normal(size=(2, 10, 4))
    whole = scores_from_factors(W_q, W_k)
    assert isinstance(whole.symmetry, np.float64)
    assert_scores_equal(whole, scores(W_q @ W_k.T), rtol=1e-10)
    assert scores_from_factors(W_q, W_k, per_head=True).symmetry.shape == (1,)


def test_the_product_is_never_formed():
    import tracemalloc

    W_q, W_k = np.random.default_rng(8).normal(size=(2, 4000, 2, 4)).astype(np.float32)
    tracemalloc.start()
    scores_from_factors(W_q, W_k)
    scores_from_factors(W_q, W_k, per_head=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.1 * 4000 * 4000 * 8


# Null distributions


def test_scores_of_random_matrices():
    n, d = 4000, 64
    rng = np.random.default_rng(11)
    parts = [scores(rng.normal(size=(n // 20, d, d))) for _ in range(20)]
    null = Scores(*np.concatenate(parts, axis=1))
    # Standard errors: of a mean sd / sqrt(n), of an sd about sd / sqrt(2 n); four of them allowed,
    # and half a unit of the last digit of the figures .54 and .66.
    error = 4 / math.sqrt(n)
    half = error / math.sqrt(2)
    assert np.mean(null.symmetry) == pytest.approx(1 / d, abs=error * math.sqrt(2) / d)
    assert np.std(null.symmetry) == pytest.approx(math.sqrt(2) / d, rel=half + 1 / d)
    assert np.std(null.directionality) == pytest.approx(0.54, abs=half * 0.54 + 0.005)
    assert np.std(null.directionality_published) == pytest.approx(0.66, abs=half * 0.66 + 0.005)
    assert np.std(null.dispersion) == pytest.approx(2 / math.sqrt(d), rel=half + 0.05)
    for score, sd in zip(null[1:], (0.54, 0.66, 0.25), strict=True):
        assert np.mean(score) == pytest.approx(0.0, abs=error * sd)


def test_large_factors_are_scored_one_pair_after_another():
    rng = np.random.default_rng(0)
    W_q, W_k = rng.normal(size=(2, 2, 1, 512, 1, 512)).astype(np.float32)
    found = scores_from_factors(W_q, W_k)
    for place in np.ndindex(2, 1):
        alone = scores_from_factors(W_q[place], W_k[place])
        assert [score[place] for score in found] == list(alone)
    assert found.symmetry.shape == (2, 1)


def test_matrices_of_one_stack_may_differ_in_magnitude():
    M = np.random.default_rng(0).normal(size=(6, 6))
    alone, found = scores(M), scores(np.stack([1e-200 * M, M, 1e200 * M]))
    np.testing.assert_allclose(found, np.repeat(np.reshape(alone, (4, 1)), 3, axis=1), rtol=1e-12)


# Errors


@pytest.mark.parametrize(
    ("M", "text"),
    [
        (np.ones((2, 3)), r"the shape \(2, 3\), needs square"),
        (np.ones(4), r"shape \(4,\)"),
        (np.float64(1.0), r"shape \(\)"),
        (np.ones((0, 0)), "empty"),
        (np.ones((0, 3, 3)), "empty"),
        (np.ones((2, 2), dtype=complex), "complex128"),
        (np.ones((2, 2), dtype=bool), "bool"),
        (np.ones((2, 2), dtype=np.longdouble), "float128|longdouble"),
        (np.array([["a", "b"], ["c", "d"]]), "<U1"),
        ([[1.0, 2.0], [3.0]], "list"),
        (np.array([[1.0, np.nan], [0.0, 1.0]]), "NaN"),
        (np.array([[1.0, np.inf], [0.0, 1.0]], dtype=np.float16), "NaN or infinity"),
    ],
)
def test_what_is_no_matrix_is_named(M, text):
    for score in (symmetry, directionality, dispersion, scores):
        with pytest.raises(ValueError, match="^M: got .*" + text):
            score(M)


@pytest.mark.parametrize("gamma", [-0.1, np.nan, np.inf, "2", None, True])
def test_gamma_is_finite_and_not_negative(gamma):
    for call in (
        lambda: directionality(outer, gamma=gamma),
        lambda: scores(outer, gamma),
        lambda: scores_from_factors(outer, outer, gamma=gamma),
    ):
        with pytest.raises(ValueError, match="gamma"):
            call()


def test_variant_and_per_head_are_checked():
    with pytest.raises(ValueError, match="variant: got 'excess'"):
        directionality(outer, "excess")
    with pytest.raises(ValueError, match="per_head"):
        scores_from_factors(outer, outer, per_head=1)


@pytest.mark.parametrize(
    ("query_shape", "key_shape"),
    [
        ((8, 4), (8, 3)),
        ((8, 4), (7, 4)),
        ((8, 4), (8, 1, 4)),
        ((8, 3, 4), (8, 2, 4)),
        ((8, 2, 4), (8, 4, 4)),
        ((8, 2, 4), (8, 2, 3)),
        ((2, 8, 2, 4), (3, 8, 2, 4)),
        ((2, 8, 2, 4), (8, 2, 4)),
        ((8,), (8,)),
    ],
)
def test_factors_that_do_not_fit(query_shape, key_shape):
    with pytest.raises(ValueError, match="W_q, W_k: got the shapes"):
        scores_from_factors(np.ones(query_shape), np.ones(key_shape))


def test_a_bad_factor_is_named():
    good = np.ones((4, 2))
    with pytest.raises(ValueError, match=r"^W_q: got NaN"):
        scores_from_factors(good * np.nan, good)
    with pytest.raises(ValueError, match=r"^W_k: got an array of complex128"):
        scores_from_factors(good, good * 1j)
    with pytest.raises(ValueError, match=r"^W_k: got the empty shape"):
        scores_from_factors(good, np.ones((4, 0)))

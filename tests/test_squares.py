"""Squares from factors, and how far products in float32 may move the scores made of them."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minattn.scores
from minattn import squares
from minattn.scores import scores, scores_from_factors

KINDS = (
    "random",
    "shifted",
    "heavy-tailed",
    "outliers",
    "low rank",
    "almost symmetric",
    "almost skew",
    "almost equal norms",
    "columns that cancel",
    "rows that cancel",
)


def factors(kind, seed, d, k):
    """W_q and W_k in float32, of many temperaments."""
    rng = np.random.default_rng(seed)
    W_q, W_k, noise = rng.normal(size=(3, d, k))
    strength = 10 ** rng.uniform(-6, 0)
    if kind == "shifted":
        W_q, W_k = W_q + 1, W_k - 2
    elif kind == "heavy-tailed":
        W_q, W_k = W_q**5, W_k**5
    elif kind == "outliers":
        W_q, W_k = W_q * np.exp(2 * noise[:, :1]), W_k * np.exp(2 * noise[0])
    elif kind == "low rank":
        W_q, W_k = (strength * W + W[:, :1] * noise[1] for W in (W_q, W_k))
    elif kind == "almost symmetric":
        W_q = W_k + strength * W_q
    elif kind == "almost skew":
        W_q, W_k = np.hstack([W_q, -W_k]) + strength * noise[:, :1], np.hstack([W_k, W_q])
    elif kind == "almost equal norms":
        W_q, W_k = (np.linalg.qr(W)[0] + strength * noise[:, : min(d, k)] for W in (W_q, W_k))
    elif kind == "columns that cancel":
        W_q, W_k = np.hstack([W_q + strength * noise, -W_q]), np.hstack([W_k, W_k])
    elif kind == "rows that cancel":
        rest = np.hstack([noise, noise]) * (rng.random((d, 1)) < 0.2)
        W_q, W_k = np.hstack([W_q, -W_q]) + rest, np.hstack([W_k, W_k])
    return W_q.astype(np.float32), W_k.astype(np.float32)


def float32_first(W_q, W_k, large=0, **options):
    """The scores with float32 from `large` numbers on, and how often float64 had to step in."""
    calls = []

    def counted(*arguments, factor_scores=minattn.scores._factor_scores):
        calls.append(arguments)
        return factor_scores(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minattn.scores, "_LARGE", large)
        patch.setattr(minattn.scores, "_factor_scores", counted)
        return scores_from_factors(W_q, W_k, **options), len(calls)


def in_float64(W_q, W_k, **options):
    return float32_first(W_q, W_k, large=math.inf, **options)[0]


def of_product(W_q, W_k):
    return scores(W_q.astype(np.float64) @ W_k.T.astype(np.float64))


def close(found, expected):
    return all(np.allclose(a, b, rtol=0, atol=1e-5) for a, b in zip(found, expected, strict=True))


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), d=st.integers(1, 40), k=st.integers(1, 600))
def test_squares_of_factors_are_those_of_their_product(seed, d, k):
    W_q, W_k = np.random.default_rng(seed).normal(size=(2, d, k))
    found, sizes = squares.of_factors(*squares.grouped(W_q, W_k), np.float64)
    expected = squares.of_matrix(W_q @ W_k.T)
    scale = expected.energy / found.energy  # of no meaning
    for square, size, other in zip(found, sizes, expected, strict=True):
        np.testing.assert_allclose(square * scale, other, atol=1e-12 * np.max(size * scale))
        assert np.all(size >= np.abs(square) * (1 - 1e-12))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_each_of_many_has_the_squares_and_sizes_that_it_has_alone(dtype):
    W_q, W_k = np.random.default_rng(0).normal(size=(2, 3, 1, 5, 2, 150))
    together = squares.of_factors(*squares.grouped(W_q, W_k), dtype)
    for i in range(3):
        alone = squares.of_factors(*squares.grouped(W_q[i], W_k[i]), dtype)
        for many, one in zip(together, alone, strict=True):
            for square, expected in zip(many, one, strict=True):
                np.testing.assert_allclose(square[i], expected, rtol=1e-6)


def test_what_rounding_can_explain():
    half, single, double = (np.finfo(f"f{size}").eps for size in (2, 4, 8))
    for d in (1, 4, 100):
        grown = 4 * d**0.5  # of a sum of d terms, with room for a factorisation
        assert squares.rounding(d, np.ones(1)) == pytest.approx((grown + 1) * double)
        assert squares.rounding(d, np.float32([1])) == pytest.approx((grown + 1) * single)
        # A number is stored in half precision, but not computed in it.
        found = squares.rounding(d, np.ones(1), np.float16([1]))
        assert found == pytest.approx(grown * single + half)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d", "k"), [(2048, 64), (300, 300)])
def test_rounding_in_float32_is_a_few_units_of_the_sizes(kind, d, k):
    pair = squares.grouped(*factors(kind, 0, d, k))
    (single, _), (double, sizes) = (squares.of_factors(*pair, t) for t in (np.float32, np.float64))
    for square, exact, size in zip(single, double, sizes, strict=True):
        assert square.dtype == np.float64
        errors = (square - exact) / (size * np.finfo(np.float32).eps)
        # What all rows, or all columns, have in common moves no score.
        assert (np.std(errors) if errors.ndim else np.abs(errors)) < 4


# Scores with products in float32


@settings(deadline=None, max_examples=300)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32 - 1),
    d=st.integers(2, 200),
    k=st.integers(1, 100),
    gamma=st.sampled_from([0.0, 1.0, 2.0]),
)
def test_float32_moves_no_score_by_more_than_promised(kind, seed, d, k, gamma):
    W_q, W_k = factors(kind, seed, d, k)
    found, _ = float32_first(W_q, W_k, gamma=gamma)
    assert close(found, in_float64(W_q, W_k, gamma=gamma))


@pytest.mark.parametrize("dtypes", [("f2", "f2"), ("f4", "f2"), ("f4", "f4")])
def test_large_random_factors_need_no_float64(dtypes):
    rng = np.random.default_rng(0)
    W_q = rng.normal(size=(2, 1024, 4, 128)).astype(dtypes[0])
    W_k = rng.normal(size=(2, 1024, 2, 128)).astype(dtypes[1])
    found, float64_calls = float32_first(W_q, W_k, large=minattn.scores._LARGE)
    expected = in_float64(W_q, W_k)
    assert float64_calls == 0
    assert close(found, expected)
    assert np.any(np.not_equal(found, expected))
    assert np.shape(found.symmetry) == (2,)
    found, float64_calls = float32_first(W_q, W_k, per_head=True)
    assert float64_calls <= 1
    assert close(found, in_float64(W_q, W_k, per_head=True))
    assert np.shape(found.symmetry) == (2, 4)


def test_a_factor_in_float64_is_multiplied_in_float64():
    W_q, W_k = factors("random", 0, 40, 8)
    for pair in ((W_q.astype(np.float64), W_k), (W_q, W_k.astype(np.float64))):
        assert float32_first(*pair) == (in_float64(W_q, W_k), 1)


def test_float64_steps_in_where_rounding_may_move_a_score_beyond_the_tolerance(monkeypatch):
    W_q, W_k, noise = np.random.default_rng(5).normal(size=(3, 60, 12)).astype(np.float32)
    W_k *= np.exp(2 * noise[:, :1])
    found, sizes = squares.of_factors(*squares.grouped(W_q, W_k), np.float32)
    result, *moved = (
        minattn.scores.scores_from_squares(other, squares.rounding(60, W_q))
        for other in (found, *squares.within_rounding(found, sizes, np.float32))
    )
    assert result.dispersion > 3  # of a score beyond 1 too the tolerance is absolute
    largest = np.abs(np.subtract(moved, result)).max()
    for share, calls in ((0.9, 1), (1.1, 0)):
        monkeypatch.setattr(minattn.scores, "_TOLERANCE", share * largest)
        assert float32_first(W_q, W_k)[1] == calls


def test_the_coarser_factor_decides_what_rounding_explains():
    signs, one = np.random.default_rng(3).choice([-1.0, 1.0], size=(16, 16)), np.eye(16)
    signs[3] *= 1 + np.finfo(np.float16).eps
    for large in (0, math.inf):
        for coarse, seen in ((np.float16, 0), (np.float32, 1)):
            pair = signs.astype(coarse), one.astype(np.float32)
            found, _ = float32_first(*pair, large, gamma=0.0)
            assert found.directionality == seen
            found, _ = float32_first(*pair[::-1], large, gamma=0.0)
            assert found.directionality == -seen


@pytest.mark.parametrize("change", [1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
def test_queries_that_share_a_key_may_cancel(change):
    half, step, W_k = np.random.default_rng(6).normal(size=(3, 60, 12)).astype(np.float32)
    step *= np.float32(change)
    W_q = np.stack([half, step, -half], axis=1)
    found, float64_calls = float32_first(W_q, W_k[:, None])
    assert float64_calls == 0  # only their sum has to be exact
    assert close(found, of_product(step, W_k))


@pytest.mark.parametrize("change", [1e-1, 1e-2, 1e-3, 1e-4])
def test_columns_that_cancel_take_float64(change):
    W_q, W_k, step = np.random.default_rng(7).normal(size=(3, 60, 12)).astype(np.float32)
    W_q, W_k = np.hstack([W_q + np.float32(change) * step, -W_q]), np.hstack([W_k, W_k])
    found, float64_calls = float32_first(W_q, W_k)
    assert float64_calls == 1
    assert close(found, of_product(W_q, W_k))


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_left_where_all_columns_cancel(seed):
    rng = np.random.default_rng(seed)
    W_q, W_k = rng.normal(size=(2, 60, 12)).astype(np.float32)
    order = rng.permutation(24)
    W_q, W_k = np.hstack([W_q, -W_q])[:, order], np.hstack([W_k, W_k])[:, order]
    assert float32_first(W_q, W_k)[0] == (0, 0, 0, 0)
    assert float32_first(np.zeros_like(W_q), W_k)[0] == (0, 0, 0, 0)


def test_a_norm_at_its_threshold_takes_float64():
    W_q, W_k = factors("random", 1, 80, 16)
    norms = np.sort(np.linalg.norm(W_q.astype(np.float64) @ W_k.T.astype(np.float64), axis=1))
    # The third largest exceeds mean + gamma std by just what counts as rounding.
    least = norms[-3] * (1 - squares.rounding(80, W_q))
    gamma = (least - norms.mean()) / norms.std(ddof=1)
    found, float64_calls = float32_first(W_q, W_k, gamma=gamma)
    assert float64_calls == 1
    assert found == in_float64(W_q, W_k, gamma=gamma)
    below, above = (float32_first(W_q, W_k, gamma=gamma + step) for step in (-1e-4, 1e-4))
    assert below[1] == above[1] == 0
    assert abs(below[0].directionality - above[0].directionality) > 0.01


def test_float32_factors_of_any_scale():
    W_q, W_k = np.random.default_rng(2).normal(size=(2, 60, 2, 8)).astype(np.float32)
    expected = float32_first(W_q, W_k)
    limit = np.float32(2.0**100)
    balance = np.array([limit, 1 / limit], dtype=np.float32)[:, None]
    assert expected[1] == 0
    assert float32_first(W_q * balance, W_k / balance) == expected
    assert float32_first(W_q * limit, W_k * limit) == expected
    assert float32_first(W_q / limit, W_k / limit) == expected


def test_the_sum_of_any_finite_queries_is_finite():
    W_q, W_k = np.random.default_rng(3).normal(size=(2, 20, 4))
    largest = np.finfo(np.float64).max / np.abs(W_q).max()
    queries, keys = np.stack([W_q * largest] * 3, axis=1), W_k[:, None]
    expected = of_product(W_q, W_k)
    np.testing.assert_allclose(scores_from_factors(queries, keys), expected, rtol=1e-9)
    found = scores_from_factors(queries[None], keys[None])
    np.testing.assert_allclose(np.ravel(found), expected, rtol=1e-9)


def test_queries_that_share_a_key_are_summed_without_a_copy_of_them():
    W_q = np.random.default_rng(9).normal(size=(2048, 64, 64)).astype(np.float32)
    for layout in (W_q, np.ascontiguousarray(W_q.transpose(1, 2, 0)).transpose(2, 0, 1)):
        tracemalloc.start()
        scores_from_factors(layout, layout[:, :2])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < W_q.nbytes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_stack_of_factors_has_the_squares_and_sizes_of_each(dtype):
    rng = np.random.default_rng(0)
    queries, keys = rng.normal(size=(2, 3, 5, 2, 1, 4))
    stacked = squares.of_factors(queries, keys, dtype)
    for i in range(3):
        alone = squares.of_factors(queries[i], keys[i], dtype)
        for found, expected in zip(sum(stacked, ()), sum(alone, ()), strict=True):
            assert found.dtype == np.float64
            np.testing.assert_allclose(found[i], expected, rtol=1e-6)


def test_what_rounding_may_do_moves_the_ratio_of_a_score_both_ways_and_each_time_the_same():
    found, sizes = squares.of_factors(*np.ones((2, 3, 1, 1, 2)), np.float32)
    tried, again = (list(squares.within_rounding(found, sizes, np.float32)) for _ in range(2))
    for one, other in zip(tried, again, strict=True):
        np.testing.assert_equal(one, other)
    moved = [one.overlap / one.energy / (found.overlap / found.energy) - 1 for one in tried]
    assert min(moved) < -6 * np.finfo(np.float32).eps
    assert max(moved) > 6 * np.finfo(np.float32).eps


def test_factors_are_multiplied_in_the_precision_asked_for():
    for dtype in (np.float32, np.float64):
        balanced = squares._balanced(*np.ones((2, 3, 1, 1, 2)), dtype)
        assert [factor.dtype for factor in balanced] == [dtype, dtype]

"""Random updates by role, against loops over tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minattn.theorems.roles import (
    as_key,
    as_query,
    both_roles,
    normal,
    squared_norms,
    weighted_sums,
)


@given(seed=st.integers(0, 2**32 - 1), d=st.integers(1, 5), n=st.integers(1, 4))
def test_terms_of_a_key_and_of_a_query(seed, d, n):
    rng = np.random.default_rng(seed)
    x, beta, x_star = rng.standard_normal((n, d)), rng.standard_normal(n), rng.standard_normal(d)
    as_loops = sum(beta[i] * np.outer(x[i], x_star) for i in range(n))
    np.testing.assert_allclose(as_key(beta @ x, x_star), as_loops)
    np.testing.assert_allclose(as_query(beta @ x, x_star), as_loops.T)


def test_rows_are_the_query_side():
    x, x_star = np.array([1.0, 0.0]), np.array([3.0, 4.0])
    rows, columns = squared_norms(as_key(x, x_star))
    assert rows.tolist() == [25.0, 0.0]
    assert columns.tolist() == [9.0, 16.0]


def test_weighted_sums_have_the_covariance_that_they_should():
    root = np.array([[1.0, 0.0], [0.5, 2.0]])
    w = weighted_sums(np.random.default_rng(0), 200_000, np.array([1.0, -2.0]), root, normal)
    np.testing.assert_allclose(np.cov(w.T), 5 * root @ root.T, rtol=0.03)


def test_both_roles_weigh_as_said():
    variances = np.array([0.5, 1.5])
    draws = (np.random.default_rng(1), 200_000, variances)
    nothing = lambda w, x_star: as_key(0 * w, x_star)  # noqa: E731
    key = (both_roles(*draws, 0.3, query=nothing) ** 2).sum(axis=(1, 2)).mean()
    query = (both_roles(*draws, 0.3, key=nothing) ** 2).sum(axis=(1, 2)).mean()
    assert key == pytest.approx(4.0, rel=0.03)  # tau tr(Sigma) d B_key with tau = 1
    assert query == pytest.approx(0.3 * 4.0, rel=0.03)
    assert np.linalg.matrix_rank(both_roles(*draws[:1], 3, variances, 0.0)).max() == 1

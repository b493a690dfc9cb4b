"""Markov chains: their laws against closed forms, their samples against their laws."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minattn.data import MarkovChain
from minattn.data.markov import walk

TWO = [[0.9, 0.1], [0.2, 0.8]]
FORBIDDING = [[0, 0.5, 0.5, 0], [0, 0, 1, 0], [0.3, 0, 0, 0.7], [1, 0, 0, 0]]

seeds = st.integers(0, 2**32 - 1)
chains = st.builds(
    MarkovChain.random,
    n_symbols=st.integers(1, 6),
    concentration=st.sampled_from([1e-3, 0.1, 1.0, 30.0]),
    lag=st.integers(1, 3),
    reversible=st.booleans(),
    seed=seeds,
)


def within_five_sigma(count, trials, probability):
    sigma = np.sqrt(trials * probability * (1 - probability))
    return np.all(np.abs(count - trials * probability) <= 5 * sigma + 1e-9)


# Rows


def test_float32_thirds_are_normalised_in_float64():
    chain = MarkovChain(np.full((3, 3), 1 / 3, dtype=np.float32))
    assert chain.transition.dtype == np.float64
    np.testing.assert_allclose(chain.transition.sum(axis=1), 1, rtol=0, atol=1e-15)
    np.testing.assert_allclose(chain.transition, 1 / 3, rtol=1e-15)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([0.3, 0.3, 0.39], "row 1 with the sum 0.99"),
        ([0.5, 0.6, -0.1], "row 1 with the value -0.1"),
        ([np.nan, 1, 0], "row 1 with the value nan"),
        ([np.inf, 1, 0], "row 1 with the value inf"),
        ([1e308, 1e308, 0], "row 1 with the value 1e"),
        ([0, 0, 0], "row 1 with the sum 0"),
        ([0.5, 0.5 - 2e-5, 0], "row 1 with the sum 0.99998"),
    ],
)
def test_a_row_that_is_no_law_is_rejected_by_number(row, said):
    with pytest.raises(ValueError, match=f"^transition: got {said}"):
        MarkovChain([[1, 0, 0], row, [0, 0, 1]])


@pytest.mark.parametrize(
    ("transition", "said"),
    [
        ([[0.5, 0.5]], "a square matrix"),
        ([0.5, 0.5], r"shape \(2,\)"),
        (np.zeros((0, 0)), r"shape \(0, 0\)"),
        ([[1], [0.5, 0.5]], "a list that is no array"),
        ([[1j]], "complex128"),
        ([["1"]], "array of probabilities"),
        (None, "NoneType"),
    ],
)
def test_what_is_no_matrix_is_rejected(transition, said):
    with pytest.raises(ValueError, match=said):
        MarkovChain(transition)


@pytest.mark.parametrize("lag", [0, -1, 1.5, True, "1"])
def test_a_lag_is_a_positive_integer(lag):
    with pytest.raises(ValueError, match=r"^lag: got .*an integer of at least 1"):
        MarkovChain(TWO, lag=lag)


def test_a_chain_neither_changes_nor_follows_its_argument():
    given_rows = np.array(TWO, dtype=np.float64)
    chain = MarkovChain(given_rows)
    given_rows[:] = 7
    np.testing.assert_array_equal(chain.transition, TWO)
    for array in (chain.transition, chain.stationary):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        chain.lag = 2


# Laws


@pytest.mark.parametrize(
    ("transition", "law"),
    [
        (TWO, [2 / 3, 1 / 3]),
        ([[0, 1], [1, 0]], [0.5, 0.5]),
        ([[0, 1, 0], [0, 0, 1], [1, 0, 0]], [1 / 3, 1 / 3, 1 / 3]),
        ([[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]], [0, 0.5, 0.5]),  # state 0 is transient
        ([[1.0]], [1.0]),
    ],
)
def test_stationary_law(transition, law):
    np.testing.assert_allclose(MarkovChain(transition).stationary, law, rtol=1e-15, atol=0)


def test_a_stationary_law_of_nearly_separate_classes_keeps_its_relative_accuracy():
    # Eigenvalues 1 and 1 - 4e-18: in float64 the matrix is the identity but for its corners.
    chain = MarkovChain([[1 - 1e-18, 1e-18], [3e-18, 1 - 3e-18]])
    np.testing.assert_allclose(chain.stationary, [0.75, 0.25], rtol=1e-14)


@pytest.mark.parametrize(
    ("transition", "classes"),
    [
        (np.eye(2), r"\{0\} and \{1\}"),
        ([[0, 0.5, 0.25, 0.25], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]], r"\{1, 2\} and \{3\}"),
        (np.eye(30), r"30 closed classes, \{0\}, \{1\}, \{2\}, \{3\} and others"),
    ],
)
def test_a_stationary_law_that_is_not_unique_is_said_so(transition, classes):
    with pytest.raises(ValueError, match=f"^transition: got .*{classes}, .*not unique"):
        MarkovChain(transition)


def test_a_stationary_law_beyond_float64_is_said_so():
    with pytest.raises(ValueError, match=r"^transition: got steps too rare for float64"):
        MarkovChain([[0, 1, 0], [0, 1, 1e-200], [1e-200, 1, 0]])  # pi_0 / pi_1 = 1e-400


def test_entropies_with_zeros():
    chain = MarkovChain([[1, 0, 0], [0.5, 0.5, 0], [0, 0.25, 0.75]])
    expected = [0, 0.6931471806, 0.5623351446]
    np.testing.assert_allclose(chain.row_entropies, expected, rtol=0, atol=5e-11)
    assert chain.entropy_rate == 0
    assert MarkovChain(TWO).entropy_rate == pytest.approx(0.3835227901, abs=5e-11)
    assert math.copysign(1, chain.row_entropies[0]) == 1


def test_net_flux_of_a_cycle_a_biased_cycle_and_a_two_state_chain():
    cycle = np.roll(np.eye(3), 1, axis=1)
    assert MarkovChain(cycle).net_flux == pytest.approx(1)
    assert MarkovChain(0.75 * cycle + 0.25 * cycle.T).net_flux == pytest.approx(0.5)
    assert MarkovChain(TWO).net_flux == pytest.approx(0, abs=1e-16)


def test_log_likelihood_multiplies_the_steps_at_the_lag():
    tokens = [[0, 1, 1, 0], [1, 1, 0, 0]]
    lag_1 = [2 / 3 * 0.1 * 0.8 * 0.2, 1 / 3 * 0.8 * 0.2 * 0.9]
    lag_2 = [2 / 3 * 1 / 3 * 0.1 * 0.2, 1 / 3 * 1 / 3 * 0.2 * 0.2]
    lag_9 = [(2 / 3) ** 2 * (1 / 3) ** 2] * 2
    for lag, expected in (1, lag_1), (2, lag_2), (9, lag_9):
        found = MarkovChain(TWO, lag).log_likelihood(tokens)
        np.testing.assert_allclose(found, np.log(expected), rtol=1e-14)


def test_log_likelihood_of_a_forbidden_step_or_start():
    chain = MarkovChain([[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]])
    found = chain.log_likelihood([[1, 2, 1], [1, 0, 1], [0, 1, 1]])
    np.testing.assert_array_equal(found, [np.log(0.5**3), -np.inf, -np.inf])


def test_log_likelihood_rejects_what_are_no_sequences():
    chain = MarkovChain(TWO)
    with pytest.raises(ValueError, match=r"^tokens: got shape \(2,\), needs shape \(B, N\)"):
        chain.log_likelihood([0, 1])
    with pytest.raises(
        ValueError, match=r"^tokens: got the value 2, needs every value within 0..1"
    ):
        chain.log_likelihood([[0, 2]])


@settings(deadline=None)
@given(chains)
def test_the_stationary_law_is_stationary_positive_and_normalised(chain):
    law = chain.stationary
    assert (law > 0).all()
    np.testing.assert_allclose(law.sum(), 1, rtol=1e-14)
    np.testing.assert_allclose(law @ chain.transition, law, rtol=1e-12)
    assert 0 <= chain.entropy_rate <= np.log(chain.n_symbols) + 1e-12
    assert 0 <= chain.net_flux <= 1


@settings(deadline=None)
@given(chains, seeds)
def test_the_reversed_chain_gives_reversed_sequences_the_same_probability(chain, seed):
    tokens = np.random.default_rng(seed).integers(chain.n_symbols, size=(4, 7))
    backward = chain.reversed().log_likelihood(tokens[:, ::-1])
    np.testing.assert_allclose(backward, chain.log_likelihood(tokens), rtol=1e-9, atol=1e-9)


def test_reversing_a_chain_with_a_transient_state_leaves_it_transient():
    chain = MarkovChain([[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 0.1, 0.9]])
    backward = chain.reversed()
    np.testing.assert_allclose(backward.stationary, chain.stationary, rtol=1e-14)
    np.testing.assert_allclose(backward.transition[0], chain.stationary, rtol=1e-14)


# Random and independent chains


@settings(deadline=None)
@given(st.integers(1, 6), st.sampled_from([1e-9, 1e-3, 0.1, 10.0, 1e9]), seeds)
def test_reversible_chains_have_no_net_flux(n_symbols, concentration, seed):
    chain = MarkovChain.random(n_symbols, concentration, reversible=True, seed=seed)
    assert chain.net_flux < 1e-14


def test_irreversible_chains_have_a_net_flux():
    fluxes = [MarkovChain.random(6, 1.0, seed=seed).net_flux for seed in range(10)]
    assert min(fluxes) > 0.05


@pytest.mark.parametrize("reversible", [False, True])
@pytest.mark.parametrize("concentration", [0.1, 0.5, 4.0])
def test_every_row_follows_the_dirichlet_law(concentration, reversible):
    V, draws = 4, 2000
    rows = np.array(
        [
            MarkovChain.random(V, concentration, reversible=reversible, seed=seed).transition[2]
            for seed in range(draws)
        ]
    )
    variance = (1 / V) * (1 - 1 / V) / (V * concentration + 1)
    np.testing.assert_allclose(rows.mean(axis=0), 1 / V, atol=5 * np.sqrt(variance / draws))
    np.testing.assert_allclose(rows.var(axis=0), variance, rtol=0.2)


@pytest.mark.parametrize("reversible", [False, True])
def test_no_concentration_makes_rows_vanish_or_classes_separate(reversible):
    for concentration in (1e-9, 1e-4, 1e9):
        chain = MarkovChain.random(16, concentration, reversible=reversible, seed=5)
        assert chain.transition.min() >= 0.99e-100
        np.testing.assert_allclose(chain.transition.sum(axis=1), 1, rtol=1e-14)


def test_random_chains_are_fixed_by_their_arguments():
    first, again, other = (MarkovChain.random(5, lag=2, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.transition, again.transition)
    assert np.abs(first.transition - other.transition).max() > 0.1
    assert first.lag == 2
    assert repr(first) == "MarkovChain(n_symbols=5, lag=2)"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"n_symbols": 0}, "n_symbols"),
        ({"n_symbols": 3, "concentration": 0.0}, "concentration"),
        ({"n_symbols": 3, "concentration": math.nan}, "concentration"),
        ({"n_symbols": 3, "lag": 0}, "lag"),
        ({"n_symbols": 3, "reversible": 1}, "reversible"),
        ({"n_symbols": 3, "seed": -1}, "seed"),
    ],
)
def test_random_rejects_arguments_out_of_range(arguments, name):
    with pytest.raises(ValueError, match=f"^{name}: got"):
        MarkovChain.random(**arguments)


def test_an_independent_source_forgets():
    chain = MarkovChain.independent([0.5, 0.25, 0.25, 0])
    np.testing.assert_array_equal(chain.transition, [[0.5, 0.25, 0.25, 0]] * 4)
    np.testing.assert_allclose(chain.stationary, [0.5, 0.25, 0.25, 0], rtol=1e-15)
    assert chain.entropy_rate == pytest.approx(1.5 * np.log(2))
    assert chain.net_flux == pytest.approx(0, abs=1e-16)


@pytest.mark.parametrize("probabilities", [[0.5, 0.4], [[0.5, 0.5]], 1.0, [], [1.5, -0.5]])
def test_an_independent_source_needs_a_law(probabilities):
    with pytest.raises(ValueError, match=r"^probabilities: got"):
        MarkovChain.independent(probabilities)


# Samples


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_samples_follow_the_law_from_the_first_token_on(lag):
    chain = MarkovChain.random(3, concentration=1.0, lag=lag, seed=1)
    trials = 20000
    tokens = chain.sample(trials, 6, np.random.default_rng(2))
    for t in range(6):
        counts = np.bincount(tokens[:, t], minlength=3)
        assert within_five_sigma(counts, trials, chain.stationary)
    for gap in range(1, 4):
        law = chain.stationary[:, None] * (
            np.linalg.matrix_power(chain.transition, gap // lag)
            if gap % lag == 0
            else chain.stationary
        )
        for t in range(6 - gap):
            pairs = np.bincount(3 * tokens[:, t] + tokens[:, t + gap], minlength=9)
            assert within_five_sigma(pairs, trials, law.ravel())


@pytest.mark.parametrize("lag", [1, 2])
def test_forbidden_steps_never_appear_and_all_others_do(lag):
    tokens = MarkovChain(FORBIDDING, lag).sample(200, 50, np.random.default_rng(0))
    steps = np.zeros((4, 4), dtype=np.int64)
    np.add.at(steps, (tokens[:, :-lag], tokens[:, lag:]), 1)
    np.testing.assert_array_equal(steps > 0, np.array(FORBIDDING) > 0)


def test_transient_states_never_appear():
    chain = MarkovChain([[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]], lag=2)
    assert set(np.unique(chain.sample(50, 9, np.random.default_rng(0)))) == {1, 2}


def test_draws_at_either_end_of_a_row_give_possible_symbols():
    # Ten tenths add up to 1 - 1.1e-16, which the largest draw equals.
    row = [0.0, *[0.1] * 10, 0.0]
    chain = MarkovChain.independent(row)
    assert np.cumsum(row)[-1] == 1 - 2**-53
    uniform = np.array([[0.0, 1 - 2**-53, 0.0, 0.1, np.nextafter(0.1, 0)]])
    expected = [[1, 10, 1, 2, 1]]
    np.testing.assert_array_equal(walk(uniform, chain._cumulative, 1), expected)


@settings(deadline=None, max_examples=50)
@given(chains, st.integers(1, 4), st.integers(1, 9), seeds)
def test_samples_are_fixed_by_the_generator_and_equal_the_plain_kernel(chain, B, N, seed):
    tokens = chain.sample(B, N, np.random.default_rng(seed))
    assert tokens.dtype == np.int64
    assert tokens.shape == (B, N)
    np.testing.assert_array_equal(tokens, chain.sample(B, N, np.random.default_rng(seed)))
    uniform = np.random.default_rng(seed).random((B, N))
    np.testing.assert_array_equal(tokens, walk(uniform, chain._cumulative, chain.lag))


def test_samples_invert_the_cumulative_law():
    chain = MarkovChain([[0.5, 0.5], [0.25, 0.75]], lag=2)
    uniform = np.array([[0.34, 0.32, 0.24, 0.51, 0.1, 0.26]])  # the stationary law is (1/3, 2/3)
    np.testing.assert_array_equal(walk(uniform, chain._cumulative, 2), [[1, 0, 0, 1, 0, 1]])


def test_sampling_is_one_draw_a_token():
    rng, shadow = np.random.default_rng(0), np.random.default_rng(0)
    MarkovChain(TWO).sample(3, 5, rng)
    shadow.random(15)
    assert rng.random() == shadow.random()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((0, 4), "B"), ((4, 0), "N"), ((2.5, 4), "B"), ((4, True), "N")],
)
def test_sample_rejects_bad_sizes(arguments, name):
    with pytest.raises(ValueError, match=f"^{name}: got .*an integer of at least 1"):
        MarkovChain(TWO).sample(*arguments, np.random.default_rng(0))


def test_sample_rejects_what_is_no_generator():
    with pytest.raises(ValueError, match=r"^rng: got int, needs a numpy\.random\.Generator"):
        MarkovChain(TWO).sample(2, 2, 0)


def test_importing_sources_imports_no_compiler_and_no_text():
    code = "import minattn.data, sys; print({'numba', 'pydoc_data.topics'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"

"""The drifting chain: exact laws against enumeration and draws; the ratio of the two counts."""

import itertools

import numpy as np
import pytest

from minattn.data import DriftingChain, MarkovChain, count_ratio, next_token_optimum
from minattn.masks import allowed_pairs

EARLY = np.array([1.0, -1.0, 0.3])


def drifting(drift, lag=1, length=5, bonus=None):
    chain = MarkovChain.random(3, 0.7, lag=lag, seed=4)
    return DriftingChain(chain, length, EARLY, drift, bonus)


def enumerated(source, N):
    """Every sequence with its probability, token by token."""
    sequences = np.array(list(itertools.product(range(3), repeat=N)))
    probability = np.ones(len(sequences))
    for t in range(N):
        before = sequences[:, t - source.chain.lag] if t >= source.chain.lag else 0
        probability *= source.step_law(t)[before, sequences[:, t]]
    return sequences, probability


@pytest.mark.parametrize("lag", [1, 2])
def test_laws_and_best_loss_agree_with_enumeration(lag):
    source = drifting(1.5, lag, bonus=[0.0, 0.5, 0.0])
    sequences, probability = enumerated(source, 5)
    assert probability.sum() == pytest.approx(1)
    counted = [np.bincount(sequences[:, t], probability, minlength=3) for t in range(5)]
    np.testing.assert_allclose(source.position_law(5), counted, rtol=1e-12)
    losses = []
    for t in range(1, 5):
        before = sequences[:, t - lag] if t >= lag else 0
        losses.append(-probability @ np.log(source.step_law(t)[before, sequences[:, t]]))
    assert source.next_token_optimum(5) == pytest.approx(np.mean(losses))


@pytest.mark.parametrize("lag", [1, 2])
def test_without_a_tilt_it_is_the_chain_itself(lag):
    source = drifting(0.0, lag)
    np.testing.assert_allclose(source.position_law(5), [source.chain.stationary] * 5)
    assert source.next_token_optimum(5) == pytest.approx(next_token_optimum(source.chain, 5))
    np.testing.assert_allclose(count_ratio(source.position_law(5)), 1)


def test_draws_follow_the_law():
    source = drifting(1.0, lag=2)
    tokens = source.sample(40_000, 5, np.random.default_rng(0))
    found = np.stack([(tokens == symbol).mean(axis=0) for symbol in range(3)], axis=1)
    np.testing.assert_allclose(found, source.position_law(5), atol=0.01)
    pairs = [np.mean(tokens[tokens[:, 2] == 0, 4] == symbol) for symbol in range(3)]
    np.testing.assert_allclose(pairs, source.step_law(4)[0], atol=0.015)


def test_drift_moves_symbols_and_a_bonus_makes_them_frequent():
    law = drifting(2.0).position_law(5)
    mean = np.arange(5) @ law / law.sum(axis=0)
    assert mean[0] < mean[2] < mean[1]
    frequent = drifting(0.0, bonus=[0, 2.0, 0]).position_law(5).sum(axis=0)
    assert frequent[1] > drifting(0.0).position_law(5).sum(axis=0)[1]


@pytest.mark.parametrize(("mask", "diagonal"), [("strictly_causal", False), ("causal", True)])
def test_the_ratio_is_that_of_the_counts(mask, diagonal):
    source = drifting(2.0, length=6)
    law, allowed = source.position_law(6), allowed_pairs(mask, 6)
    counted = (allowed.sum(axis=0) @ law) / (allowed.sum(axis=1) @ law)
    np.testing.assert_allclose(count_ratio(law, diagonal), counted)


def test_symbols_that_never_occur_or_only_first_have_no_finite_ratio():
    ratio = count_ratio(np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    assert ratio[0] == np.inf
    assert np.isnan(ratio[1])
    assert ratio[2] == 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"chain": "chain"}, "chain"),
        ({"length": 1}, "length"),
        ({"earliness": [1.0, 2.0]}, "earliness"),
        ({"earliness": [1.0, np.nan, 0.0]}, "earliness"),
        ({"drift": np.inf}, "drift"),
        ({"bonus": ["a", "b", "c"]}, "bonus"),
    ],
)
def test_bad_arguments_are_named(change, named):
    chain = MarkovChain.random(3, 0.7)
    good = {"chain": chain, "length": 5, "earliness": EARLY, "drift": 1.0}
    with pytest.raises(ValueError, match=f"^{named}: got"):
        DriftingChain(**(good | change))


def test_windows_that_do_not_fit_are_refused():
    source = drifting(1.0)
    with pytest.raises(ValueError, match=r"^N: got 6, needs at most the 5"):
        source.sample(2, 6, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"^N: got 6"):
        source.position_law(6)
    with pytest.raises(ValueError, match=r"^rng: "):
        source.sample(2, 5, 0)
    tilted = DriftingChain(MarkovChain(np.eye(2)[::-1]), 3, [1.0, -1.0], 1e6)
    with pytest.raises(ValueError, match="a smaller drift"):
        tilted.position_law(3)

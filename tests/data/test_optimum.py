"""The best reachable loss, against sums over all sequences and all ways to hide them."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minattn.data import (
    MarkovChain,
    masked_posterior,
    masked_token_loss,
    next_token_loss,
    next_token_optimum,
    optimal_loss,
    posterior,
)

V, N = 3, 6
HIDDEN = V
TWO = [[0.9, 0.1], [0.2, 0.8]]
EXACT = {"rtol": 0, "atol": 1e-12}

seeds = st.integers(0, 2**32 - 1)
masks = st.sampled_from(["bidirectional", "causal"])
chains = st.builds(
    MarkovChain.random,
    n_symbols=st.just(V),
    concentration=st.sampled_from([0.3, 1.0]),
    lag=st.integers(1, 2),
    seed=seeds,
)
replacements = st.sampled_from([(1.0, 0.0, 0.0), (0.8, 0.1, 0.1), (0.3, 0.7, 0.0), (0.0, 0.5, 0.5)])


@dataclass
class Batch:
    inputs: object
    targets: object
    weights: object
    mask: object = "bidirectional"


@dataclass
class Masking:
    rate: float
    mask_symbol: int
    replace: tuple = (1.0, 0.0, 0.0)


def all_sequences(n_symbols, length):
    return np.array(list(itertools.product(range(n_symbols), repeat=length)))


def probabilities(chain, sequences):
    """Probability of each sequence, multiplied up token by token."""
    result = np.ones(len(sequences))
    for t in range(sequences.shape[1]):
        now = sequences[:, t]
        if t < chain.lag:
            result *= chain.stationary[now]
        else:
            result *= chain.transition[sequences[:, t - chain.lag], now]
    return result


def seen_from(t, length, mask):
    return [s for s in range(length) if s != t and (s < t or mask == "bidirectional")]


def enumerated_posterior(chain, evidence, mask):
    B, length, n_symbols = evidence.shape
    sequences = all_sequences(n_symbols, length)
    result = np.zeros(evidence.shape)
    for b, t in np.ndindex(B, length):
        weight = probabilities(chain, sequences)
        for s in seen_from(t, length, mask):
            weight = weight * evidence[b, s, sequences[:, s]]
        for symbol in range(n_symbols):
            result[b, t, symbol] = weight[sequences[:, t] == symbol].sum()
    return result / result.sum(axis=-1, keepdims=True)


def hide(tokens, objective, rng):
    """Select, then mask, redraw or keep: one token at a time."""
    inputs, selected = tokens.copy(), rng.random(tokens.shape) < objective.rate
    for place in zip(*np.nonzero(selected), strict=True):
        fate = rng.choice(3, p=objective.replace)
        inputs[place] = [objective.mask_symbol, rng.integers(V), tokens[place]][fate]
    return Batch(inputs, tokens, selected.astype(np.float64))


def input_probabilities(objective, selected, y, x):
    """Probability of the input y of tokens x at one position, for it selected or not."""
    p_mask, p_random, p_keep = objective.replace
    if not selected:
        return (x == y).astype(np.float64)
    if y == objective.mask_symbol:
        return np.full(x.shape, p_mask)
    return p_random / V + p_keep * (x == y)


def enumerated_masked_loss(chain, objective, batch):
    """Sum over all sequences and all selections of the other positions, for each scored token."""
    sequences = all_sequences(V, N)
    losses = []
    for b, t in zip(*np.nonzero(batch.weights), strict=True):
        y = batch.inputs[b]
        others = seen_from(t, N, batch.mask)
        total = np.zeros(len(sequences))
        for selection in itertools.product([False, True], repeat=len(others)):
            k = sum(selection)
            weight = objective.rate**k * (1 - objective.rate) ** (len(others) - k)
            weight = weight * probabilities(chain, sequences)
            for s, selected in zip(others, selection, strict=True):
                weight = weight * input_probabilities(objective, selected, y[s], sequences[:, s])
            total += weight * input_probabilities(objective, True, y[t], sequences[:, t])
        right = sequences[:, t] == batch.targets[b, t]
        losses.append(-np.log(total[right].sum() / total.sum()))
    return np.average(losses, weights=batch.weights[np.nonzero(batch.weights)])


def next_token(tokens):
    return Batch(tokens[:, :-1], tokens[:, 1:], np.ones(tokens[:, 1:].shape), "causal")


# Posteriors


@settings(deadline=None, max_examples=25)
@given(chains, masks, seeds)
def test_posterior_is_the_sum_over_all_sequences(chain, mask, seed):
    evidence = np.random.default_rng(seed).random((2, N, V))
    expected = enumerated_posterior(chain, evidence, mask)
    np.testing.assert_allclose(posterior(chain, evidence, mask), expected, **EXACT)


@pytest.mark.parametrize("lag", [1, 2, 3, 7])
@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("mask", ["bidirectional", "causal"])
def test_posterior_at_every_lag_and_at_lengths_it_does_not_divide(lag, length, mask):
    chain = MarkovChain.random(V, 1.0, lag=lag, seed=2)
    evidence = np.random.default_rng(lag).random((2, length, V))
    expected = enumerated_posterior(chain, evidence, mask)
    np.testing.assert_allclose(posterior(chain, evidence, mask), expected, **EXACT)


@settings(deadline=None, max_examples=25)
@given(chains, masks, seeds)
def test_masked_posterior_is_the_sum_over_all_completions(chain, mask, seed):
    rng = np.random.default_rng(seed)
    inputs = chain.sample(2, N, rng)
    inputs[rng.random(inputs.shape) < 0.5] = HIDDEN
    evidence = np.zeros((2, N, V))
    for b, t in np.ndindex(2, N):
        evidence[b, t, slice(None) if inputs[b, t] == HIDDEN else inputs[b, t]] = 1
    expected = enumerated_posterior(chain, evidence, mask)
    np.testing.assert_allclose(masked_posterior(chain, inputs, HIDDEN, mask), expected, **EXACT)


def test_masked_posterior_of_a_symbol_between_two():
    chain = MarkovChain([[0.5, 0.5, 0], [0, 0, 1], [0.5, 0, 0.5]])
    law = masked_posterior(chain, [[0, 9, 0], [0, 9, 2], [9, 9, 1]], mask_symbol=9)
    np.testing.assert_allclose(law[:2, 1], [[1, 0, 0], [0, 1, 0]], **EXACT)
    np.testing.assert_allclose(law[2, 1], [1, 0, 0], **EXACT)


def test_scale_of_evidence_and_length_of_a_sequence_do_not_matter():
    chain = MarkovChain.random(V, seed=0)
    evidence = np.random.default_rng(0).random((1, 2000, V))
    scale = 10.0 ** np.random.default_rng(1).integers(-300, 300, (1, 2000, 1))
    law = posterior(chain, evidence)
    np.testing.assert_allclose(posterior(chain, evidence * scale), law, **EXACT)
    np.testing.assert_allclose(law.sum(axis=-1), 1, **EXACT)


def test_faint_evidence_of_a_rare_step_is_still_evidence():
    chain = MarkovChain([[1 - 1e-100, 1e-100], [0.5, 0.5]])
    visible = np.eye(2)[[[0, 1, 0, 1]]]
    found = posterior(chain, visible * 1e-250)
    np.testing.assert_allclose(found, posterior(chain, visible), **EXACT)


def test_evidence_of_probability_zero_names_the_sequence():
    chain = MarkovChain([[0, 1], [0.5, 0.5]], lag=2)
    inputs = np.array([[0, 0, 1, 1, 2], [1, 0, 2, 1, 0], [1, 0, 1, 0, 1]])
    for mask in ("bidirectional", "causal"):
        with pytest.raises(ValueError, match=r"^evidence: got probability zero in sequence 2"):
            masked_posterior(chain, inputs, 2, mask)
    nothing = np.ones((4, 2, 2))
    nothing[1, 0] = 0
    with pytest.raises(ValueError, match=r"^evidence: got probability zero in sequence 1"):
        posterior(chain, nothing)


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        (np.ones((2, 2)), r"shape \(2, 2\)"),
        (np.ones((2, 2, 3)), r"needs shape \(B, N, 2\)"),
        (np.ones((2, 0, 2)), r"shape \(2, 0, 2\)"),
        (-np.ones((1, 1, 2)), "negative"),
        (np.full((1, 1, 2), np.nan), "non-finite"),
        (np.ones((1, 1, 2), dtype=complex), "complex128"),
    ],
)
def test_posterior_rejects_malformed_evidence(evidence, said):
    with pytest.raises(ValueError, match=f"^evidence: got .*{said}"):
        posterior(MarkovChain(TWO), evidence)


def test_posteriors_reject_other_masks_and_symbols():
    chain = MarkovChain(TWO)
    with pytest.raises(ValueError, match=r"^mask: got 'strictly_causal', needs one of 'bidir"):
        posterior(chain, np.ones((1, 1, 2)), "strictly_causal")
    with pytest.raises(ValueError, match=r"^mask_symbol: got 1, needs an integer of at least 2"):
        masked_posterior(chain, [[0, 1]], mask_symbol=1)
    with pytest.raises(ValueError, match=r"^inputs: got the value 3"):
        masked_posterior(chain, [[0, 3]], mask_symbol=2)


def test_inputs_are_not_modified():
    evidence = np.full((2, 3, 2), 4.0)
    evidence.flags.writeable = False
    law = posterior(MarkovChain(TWO), evidence)
    np.testing.assert_allclose(law, np.broadcast_to([2 / 3, 1 / 3], law.shape), **EXACT)


# Next token


@settings(deadline=None, max_examples=25)
@given(chains)
def test_next_token_optimum_is_the_mean_loss_over_all_sequences(chain):
    for length in range(2, N + 1):
        sequences = all_sequences(V, length)
        weight = probabilities(chain, sequences)
        total = 0.0
        for t in range(1, length):
            # Every sequence with the same tokens before t shares their probability.
            before = probabilities(chain, sequences[:, :t])
            total -= weight @ np.log(probabilities(chain, sequences[:, : t + 1]) / before)
        assert next_token_optimum(chain, length) == pytest.approx(total / (length - 1), abs=1e-12)


@settings(deadline=None, max_examples=25)
@given(chains)
def test_next_token_losses_of_all_sequences_average_to_the_optimum(chain):
    sequences = all_sequences(V, N)
    losses = [next_token_loss(chain, next_token(tokens[None])) for tokens in sequences]
    mean = probabilities(chain, sequences) @ losses
    assert mean == pytest.approx(next_token_optimum(chain, N), abs=1e-12)


def test_next_token_optimum_counts_the_targets_that_nothing_foretells():
    entropy = -(2 / 3 * np.log(2 / 3) + 1 / 3 * np.log(1 / 3))
    rate = MarkovChain(TWO).entropy_rate
    for lag, unforeseen in (1, 0), (3, 2), (5, 4), (9, 4):
        expected = (unforeseen * entropy + (4 - unforeseen) * rate) / 4
        assert next_token_optimum(MarkovChain(TWO, lag), 5) == pytest.approx(expected, rel=1e-14)
    with pytest.raises(ValueError, match=r"^length: got 1"):
        next_token_optimum(MarkovChain(TWO), 1)


@pytest.mark.parametrize(
    ("shift", "expected"), [(0, 0.1446215275), (1, 0.3835227901), (2, 0.5507536739)]
)
def test_a_target_shifted_by_anything_but_one_shows(shift, expected):
    chain, sequences = MarkovChain(TWO), all_sequences(2, 4)
    losses = []
    for tokens in sequences:
        inputs, targets = tokens[None, : 4 - shift], tokens[None, shift:]
        losses.append(
            next_token_loss(chain, Batch(inputs, targets, np.ones(inputs.shape), "causal"))
        )
    assert probabilities(chain, sequences) @ losses == pytest.approx(expected, abs=5e-11)


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 6])
def test_next_token_loss_is_the_log_likelihood_given_the_first_token(lag):
    chain = MarkovChain.random(V, 1.0, lag=lag, seed=1)
    tokens = chain.sample(3, 5, np.random.default_rng(0))
    total = chain.log_likelihood(tokens) - chain.log_likelihood(tokens[:, :1])
    assert next_token_loss(chain, next_token(tokens)) == pytest.approx(-total.sum() / 12, rel=1e-13)


def test_weights_choose_and_weigh_the_targets():
    chain = MarkovChain(TWO)
    batch = Batch([[0, 1, 1]], [[1, 0, 99]], [[1.0, 3.0, 0.0]], "causal")
    expected = -(np.log(0.1) + 3 * np.log(0.2)) / 4
    assert next_token_loss(chain, batch) == pytest.approx(expected, rel=1e-14)
    batch.weights = np.zeros((1, 3))
    assert next_token_loss(chain, batch) == 0.0


def test_a_forbidden_step_costs_infinitely_much_only_where_it_counts():
    chain = MarkovChain([[0, 1], [0.5, 0.5]])
    batch = Batch([[0, 1]], [[0, 1]], [[1, 1]], "causal")
    assert next_token_loss(chain, batch) == np.inf
    batch.weights = [[0, 1]]
    assert next_token_loss(chain, batch) == pytest.approx(np.log(2))


# Masked tokens


@settings(deadline=None, max_examples=25)
@given(chains, masks, replacements, st.sampled_from([0.15, 0.6, 1.0]), seeds)
def test_masked_loss_is_the_sum_over_sequences_and_selections(chain, mask, replace, rate, seed):
    objective = Masking(rate, HIDDEN, replace)
    rng = np.random.default_rng(seed)
    batch = hide(chain.sample(2, N, rng), objective, rng)
    batch.weights *= rng.integers(1, 4, batch.weights.shape)
    batch.mask = mask
    found = masked_token_loss(chain, objective, batch)
    if not batch.weights.any():
        assert found == 0.0
    else:
        expected = enumerated_masked_loss(chain, objective, batch)
        np.testing.assert_allclose(found, expected, **EXACT)


def test_no_honest_model_beats_the_uniform_source():
    chain = MarkovChain.independent([1 / V] * V)
    batch = Batch([[HIDDEN, 0, HIDDEN]], [[2, 0, 1]], [[1, 0, 1]])
    assert masked_token_loss(chain, Masking(0.5, HIDDEN), batch) == pytest.approx(np.log(V))


def test_a_visible_scored_token_tells_as_much_as_it_was_kept():
    chain = MarkovChain.independent([1 / V] * V)
    batch = Batch([[1]], [[1]], [[1]])
    kept, redrawn = 0.1, 0.1 / V
    expected = -np.log((kept + redrawn) / (kept + 3 * redrawn))
    found = masked_token_loss(chain, Masking(0.15, HIDDEN, (0.8, 0.1, 0.1)), batch)
    assert found == pytest.approx(expected, rel=1e-14)


def test_a_visible_scored_token_is_impossible_under_plain_masking():
    batch = Batch([[HIDDEN, 0], [HIDDEN, 1]], [[1, 0], [1, 1]], [[1, 0], [1, 1]])
    with pytest.raises(
        ValueError, match=r"^batch.inputs: got an impossible input .* of sequence 1"
    ):
        masked_token_loss(MarkovChain.random(V), Masking(0.5, HIDDEN), batch)


def test_nothing_selected_costs_nothing():
    batch = Batch([[0, 1]], [[0, 1]], [[0, 0]])
    assert masked_token_loss(MarkovChain.random(V), Masking(0.15, HIDDEN), batch) == 0.0


def test_one_symbol_is_no_riddle():
    chain = MarkovChain([[1.0]])
    assert masked_token_loss(chain, Masking(0.5, 1), Batch([[1, 0]], [[0, 0]], [[1, 0]])) == 0
    assert next_token_loss(chain, Batch([[0, 0]], [[0, 0]], [[1, 1]], "causal")) == 0


# Either


def test_the_objective_chooses_the_predictor():
    chain = MarkovChain.random(V, 1.0, seed=4)
    rng = np.random.default_rng(0)
    tokens = chain.sample(2, N, rng)
    objective = Masking(0.5, HIDDEN)
    hidden = hide(tokens, objective, rng)
    assert hidden.weights.any()
    assert optimal_loss(chain, objective, hidden) == masked_token_loss(chain, objective, hidden)
    assert optimal_loss(chain, next_token, next_token(tokens)) == next_token_loss(
        chain, next_token(tokens)
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"inputs": [[[0, 1]]]}, "batch.inputs: got shape"),
        ({"inputs": [[0, 4]]}, "batch.inputs: got the value 4"),
        ({"inputs": [[0.0, 1.0]]}, "batch.inputs: got an array of float64"),
        ({"targets": [[0]]}, "batch.targets: got shape"),
        ({"targets": [[0, 3]]}, "batch.targets: got the value 3"),
        ({"weights": [1, 1]}, "batch.weights: got shape"),
        ({"weights": [[1, -1]]}, "batch.weights: got a negative"),
        ({"weights": [[1, np.nan]]}, "batch.weights: got a negative or non-finite"),
    ],
)
def test_malformed_batches_are_rejected(changed, said):
    fields = {"inputs": [[0, 1]], "targets": [[1, 1]], "weights": [[1, 1]]} | changed
    chain = MarkovChain.random(V)
    with pytest.raises(ValueError, match=f"^{said}"):
        optimal_loss(chain, next_token, Batch(**fields, mask="causal"))
    with pytest.raises(ValueError, match=f"^{said}"):
        optimal_loss(chain, Masking(0.5, HIDDEN, (0.8, 0.1, 0.1)), Batch(**fields))


@pytest.mark.parametrize("mask", ["strictly_causal", np.ones((2, 2), dtype=bool)])
def test_other_masks_are_rejected_with_what_is_supported(mask):
    batch = Batch([[0, 1]], [[0, 1]], [[1, 1]], mask)
    with pytest.raises(
        ValueError, match=r"^batch.mask: got .*needs one of 'bidirectional', 'causal'"
    ):
        optimal_loss(MarkovChain.random(V), Masking(0.5, HIDDEN), batch)
    for other in (mask, "bidirectional"):
        batch.mask = other
        with pytest.raises(ValueError, match=r"^batch.mask: got .*needs one of 'causal'"):
            optimal_loss(MarkovChain.random(V), next_token, batch)


@pytest.mark.parametrize(
    ("objective", "name"),
    [
        (Masking(0.5, 2), "mask_symbol"),
        (Masking(1.5, 3), "rate"),
        (Masking(0.5, 3, (1.0, -0.1, 0.1)), "replace"),
    ],
)
def test_objectives_that_do_not_fit_the_chain_are_rejected(objective, name):
    with pytest.raises(ValueError, match=f"^objective.{name}: got"):
        masked_token_loss(MarkovChain.random(V), objective, Batch([[0]], [[0]], [[1]]))

"""Objectives: what is shown, what is asked, and where it counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minattn as ma
from minattn import Batch, MaskedToken, next_token
from minattn.objectives import MASKED, stack

V = 6
tokens = np.array([[0, 1, 2], [7, 8, 9]])
small = ma.TransformerConfig(vocab_size=V, width=4, layers=1, heads=1, max_length=8)
BERT = (0.8, 0.1, 0.1)


def generator(seed=0):
    return np.random.default_rng(seed)


def hand_made(**changes):
    ones = np.ones((2, 3))
    fields = {"inputs": tokens, "targets": tokens, "weights": ones, "mask": "causal"}
    return Batch(**fields | changes)


# Next token


def test_each_token_is_asked_for_the_one_that_follows_in_its_own_window():
    batch = next_token(tokens)
    pairs = set(zip(batch.inputs.ravel().tolist(), batch.targets.ravel().tolist(), strict=True))
    assert pairs == {(0, 1), (1, 2), (7, 8), (8, 9)}
    assert batch.inputs.shape == batch.targets.shape == batch.weights.shape == (2, 2)
    assert (batch.weights == 1).all()
    assert batch.weights.dtype == np.float64
    assert batch.mask == "causal"


def test_a_replica_axis_is_kept():
    batch = next_token(np.stack([tokens, tokens + 1]), mask="strictly_causal")
    np.testing.assert_array_equal(batch.inputs[1], [[1, 2], [8, 9]])
    np.testing.assert_array_equal(batch.targets[1], [[2, 3], [9, 10]])
    assert batch.mask == "strictly_causal"


def test_next_token_ignores_its_generator():
    rng = generator()
    next_token(tokens, rng)
    assert rng.random() == generator().random()


def test_masked_token_draws_one_number_a_token_where_all_are_shown_alike():
    rng, other = generator(), generator()
    MaskedToken(mask_symbol=10)(tokens, rng)
    other.random(tokens.shape)
    assert rng.random() == other.random()


@pytest.mark.parametrize(("objective", "N"), [(next_token, 2), (MaskedToken(mask_symbol=V), 1)])
def test_the_shortest_windows(objective, N):
    windows = np.arange(2 * N).reshape(2, 1, N)
    assert objective(windows, generator()).targets.shape == (2, 1, 1)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([[0], [1]], r"shape \(2, 1\), needs .* N of at least 2"),
        (np.zeros((1, 3, 1), int), r"shape \(1, 3, 1\)"),
        ([0, 1, 2], r"shape \(3,\)"),
        (np.zeros((0, 3), int), r"shape \(0, 3\)"),
        ([[0.0, 1.0]], "an array of float64"),
        ([[0, -1]], "the value -1"),
    ],
)
def test_windows_that_do_not_fit(bad, message):
    with pytest.raises(ValueError, match=f"^tokens: got {message}"):
        next_token(bad)


# Masked token


@given(
    seed=st.integers(0, 2**32 - 1),
    rate=st.floats(0, 1),
    replace=st.sampled_from([(1.0, 0.0, 0.0), BERT, (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)]),
    lead=st.sampled_from([(), (3,)]),
)
def test_what_is_not_selected_is_shown_as_it_is(seed, rate, replace, lead):
    windows = generator(seed).integers(V, size=(*lead, 4, 5))
    before = windows.copy()
    batch = MaskedToken(rate=rate, mask_symbol=V, replace=replace)(windows, generator(seed))
    np.testing.assert_array_equal(windows, before)
    np.testing.assert_array_equal(batch.targets, before)
    assert batch.mask == "bidirectional"
    assert set(np.unique(batch.weights)) <= {0.0, 1.0}
    unselected = batch.weights == 0
    np.testing.assert_array_equal(batch.inputs[unselected], before[unselected])
    if replace[0] == 1:
        assert (batch.inputs[~unselected] == V).all()
    if replace[2] == 1:
        np.testing.assert_array_equal(batch.inputs, before)
    assert (batch.inputs < V).all() or replace[0] > 0


def binomial(count, trials, p):
    """Whether a count is within five standard deviations of its expectation."""
    return abs(count - trials * p) < 5 * (trials * p * (1 - p)) ** 0.5


def test_the_rate_and_its_independence():
    windows = np.zeros((400, 100), int)
    weights = MaskedToken(mask_symbol=1)(windows, generator()).weights  # BERT's rate
    assert binomial(weights.sum(), weights.size, 0.15)
    pairs = (weights[:, 1:] * weights[:, :-1]).sum()
    assert binomial(pairs, 400 * 99, 0.15**2)
    empty = (weights[:, :40].reshape(-1, 4).sum(axis=1) == 0).sum()
    assert binomial(empty, 4000, 0.85**4)  # 0.522: a window of four without any


def test_how_selected_tokens_are_shown():
    windows = generator(1).integers(V, size=(400, 100))
    objective = MaskedToken(rate=0.5, mask_symbol=V, replace=BERT)
    batch = objective(windows, generator(2))
    selected = batch.weights == 1
    shown, truth = batch.inputs[selected], windows[selected]
    n = len(shown)
    assert binomial((shown == V).sum(), n, 0.8)
    assert binomial((shown == truth).sum(), n, 0.1 + 0.1 / V)
    for symbol in range(V):  # drawn from all V, the true one among them
        drawn = ((shown == symbol) & (truth == (symbol + 1) % V)).sum()
        assert binomial(drawn, (truth == (symbol + 1) % V).sum(), 0.1 / V)


def test_the_mask_symbol_is_no_symbol_and_is_written_as_one_character():
    tokens, rng = np.array([[0, 3, 2]]), np.random.default_rng(0)
    assert MaskedToken(mask_symbol=4)(tokens, rng).targets.max() == 3
    needs = "needs at least the number of symbols, as there is a symbol 3$"
    with pytest.raises(ValueError, match=f"^mask_symbol: got 3, {needs}"):
        MaskedToken(mask_symbol=3)(tokens, rng)
    assert len(MASKED) == 1


def test_rates_of_zero_and_one():
    everything = MaskedToken(rate=1, mask_symbol=10)(tokens, generator())
    assert (everything.inputs == 10).all()
    assert (everything.weights == 1).all()
    nothing = MaskedToken(rate=0, mask_symbol=10)(tokens, generator())
    np.testing.assert_array_equal(nothing.inputs, tokens)
    assert (nothing.weights == 0).all()


def test_nothing_selected_costs_nothing(engine):
    batch = MaskedToken(rate=0, mask_symbol=V)(np.zeros((2, 4), int), generator())
    loss, grads, _ = ma.loss_and_grad(small, ma.init_params(small), batch, engine=engine)
    assert (loss == 0).all()
    for name, gradient in grads.items():
        assert (gradient == 0).all(), name


def test_one_replica_may_select_nothing_beside_another_that_does(engine):
    window = np.array([[0, 1, 2, 3]])
    nothing, everything = (
        MaskedToken(rate=rate, mask_symbol=V)(window, generator()) for rate in (0, 1)
    )
    loss, grads, _ = ma.loss_and_grad(
        small, ma.init_params(small, 2), stack([nothing, everything]), engine=engine
    )
    assert loss[0] == 0 < loss[1]
    assert (grads["unembedding"][0] == 0).all()
    assert np.abs(grads["unembedding"][1]).max() > 0


def test_the_mask_symbol_hides_a_token_completely(engine):
    params = ma.init_params(small)
    batches = [
        MaskedToken(rate=1, mask_symbol=V)(np.array([window]), generator())
        for window in ([0, 1, 2], [5, 5, 5])
    ]
    one, other = (ma.forward(small, params, b.inputs, b.mask, engine) for b in batches)
    np.testing.assert_array_equal(one, other)


def test_draws_depend_on_the_generator_alone():
    objective = MaskedToken(mask_symbol=10, replace=BERT)
    one, other = (objective(tokens, generator(3)) for _ in range(2))
    np.testing.assert_array_equal(one.inputs, other.inputs)
    selections = {objective(tokens, generator(s)).weights.tobytes() for s in range(20)}
    assert len(selections) > 5


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"rate": -0.1}, "rate"),
        ({"rate": 1.1}, "rate"),
        ({"rate": np.nan}, "rate"),
        ({"rate": True}, "rate"),
        ({"mask_symbol": 0}, "mask_symbol"),
        ({"mask_symbol": 1.0}, "mask_symbol"),
        ({"replace": (0.5, 0.4)}, "replace"),
        ({"replace": (0.5, 0.4, 0.0)}, "replace"),
        ({"replace": (0.5, 0.4, 0.2)}, "replace"),
        ({"replace": (1.5, -0.5, 0.0)}, "replace"),
        ({"replace": (1.0, 0.0, np.nan)}, "replace"),
        ({"mask": "diagonal"}, "mask"),
    ],
    ids=str,
)
def test_a_bad_choice_is_refused_by_name(changes, name):
    with pytest.raises(ValueError, match=f"^{name}: got"):
        MaskedToken(**{"mask_symbol": V} | changes)


@pytest.mark.parametrize(
    ("windows", "rng", "message"),
    [
        ([[0, V + 2]], generator(), f"^mask_symbol: got {V}, needs .* there is a symbol {V + 2}$"),
        ([0, 1], generator(), "^tokens: got shape"),
        ([[0, 1]], None, "^rng: got NoneType, needs a numpy.random.Generator"),
        ([[0, 1]], 0, "^rng: got int"),
        ([[0, 1]], np.random, "^rng: got module"),
    ],
)
def test_bad_windows_or_generators_are_refused(windows, rng, message):
    with pytest.raises(ValueError, match=message):
        MaskedToken(mask_symbol=V)(windows, rng)


# Batches by hand


def test_a_batch_by_hand():
    lists = tokens.tolist()
    batch = hand_made(inputs=lists, targets=lists, weights=[[0, 1, 2], [True, False, 3]])
    assert batch.inputs.dtype == batch.targets.dtype == np.int64
    assert batch.weights.dtype == np.float64
    np.testing.assert_array_equal(batch.weights, [[0, 1, 2], [1, 0, 3]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": [0, 1]}, r"^inputs: got shape \(2,\)"),
        ({"inputs": np.zeros((2, 0), int)}, r"^inputs: got shape \(2, 0\)"),
        ({"inputs": tokens + 0.0}, "^inputs: got an array of float64"),
        ({"inputs": tokens - 1}, "^inputs: got the value -1"),
        ({"targets": tokens[:, :2]}, r"^targets: got shape \(2, 2\), needs shape \(2, 3\)"),
        ({"targets": tokens[None]}, r"^targets: got shape \(1, 2, 3\)"),
        ({"weights": np.ones(3)}, r"^weights: got shape \(3,\)"),
        ({"weights": -np.ones((2, 3))}, "^weights: got a negative or non-finite entry"),
        ({"weights": np.full((2, 3), np.nan)}, "^weights: got a negative or non-finite"),
        ({"weights": np.full((2, 3), np.inf)}, "^weights: got a negative or non-finite"),
        ({"weights": np.ones((2, 3), complex)}, "^weights: got"),
        ({"mask": "diagonal"}, "^mask: got 'diagonal'"),
        ({"mask": np.ones((2, 2), bool)}, r"^mask: got the shape \(2, 2\)"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        hand_made(**changes)


def test_a_target_is_read_only_where_it_counts(engine):
    params, inputs = ma.init_params(small), np.array([[0, 1, V]])
    weights = np.array([[1.0, 0.0, 3.0]])
    losses = [
        ma.loss_and_grad(
            small,
            params,
            Batch(inputs=inputs, targets=targets, weights=weights, mask="causal"),
            engine=engine,
        )[0]
        for targets in (np.array([[1, 0, 2]]), np.array([[1, -100, 2]]))
    ]
    assert losses[0] == losses[1] > 0


@pytest.mark.parametrize("chosen", [slice(1), slice(1, 2), slice(None, None, -1)])
def test_some_sequences_of_a_batch(chosen):
    batch = stack([hand_made(), hand_made(inputs=tokens + 1, weights=2 * np.ones((2, 3)))])
    found = batch.sequences(chosen)
    for name in ("inputs", "targets", "weights"):
        np.testing.assert_array_equal(getattr(found, name), getattr(batch, name)[:, chosen])
    assert found.mask == batch.mask


def test_batches_of_replicas_are_stacked():
    batches = [hand_made(), hand_made(inputs=tokens + 1, weights=2 * np.ones((2, 3)))]
    found = stack(batches)
    np.testing.assert_array_equal(found.inputs, [tokens, tokens + 1])
    np.testing.assert_array_equal(found.targets, [tokens, tokens])
    np.testing.assert_array_equal(found.weights[:, 0, 0], [1, 2])
    assert found.mask == "causal"


def test_equal_custom_masks_stack():
    masks = [np.tri(3, dtype=bool), np.tri(3, dtype=bool)]
    assert stack([hand_made(mask=mask) for mask in masks]).mask is masks[0]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"mask": "bidirectional"}, "the masks bidirectional beside causal"),
        ({"mask": np.tri(3, dtype=bool)}, "the masks custom beside causal"),
        (
            {name: np.ones((1, 3), int) for name in ("inputs", "targets", "weights")},
            r"batches of shape \(1, 3\) beside \(2, 3\)",
        ),
    ],
)
def test_batches_that_differ_do_not_stack(other, message):
    with pytest.raises(ValueError, match=f"^objective: got {message}"):
        stack([hand_made(), hand_made(**other)])


@pytest.mark.parametrize("objective", [next_token, MaskedToken(mask_symbol=10, replace=BERT)])
def test_the_caller_keeps_its_tokens(objective):
    windows = tokens.copy()
    windows.setflags(write=False)
    batch = objective(windows, generator())
    np.testing.assert_array_equal(windows, tokens)
    assert batch.inputs.shape[0] == 2


@pytest.mark.parametrize("bad", [None, 1.0, (1.0,), (0.5, 0.5, 0.5), np.eye(3)])
def test_replace_needs_three_probabilities(bad):
    with pytest.raises(ValueError, match=r"^replace: got "):
        MaskedToken(mask_symbol=3, replace=bad)


def test_weights_are_kept_in_double_precision_whatever_is_given():
    tokens = np.zeros((1, 2), int)
    for weights in ([[1, 0]], np.ones((1, 2), np.float32), np.ones((1, 2), bool)):
        batch = Batch(inputs=tokens, targets=tokens, weights=weights, mask="causal")
        assert batch.weights.dtype == np.float64

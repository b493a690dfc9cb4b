"""The training step: weights, engines, shards, and what stops it."""

import dataclasses
import itertools
import re
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minattn as ma
from minattn import division
from minattn.division import ENTRIES_PER_BLOCK, TOKENS_PER_BLOCK, shards
from minattn.engines import choose
from minattn.step import check_finite, pose, take
from minattn.testing.strategies import build_batch, build_case, build_params, cases

CONFIG = ma.TransformerConfig(
    vocab_size=7, width=8, layers=2, heads=2, max_length=256, norm="pre", feed_forward=5, bias=True
)
BATCH = build_batch(CONFIG, 2, 3, 4)


def arrays_of(tape):
    """Every array of a tape, by its path."""
    found = {"final": tape.final, "inputs": tape.inputs, "allowed": tape.allowed}
    found |= {f"grads.{name}": value for name, value in tape.grads.items()}
    parts = {"norm_final": tape.norm_final}
    for number, layer in enumerate(tape.layers):
        parts |= {f"{number}.{f.name}": getattr(layer, f.name) for f in dataclasses.fields(layer)}
    for path, part in parts.items():
        for field in dataclasses.fields(part):
            found[f"{path}.{field.name}"] = getattr(part, field.name)
    return found


def relative(one, other):
    return abs(one - other).max() / max(abs(other).max(), 1e-300)


@given(case=cases(), copies=st.integers(2, 3))
def test_duplicating_the_batch_changes_nothing(engine, case, copies):
    config, params, batch = case
    repeated = ma.Batch(
        mask=batch.mask,
        **{
            name: np.concatenate([getattr(batch, name)] * copies, axis=1)
            for name in ("inputs", "targets", "weights")
        },
    )
    loss, grads, _ = ma.loss_and_grad(config, params, batch, engine)
    other, other_grads, _ = ma.loss_and_grad(config, params, repeated, engine)
    np.testing.assert_allclose(other, loss, rtol=1e-12)
    largest = max(abs(gradient).max() for gradient in grads.values())
    for name in params:
        assert abs(other_grads[name] - grads[name]).max() <= 1e-12 * largest, name


@given(case=cases(), scale=st.sampled_from([0.25, 8.0]))
def test_the_scale_of_the_weights_does_not_matter(engine, case, scale):
    config, params, batch = case
    loss, grads, _ = ma.loss_and_grad(*case, engine=engine)
    scaled = dataclasses.replace(batch, weights=scale * batch.weights)
    other, other_grads, _ = ma.loss_and_grad(config, params, scaled, engine)
    assert np.array_equal(loss, other)
    assert all(np.array_equal(grads[name], other_grads[name]) for name in params)


def test_weights_are_shares_of_the_mean(engine):
    config, params, batch = build_case(CONFIG, replicas=2, batch_size=3, length=5)
    loss, grads, _ = ma.loss_and_grad(config, params, batch, engine)
    expected, sums = 0, 0
    for b, t in itertools.product(range(3), range(5)):
        weights = np.zeros(batch.weights.shape)
        weights[:, b, t] = 1
        alone = dataclasses.replace(batch, weights=weights)
        value, one, _ = ma.loss_and_grad(config, params, alone, engine)
        share = batch.weights[:, b, t] / batch.weights.sum(axis=(1, 2))
        expected = expected + share * value
        sums = sums + np.einsum("r,rdv->rdv", share, one["unembedding"])
    np.testing.assert_allclose(loss, expected, rtol=1e-12)
    np.testing.assert_allclose(grads["unembedding"], sums, atol=1e-13)


@given(case=cases())
def test_engines_agree(case):
    config, params, batch = case
    loss, grads, tape = ma.loss_and_grad(config, params, batch, "numpy")
    other, other_grads, other_tape = ma.loss_and_grad(config, params, batch, "numba")
    largest = max(abs(gradient).max() for gradient in grads.values())
    assert relative(other, loss) < 1e-12
    for name in params:
        assert abs(other_grads[name] - grads[name]).max() <= 1e-12 * largest, name
    for layer, other_layer in zip(tape.layers, other_tape.layers, strict=True):
        np.testing.assert_allclose(other_layer.attention.A, layer.attention.A, rtol=1e-8, atol=1e-9)


@given(case=cases(attention="softmax"))
def test_float32_agrees_with_float64(engine, case):
    config, params, batch = case
    loss, grads, _ = ma.loss_and_grad(config, params, batch, "numpy")
    single = {name: value.astype(np.float32) for name, value in params.items()}
    other, other_grads, tape = ma.loss_and_grad(config, single, batch, engine)
    assert {other.dtype, *(g.dtype for g in other_grads.values())} == {np.dtype(np.float32)}
    assert {layer.attention.A.dtype for layer in tape.layers} == {np.dtype(np.float32)}
    # A norm that divides by a small deviation stretches what rounding has left before it.
    norms = [n for x in tape.layers for n in (x.norm_attention, x.norm_feed_forward) if n]
    norms += [tape.norm_final] if tape.norm_final else []
    tolerance = 1e-4 * max([1, *(norm.inverse.max() for norm in norms)])
    assert relative(other, loss) < tolerance
    largest = max(abs(gradient).max() for gradient in grads.values())
    for name in params:
        assert abs(other_grads[name] - grads[name]).max() <= tolerance * largest, name


@given(
    replicas=st.integers(1, 40),
    batch=st.integers(1, 70),
    length=st.integers(1, 600),
    width=st.integers(1, 300),
    threads=st.integers(1, 9),
)
def test_shards_cover_everything_once_and_cuts_of_the_batch_do_not_depend_on_replicas(
    replicas, batch, length, width, threads
):
    chunks, shares = shards(replicas, batch, length, width, threads)
    blocks = [block for share in shares for block in share]
    for cuts, size in ((chunks, replicas), (blocks, batch)):
        assert [i for cut in cuts for i in range(size)[cut]] == list(range(size))
        assert all(cut.start < cut.stop for cut in cuts)
    for block in blocks:
        tokens = (block.stop - block.start) * length
        assert tokens <= max(length, TOKENS_PER_BLOCK, ENTRIES_PER_BLOCK // width)
    assert shares == shards(1, batch, length, width, threads)[1]
    assert len(shares) <= threads
    assert len(shards(replicas, batch, length, width, 1)[1]) == 1


@pytest.fixture
def in_small_parts(monkeypatch):
    """Steps are divided where 64 times fewer tokens would be."""
    for name in ("ENTRIES_PER_TASK", "ENTRIES_PER_BLOCK", "TOKENS_PER_BLOCK"):
        monkeypatch.setattr(division, name, getattr(division, name) // 64)


@pytest.mark.usefixtures("in_small_parts")
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("replicas", [2, 6])
def test_a_replica_of_a_sharded_step_is_bit_equal_to_it_alone(threads, replicas):
    ma.set_threads(threads)
    batch_size, length = 48, 4
    assert batch_size * length * CONFIG.width >= 3 * division.ENTRIES_PER_TASK
    chunks, shares = shards(replicas, batch_size, length, CONFIG.width, threads)
    assert len(shares) == threads
    assert replicas < 6 or threads > 2 or len(chunks) > 1
    config, params, batch = build_case(CONFIG, replicas, batch_size, length)
    loss, grads, tape = ma.loss_and_grad(config, params, batch, "numba")
    for r in (0, replicas - 1):
        alone = {name: value[r : r + 1] for name, value in params.items()}
        part = ma.Batch(
            inputs=batch.inputs[r], targets=batch.targets[r], weights=batch.weights[r],
            mask=batch.mask,
        )  # fmt: skip
        one, one_grads, one_tape = ma.loss_and_grad(config, alone, part, "numba")
        assert one[0] == loss[r]
        for name in params:
            assert np.array_equal(one_grads[name][0], grads[name][r]), name
        for path, array in arrays_of(one_tape).items():
            if path != "allowed":
                assert np.array_equal(array[0], arrays_of(tape)[path][r]), path


@pytest.mark.usefixtures("in_small_parts")
def test_shards_join_to_the_tape_and_gradients_of_one():
    ma.set_threads(3)
    config, params, batch = build_case(CONFIG, replicas=5, batch_size=103, length=4)
    chunks, shares = shards(5, 103, 4, CONFIG.width, 3)
    assert min(len(chunks), len(shares), len(shares[-1])) > 1
    loss, grads, tape = ma.loss_and_grad(config, params, batch, "numba")
    expected = ma.loss_and_grad(config, params, batch, "numpy")
    np.testing.assert_allclose(loss, expected[0], rtol=1e-12)
    found, wanted = arrays_of(tape), arrays_of(expected[2])
    assert found.keys() == wanted.keys()
    for path, array in wanted.items():
        assert found[path].shape == array.shape, path
        assert found[path].dtype == array.dtype, path
        if path == "allowed":
            assert np.array_equal(found[path], array)
        elif "b_k" not in path:  # zero but for rounding
            assert relative(found[path], array) < 1e-10, path
    assert ma.implicit_update(config, params, tape, 1).residual.max() < 1e-12
    repeated = ma.loss_and_grad(config, params, batch, "numba")
    assert np.array_equal(repeated[0], loss)
    assert all(np.array_equal(repeated[1][name], grads[name]) for name in params)


@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_no_weight_no_loss_no_gradient(engine, attention):
    config = dataclasses.replace(CONFIG, attention=attention)
    _, params, batch = build_case(config, replicas=2, batch_size=2, length=4)
    weights = batch.weights.copy()
    weights[0] = 0
    some = dataclasses.replace(batch, weights=weights)
    loss, grads, tape = ma.loss_and_grad(config, params, some, engine)
    assert loss[0] == 0 < loss[1]
    for name, gradient in grads.items():
        assert np.array_equal(gradient[0], np.zeros_like(gradient[0])), name
        assert "b_k" in name or gradient[1].any(), name
    assert (ma.implicit_update(config, params, tape).beta[0] == 0).all()


def test_targets_are_read_only_where_they_weigh(engine):
    config, params, batch = build_case(CONFIG, batch_size=2, length=6)
    targets = np.where(batch.weights > 0, batch.targets, 99)
    assert (targets == 99).any()
    loss, grads, _ = ma.loss_and_grad(config, params, batch, engine)
    other = ma.loss_and_grad(config, params, dataclasses.replace(batch, targets=targets), engine)
    assert np.array_equal(loss, other[0])
    assert all(np.array_equal(grads[name], other[1][name]) for name in params)


def test_the_masked_objective_hides_what_it_asks_for(engine):
    params = build_params(CONFIG)
    objective = ma.MaskedToken(rate=0.4, mask_symbol=CONFIG.mask_symbol)
    tokens = np.random.default_rng(0).integers(7, size=(3, 10))
    batch = objective(tokens, np.random.default_rng(1))
    hidden = batch.weights > 0
    assert 0 < hidden.sum() < hidden.size
    other = objective(np.where(hidden, (tokens + 1) % 7, tokens), np.random.default_rng(1))
    losses = [ma.loss_and_grad(CONFIG, params, b, engine)[0] for b in (batch, other)]
    assert losses[0] != losses[1]
    logits = [ma.forward(CONFIG, params, b.inputs, b.mask, engine) for b in (batch, other)]
    assert np.array_equal(*logits)
    shown = objective(np.where(hidden, tokens, (tokens + 1) % 7), np.random.default_rng(1))
    assert (ma.forward(CONFIG, params, shown.inputs, shown.mask, engine) != logits[0]).all()


@given(case=cases())
def test_the_mean_loss_is_that_of_the_step(engine, case):
    loss, _, _ = ma.loss_and_grad(*case, engine=engine)
    found = ma.mean_loss(*case, engine=engine)
    assert found.shape == loss.shape
    np.testing.assert_allclose(found, loss, rtol=1e-12)


@pytest.mark.parametrize("function", [ma.loss_and_grad, ma.mean_loss])
def test_complex_parameters_need_the_numpy_engine(function):
    config, params, batch = build_case(CONFIG, replicas=2, batch_size=2, length=4)
    params = {name: value.astype(complex) for name, value in params.items()}
    loss, expected = function(config, params, batch), ma.mean_loss(config, params, batch, "numpy")
    np.testing.assert_array_equal(loss[0] if isinstance(loss, tuple) else loss, expected)
    assert expected.dtype == complex
    with pytest.raises(ValueError, match=r"^engine: got 'numba' for complex128, needs "):
        function(config, params, batch, "numba")


@pytest.mark.parametrize("layers", [[], [0], [1], [0, 1]])
def test_an_offset_of_W_qk_does_what_a_change_of_W_q_does(engine, layers):
    config = dataclasses.replace(CONFIG, bias=False)
    _, params, batch = build_case(config, replicas=2, batch_size=3, length=5)
    offsets, moved, rng = {}, dict(params), np.random.default_rng(0)
    for layer in layers:
        W_q, W_k = (params[f"layers.{layer}.{name}"] for name in ("W_q", "W_k"))
        change = rng.standard_normal(W_q.shape)
        offsets[layer] = np.einsum("rdhi,rehi->rhde", change, W_k).tolist()
        moved[f"layers.{layer}.W_q"] = W_q + change
    found = ma.mean_loss(config, params, batch, engine, offsets)
    np.testing.assert_allclose(found, ma.mean_loss(config, moved, batch, engine), rtol=1e-12)


OFFSET = np.zeros((2, 2, 8, 8))


@pytest.mark.parametrize(
    ("offsets", "got"),
    [
        ([OFFSET], f"W_qk_offsets: got {[OFFSET]!r:.60}"),
        ({2: 0.0}, "W_qk_offsets: got {2: 0.0}"),
        ({0: OFFSET, -1: 0.0}, f"W_qk_offsets: got { {0: OFFSET}!r:.60}"),
        ({0: OFFSET, 1: 0.0}, "W_qk_offsets[1]: got float64 of shape ()"),
        ({0: OFFSET[:1]}, "W_qk_offsets[0]: got float64 of shape (1, 2, 8, 8)"),
        ({0: OFFSET.astype(int)}, "W_qk_offsets[0]: got an array of int64"),
        ({0: [[0.0], []]}, "W_qk_offsets[0]: got a list that is no array"),
    ],
)
def test_offsets_that_fit_no_layer_are_an_error(offsets, got):
    needs = "a dict from layers within 0..1 to floats of shape (2, 2, 8, 8)"
    with pytest.raises(ValueError, match=f"^{re.escape(f'{got}, needs {needs}')}$"):
        ma.mean_loss(CONFIG, build_params(CONFIG, 2), BATCH, W_qk_offsets=offsets)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("token_embedding", "the input of layer 0"),
        ("layers.0.W_q", "the attention of layer 0"),
        ("layers.0.W_out", "the input of layer 1"),
        ("layers.1.W_v", "the attention of layer 1"),
        ("layers.1.W_out", "the output of the last layer"),
        ("unembedding", "the loss"),
    ],
)
def test_non_finite_values_are_named_by_layer_and_replica(engine, bad, name, place):
    config = dataclasses.replace(CONFIG, norm="none")
    _, params, batch = build_case(config, replicas=2, batch_size=2, length=4)
    params[name][1] = bad
    message = f"^loss_and_grad: non-finite value in {place}, replica 1$"
    with pytest.raises(FloatingPointError, match=message):
        ma.loss_and_grad(config, params, batch, engine)


@pytest.mark.parametrize(
    ("names", "place"),
    [
        (["token_embedding"], "token_embedding"),
        (["token_embedding", "layers.0.W_k"], r"layer 0 \(layers.0.W_k\)"),
        (["layers.0.W_k", "layers.1.W_v"], r"layer 1 \(layers.1.W_v\)"),
        (["layers.1.W_v", "norm_final.gain"], "norm_final.gain"),
        (["norm_final.gain", "unembedding"], "unembedding"),
    ],
)
def test_of_several_bad_gradients_the_one_that_backward_meets_first_is_named(names, place):
    problem, dtype = pose(*build_case(CONFIG, replicas=2, batch_size=2, length=4))
    outcome = take(choose("numpy", dtype), CONFIG, build_params(CONFIG, 2), problem, taped=True)
    for name in names:
        outcome.grads[name][1] = np.nan
    message = f"^fit: non-finite value in the gradient of {place}, replica 7$"
    with pytest.raises(FloatingPointError, match=message):
        check_finite(choose("numpy", dtype), outcome, "fit", [3, 7])


def test_a_step_without_tapes_is_taken_again_to_say_where_it_failed():
    _, params, batch = build_case(CONFIG, replicas=2, batch_size=2, length=4)
    params["layers.1.norm_attention.gain"][0] = np.nan
    problem, dtype = pose(CONFIG, params, batch)
    engine = choose("numpy", dtype)
    outcome = take(engine, CONFIG, params, problem)
    assert outcome.tapes == []
    again = partial(take, engine, CONFIG, params, problem, taped=True)
    message = "^fit: non-finite value in the input of layer 1, replica 4$"
    with pytest.raises(FloatingPointError, match=message):
        check_finite(engine, outcome, "fit", [4, 0], again)


def test_a_loss_that_overflows_is_an_error_rather_than_a_warning(engine):
    _, params, batch = build_case(CONFIG, length=4)
    params["token_embedding"] *= 1e300
    params["norm_final.gain"] *= 1e200
    params["unembedding"] *= 1e200
    with pytest.raises(FloatingPointError, match="replica 0"):
        ma.loss_and_grad(CONFIG, params, batch, engine)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"weights": -BATCH.weights}, "weights"),
        ({"weights": BATCH.weights * np.nan}, "weights"),
        ({"weights": BATCH.weights + np.inf}, "weights"),
        ({"weights": BATCH.weights[0]}, "weights"),
        ({"weights": BATCH.weights.astype(str)}, "weights"),
        ({"targets": BATCH.targets[:, :, 1:]}, "targets"),
        ({"targets": BATCH.targets + 7, "weights": BATCH.weights + 1}, "batch.targets"),
        ({"targets": BATCH.targets - 7, "weights": BATCH.weights + 1}, "batch.targets"),
        ({"targets": BATCH.targets + 0.5}, "targets"),
        ({"inputs": BATCH.inputs + 8}, "batch.inputs"),
        ({"inputs": BATCH.inputs - 8}, "inputs"),
        ({"inputs": BATCH.inputs * 1.0}, "inputs"),
        ({"mask": "diagonal"}, "mask"),
        ({"mask": np.ones((3, 3), bool)}, "mask"),
    ],
)
def test_bad_batches_name_what_they_are(changes, name):
    params = build_params(CONFIG, 2)
    with pytest.raises(ValueError, match=rf"^{name}: got .*, needs "):
        ma.loss_and_grad(CONFIG, params, dataclasses.replace(BATCH, **changes))


def test_a_batch_of_another_type_or_number_of_replicas():
    with pytest.raises(ValueError, match=r"^batch: got ndarray, needs"):
        ma.loss_and_grad(CONFIG, build_params(CONFIG, 2), BATCH.inputs)
    with pytest.raises(
        ValueError, match=r"^batch.inputs: got shape \(2, 3, 4\), needs .*\(3, B, N\)"
    ):
        ma.loss_and_grad(CONFIG, build_params(CONFIG, 3), BATCH)


def test_weights_as_large_as_numbers_get():
    config, params, batch = build_case(CONFIG, length=4)
    large = dataclasses.replace(batch, weights=batch.weights * 2.0**1023)
    expected = ma.loss_and_grad(config, params, batch)[0]
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(ma.loss_and_grad(config, params, large)[0], expected)


def test_batches_of_lists_hold_arrays():
    batch = ma.Batch(inputs=[[0, 1]], targets=[[1, 2]], weights=[[1, 1]], mask="causal")
    for name in ("inputs", "weights", "targets"):
        assert isinstance(getattr(batch, name), np.ndarray), name


@pytest.mark.parametrize(
    ("replicas", "batch", "length", "width", "chunks"),
    [
        (8, 8, 16, 16, 1),  # too little for a second thread
        (16, 8, 16, 16, 2),
        (24, 8, 16, 16, 2),
        (8, 16, 32, 32, 4),
        (3, 16, 32, 32, 2),  # two would do for the cache as well as for the threads
        (1, 32, 64, 64, 1),
    ],
)
def test_replicas_are_cut_for_threads_that_have_enough_to_do(
    replicas, batch, length, width, chunks
):
    assert len(shards(replicas, batch, length, width, threads=2)[0]) == chunks

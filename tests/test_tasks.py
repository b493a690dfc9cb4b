"""Blocks that are run again out of their calls, and what makes a step be prepared anew."""

import copy
import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minattn as ma
from minattn import division, tasks
from minattn.engines import Buffers, choose
from minattn.step import pose, take
from minattn.testing.strategies import build_batch, build_case, build_params, cases

CONFIG = ma.TransformerConfig(
    vocab_size=7, width=8, layers=2, heads=2, max_length=64, norm="post", feed_forward=5, bias=True
)
ARRAYS = ("inputs", "targets", "weights")


def changed(params, seed):
    """Draw other numbers of the same shapes, and write them into the same arrays."""
    rng = np.random.default_rng(seed)
    for value in params.values():
        value[...] = rng.standard_normal(value.shape)


def another(batch, config, seed):
    """Draw another batch of the same shape and mask."""
    rng = np.random.default_rng(seed)
    return ma.Batch(
        inputs=rng.integers(config.vocab_size + 1, size=batch.inputs.shape),
        targets=rng.integers(config.vocab_size, size=batch.inputs.shape),
        weights=rng.random(batch.inputs.shape),
        mask=batch.mask,
    )


def spoil(buffers):
    """Write NaN over all that earlier steps have left, so that nothing of it can be of use."""
    for workspace in (*buffers._free, *buffers._lasting.values()):
        for memory in workspace._buffers:
            memory.fill(255)
    for total in buffers._prepared[2].totals:
        for array in total.values():
            array.fill(np.nan)


def attended(tape):
    """Look at all of a tape that was made forward and backward."""
    arrays = {"inputs": tape.inputs, "final": tape.final}
    for number, block in enumerate(tape.layers):
        for name in ("x", "A", "output_gradient", "score_gradient"):
            arrays[f"{name} {number}"] = getattr(block.attention, name)
    return {name: array.sum(axis=1) for name, array in arrays.items()}


def step(case, buffers=None, taped=False, watch=None, engine="numba"):
    config, params, batch = case
    problem, dtype = pose(config, params, batch)
    return take(choose(engine, dtype), config, params, problem, buffers, taped, watch)


def assert_equal(found, expected):
    for one, other in (
        ({"loss": found.loss}, {"loss": expected.loss}),
        (found.grads, expected.grads),
        (found.sums, expected.sums),
    ):
        assert one.keys() == other.keys()
        for name, value in other.items():
            np.testing.assert_array_equal(one[name], value, err_msg=name)


def agrees_when_repeated(case, engine, seed, **options):
    buffers = Buffers()
    step(case, buffers, engine=engine, **options)
    spoil(buffers)
    changed(case.params, seed)
    again = case._replace(batch=another(case.batch, case.config, seed))
    found = step(again, buffers, engine=engine, **options)
    assert_equal(found, step(again, engine=engine, **options))
    return found


@given(case=cases(), seed=st.integers(0, 2**32 - 1), watched=st.booleans(), taped=st.booleans())
def test_a_step_in_used_memory_is_bit_equal_to_one_in_new(engine, case, seed, watched, taped):
    params = {name: np.array(value) for name, value in case.params.items()}
    watch = attended if watched else None
    options = {"watch": watch, "taped": taped}
    agrees_when_repeated(case._replace(params=params), engine, seed, **options)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_so_it_is_with_many_blocks_whoever_runs_them(engine, threads, monkeypatch):
    ma.set_threads(threads)
    monkeypatch.setattr(division, "TOKENS_PER_BLOCK", 20)
    monkeypatch.setattr(division, "ENTRIES_PER_BLOCK", 160)
    monkeypatch.setattr(division, "ENTRIES_PER_TASK", 80)
    case = build_case(CONFIG, replicas=7, batch_size=26, length=6)
    chunks, shares = division.shards(7, 26, 6, CONFIG.width, threads)
    assert len(chunks) > 1
    assert sum(map(len, shares)) > len(shares)
    agrees_when_repeated(case, engine, 3, watch=attended)
    found = agrees_when_repeated(case, engine, 4, taped=True)
    expected = step(case._replace(batch=another(case.batch, CONFIG, 4)), taped=True, engine=engine)
    one, other = found.tape(), expected.tape()
    np.testing.assert_array_equal(one.final, other.final)
    np.testing.assert_array_equal(
        one.layers[1].attention.score_gradient, other.layers[1].attention.score_gradient
    )


def test_so_it_is_with_a_batch_in_the_order_of_fortran(engine):
    case = build_case(CONFIG, replicas=2, batch_size=3, length=6)
    turned = {name: np.asfortranarray(getattr(case.batch, name)) for name in ARRAYS}
    agrees_when_repeated(case._replace(batch=dataclasses.replace(case.batch, **turned)), engine, 2)


def test_who_watches_a_step_sees_the_complete_tape(engine):
    case = build_case(CONFIG, replicas=2, batch_size=3, length=6)
    seen = step(case, watch=attended, engine=engine).sums
    expected = attended(ma.loss_and_grad(*case, engine)[2])
    assert seen.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(seen[name], value, err_msg=name)


@pytest.mark.parametrize("taped", [False, True])
def test_blocks_take_the_same_memory_unless_their_tapes_are_kept(engine, taped, monkeypatch):
    monkeypatch.setattr(division, "TOKENS_PER_BLOCK", 12)
    monkeypatch.setattr(division, "ENTRIES_PER_BLOCK", 96)
    case, buffers, places = build_case(CONFIG, batch_size=4, length=6), Buffers(), []

    def place(tape):
        places.append(tape.layers[0].attention.A.ctypes.data)
        return {}

    for _ in range(2):
        step(case, buffers, taped, place, engine)
    first, second, *again = places
    assert again == [first, second]
    assert (first == second) != taped


def test_the_gradient_of_the_logits_takes_their_memory():
    config, buffers = dataclasses.replace(CONFIG, vocab_size=500), Buffers()
    step(build_case(config, batch_size=3, length=6), buffers)
    (workspace,) = buffers._free
    assert sum(memory.size >= 3 * 6 * 500 * 8 for memory in workspace._buffers) == 1


@pytest.mark.parametrize("mask", ["causal", np.tri(6, k=1, dtype=bool)], ids=["name", "array"])
@pytest.mark.parametrize(("engine", "times"), [("numba", 1), ("numpy", 3)])
def test_the_layers_run_once_where_calls_can_be_repeated(engine, times, mask, monkeypatch):
    ran = []

    def count(*arguments):
        ran.append(1)
        return run_forward(*arguments)

    run_forward = tasks.run_forward
    monkeypatch.setattr(tasks, "run_forward", count)
    case, buffers = build_case(CONFIG, length=6, mask=mask), Buffers()
    for _ in range(3):
        step(case, buffers, engine=engine)
    assert len(ran) == times


def test_another_shape_mask_model_or_number_of_threads_is_prepared_anew(engine):
    case, buffers = build_case(CONFIG, replicas=2, batch_size=3, length=6), Buffers()
    linear = dataclasses.replace(CONFIG, attention="linear")
    others = [
        case._replace(batch=build_batch(CONFIG, 2, 3, 5)),
        case._replace(batch=build_batch(CONFIG, 2, 4, 6)),
        case._replace(batch=build_batch(CONFIG, 2, 3, 6, mask="bidirectional")),
        case._replace(batch=build_batch(CONFIG, 2, 3, 6, mask=np.tri(6, k=2, dtype=bool))),
        case._replace(batch=build_batch(CONFIG, 2, 3, 6, mask=np.tri(6, k=-2, dtype=bool))),
        case._replace(params=build_params(CONFIG, 2, seed=1)),
        case._replace(config=linear),
    ]
    for other in (*others, case):
        assert_equal(step(other, buffers, engine=engine), step(other, engine=engine))
        assert_equal(step(case, buffers, engine=engine), step(case, engine=engine))
    for threads in (1, 3, 2):
        ma.set_threads(threads)
        assert_equal(step(case, buffers, engine=engine), step(case, engine=engine))


def test_parameters_that_layers_would_copy_are_read_each_time(engine):
    case, buffers = build_case(CONFIG, length=6), Buffers()
    turned = {name: np.asfortranarray(value) for name, value in case.params.items()}
    case = case._replace(params=turned)
    step(case, buffers, engine=engine)
    changed(turned, 5)
    assert_equal(step(case, buffers, engine=engine), step(case, engine=engine))


def test_a_tape_of_a_new_step_is_not_that_of_an_old_one():
    case = build_case(CONFIG, length=6)
    tape = ma.loss_and_grad(*case)[2]
    before = copy.deepcopy(tape)
    changed(case.params, 6)
    ma.loss_and_grad(*case)
    np.testing.assert_array_equal(tape.final, before.final)
    np.testing.assert_array_equal(tape.inputs, before.inputs)

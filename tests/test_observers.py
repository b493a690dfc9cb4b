"""The account and the held-out loss: each number against its definition."""

import dataclasses
import pickle

import numpy as np
import pytest

import minattn as ma
import minattn.observers
from minattn.engines import Reference
from minattn.testing.strategies import build_batch, build_case

CONFIG = ma.TransformerConfig(vocab_size=5, width=8, layers=3, heads=2, max_length=6)
SCORES = ("symmetry", "directionality", "directionality_published", "dispersion")


def observed(case, initial):
    _, grads, tape = ma.loss_and_grad(*case)
    return ma.account(case.config, initial)(7, case.params, grads, tape), tape


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("mask", ["bidirectional", "causal"])
def test_account_by_definition(dtype, mask):
    case = build_case(CONFIG, replicas=3, batch_size=2, length=6, mask=mask)
    case = case._replace(params={name: v.astype(dtype) for name, v in case.params.items()})
    initial = ma.init_params(CONFIG, 3, seed=5, dtype=dtype)
    found, tape = observed(case, initial)
    expected = {"change_" + name for name in SCORES} | set(SCORES)
    extra = {"change_norm", "update_symmetry", "agreement", "agreement_pairs"}
    assert set(found) == expected | extra
    assert all(np.shape(value) == (3, 3) for value in found.values())
    sums = ma.account(CONFIG, initial).of_block(tape)
    assert sums["gradient"].dtype == dtype
    atol = 1e-12 if dtype == "float64" else 1e-5  # beta out of backprop, and by its own formula
    for layer in range(3):
        now = ma.W_qk(case.params, layer)
        change = now - ma.W_qk(initial, layer)
        for prefix, M in (("", now), ("change_", change)):
            for name, value in ma.scores.scores(M)._asdict().items():
                np.testing.assert_array_equal(found[prefix + name][layer], value)
        size = np.sqrt((change**2).sum(axis=(1, 2)))
        np.testing.assert_allclose(found["change_norm"][layer], size, rtol=1e-6)
        update = ma.implicit_update(CONFIG, case.params, tape, layer)
        symmetry = ma.symmetry(update.total).mean(axis=1)
        np.testing.assert_allclose(found["update_symmetry"][layer], symmetry, atol=atol)
        np.testing.assert_allclose(-sums["gradient"][:, layer], update.total, atol=atol)
        agreement, pairs = update.agreement()
        np.testing.assert_allclose(found["agreement"][layer], agreement, atol=atol)
        np.testing.assert_array_equal(found["agreement_pairs"][layer], pairs)
    assert np.isnan(found["agreement"]).all() == (mask == "causal")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_account_sums_its_terms_in_the_precision_of_the_model(dtype):
    case = build_case(CONFIG, replicas=2, batch_size=3, length=6, mask="bidirectional")
    params = {name: value.astype(dtype) for name, value in case.params.items()}
    _, _, tape = ma.loss_and_grad(CONFIG, params, case.batch, engine="numpy")
    gradient = ma.account(CONFIG, params).of_block(tape)["gradient"]
    for layer in range(CONFIG.layers):
        attention = tape.layers[layer].attention
        x = attention.x.reshape(2, 3, 6, -1)
        expected = ma.terms.weighted_outer_sum(x, attention.score_gradient)
        np.testing.assert_array_equal(gradient[:, layer], expected)


def test_no_change_at_the_start():
    case = build_case(CONFIG, replicas=2, length=6)
    found, _ = observed(case, case.params)
    for name in (*("change_" + name for name in SCORES), "change_norm"):
        assert not found[name].any()
    assert found["symmetry"].any()


def test_account_does_not_follow_what_it_was_given():
    case = build_case(CONFIG, length=6)
    initial = {name: value.copy() for name, value in case.params.items()}
    observe = ma.account(CONFIG, initial)
    for value in initial.values():
        value += 1
    _, grads, tape = ma.loss_and_grad(*case)
    before = {name: value.copy() for name, value in case.params.items()}
    assert not observe(0, case.params, grads, tape)["change_norm"].any()
    assert all(np.array_equal(before[name], case.params[name]) for name in before)


def test_account_takes_each_layer_once(monkeypatch):
    """The account's cost is that of one update a layer."""
    calls = []

    def count(*arguments):
        calls.append(arguments)
        return ma.terms.outer_sum(*arguments)

    monkeypatch.setattr(minattn.observers, "outer_sum", count)
    case = build_case(CONFIG, length=6)
    observed(case, case.params)
    assert len(calls) == 3


def test_observers_in_fit():
    config = dataclasses.replace(CONFIG, layers=2)
    initial = ma.init_params(config, replicas=2)
    batch = build_batch(config, replicas=2, batch_size=3, length=6)
    observe = (ma.account(config, initial), ma.held_out_loss(config, batch, name="test"))
    chain = ma.data.MarkovChain.random(5)
    history = ma.fit(config, initial, chain, ma.next_token, steps=4, length=6, record_every=2,
                     batch_size=4, observe=observe)  # fmt: skip
    assert history.metrics["change_symmetry"].shape == (3, 2, 2)
    assert not history.metrics["change_norm"][0].any()
    assert (history.metrics["change_norm"][1:] > 0).all()
    loss = history.metrics["test"]
    assert loss.shape == (3, 2)
    np.testing.assert_array_equal(loss[-1], ma.mean_loss(config, history.params, batch))
    np.testing.assert_array_equal(loss[0], ma.mean_loss(config, initial, batch))


def test_bad_arguments():
    case = build_case(CONFIG, length=6)
    with pytest.raises(ValueError, match=r"^initial: got names that differ"):
        ma.account(dataclasses.replace(CONFIG, layers=1), case.params)
    with pytest.raises(ValueError, match=r"^initial: got 2 replicas, needs 1, as params have"):
        observed(case, ma.init_params(CONFIG, replicas=2))
    with pytest.raises(ValueError, match=r"^batch: got ndarray, needs a minattn.Batch"):
        ma.held_out_loss(CONFIG, case.batch.inputs)
    with pytest.raises(ValueError, match=r"^engine: got 'abacus'"):
        ma.held_out_loss(CONFIG, case.batch, engine="abacus")


@pytest.mark.parametrize("engine", ["numpy", "numba"])
def test_lent_arrays_change_neither_training_nor_records(engine):
    config = ma.TransformerConfig(vocab_size=5, width=8, layers=2, heads=2, max_length=8)
    initial = ma.init_params(config, 3)
    chain = ma.data.MarkovChain.random(5, concentration=1.0, seed=0)
    lent = ma.account(config, initial)
    kept = []

    def owned(step, params, grads, tape):  # not a sum over blocks: it gets arrays of its own
        kept.append((params, grads, tape))
        return lent(step, params, grads, tape)

    options = {"steps": 7, "batch_size": 4, "length": 8, "record_every": 2, "engine": engine}
    runs = [
        ma.fit(config, initial, chain, ma.next_token, observe=observe, **options)
        for observe in (lent, owned, ())
    ]
    for name, value in runs[2].params.items():
        assert all(np.array_equal(run.params[name], value) for run in runs[:2])
    assert runs[0].metrics.keys() == runs[1].metrics.keys()
    for name, value in runs[1].metrics.items():
        assert np.array_equal(runs[0].metrics[name], value, equal_nan=True), name
    assert len({id(tape.final) for _, _, tape in kept}) == len(kept) == 5


def test_observers_can_be_pickled():
    config = ma.TransformerConfig(vocab_size=5, width=8, layers=1, heads=2, max_length=8)
    params = ma.init_params(config)
    batch = ma.next_token(np.arange(5)[None])
    _, _, tape = ma.loss_and_grad(config, params, batch)
    for observer in (ma.account(config, params), ma.held_out_loss(config, batch)):
        one, other = observer, pickle.loads(pickle.dumps(observer))
        found = one(0, params, {}, tape), other(0, params, {}, tape)
        for name, value in found[0].items():
            assert np.array_equal(value, found[1][name], equal_nan=True)


@pytest.mark.parametrize("mask", ["bidirectional", "causal"])
def test_sums_over_blocks_are_those_of_the_whole_batch(engine, mask):
    ma.set_threads(2)
    config = ma.TransformerConfig(vocab_size=5, width=8, layers=2, heads=2, max_length=64)
    initial = ma.init_params(config, 3)
    observe = ma.account(config, initial)
    blocks = []

    class Spied(type(observe)):
        def of_block(self, tape):
            blocks.append(tape.inputs.shape)
            assert tape.grads is None
            return super().of_block(tape)

    def whole(step, params, grads, tape):
        assert tape.inputs.shape == (3, 320, 64)
        return {"whole_" + name: value for name, value in observe(0, params, grads, tape).items()}

    spied = Spied(config, observe.start)
    chain = ma.data.MarkovChain.random(5, concentration=1.0, seed=0)
    objective = ma.MaskedToken(rate=0.3, mask_symbol=5, mask=mask)
    history = ma.fit(config, initial, chain, objective, steps=2, batch_size=320, length=64,
                     record_every=1, engine=engine, observe=[spied, whole])  # fmt: skip
    assert sum(R * B for R, B, _ in blocks) == 3 * 3 * 320
    assert len(blocks) > 3
    for name, value in history.metrics.items():
        if "whole_" + name in history.metrics:
            np.testing.assert_allclose(
                value, history.metrics["whole_" + name], rtol=1e-6, atol=1e-9
            )


def test_an_observer_of_sums_is_told_the_step():
    class Steps(minattn.observers.Summing):
        def of_block(self, tape):
            return {"final": tape.final.sum(axis=1)}

        def record(self, step, params, sums):
            return {"step": step, "final": sums["final"]}

    case = build_case(CONFIG, length=4)
    _, grads, tape = ma.loss_and_grad(*case)
    found = Steps()(7, case.params, grads, tape)
    assert found["step"] == 7
    np.testing.assert_array_equal(found["final"], tape.final.sum(axis=1))


def test_the_held_out_loss_is_computed_by_the_engine_asked_for():
    ran = []

    class Noted(Reference):
        def cross_entropy(self, *arguments, **options):
            ran.append(1)
            return super().cross_entropy(*arguments, **options)

    case = build_case(CONFIG, length=4)
    _, grads, tape = ma.loss_and_grad(*case)
    observer = ma.held_out_loss(CONFIG, case.batch, engine=Noted())
    found = observer(0, case.params, grads, tape)
    assert ran
    assert found.keys() == {"held_out_loss"}

"""Records that are finished several at a time, against those finished one by one."""

import numpy as np
import pytest

import minattn as ma
from minattn.observers import Summing
from minattn.records import RECORDS_KEPT, Record, Records

CONFIG = ma.TransformerConfig(vocab_size=4, width=8, layers=2, heads=2, max_length=6)


class Doubled(Summing):
    """Keeps a number, and finishes it to twice the number."""

    def __init__(self):
        self.groups = []

    def of_block(self, tape):
        return {}

    def record(self, step, params, sums):
        return {"half": step}

    def finish(self, kept):
        self.groups.append(len(kept))
        return [{"step": 2 * one["half"]} for one in kept]


def kept_by(observers, step):
    record = Record(step)
    record.add({"loss": np.float64(step)})
    for place, observer in enumerate(observers):
        if isinstance(observer, Summing):
            record.leave(place, observer.record(step, {}, {}))
    return record


def test_the_first_record_is_finished_at_once_and_then_many_together():
    observer, records = Doubled(), Records()
    for step in range(RECORDS_KEPT + 3):
        records.keep(kept_by([observer], step), [observer])
    assert observer.groups == [1, RECORDS_KEPT]
    assert records.steps == list(range(RECORDS_KEPT + 1))
    assert len(records.kept) == 2
    records.finish([observer])
    records.finish([observer])  # nothing is left to do
    assert observer.groups == [1, RECORDS_KEPT, 2]
    np.testing.assert_array_equal(records.metrics["step"], 2 * np.arange(RECORDS_KEPT + 3))
    np.testing.assert_array_equal(records.metrics["loss"], np.arange(RECORDS_KEPT + 3))
    assert records.steps == list(range(RECORDS_KEPT + 3))


def test_what_needs_no_finishing_is_recorded_at_once():
    records = Records()
    for step in range(3):
        records.keep(kept_by([], step), [])
        assert records.steps[-1] == step


def test_each_observer_finishes_its_own():
    plain, first, second = (lambda *_: {}), Doubled(), Doubled()
    second.finish = lambda kept: [{"other": 3 * one["half"]} for one in kept]
    records, observers = Records(), [first, plain, second]
    for step in (4, 5):
        records.keep(kept_by(observers, step), observers)
    records.finish(observers)
    assert [int(v) for v in records.metrics["step"]] == [8, 10]
    assert [int(v) for v in records.metrics["other"]] == [12, 15]


def test_a_record_keeps_copies():
    array, record = np.ones(2), Record(0)
    record.add({"a": array})
    record.leave(0, {"b": array})
    array += 1
    assert record.values["a"].tolist() == record.unfinished[0]["b"].tolist() == [1, 1]


def test_names_that_two_observers_finish_are_refused():
    with pytest.raises(ValueError, match=r"^observe: got .*'step'.* beside \['loss', 'step'\]"):
        Records().keep(kept_by([Doubled(), Doubled()], 0), [Doubled(), Doubled()])


@pytest.mark.parametrize("mask", ["causal", "bidirectional"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_account_does_not_depend_on_when_it_is_finished(mask, dtype, tmp_path):
    initial = ma.init_params(CONFIG, replicas=2, dtype=dtype)
    chain, steps = ma.data.MarkovChain.random(4), RECORDS_KEPT + 4

    def trained(**options):
        observe = [ma.account(CONFIG, initial), lambda step, *_: {"step": step}]
        objective = ma.MaskedToken(rate=0.5, mask_symbol=4, mask=mask)
        return ma.fit(CONFIG, initial, chain, objective, steps=steps, length=6, batch_size=3,
                      record_every=1, observe=observe, **options)  # fmt: skip

    together, apart = trained(), trained(save=tmp_path / "run", save_every=1)
    assert together.steps.tolist() == together.metrics["step"].tolist() == list(range(steps + 1))
    for name, values in together.metrics.items():
        np.testing.assert_array_equal(values, apart.metrics[name])

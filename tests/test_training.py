"""fit: the loop, its records, what it saves, and what it refuses."""

import copy
from functools import partial

import numpy as np
import pytest

import minattn as ma
from minattn import SGD, AdamW, MaskedToken, fit, init_params, loss_and_grad, next_token
from minattn.division import shards
from minattn.objectives import stack
from minattn.optim import CosineDecay
from minattn.randomness import generator
from minattn.saving import load_arrays, save_arrays

V = 5
config = ma.TransformerConfig(
    vocab_size=V, width=8, layers=2, heads=2, max_length=40, norm="pre", feed_forward=6, bias=True
)
masked = MaskedToken(rate=0.4, mask_symbol=V, replace=(0.8, 0.1, 0.1))
RUN = {"steps": 6, "batch_size": 3, "length": 5, "record_every": 2, "seed": 4, "engine": "numpy"}


class Counting:
    """Windows that count upwards from a random start, now and then with a jump."""

    n_symbols = V

    def __init__(self, jumps=0.0, stop=None):
        self.jumps, self.stop, self.calls = jumps, stop, 0

    def __repr__(self):
        return type(self).__name__  # the name of a test must not hold an address

    def sample(self, B, N, rng):
        self.calls += 1
        if self.calls == self.stop:
            raise KeyboardInterrupt
        steps = np.where(rng.random((B, N)) < self.jumps, rng.integers(V, size=(B, N)), 1)
        return (rng.integers(V, size=(B, 1)) + np.cumsum(steps, axis=1)) % V


noisy = Counting(jumps=0.3)


def run(source=noisy, objective=next_token, params=None, replicas=2, **changes):
    """Train for a few steps; `replicas` is a count or the numbers."""
    if params is None:
        params = init_params(config, replicas=replicas, seed=1)
    numbers = range(replicas) if isinstance(replicas, int) else replicas
    return fit(config, params, source, objective, replicas=numbers, **RUN | changes)


def assert_same(history, other, replicas=slice(None)):
    """Bit for bit: records, metrics and final parameters."""
    np.testing.assert_array_equal(history.steps, other.steps)
    assert history.metrics.keys() == other.metrics.keys()
    for name, values in other.metrics.items():
        np.testing.assert_array_equal(history.metrics[name], values[..., replicas], err_msg=name)
    assert history.params.keys() == other.params.keys()
    for name, value in other.params.items():
        np.testing.assert_array_equal(history.params[name], value[replicas], err_msg=name)


def sizes(step, params, grads, tape):
    """Observe norms by layer (layers, R), and one number."""
    norms = [
        [np.linalg.norm(grad) for grad in grads[f"layers.{layer}.W_q"]]
        for layer in range(config.layers)
    ]
    return {"norm": np.array(norms), "number": step}


# What a run does


def test_the_loss_falls(engine):
    history = run(Counting(), steps=80, optimizer=AdamW(lr=0.02), record_every=80, engine=engine)
    first, last = history.metrics["loss"]
    assert (np.abs(first - np.log(V)) < 1).all()
    assert (last < 0.3 * first).all()
    assert history.engine == engine


@pytest.mark.parametrize(
    ("steps", "record_every", "records"),
    [
        (6, 2, [0, 2, 4, 6]),
        (7, 3, [0, 3, 6, 7]),
        (1, 10, [0, 1]),
        (4, 4, [0, 4]),
        (2, 1, [0, 1, 2]),
    ],
)
def test_when_it_is_recorded_and_in_what_shape(steps, record_every, records):
    history = run(steps=steps, record_every=record_every, observe=sizes, replicas=3)
    assert history.steps.tolist() == records
    assert {name: values.shape for name, values in history.metrics.items()} == {
        "loss": (len(records), 3),
        "norm": (len(records), config.layers, 3),
        "number": (len(records),),
    }
    np.testing.assert_array_equal(history.metrics["number"], records)


@pytest.mark.parametrize("objective", [next_token, masked])
@pytest.mark.parametrize(
    "optimizer", [SGD(0.3, momentum=0.9), AdamW(CosineDecay(0.1, steps=9), weight_decay=0.2)]
)
def test_a_run_is_the_loop_that_one_would_write(objective, optimizer):
    numbers = (3, 0)
    params = init_params(config, replicas=numbers)
    history = run(noisy, objective, params, numbers, optimizer=optimizer, record_every=1)

    streams = [[generator(4, name, r) for name in ("data", "objective")] for r in numbers]
    state, losses = optimizer.init(params), []
    for step in range(7):
        batch = stack([objective(noisy.sample(3, 5, data), rng) for data, rng in streams])
        loss, grads, _ = loss_and_grad(config, params, batch, engine="numpy")
        losses.append(loss)
        if step < 6:
            params, state = optimizer.step(params, grads, state)
    np.testing.assert_array_equal(history.metrics["loss"], losses)
    for name, value in params.items():
        np.testing.assert_array_equal(history.params[name], value, err_msg=name)


def test_a_history_is_shown_in_one_line():
    shown = repr(run(engine="numpy", steps=2, record_every=1))
    assert shown == "History(3 records, metrics={'loss': (3, 2)}, engine='numpy')"


def test_adamw_is_the_default_optimizer():
    assert_same(run(), run(optimizer=AdamW()))


def test_the_engines_train_alike():
    numpy, numba = (run(engine=engine, objective=masked) for engine in ("numpy", "numba"))
    np.testing.assert_allclose(numba.metrics["loss"], numpy.metrics["loss"], rtol=1e-10)


def test_single_precision_stays_single(engine):
    params = init_params(config, dtype="float32")
    history = run(params=params, replicas=1, engine=engine, optimizer=SGD(0.1, momentum=0.5))
    assert {value.dtype.name for value in history.params.values()} == {"float32"}
    double = run(replicas=1, params=init_params(config), optimizer=SGD(0.1, momentum=0.5))
    np.testing.assert_allclose(history.metrics["loss"], double.metrics["loss"], rtol=1e-4)


def test_params_are_left_as_they_are():
    params = init_params(config, replicas=2)
    copies = copy.deepcopy(params)
    for value in params.values():
        value.setflags(write=False)
    history = run(params=params, optimizer=AdamW(0.1), frozen="unembedding")
    for name, value in params.items():
        np.testing.assert_array_equal(value, copies[name])
        assert not np.shares_memory(value, history.params[name])


def test_one_source_serves_all_replicas_with_draws_of_their_own():
    params = init_params(config, replicas=[0])
    twins = {name: np.concatenate([value, value]) for name, value in params.items()}
    losses = run(params=twins).metrics["loss"]
    assert (losses[:, 0] != losses[:, 1]).all()
    assert_same(run(params=twins), run([noisy, noisy], params=twins))


def test_progress_is_shown_only_on_request(capsys):
    silent = run()
    assert capsys.readouterr() == ("", "")
    assert_same(run(progress="a label"), silent)
    assert "a label" in capsys.readouterr().err


# Observers


def test_what_observers_are_given_is_theirs_to_keep(engine):
    kept, then = [], []

    def keep(step, params, grads, tape):
        kept.append((params, grads, tape))
        then.append(copy.deepcopy((params, grads, tape)))
        return {}

    history = run(observe=keep, record_every=1, engine=engine, optimizer=AdamW(0.1))
    assert len(kept) == 7
    for (params, grads, tape), (params_then, grads_then, tape_then) in zip(kept, then, strict=True):
        for name in params:
            np.testing.assert_array_equal(params[name], params_then[name])
            np.testing.assert_array_equal(grads[name], grads_then[name])
            np.testing.assert_array_equal(tape.grads[name], grads_then[name])
        np.testing.assert_array_equal(tape.final, tape_then.final)
        for layer, layer_then in zip(tape.layers, tape_then.layers, strict=True):
            for part in ("x", "A", "v", "output_gradient", "score_gradient"):
                one, other = (getattr(t.attention, part) for t in (layer, layer_then))
                np.testing.assert_array_equal(one, other, err_msg=part)
    np.testing.assert_array_equal(kept[-1][0]["unembedding"], history.params["unembedding"])


def test_observers_see_the_gradients_and_the_tape_of_their_step(engine):
    found = []

    def look(step, params, grads, tape):
        batch = next_token(tokens[step])
        loss, expected, _ = loss_and_grad(config, params, batch, engine=engine)
        for name, gradient in expected.items():
            np.testing.assert_array_equal(grads[name], gradient)
        np.testing.assert_array_equal(tape.inputs[0], batch.inputs)
        found.append(loss)
        return {}

    rng = generator(4, "data", 0)
    tokens = [noisy.sample(3, 5, rng) for _ in range(7)]
    history = run(observe=[look], replicas=1, engine=engine)
    np.testing.assert_array_equal(history.metrics["loss"], found)


def test_records_are_copies():
    shared = np.zeros(2)

    def count(step, params, grads, tape):
        shared[...] += 1
        return {"count": shared}

    np.testing.assert_array_equal(run(observe=count).metrics["count"][:, 0], [1, 2, 3, 4])


def returning(*values):
    """An observer that returns one value after the other."""
    rest = iter(values)
    return lambda step, params, grads, tape: next(rest)


@pytest.mark.parametrize(
    ("observe", "message"),
    [
        ([returning({"loss": 1})], "observe: got .*'loss'"),
        ([returning({"a": 1}), returning({"a": 2})], "observe: got .*'a'"),
        ([returning(3)], "observe: got 3"),
        ([returning(None)], "observe: got None"),
        ([returning({"a": "text"})], "observe: got 'a' of <U4, needs numbers"),
        ([returning({"a": 1j})], "observe: got 'a' of complex128"),
        ([returning({"a": 1}, {"b": 1})], r"observe: got records that differ in \['a', 'b'\]"),
        ([returning({"a": 1}, {})], r"observe: got records that differ in \['a'\]"),
        ([returning({"a": 1}, {"a": [1]})], r"observe: got 'a' of shape \(1,\), needs shape \(\)"),
    ],
)
def test_observers_that_do_not_fit_are_refused(observe, message):
    with pytest.raises(ValueError, match=message):
        run(observe=observe)


# The same run again, in parts, or in other company


def test_the_same_run_twice_is_bit_equal(engine):
    ma.set_threads(2)
    settings = {"batch_size": 32, "length": 33, "steps": 3, "engine": engine}
    assert_same(run(**settings), run(**settings))


@pytest.mark.parametrize("objective", [next_token, masked])
def test_a_replica_alone_is_that_replica_among_eight(engine, objective):
    ma.set_threads(2)
    chunks, shares = shards(8, 640, 32, config.width, threads=2)
    assert len(chunks) > 1 < min(len(shares), len(shares[0]))  # both axes are cut, and blocks
    settings = {"batch_size": 640, "length": 33, "steps": 3, "engine": engine, "observe": sizes}
    settings |= {"optimizer": AdamW(0.05, weight_decay=0.1)}
    sources = [Counting(jumps=r / 8) for r in range(8)]
    eight = run(sources, objective, replicas=8, **settings)
    alone = run([sources[5]], objective, replicas=[5], **settings)
    for history in (eight, alone):
        del history.metrics["number"]  # of the run, not of a replica
    assert_same(alone, eight, replicas=[5])


RESUMED = {
    "momentum": (next_token, SGD(0.3, momentum=0.9)),
    "AdamW": (next_token, AdamW(CosineDecay(0.1, steps=9), weight_decay=0.2)),
    "masked": (masked, AdamW(0.05)),
}


@pytest.mark.parametrize("stop", [3, 4, 7])
@pytest.mark.parametrize(("objective", "optimizer"), RESUMED.values(), ids=RESUMED)
def test_a_resumed_run_is_one_that_never_stopped(engine, tmp_path, objective, optimizer, stop):
    settings = {"objective": objective, "optimizer": optimizer, "engine": engine, "observe": sizes}
    settings |= {"record_every": 3, "frozen": "layers.0.*"}
    path = tmp_path / "saved"
    never_stopped = run(steps=7, **settings)
    run(steps=stop, save=path, **settings)
    assert_same(run(steps=7, resume=path, **settings), never_stopped)


def test_a_run_may_be_resumed_from_and_saved_to_one_file_again_and_again(tmp_path):
    path = tmp_path / "saved"
    run(steps=1, save=path, record_every=2)
    for steps in range(2, 6):
        run(steps=steps, save=path, resume=path, record_every=2)
    assert_same(run(resume=path, record_every=2), run(record_every=2))


def test_saves_come_at_their_steps(tmp_path):
    path, found = tmp_path / "saved", []

    def look(step, params, grads, tape):
        found.append(load_arrays(path)[1]["step"] if path.exists() else None)
        return {}

    run(steps=5, record_every=1, observe=look, save=path, save_every=2)
    assert found == [None, None, 2, 2, 4, 5]


def interrupted_at(last):
    def observe(step, params, grads, tape):
        if step == last and not observe.resumed:
            observe.resumed = True
            raise KeyboardInterrupt
        return sizes(step, params, grads, tape)

    observe.resumed = False
    return observe


@pytest.mark.parametrize("step", [0, 4, 6])
@pytest.mark.parametrize("objective", [next_token, masked])
def test_an_interrupted_run_is_saved_and_goes_on(engine, tmp_path, step, objective):
    observe, path = interrupted_at(step), tmp_path / "saved"
    settings = {"objective": objective, "engine": engine, "optimizer": AdamW(0.1)}
    with pytest.raises(KeyboardInterrupt):
        run(observe=observe, save=path, **settings)
    assert load_arrays(path)[1]["step"] == step
    resumed = run(observe=observe, resume=path, **settings)
    assert_same(resumed, run(observe=sizes, **settings))


@pytest.mark.parametrize("call", [1, 6, 7])
def test_an_interrupt_between_the_draws_of_two_replicas(tmp_path, call):
    source, path = Counting(jumps=0.3, stop=call), tmp_path / "saved"
    with pytest.raises(KeyboardInterrupt):
        run(source, objective=masked, save=path)
    assert_same(run(objective=masked, resume=path), run(objective=masked))


# What must be the same when a run goes on


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "saved"
    run(steps=3, optimizer=AdamW(0.1), save=path)
    return path


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("seed", {"seed": 5}),
        ("batch_size", {"batch_size": 4}),
        ("length", {"length": 6}),
        ("record_every", {"record_every": 3}),
        ("objective", {"objective": masked}),
        ("optimizer", {"optimizer": SGD(0.1)}),
        ("optimizer", {"optimizer": AdamW(0.2)}),
        ("optimizer", {"optimizer": AdamW(0.1, weight_decay=0.1)}),
        ("optimizer", {"optimizer": AdamW(CosineDecay(0.1, steps=9))}),
        ("trained", {"frozen": ["unembedding"]}),
        ("replicas", {"replicas": [0, 2]}),
        ("replicas", {"replicas": 3}),
    ],
    ids=str,
)
def test_a_run_goes_on_only_with_its_own_settings(saved, name, changes):
    with pytest.raises(ValueError, match=f"^resume: got a run with {name} "):
        run(**{"optimizer": AdamW(0.1), "resume": saved} | changes)


def test_a_run_goes_on_only_with_its_own_config(saved):
    other = ma.TransformerConfig(
        **{field: getattr(config, field) for field in ("vocab_size", "width", "layers", "heads")},
        **{"max_length": 40, "norm": "post", "feed_forward": 6, "bias": True},
    )
    with pytest.raises(ValueError, match=r"^resume: got a run with config .*'norm': 'pre'"):
        fit(other, init_params(other, 2), noisy, next_token, resume=saved, **RUN)


def masks_of_forty():
    one = np.tri(40, dtype=bool)
    other = one.copy()
    other[20, 10] = False
    return one, other


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (masked, MaskedToken(rate=0.5, mask_symbol=V)),
        (masked, MaskedToken(rate=0.4, mask_symbol=V, replace=(0.8, 0.1, 0.1), mask="causal")),
        [partial(next_token, mask=mask) for mask in ("causal", "strictly_causal")],
        [MaskedToken(mask_symbol=V, mask=mask) for mask in masks_of_forty()],
    ],
    ids=["rate", "mask", "partial", "large mask"],
)
def test_a_run_goes_on_only_with_its_own_objective(tmp_path, one, other):
    settings = {"steps": 1, "length": 40, "batch_size": 1}
    run(objective=one, save=tmp_path / "saved", **settings)
    with pytest.raises(ValueError, match="a run with objective"):
        run(objective=other, resume=tmp_path / "saved", **settings)


def test_a_run_goes_on_only_in_its_own_precision(saved):
    with pytest.raises(ValueError, match=r"^resume: got .* of float64, needs float32"):
        run(
            params=init_params(config, 2, dtype="float32"),
            optimizer=AdamW(0.1),
            resume=saved,
        )


def test_a_run_does_not_go_backwards(saved):
    with pytest.raises(ValueError, match="steps: got 2, needs at least the 3"):
        run(steps=2, optimizer=AdamW(0.1), resume=saved)


def test_a_file_that_holds_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"resume: got .*missing"):
        run(resume=tmp_path / "missing")
    save_arrays(tmp_path / "other", {"x": np.zeros(2)}, {"made by": "hand"})
    with pytest.raises(ValueError, match=r"resume: got"):
        run(resume=tmp_path / "other")


# Frozen parameters, penalties


@pytest.mark.parametrize(
    ("frozen", "names"),
    [
        ("unembedding", {"unembedding"}),
        (["layers.*.W_k", "token_embedding"], {"layers.0.W_k", "layers.1.W_k", "token_embedding"}),
        ("layers.1.*", {name for name in init_params(config) if name.startswith("layers.1.")}),
        (("*",), set(init_params(config))),
        ((), set()),
    ],
)
def test_frozen_parameters_stay_bit_for_bit_even_under_decay(engine, frozen, names):
    params = init_params(config, replicas=2, seed=1)
    for name, value in params.items():
        if "b_" in name or name.endswith("shift"):
            value += 0.5  # decay would show
    optimizer = AdamW(0.1, weight_decay=0.5)
    history = run(params=params, frozen=frozen, optimizer=optimizer, engine=engine)
    for name, value in params.items():
        assert np.array_equal(history.params[name], value) == (name in names), name


def shrink(params):
    """Return a twentieth of the squares of both W_q, summed (R,), and its gradient."""
    names = ["layers.0.W_q", "layers.1.W_q"]
    value = sum(0.05 * (params[name] ** 2).sum(axis=(1, 2, 3)) for name in names)
    return value, {name: 0.1 * params[name] for name in names}


def test_a_penalty_enters_the_gradient_and_is_recorded_apart(engine):
    params = init_params(config, replicas=2, seed=1)
    settings = {"params": params, "optimizer": SGD(0.5), "steps": 1, "engine": engine}
    without, penalised = run(**settings), run(penalty=shrink, **settings)
    np.testing.assert_array_equal(penalised.metrics["penalty"][0], shrink(params)[0])
    np.testing.assert_array_equal(penalised.metrics["penalty"][1], shrink(penalised.params)[0])
    np.testing.assert_array_equal(penalised.metrics["loss"][0], without.metrics["loss"][0])
    assert "penalty" not in without.metrics
    for name, value in without.params.items():
        extra = 0.5 * 0.1 * params[name] if name.endswith("W_q") else np.zeros_like(value)
        np.testing.assert_allclose(penalised.params[name], value - extra, rtol=0, atol=1e-14)


def test_the_account_of_the_update_is_of_the_loss_without_the_penalty():
    def residual(step, params, grads, tape):
        updates = [ma.implicit_update(config, params, tape, layer) for layer in range(2)]
        return {"residual": np.array([update.residual for update in updates])}

    for penalty in (None, shrink):
        history = run(observe=residual, penalty=penalty)
        assert history.metrics["residual"].max() < 1e-12


@pytest.mark.parametrize(
    "grads", [{"W_q": np.zeros((2, 8, 2, 4))}, {"layers.0.W_q": np.zeros((8, 2, 4))}]
)
def test_a_penalty_that_does_not_fit_is_refused(grads):
    with pytest.raises(ValueError, match="penalty: got a gradient of float64 and shape"):
        run(penalty=lambda params: (np.zeros(2), grads))


# Values that are not finite


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("token_embedding", "layer 0"),
        ("layers.0.W_v", "layer 0"),
        ("layers.1.W_q", "layer 1"),
        ("layers.1.W_out", "last layer"),
        ("unembedding", "loss"),
    ],
)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_located(engine, name, place, poison):
    params = init_params(config, replicas=2)
    params[name][1] = poison
    with pytest.raises(FloatingPointError, match=f"step 0: .*{place}.*, replica 7"):
        run(params=params, replicas=[3, 7], engine=engine)


def test_infinities_of_both_signs_are_located(engine):
    tiny = ma.TransformerConfig(vocab_size=V, width=2, layers=1, heads=1, max_length=8)
    params = init_params(tiny, dtype="float32")
    params["token_embedding"][..., 0] = 1e30  # of no effect on the logits ...
    params["unembedding"][:, 0] = params["layers.0.W_q"][...] = params["layers.0.W_v"][...] = 0
    params["layers.0.W_o"][0, 0, 0] = 1e20  # ... but on the gradient of W_v
    params["layers.0.W_o"][0, 0, 1] = -1e20
    changes = {"engine": engine, "batch_size": 1, "length": 2}  # one token: no sum of infinities
    with pytest.raises(FloatingPointError, match=r"step 0: .*layer 0 \(layers.0.W_v\), replica 0"):
        fit(tiny, params, noisy, next_token, **RUN | changes)


def test_a_run_that_diverges_says_when(engine):
    optimizer = SGD(lambda step: 1e200 if step == 2 else 0.1)
    with pytest.raises(FloatingPointError, match=r"step 3: .* layer 0, replica 0"):
        run(optimizer=optimizer, engine=engine)


def test_a_penalty_that_is_not_finite_is_found_in_its_own_step():
    calls = []

    def penalty(params):
        calls.append(None)
        gradient = np.zeros((2, 8, 2, 4))
        gradient[1] = np.nan if len(calls) == 3 else 0.0
        return np.zeros(2), {"layers.1.W_q": gradient}

    with pytest.raises(FloatingPointError, match=r"step 2: .*layer 1.*, replica 1"):
        run(penalty=penalty)


# Arguments


class Untouched(Counting):
    """A source that must not be asked."""

    def sample(self, B, N, rng):
        raise AssertionError("tokens were drawn before the arguments were checked")


class TooRich(Untouched):
    n_symbols = V + 1


NOT_WHOLE = [0, -1, 1.5, True, "3", None]
BAD = [
    *(("steps", "steps", value) for value in NOT_WHOLE),
    *(("batch_size", "batch_size", value) for value in NOT_WHOLE),
    *(("length", "length", value) for value in NOT_WHOLE),
    *(("record_every", "record_every", value) for value in NOT_WHOLE),
    *(("save_every", "save_every", value) for value in NOT_WHOLE),
    *(("seed", "seed", value) for value in (-1, 0.5, True, None)),
    ("engine", "engine", "fast"),
    ("optimizer", "optimizer", "SGD"),
    ("optimizer", "optimizer", AdamW),
    ("source", "source", [Untouched()]),
    ("source", "source", [Untouched()] * 3),
    ("source", "source", []),
    ("source", "source", np.zeros((3, 5), int)),
    ("source", "source", TooRich()),
    ("source", "source", Untouched),
    ("source", "source", [Untouched(), Untouched]),
    ("frozen", "frozen", ["no_such_name"]),
    ("frozen", "frozen", ["unembedding", "layers.7.*"]),
    ("frozen", "frozen", "unembeddin"),
    ("observe", "observe", [3]),
    ("objective", "objective", "next_token"),
    ("penalty", "penalty", 0.1),
    ("params", "params", {}),
    ("params", "params", None),
]


@pytest.mark.parametrize(("name", "argument", "value"), BAD, ids=repr)
def test_a_bad_argument_is_refused_by_name_before_any_training(name, argument, value):
    arguments = {
        "params": init_params(config, replicas=2),
        "source": Untouched(),
        "objective": next_token,
    }
    with pytest.raises(ValueError, match=f"^{name}: got .*, needs "):
        fit(config, **arguments | RUN | {argument: value})


@pytest.mark.parametrize("replicas", [1, 3, [5], [0, 0], 0, [-1, 0], 2.0])
def test_replicas_that_do_not_fit_are_refused(replicas):
    params = init_params(config, replicas=2)
    with pytest.raises(ValueError, match=r"^replicas: got"):
        fit(config, params, Untouched(), next_token, replicas=replicas, **RUN)


def test_windows_longer_than_the_model_are_refused():
    assert run(length=41, steps=1).steps.tolist() == [0, 1]  # 40 inputs
    with pytest.raises(ValueError, match="length 41, needs at most max_length 40"):
        run(length=42)
    with pytest.raises(ValueError, match="length 41, needs at most max_length 40"):
        run(objective=masked, length=41)


def test_a_mask_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"^mask: got the shape \(5, 5\)"):
        run(objective=partial(next_token, mask=np.ones((5, 5), bool)))


def test_a_folder_that_cannot_take_the_save_is_refused_before_any_training(tmp_path):
    source = Counting()
    with pytest.raises((ValueError, OSError), match="missing"):
        run(source, save=tmp_path / "missing" / "saved")
    assert source.calls == 0


@pytest.mark.parametrize(
    "changes",
    [{"length": 42}, {"objective": partial(next_token, mask=np.ones((5, 5), bool))}],
    ids=["length", "mask"],
)
def test_a_run_that_cannot_start_leaves_an_earlier_save_alone(saved, changes):
    before = saved.read_bytes()
    with pytest.raises(ValueError, match="needs"):
        run(save=saved, **changes)
    assert saved.read_bytes() == before


@pytest.mark.parametrize("path", ["", "below/a/missing/folder", 5])
def test_a_save_that_cannot_be_written_is_refused_before_training(tmp_path, path):
    source = Counting()
    path = path if isinstance(path, int) else tmp_path / path
    with pytest.raises(ValueError, match=r"^save: got .*, needs a path"):
        run(source, save=path)
    assert source.calls == 0


@pytest.mark.parametrize(
    ("argument", "bad"),
    [("observe", None), ("observe", 3), ("frozen", None), ("frozen", 3), ("frozen", [3])],
)
def test_what_is_neither_one_nor_a_list_is_refused_by_name(argument, bad):
    with pytest.raises(ValueError, match=rf"^{argument}: got "):
        run(**{argument: bad})


@pytest.mark.parametrize("shape", [(3, 4), (4, 5), (5,), (1, 3, 5)])
def test_windows_of_another_shape_are_refused(shape):
    class Odd(Counting):
        def sample(self, B, N, rng):
            return rng.integers(V, size=shape)

    with pytest.raises(ValueError, match=r"^source: got windows of shape .*, needs .*\(3, 5\)"):
        run(Odd())


def test_a_source_is_an_instance():
    with pytest.raises(ValueError, match=r"^source: got the class Counting, needs an instance$"):
        run(Counting)


def test_a_mask_symbol_that_is_a_symbol_is_refused():
    with pytest.raises(ValueError, match=rf"^mask_symbol: got {V - 2}, needs at least the number"):
        run(objective=MaskedToken(mask_symbol=V - 2))


def test_an_objective_that_returns_no_batch_is_refused():
    with pytest.raises(ValueError, match=r"^objective: got a NoneType, needs one that returns"):
        run(objective=lambda tokens, rng: None)


@pytest.mark.parametrize(
    "penalty",
    [
        lambda params: (0.0, {"unembedding": 1j * params["unembedding"]}),
        lambda params: (0.0, {"unembedding": params["unembedding"][0]}),
        lambda params: (0.0, {"no such": params["unembedding"]}),
        lambda params: (np.zeros(5), {}),
    ],
)
def test_a_penalty_that_does_not_fit_is_refused_by_name(penalty):
    with pytest.raises(ValueError, match=r"^penalty: got a "):
        run(penalty=penalty)


def test_a_penalty_does_not_change_the_dtype_of_gradients():
    params = init_params(config, replicas=2, seed=1, dtype="float32")
    seen = []
    run(
        params=params,
        penalty=lambda p: (0.0, {name: value.astype(float) for name, value in p.items()}),
        observe=lambda step, params, grads, tape: seen.extend(grads.values()) or {},
    )
    assert {gradient.dtype for gradient in seen} == {np.dtype("float32")}


def test_observers_cannot_disturb_the_training():
    def vandal(step, params, grads, tape):
        for array in [*params.values(), *grads.values()]:
            array[...] = 0
        return {}

    assert_same(run(observe=vandal), run())


def test_an_overflowing_update_is_an_error_without_a_warning():
    def steep(params):
        return 0.0, {name: 1e3 * np.sign(value) for name, value in params.items()}

    with pytest.raises(FloatingPointError, match="step 1"):
        run(steps=1, optimizer=SGD(1e308), penalty=steep)

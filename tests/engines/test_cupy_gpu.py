"""The engine "cupy" from primitives to `fit`, on a stand-in for CuPy and its kernels."""

import configparser
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_primitives import IN_PLACE, LAYOUTS, PURE, close

import minattn as ma
from minattn.engines import Reference, availability, choose
from minattn.testing import strategies

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
ALL = PURE | IN_PLACE
primitives = pytest.mark.parametrize("primitive", ALL.values(), ids=ALL)


def on(engine, primitive, arrays):
    """Return a primitive's results on an engine, for arrays on the host."""
    return engine.get(list(primitive.results(engine, engine.put(arrays))))


# Primitives. The larger shapes need several blocks, warps and tiles.


@primitives
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(3, 5, 4), (1, 10, 1), (2, 1, 3), (1, 70, 33), (2, 140, 130)])
def test_a_primitive_is_that_of_the_reference(device, primitive, dtype, shape):
    arrays = primitive.arrays(0, shape, dtype)
    expected = primitive.results(Reference(), {name: a.copy() for name, a in arrays.items()})
    found = on(choose("cupy", dtype), primitive, arrays)
    for value, wanted in zip(found, expected, strict=True):
        close(value, wanted, dtype, arrays.values())


@pytest.mark.parametrize("primitive", PURE.values(), ids=PURE)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_layout_of_a_device_array_does_not_matter(device, primitive, layout):
    arrays, engine = primitive.arrays(1, (3, 5, 4)), choose("cupy")
    laid_out = {
        name: a if a.dtype == bool else device.ndarray(layout(a)) for name, a in arrays.items()
    }
    found = engine.get(list(primitive.results(engine, laid_out)))
    for value, wanted in zip(found, on(engine, primitive, arrays), strict=True):
        close(value, wanted)
    for name, array in arrays.items():
        np.testing.assert_array_equal(engine.get(laid_out[name]), array)


@pytest.mark.parametrize(
    ("name", "aliased"),
    [
        ("masked_softmax", "scores"),
        ("masked_softmax_backward", "d_weights"),
        ("masked_scale", "scores"),
        ("cross_entropy", "logits"),
    ],
)
@pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray])
def test_results_are_written_over_an_input_that_is_passed_as_out(device, name, aliased, layout):
    arrays, engine = ALL[name].arrays(2, (2, 40, 35)), choose("cupy")
    expected = on(engine, ALL[name], arrays)[-1]
    there = engine.put(arrays) | {aliased: device.ndarray(layout(arrays[aliased]))}
    found = ALL[name].results(engine, there | {"out": there[aliased]})[-1]
    assert found is there[aliased]
    close(engine.get(found), expected)


@pytest.mark.parametrize("primitive", IN_PLACE.values(), ids=IN_PLACE)
def test_an_update_says_what_it_cannot_write(device, primitive):
    arrays, engine = primitive.arrays(3, (2, 5, 4)), choose("cupy")
    expected = on(engine, primitive, {name: a.copy() for name, a in arrays.items()})
    strided = {name: device.ndarray(np.asfortranarray(a)) for name, a in arrays.items()}
    if "mean" in strided:
        with pytest.raises(ValueError, match="value: got a strided array, needs a C-contiguous"):
            primitive.results(engine, strided)
    else:
        found = engine.get(list(primitive.results(engine, strided)))
        for value, wanted in zip(found, expected, strict=True):
            close(value, wanted)


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("masked_softmax", "scores"),
        ("masked_softmax_backward", "d_weights"),
        ("masked_scale", "scores"),
    ],
)
def test_what_a_mask_hides_reaches_nothing(device, name, hidden):
    arrays = ALL[name].arrays(4, (2, 9, 3))
    arrays[hidden][..., ~arrays["allowed"]] = np.nan
    for row, value in enumerate(on(choose("cupy"), ALL[name], arrays)[0][0, 0]):
        assert np.isfinite(value).all()
        assert not value[~arrays["allowed"][row]].any()


def test_what_has_no_weight_reaches_nothing(device):
    arrays = PURE["cross_entropy"].arrays(5, (2, 20, 40))
    expected = on(choose("cupy"), PURE["cross_entropy"], arrays)
    arrays["logits"][arrays["weights"] == 0] = np.nan
    found = on(choose("cupy"), PURE["cross_entropy"], arrays)
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(value, wanted)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_entry_is_found(device, bad):
    engine, arrays = choose("cupy"), [np.ones((3, 200)), np.ones(700)]
    assert engine.all_finite(engine.put(arrays))
    arrays[1][-1] = bad
    assert not engine.all_finite(engine.put(arrays))
    assert not engine.all_finite(engine.put([array.astype("float32") for array in arrays]))


# The step


@given(case=strategies.cases(), dtype=st.sampled_from(sorted(TOLERANCE)))
def test_loss_gradients_and_tape_are_those_of_the_reference(device, case, dtype):
    config, params, batch = case
    params = {name: value.astype(dtype) for name, value in params.items()}
    (loss, grads, tape), (expected, wanted, _) = (
        ma.loss_and_grad(config, params, batch, engine=name) for name in ("cupy", "numpy")
    )
    scale = max(1, *(np.abs(gradient).max() for gradient in wanted.values()))
    np.testing.assert_allclose(loss, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    for name, gradient in wanted.items():
        assert type(grads[name]) is np.ndarray
        assert grads[name].dtype == dtype
        assert np.abs(grads[name] - gradient).max() <= TOLERANCE[dtype] * scale
    assert tape.engine.name == "cupy"
    if dtype == "float64":
        assert ma.implicit_update(config, params, tape).residual.max() < 1e-9
    np.testing.assert_allclose(ma.step.mean_loss(config, params, batch, "cupy"), loss, rtol=1e-6)


@given(case=strategies.cases())
def test_a_loss_of_ones_own_goes_backward(device, case):
    config, params, batch = case
    found = []
    for name in ("cupy", "numpy"):
        logits, tape = ma.forward(config, params, batch.inputs, batch.mask, name, tape=True)
        grads = ma.backward(
            config,
            params,
            tape,
            np.cos(np.arange(logits.size) + logits.shape[-1]).reshape(logits.shape),
        )
        outputs = [layer.attention.output_gradient for layer in tape.layers]
        found.append([logits, *grads.values(), *outputs])
    scale = max(1, *(np.abs(array).max() for array in found[1]))
    for value, wanted in zip(*found, strict=True):
        assert type(value) is np.ndarray
        np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-11 * scale)


# Training

CONFIG = ma.TransformerConfig(vocab_size=5, width=4, layers=2, heads=2, max_length=8)
PARAMS = ma.init_params(CONFIG, replicas=3)
CHAIN = ma.data.MarkovChain.random(5, seed=0)


def train(engine, steps=9, params=PARAMS, objective=ma.next_token, **options):
    options = {"batch_size": 4, "length": 8, "record_every": 4} | options
    return ma.fit(CONFIG, params, CHAIN, objective, steps=steps, engine=engine, **options)


def agree(found, expected):
    for name, value in expected.params.items():
        assert type(found.params[name]) is np.ndarray
        np.testing.assert_allclose(found.params[name], value, atol=1e-12)
    for name, value in expected.metrics.items():
        np.testing.assert_allclose(found.metrics[name], value, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("optimizer", [ma.AdamW(weight_decay=0.1), ma.SGD(0.1, momentum=0.5)])
def test_training_is_that_of_the_reference(device, optimizer):
    options = {"optimizer": optimizer, "observe": ma.account(CONFIG, PARAMS), "frozen": "*.W_k"}
    found = train("cupy", **options)
    assert found.engine == "cupy"
    agree(found, train("numpy", **options))


def test_observers_get_host_arrays_that_they_may_change(device):
    def spoil(step, params, grads, tape):
        arrays = [*params.values(), *grads.values(), tape.layers[0].attention.A, tape.allowed]
        assert {type(array) for array in arrays} == {np.ndarray}
        for array in (*params.values(), *grads.values()):
            array[...] = np.nan
        return {}

    agree(train("cupy", observe=spoil), train("numpy"))


def test_a_penalty_gets_and_gives_host_arrays(device):
    def decay(params):
        assert {type(value) for value in params.values()} == {np.ndarray}
        return 0.0, {"unembedding": 0.1 * params["unembedding"]}

    agree(train("cupy", penalty=decay), train("numpy", penalty=decay))


def test_only_tokens_come_and_only_records_go(device, monkeypatch):
    train("cupy", steps=1, record_every=100)  # the mask goes there once, whoever needs it first
    moved = {"there": [], "back": []}

    def count(name, way):
        function = getattr(device, name)

        def counted(value):
            result = function(value)
            if type(result) is not type(value) and value.ndim:
                moved[way].append(value.dtype)
            return result

        monkeypatch.setattr(device, name, counted)

    count("asarray", "there")
    count("asnumpy", "back")
    train("cupy", steps=4, record_every=100)
    before = {way: len(arrays) for way, arrays in moved.items()}
    train("cupy", steps=14, record_every=100)
    added = {way: len(arrays) - 2 * before[way] for way, arrays in moved.items()}
    assert added == {"there": 3 * 10, "back": 0}  # inputs, targets and weights a step


def test_a_run_goes_on_where_it_stopped(device, tmp_path):
    path = tmp_path / "run"
    whole = train("cupy", steps=11, save=path)
    train("cupy", steps=5, save=path)
    again = train("cupy", steps=11, resume=path)
    for name, value in whole.params.items():
        np.testing.assert_array_equal(again.params[name], value)
    np.testing.assert_array_equal(again.metrics["loss"], whole.metrics["loss"])
    agree(train("numpy", steps=11, resume=path), whole)  # saved runs are not of an engine


def test_a_value_that_is_not_finite_is_named(device):
    params = {name: value.copy() for name, value in PARAMS.items()}
    params["layers.1.W_v"][1] = np.inf
    with pytest.raises(FloatingPointError, match=r"step 0: .*layer 1, replica 1"):
        train("cupy", params=params)
    with pytest.raises(FloatingPointError, match=r"loss_and_grad: .*layer 1, replica 1"):
        ma.loss_and_grad(CONFIG, params, ma.next_token(np.zeros((2, 8), int)), engine="cupy")


# The contract about devices

TOKENS = np.zeros((2, 8), int)
BATCH = {"inputs": TOKENS, "targets": TOKENS, "weights": np.ones(TOKENS.shape), "mask": "causal"}


def forward(tokens=TOKENS, params=PARAMS, mask="causal"):
    return ma.forward(CONFIG, params, tokens, mask=mask, tape=True)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("tokens", lambda put: forward(tokens=put(TOKENS))),
        ("mask", lambda put: forward(mask=put(np.eye(8, dtype=bool)))),
        (
            r"params\['unembedding'\]",
            lambda put: forward(params=PARAMS | {"unembedding": put(PARAMS["unembedding"])}),
        ),
        ("inputs", lambda put: ma.Batch(**BATCH | {"inputs": put(TOKENS)})),
        ("targets", lambda put: ma.Batch(**BATCH | {"targets": put(TOKENS)})),
        ("weights", lambda put: ma.Batch(**BATCH | {"weights": put(BATCH["weights"])})),
        (
            "dlogits",
            lambda put: ma.backward(CONFIG, PARAMS, forward()[1], put(np.zeros((3, 2, 8, 5)))),
        ),
        (r"params\['w'\]", lambda put: ma.SGD(0.1).init({"w": put(np.ones(3))})),
        (
            r"grads\['w'\]",
            lambda put: ma.SGD(0.1).step({"w": np.ones(3)}, {"w": put(np.ones(3))}, {"step": 0}),
        ),
    ],
)
def test_a_device_array_in_the_wrong_place_is_named(device, name, call):
    with pytest.raises(ValueError, match=rf"^{name}: got an array on a GPU, needs one on the host"):
        call(device.asarray)


# Where it cannot run


def test_it_says_that_the_package_is_missing(device, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    for name in ("minattn.engines.cupy_gpu", "minattn.engines.cupy_products"):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)
    needs = r"'cupy', which cannot run here, needs the package cupy .* pip install '(.*)\[(.*)\]'"
    with pytest.raises(ValueError, match=needs) as error:
        choose("cupy")
    metadata = configparser.ConfigParser()
    metadata.read(Path(__file__).parents[2] / "setup.cfg")
    name, extra = re.search(needs, str(error.value)).groups()
    assert name == metadata["metadata"]["name"]
    package = metadata["options.extras_require"][extra].strip().partition(">")[0]
    assert str(error.value).endswith(f", which is {package}")


def failing(device, message):
    def fail():
        raise device.CUDARuntimeError(message)

    return fail


@pytest.mark.parametrize(
    ("where", "name", "value", "lack"),
    [
        ("runtime", "driverGetVersion", lambda device: lambda: 0, "an NVIDIA driver"),
        ("runtime", "getDeviceCount", lambda device: lambda: 0, "a CUDA device"),
        (
            "runtime",
            "getDeviceCount",
            lambda device: failing(device, "cudaErrorNoDevice: no device"),
            r"a CUDA device \(cudaErrorNoDevice",
        ),
        (
            "runtime",
            "getDeviceCount",
            lambda device: failing(device, "cudaErrorInsufficientDriver: too old"),
            r"a newer NVIDIA driver \(cudaErrorInsufficientDriver",
        ),
    ],
)
def test_it_says_what_is_missing(device, monkeypatch, where, name, value, lack):
    monkeypatch.setattr(getattr(device.cuda, where), name, value(device))
    with pytest.raises(ValueError, match=rf"'cupy', which cannot run here, needs {lack}"):
        choose("cupy")
    assert choose("auto").name == "numba"


def test_it_says_that_cudas_libraries_are_missing(device, monkeypatch):
    class Libraries:
        runtime = device.cuda.runtime

        def __getattr__(self, name):
            raise ImportError(f"no {name}")

    monkeypatch.setattr(device, "cuda", Libraries())
    with pytest.raises(ValueError, match=r"needs CUDA's libraries \(no cublas\)"):
        choose("cupy")


def test_automatic_choice_stays_on_the_cpu(device):
    assert availability() == {"numpy": None, "numba": None, "cupy": None}
    assert choose("auto").name == "numba"


def test_complex_numbers_stay_on_the_cpu(device):
    with pytest.raises(ValueError, match="'cupy' for complex128"):
        choose("cupy", "complex128")

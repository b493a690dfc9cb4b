"""Optimisers against the published formulas, one number at a time; schedules."""

import math
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minattn.engines import choose
from minattn.optim import SGD, AdamW, CosineDecay, LinearDecay

SHAPES = {"W": (2, 3, 4), "b": (2, 5), "scalar": (2,)}
OPTIMIZERS = {
    "SGD": SGD(lr=0.1),
    "momentum": SGD(lr=0.1, momentum=0.7),
    "AdamW": AdamW(lr=0.1),
    "decay": AdamW(lr=0.1, weight_decay=0.3, beta1=0.8, beta2=0.95, epsilon=1e-3),
    "schedule": AdamW(lr=LinearDecay(0.2, steps=5, warmup=2), weight_decay=0.1),
}
each = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


def draw(seed, dtype="float64"):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}


def slow_sgd(optimizer, value, gradients):
    """Follow one number through its gradients."""
    velocity = 0.0
    for gradient in gradients:
        velocity = optimizer.momentum * velocity + gradient
        value = value - optimizer.lr * velocity
    return value


def slow_adamw(optimizer, value, gradients):
    """Algorithm 2 of Loshchilov and Hutter, with a decay that the learning rate scales."""
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        lr = optimizer.lr(t - 1) if callable(optimizer.lr) else optimizer.lr
        m = optimizer.beta1 * m + (1 - optimizer.beta1) * g
        v = optimizer.beta2 * v + (1 - optimizer.beta2) * g**2
        m_hat = m / (1 - optimizer.beta1**t)
        v_hat = v / (1 - optimizer.beta2**t)
        decayed = value - lr * optimizer.weight_decay * value
        value = decayed - lr * m_hat / (math.sqrt(v_hat) + optimizer.epsilon)
    return value


@each
def test_several_steps_are_the_published_formula(optimizer):
    start, gradients = draw(0), [draw(seed) for seed in range(1, 6)]
    params, state = start, optimizer.init(start)
    for number, gradient in enumerate(gradients):
        assert state["step"] == number
        params, state = optimizer.step(params, gradient, state)
    slow = slow_sgd if isinstance(optimizer, SGD) else slow_adamw
    for name, value in params.items():
        for entry in np.ndindex(value.shape):
            history = [gradient[name][entry] for gradient in gradients]
            expected = slow(optimizer, start[name][entry], history)
            assert value[entry] == pytest.approx(expected, rel=1e-12, abs=1e-13)


def test_the_first_step_of_adam_has_the_size_of_the_learning_rate():
    params, grads = draw(0), {name: 1e-3 * value for name, value in draw(1).items()}
    optimizer = AdamW(lr=0.25, epsilon=1e-15)
    after, _ = optimizer.step(params, grads, optimizer.init(params))
    for name, value in params.items():
        expected = value - 0.25 * np.sign(grads[name])
        np.testing.assert_allclose(after[name], expected, rtol=0, atol=1e-8)


def test_decay_is_apart_from_the_gradient_and_reaches_every_array():
    params = draw(0)
    optimizer = AdamW(lr=0.1, weight_decay=0.5)
    state = optimizer.init(params)
    still = {name: np.zeros_like(value) for name, value in params.items()}
    after, state = optimizer.step(params, still, state)
    for name, value in params.items():
        np.testing.assert_allclose(after[name], 0.95 * value, rtol=1e-15)
        assert (state[f"mean.{name}"] == 0).all()


@pytest.mark.parametrize(
    ("optimizer", "moments"),
    [
        (SGD(lr=1), ()),
        (SGD(lr=1, momentum=0.5), ("velocity",)),
        (AdamW(), ("mean", "square")),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_first_state_is_a_flat_dict_of_zeros(optimizer, moments, dtype):
    params = draw(0, dtype)
    state = optimizer.init(params)
    assert state.keys() == {"step"} | {f"{m}.{name}" for m in moments for name in SHAPES}
    assert (state["step"].shape, state["step"].dtype) == ((), np.int64)
    for key, array in state.items():
        assert (array == 0).all()
        if key != "step":
            assert (array.shape, array.dtype) == (SHAPES[key.split(".")[1]], dtype)


# Who owns what


def frozen_copy(arrays):
    copies = {name: array.copy() for name, array in arrays.items()}
    for array in arrays.values():
        array.setflags(write=False)
    return copies


@each
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_step_leaves_its_arguments_alone_and_keeps_the_dtype(optimizer, dtype):
    params, grads = draw(0, dtype), draw(1, dtype)
    state = optimizer.step(params, grads, optimizer.init(params))[1]
    given_arrays = (params, grads, state)
    copies = [frozen_copy(arrays) for arrays in given_arrays]
    after, next_state = optimizer.step(*given_arrays)
    for arrays, copy in zip(given_arrays, copies, strict=True):
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, copy[name], err_msg=name)
    for name in SHAPES:
        assert after[name].dtype == dtype
        assert not np.array_equal(after[name], params[name])
        assert not np.shares_memory(after[name], params[name])
    assert {n: a.dtype for n, a in next_state.items()} == {n: a.dtype for n, a in state.items()}
    assert (state["step"], next_state["step"]) == (1, 2)


@each
def test_what_a_step_returns_can_be_stepped_in_place(optimizer):
    params = {name: np.asfortranarray(array) for name, array in draw(0).items()}
    params, state = optimizer.step(params, draw(1), optimizer.init(params))
    for name, array in (params | state).items():
        assert array.flags.c_contiguous, name


def test_complex_gradients_are_for_complex_parameters():
    sgd, gradient = SGD(lr=0.5), {"W": np.array([2j])}
    for start in (np.ones(1), np.ones(1, complex)):
        params = {"W": start}
        if start.dtype == complex:
            assert sgd.step(params, gradient, sgd.init(params))[0]["W"] == 1 - 1j
        else:
            with pytest.raises(ValueError, match=r"^grads\['W'\]: got an array of complex128"):
                sgd.step(params, gradient, sgd.init(params))


def test_an_array_of_a_device_is_refused_by_name():
    class OnDevice:
        __cuda_array_interface__ = {}  # noqa: RUF012

    with pytest.raises(ValueError, match=r"^params\['W'\]: got an array on a GPU"):
        SGD(lr=0.1).init({"W": OnDevice()})


def test_defaults_are_those_of_the_field():
    assert AdamW() == AdamW(lr=1e-3, weight_decay=0, beta1=0.9, beta2=0.999, epsilon=1e-8)
    assert SGD(lr=0.1) == SGD(lr=0.1, momentum=0)
    assert LinearDecay(0.1, 4) == LinearDecay(0.1, 4, warmup=0)


@each
@given(seed=st.integers(0, 2**32 - 1))
def test_arrays_of_any_layout_take_the_same_step(optimizer, seed):
    params, grads = draw(seed), draw(seed + 1)
    expected, _ = optimizer.step(params, grads, optimizer.init(params))
    turned = [{n: np.asfortranarray(a) for n, a in arrays.items()} for arrays in (params, grads)]
    found, _ = optimizer.step(*turned, optimizer.init(turned[0]))
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


@each
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float32", 1e-5)])
def test_the_engines_take_the_same_steps_in_place(optimizer, dtype, tolerance):
    outcomes = []
    for name in ("numpy", "numba"):
        params = draw(0, dtype)
        state, identities = optimizer.init(params), {n: id(a) for n, a in params.items()}
        for seed in (1, 2, 3):
            optimizer.apply(choose(name, dtype), params, draw(seed, dtype), state)
        assert {n: id(a) for n, a in params.items()} == identities
        outcomes.append(params | state)
    for name, value in outcomes[0].items():
        assert outcomes[1][name].dtype == value.dtype
        np.testing.assert_allclose(outcomes[1][name], value, rtol=tolerance, atol=tolerance)


# What does not fit


@pytest.mark.parametrize(
    ("which", "name", "spoil", "message"),
    [
        ("grads", "W", None, r"grads: got names that differ in ['W']"),
        ("grads", "extra", np.zeros(2), r"grads: got names that differ in ['extra']"),
        ("grads", "W", np.zeros((2, 4, 3)), "grads['W']: got shape (2, 4, 3), needs shape (2, 3,"),
        ("grads", "b", np.zeros(5), "grads['b']: got shape (5,), needs shape (2, 5)"),
        ("grads", "scalar", 0.0, "grads['scalar']: got shape (), needs shape (2,)"),
        ("state", "step", None, "state: got names that differ in ['step']"),
        ("state", "square.b", None, "state: got names that differ in ['square.b']"),
        ("state", "mean.W", np.zeros((2, 3)), "state['mean.W']: got shape (2, 3)"),
        ("state", "velocity.W", np.zeros(2), "state: got names that differ in ['velocity.W']"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(which, name, spoil, message):
    optimizer, params = AdamW(), draw(0)
    arguments = {"params": params, "grads": draw(1), "state": optimizer.init(params)}
    if spoil is None:
        del arguments[which][name]
    else:
        arguments[which][name] = spoil
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        optimizer.step(**arguments)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: SGD(lr=-0.1), "lr"),
        (lambda: SGD(lr=math.nan), "lr"),
        (lambda: SGD(lr="fast"), "lr"),
        (lambda: SGD(lr=None), "lr"),
        (lambda: SGD(lr=0.1, momentum=1), "momentum"),
        (lambda: SGD(lr=0.1, momentum=-0.1), "momentum"),
        (lambda: AdamW(lr=True), "lr"),
        (lambda: AdamW(weight_decay=-1), "weight_decay"),
        (lambda: AdamW(beta1=1.0), "beta1"),
        (lambda: AdamW(beta2=1.5), "beta2"),
        (lambda: AdamW(epsilon=-1e-8), "epsilon"),
        (lambda: LinearDecay(peak=-1, steps=5), "peak"),
        (lambda: LinearDecay(peak=1, steps=0), "steps"),
        (lambda: LinearDecay(peak=1, steps=5, warmup=5), "steps"),
        (lambda: CosineDecay(peak=1, steps=5, warmup=-1), "warmup"),
        (lambda: CosineDecay(peak=1, steps=5.0), "steps"),
    ],
)
def test_a_bad_choice_is_refused_by_name(make, name):
    with pytest.raises(ValueError, match=f"^{name}: got"):
        make()


# The learning rate


@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_the_learning_rate_may_be_a_function_of_the_step(kind):
    asked = []

    def lr(step):
        asked.append((step, type(step)))
        return 0.5 if step == 1 else 0.0

    optimizer, params = kind(lr=lr), draw(0)
    state, values = optimizer.init(params), [params]
    for seed in (1, 2, 3):
        after, state = optimizer.step(values[-1], draw(seed), state)
        values.append(after)
    assert asked == [(0, int), (1, int), (2, int)]
    moved = [not np.array_equal(a["W"], b["W"]) for a, b in pairwise(values)]
    assert moved == [False, True, False]


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, "0.1", None])
def test_a_function_that_gives_a_bad_rate_is_refused(bad):
    optimizer, params = SGD(lr=lambda step: bad), draw(0)
    with pytest.raises(ValueError, match=r"^lr: got"):
        optimizer.step(params, draw(1), optimizer.init(params))


COSINE = [(1 + math.cos(math.pi * share / 4)) for share in range(5)]


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (LinearDecay(2.0, steps=4), [2, 1.5, 1, 0.5, 0, 0]),
        (LinearDecay(2.0, steps=6, warmup=2), [1, 2, 2, 1.5, 1, 0.5, 0, 0]),
        (LinearDecay(2.0, steps=2, warmup=1), [2, 2, 0, 0]),
        (CosineDecay(2.0, steps=4), [*COSINE, 0]),
        (CosineDecay(2.0, steps=6, warmup=2), [1, 2, *COSINE, 0]),
    ],
)
def test_a_schedule(schedule, rates):
    found = [schedule(step) for step in range(len(rates))]
    np.testing.assert_allclose(found, rates, rtol=0, atol=1e-15)


def test_what_is_no_dict_is_refused_by_name():
    params = {"w": np.ones(2)}
    state = SGD(0.1).init(params)
    for name, arguments in {
        "params": (None, params, state),
        "grads": (params, None, state),
        "state": (params, params, None),
    }.items():
        with pytest.raises(ValueError, match=rf"^{name}: got NoneType, needs a dict of arrays"):
            SGD(0.1).step(*arguments)

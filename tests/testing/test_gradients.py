"""The gradient check must pass what is right, fail what is wrong and refuse what proves nothing."""

import math
import warnings

import numpy as np
import pytest

import minattn as ma
from minattn.testing import GradientCheck, check_gradient, strategies

X = np.random.default_rng(0).standard_normal((4, 3))


def softmax(x):
    exponentials = np.exp(x - x.real.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def softmax_gradient(x, cotangent):
    A = softmax(x)
    return A * (cotangent - (A * cotangent).sum(axis=-1, keepdims=True))


def cubic(x):
    return (x**3).sum()


def cubic_gradient(x):
    return 3 * x**2


@pytest.mark.parametrize("method", ["auto", "complex", "taylor"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_right_gradients_pass(method, seed):
    for check in (
        check_gradient(cubic, cubic_gradient, X, method, seed),
        check_gradient(softmax, softmax_gradient, X, method, seed),
    ):
        assert isinstance(check, GradientCheck)
        assert check.method == ("taylor" if method == "taylor" else "complex")
        assert check.residual < (1e-7 if method == "taylor" else 1e-13)
        assert (check.slope is None) == (check.method == "complex")
        assert not check.critical
        assert check.note == ""
        np.testing.assert_allclose(check.measured, check.predicted, rtol=1e-7)


@pytest.mark.parametrize("method", ["complex", "taylor"])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, c: -softmax_gradient(x, c),
        lambda x, c: softmax(x) * c,  # not centred
        lambda x, c: softmax_gradient(x, c) * (1 + 1e-4),
        lambda x, c: softmax_gradient(x, c) + 1e-4 * (np.arange(12).reshape(4, 3) == 7),
        lambda x, c: np.zeros_like(x),
        lambda x, c: np.full_like(x, np.nan),
    ],
)
def test_wrong_gradients_fail_with_numbers(method, wrong):
    with pytest.raises(AssertionError, match=r"predicts the derivative .* measured is .* needs"):
        check_gradient(softmax, wrong, X, method)


def test_complex_step_sees_an_error_in_the_last_digits():
    with pytest.raises(AssertionError, match="residual"):
        check_gradient(cubic, lambda x: cubic_gradient(x) * (1 + 1e-9), X)
    assert check_gradient(cubic, lambda x: cubic_gradient(x) * (1 + 1e-9), X, tolerance=1e-8)


def test_taylor_slope_is_two_for_a_right_gradient_and_one_for_a_wrong_one():
    assert abs(check_gradient(cubic, cubic_gradient, X, "taylor").slope - 2) < 0.02
    with pytest.raises(AssertionError, match=r"slope 1\.0"):
        check_gradient(cubic, lambda x: 1.01 * cubic_gradient(x), X, "taylor")


def test_taylor_takes_linear_functions_and_sees_wrong_gradients_of_them():
    weights = np.arange(12.0).reshape(4, 3)
    linear = lambda x: (weights * x).sum()  # noqa: E731
    check = check_gradient(linear, lambda x: weights, X, "taylor")
    assert check.slope == math.inf
    with pytest.raises(AssertionError):
        check_gradient(linear, lambda x: weights + 1e-5, X, "taylor")


def test_the_cotangent_is_drawn_anew_with_the_seed_and_shaped_as_the_value():
    seen = []

    def gradient(x, cotangent):
        seen.append(cotangent)
        return softmax_gradient(x, cotangent)

    for seed in (0, 0, 1):
        check_gradient(softmax, gradient, X, seed=seed)
    assert seen[0].shape == X.shape
    assert np.array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[0], seen[2])


def test_dicts_are_checked_in_every_entry():
    x = {"a": X, "b": np.array([2.0, -1.0, 0.5])}

    def f(p):
        return p["a"] @ p["b"]

    def gradient(p, c):
        return {"a": np.outer(c, p["b"]), "b": c @ p["a"]}

    assert check_gradient(f, gradient, x).method == "complex"
    for name in x:
        with pytest.raises(AssertionError, match="wrong gradient"):
            check_gradient(f, lambda p, c, name=name: gradient(p, c) | {name: 0 * p[name]}, x)


@pytest.mark.parametrize(
    ("gradient", "shapes"),
    [
        (lambda x: cubic_gradient(x)[:1], r"\(1, 3\)"),
        (lambda x: 1.0, r"\(\)"),
        (lambda x: {"y": cubic_gradient(x)}, "y"),
    ],
)
def test_gradients_of_another_shape_fail_rather_than_broadcast(gradient, shapes):
    with pytest.raises(AssertionError, match=shapes):
        check_gradient(cubic, gradient, X)


@pytest.mark.parametrize("method", ["auto", "complex", "taylor"])
@pytest.mark.parametrize(
    "constant", [lambda x: softmax(x).sum(), lambda x: 3.0 + 0 * x.sum(), lambda x: 0 * x.sum()]
)
def test_a_derivative_that_is_zero_everywhere_is_refused(constant, method):
    # Whatever gradient is claimed: the refusal is about f.
    for gradient in (np.zeros_like, np.ones_like):
        with pytest.raises(ValueError, match=r"f: .*zero at every point.*random cotangent"):
            check_gradient(constant, gradient, X, method)


@pytest.mark.parametrize("method", ["complex", "taylor"])
@pytest.mark.parametrize("seed", [0, 7])
def test_an_x_of_the_same_seed_is_not_its_own_direction(method, seed):
    """Along x itself a function that no scale changes has no slope: any multiple would pass."""
    x = np.random.default_rng(seed).standard_normal((4, 3))

    def f(x):
        return x.sum() ** 2 / (x * x).sum()

    def gradient(x):
        return 2 * (x.sum() - f(x) * x) / (x * x).sum()

    assert not check_gradient(f, gradient, x, method, seed=seed).critical
    with pytest.raises(AssertionError, match="wrong gradient"):
        check_gradient(f, lambda x: 3 * gradient(x), x, method, seed=seed)


@pytest.mark.parametrize("method", ["complex", "taylor"])
def test_a_critical_point_is_checked_and_called_one(method):
    def f(x):
        return (x**2).sum() + 1.0

    check = check_gradient(f, lambda x: 2 * x, np.zeros(3), method)
    assert check.critical
    assert check.residual < 1e-9
    with pytest.raises(AssertionError):
        check_gradient(f, lambda x: 2 * x + 0.1, np.zeros(3), method)


def test_auto_takes_taylor_where_f_rejects_complex_numbers():
    def scalar(x):
        return sum(math.exp(entry) for entry in x.ravel().tolist())

    check = check_gradient(scalar, np.exp, X)
    assert check.method == "taylor"
    assert "TypeError" in check.note
    with pytest.raises(ValueError, match=r"method: .*TypeError.*'taylor'"):
        check_gradient(scalar, np.exp, X, "complex")
    with pytest.raises(AssertionError):
        check_gradient(scalar, lambda x: 1.01 * np.exp(x), X)


def test_auto_takes_taylor_where_f_is_real_for_complex_input():
    def modulus(x):
        return abs(x).sum()

    check = check_gradient(modulus, np.sign, X)
    assert check.method == "taylor"
    assert "real number" in check.note
    with pytest.raises(ValueError, match="real number"):
        check_gradient(modulus, np.sign, X, "complex")


def test_imaginary_parts_dropped_on_the_way_are_noticed_whatever_the_warning_filter():
    def dropping(x):
        held = np.empty(x.shape)
        held[...] = x**2
        return held.sum() + x.sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check = check_gradient(dropping, lambda x: 2 * x + 1, X)
    assert check.method == "taylor"
    assert "ComplexWarning" in check.note


def test_other_errors_of_f_are_not_swallowed():
    def broken(x):
        if np.iscomplexobj(x):
            raise KeyError("lost")
        return x.sum()

    with pytest.raises(KeyError, match="lost"):
        check_gradient(broken, np.ones_like, X)
    with pytest.raises(TypeError, match="at x itself"):
        check_gradient(lambda x: int("1") + _raise(), np.ones_like, X)


def _raise():
    raise TypeError("at x itself")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"x": X.astype(np.float32)}, "x"),
        ({"x": [1.0, 2.0]}, "x"),
        ({"x": {"a": X, "b": X.astype(complex)}}, r"x\['b'\]"),
        ({"x": np.empty(0)}, "x"),
        ({"x": {}}, "x"),
        ({"method": "central"}, "method"),
        ({"seed": -1}, "seed"),
        ({"tolerance": "small"}, "tolerance"),
        ({"f": lambda x: 1j * x.sum()}, "f"),
    ],
)
def test_bad_arguments(arguments, name):
    good = {"f": cubic, "grad": cubic_gradient, "x": X}
    with pytest.raises(ValueError, match=rf"^{name}: got .*, needs "):
        check_gradient(**(good | arguments))


def test_x_is_left_as_it_was():
    x = {"a": X.copy()}
    x["a"].setflags(write=False)
    for method in ("complex", "taylor"):
        check_gradient(lambda p: cubic(p["a"]), lambda p: {"a": cubic_gradient(p["a"])}, x, method)
    assert np.array_equal(x["a"], X)


@pytest.mark.parametrize("method", ["complex", "taylor"])
def test_a_whole_model(method):
    config = ma.TransformerConfig(
        vocab_size=4, width=5, layers=2, heads=2, head_width=3, max_length=4
    )
    _, params, batch = strategies.build_case(config, replicas=2, batch_size=2, length=4)

    def loss(p):
        return ma.loss_and_grad(config, p, batch, "numpy")[0]

    def gradient(p, cotangent):
        _, grads, _ = ma.loss_and_grad(config, p, batch)
        return {n: np.einsum("r,r...->r...", cotangent, g) for n, g in grads.items()}

    assert check_gradient(loss, gradient, params, method).method == method


def test_a_failing_complex_step_recalls_that_f_must_be_analytic():
    def f(x):
        return (abs(x) * x).sum()

    with pytest.raises(AssertionError, match="without abs, conj or norm"):
        check_gradient(f, lambda x: 2 * abs(x), X)
    assert check_gradient(f, lambda x: 2 * abs(x), X, "taylor").method == "taylor"

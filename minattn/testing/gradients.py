"""Whether a gradient written by hand is the derivative, along one random direction.

A random direction D has a component along every possible error, so that one comparison of
<gradient, D> with the derivative of the function along D tests all entries at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from minattn import checks
from minattn.arrays import Array, Params
from minattn.randomness import generator

METHODS = ("auto", "complex", "taylor")
COMPLEX_STEP = 1e-30
CENTRAL_STEP = 1e-5
TOLERANCES = {"complex": 1e-10, "taylor": 0.1}
# What rounding leaves of a derivative that is zero, relative to the size of the function.
ROUNDING = {"complex": 1e-13, "taylor": 1e-9}
OTHER_POINTS = 3
_REJECTIONS = (TypeError, ValueError, np.exceptions.ComplexWarning)

Point: TypeAlias = Array | Params
_Functional: TypeAlias = Callable[[Params], Any]


@dataclass(frozen=True)
class GradientCheck:
    """What a passed check found.

    Attributes
    ----------
    method : {"complex", "taylor"}
        The method that was used.
    residual : float
        |measured - predicted|, relative to the largest of the two and the gradient's norm (at a
        critical point also |f|).
    slope : float or None
        "taylor": order in t of f(x + t D) - f(x) - t predicted; 2 is right, 1 is wrong, and
        infinite if f is linear along D. None for "complex".
    measured, predicted : float
        Derivative along D of f, and what the gradient says it is.
    critical : bool
        The derivative is zero at x but not nearby: the check says little at such a point.
    note : str
        Why "auto" did not take the complex step; otherwise empty.
    """

    method: str
    residual: float
    slope: float | None
    measured: float
    predicted: float
    critical: bool = False
    note: str = ""


def check_gradient(
    f: Callable[[Any], Any],
    grad: Callable[..., Any],
    x: Point,
    method: str = "auto",
    seed: int = 0,
    tolerance: float | None = None,
) -> GradientCheck:
    """Check `grad` against the derivative of `f` at `x` along a random direction.

    Parameters
    ----------
    f : callable
        ``f(x)`` returns a real scalar, or an array of any shape (such as one loss a replica).
    grad : callable
        For a scalar, ``grad(x)`` is the gradient of f. For an array, ``grad(x, cotangent)`` is the
        gradient of ``sum(cotangent * f(x))``; the cotangent, shaped as f(x), is drawn at random.
        The result is shaped as `x`.
    x : float64 array, or flat dict of them
    method : {"auto", "complex", "taylor"}
        "complex" evaluates f at x + i t D, exact to rounding; f must be analytic and take
        complex128. "taylor" fits the order of the Taylor remainder, and sees errors beyond about a
        millionth. "auto" takes "complex" unless f rejects complex input or returns a real number.
    seed : int
        Of direction and cotangent.
    tolerance : float, optional
        Largest residual ("complex", default 1e-10), or how far the slope may lie below 2
        ("taylor", default 0.1).

    Raises
    ------
    AssertionError
        If the gradient is wrong: its shape, or its numbers, which the message gives.
    ValueError
        If an argument does not fit; if f cannot take the step that `method` names; or if the
        derivative of f is zero everywhere, as that of sum(softmax(x)): a check that cannot fail.
    """
    checks.function("f", f)
    checks.function("grad", grad)
    checks.one_of("method", method, METHODS)
    if tolerance is not None:
        tolerance = checks.real("tolerance", tolerance, minimum=0)
    arrays, unwrap = _as_dict(x)
    # Not default_rng(seed): an x drawn from that would be its own direction.
    rng = generator(seed, "proof", 0)
    direction = {n: np.asarray(rng.standard_normal(array.shape)) for n, array in arrays.items()}
    functional, cotangent = _contracted(lambda point: f(unwrap(point)), arrays, rng)
    derivative, method, note = _choose(functional, arrays, direction, method)
    allowed = TOLERANCES[method] if tolerance is None else tolerance
    measured, value = derivative(arrays), functional(arrays)
    critical = _vanishes(measured, value, method)
    if critical:
        _refuse_constant(derivative, functional, arrays, method, rng)
    extra = () if cotangent is None else (cotangent,)
    gradient = _as_gradient(grad(unwrap(arrays), *extra), arrays)
    predicted = sum(float((gradient[n] * direction[n]).sum()) for n in arrays)
    norm = sum(float((entry**2).sum()) for entry in gradient.values()) ** 0.5
    # At a critical point all three are rounding, which only the value gives a measure for.
    scale = max(abs(measured), abs(predicted), norm, critical * abs(value))
    residual = abs(measured - predicted) / scale if scale > 0 else 0.0
    slope = None
    if method == "taylor":
        slope = _remainder_slope(functional, arrays, direction, predicted)
    check = GradientCheck(method, residual, slope, measured, predicted, critical, note)
    _judge(check, allowed)
    return check


def _judge(check: GradientCheck, tolerance: float) -> None:
    """Raise the AssertionError of a gradient that is wrong; NaN is."""
    if check.slope is None:
        right, found = check.residual <= tolerance, f"residual {check.residual:.3g}"
        needs = f"a residual of at most {tolerance:g}, and an f without abs, conj or norm"
    else:
        right = check.slope >= 2 - tolerance and np.isfinite(check.residual)
        found = f"slope {check.slope:.3f}"
        needs = f"a slope of at least {2 - tolerance:g}"
    if not right:
        raise AssertionError(
            f"wrong gradient ({check.method}): it predicts the derivative {check.predicted:.12g} "
            f"along a random direction, measured is {check.measured:.12g}; {found}, needs {needs}"
        )


def _as_dict(x: Point) -> tuple[Params, Callable[[Params], Point]]:
    """Return x as a dict of arrays, and the function that gives f what it is used to."""
    arrays = x if isinstance(x, dict) else {"x": x}
    for name, array in arrays.items():
        if getattr(array, "dtype", None) != np.float64:
            got = getattr(array, "dtype", type(array).__name__)
            which = "x" if array is x else f"x[{name!r}]"
            checks.fail(which, got, "an array of float64, or a dict of them")
    if not any(array.size for array in arrays.values()):
        checks.fail("x", "no entry", "at least one")
    if isinstance(x, dict):
        return arrays, dict
    return arrays, lambda point: point["x"]


def _as_gradient(found: Any, arrays: Params) -> Params:
    gradient = found if isinstance(found, dict) else {"x": found}
    shapes = {name: np.shape(value) for name, value in gradient.items()}
    expected = {name: array.shape for name, array in arrays.items()}
    if shapes != expected:
        raise AssertionError(f"wrong gradient: its shapes are {shapes}, those of x {expected}")
    return {name: np.asarray(value) for name, value in gradient.items()}


def _contracted(
    f: _Functional, x: Params, rng: np.random.Generator
) -> tuple[_Functional, Array | None]:
    """Return f as a functional, and the cotangent that made it one."""
    value = np.asarray(f(x))
    if value.dtype.kind not in "fiu":
        checks.fail("f", f"a value of {value.dtype} at real x", "real numbers")
    if value.ndim == 0:
        return lambda point: np.asarray(f(point))[()], None
    cotangent = rng.standard_normal(value.shape)
    return lambda point: (cotangent * f(point)).sum(), cotangent


def _choose(
    f: _Functional, x: Params, direction: Params, method: str
) -> tuple[Callable[[Params], float], str, str]:
    """Return the derivative along the direction as a function of x, its method and a note."""

    def by_complex_step(point: Params) -> float:
        return float(_complex_step(f, point, direction).imag / COMPLEX_STEP)

    def by_difference(point: Params) -> float:
        up, down = (f(_moved(point, direction, t)) for t in (CENTRAL_STEP, -CENTRAL_STEP))
        return float((up - down) / (2 * CENTRAL_STEP))

    if method == "taylor":
        return by_difference, method, ""
    try:
        value = _complex_step(f, x, direction)
    except _REJECTIONS as error:  # f took x itself: it is the complex step that it rejects
        note = f"f rejects complex input: {type(error).__name__}: {error}"
    else:
        if np.iscomplexobj(value):
            return by_complex_step, "complex", ""
        note = "f returns a real number for complex input"
    if method == "complex":
        checks.fail("method", f"'complex', but {note}", "'taylor' for this f")
    return by_difference, "taylor", note


def _complex_step(f: _Functional, x: Params, direction: Params) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", np.exceptions.ComplexWarning)
        return f(_moved(x, direction, 1j * COMPLEX_STEP))


def _moved(x: Params, direction: Params, step: complex) -> Params:
    return {name: array + step * direction[name] for name, array in x.items()}


def _vanishes(derivative: float, value: Any, method: str) -> bool:
    return bool(abs(derivative) <= ROUNDING[method] * abs(value))


def _refuse_constant(
    derivative: Callable[[Params], float],
    f: _Functional,
    x: Params,
    method: str,
    rng: np.random.Generator,
) -> None:
    """Raise ValueError if the derivative is zero at points around x as well."""
    for _ in range(OTHER_POINTS):
        other = {}
        for name, array in x.items():
            size = np.sqrt((array**2).mean()) if array.size else 0.0
            spread = 0.1 * (abs(array) + size) if size else 1.0
            other[name] = array + spread * rng.standard_normal(array.shape)
        if not _vanishes(derivative(other), f(other), method):
            return
    needs = "one that depends on x: this check could not fail (contract with a random cotangent)"
    checks.fail("f", "a function whose derivative is zero at every point tried", needs)


def _remainder_slope(f: _Functional, x: Params, direction: Params, predicted: float) -> float:
    """Fit the order in t of |f(x + t D) - f(x) - t predicted|, near where rounding sets in."""
    steps = np.logspace(-8, -1, 29)
    start = f(x)
    values = np.array([f(_moved(x, direction, step)) for step in steps])
    remainders = abs(values - start - steps * predicted)
    # Where f is linear the remainder is rounding: of f, and of the product with the step.
    floor = 1e3 * np.finfo(float).eps * np.maximum(abs(start), abs(values))
    usable = np.isfinite(remainders) & (remainders > floor + 1e-10 * steps * abs(predicted))
    if np.count_nonzero(usable) < 3:
        return float("inf")
    steps, remainders = steps[usable][:8], remainders[usable][:8]
    return float(np.polyfit(np.log(steps), np.log(remainders), 1)[0])

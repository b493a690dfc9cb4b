"""Every public function, and what it refuses: an error that names the argument, and no warning.

The rows of the table are in the files beside this one. The first tests find a public function that
has no row, and an argument of which a row says nothing.
"""

from __future__ import annotations

import dataclasses
import inspect
import re

import numpy as np
import pytest
import rows_of_models
import rows_of_reports
import rows_of_sources
from hypothesis.strategies import SearchStrategy
from rows_of_models import CONFIG, PARAMS, PRE_NORM, TOKENS
from values import Fresh

import minattn as ma
from minattn import blocks, descent, intervals, terms
from minattn.checkpoints import Layer
from minattn.testing import strategies

ROWS = [*rows_of_models.ROWS, *rows_of_sources.ROWS, *rows_of_reports.ROWS]


def argument_cases():
    for one in ROWS:
        for argument in one.bad:
            name = f"{one}, {argument}"
            yield pytest.param(one, argument, id=name)


LISTS = (ma, ma.data, ma.checkpoints, ma.theorems, ma.testing, strategies, ma.engines)
DEFINES = (
    ma.claims,
    ma.optim,
    ma.plots,
    ma.scores,
    ma.theorems.verdicts,
    blocks,
    descent,
    intervals,
)
# What functions return, and users read; what users subclass, or hand on as it is.
READ = (
    *("Band", "Blocks", "Case", "Checkpoint", "Corpus", "Decision", "Estimate", "GradientCheck"),
    *("History", "ImageSet", "ImplicitUpdate", "Layer", "Layout", "Norm", "Optimizer", "Outcome"),
    *("ProductChange", "Rotary", "Rule", "Scores", "Sound", "Statement", "Tower"),
    "Trial",
)
# Called by `check`, `Optimizer.step` and `scores`, which have rows; of checked values.
WITHIN = ("Statement.check", "Optimizer.apply", "scores_from_squares", "mean_and_error")


def public():
    """Names of the public functions, classes, and methods of classes other than engines."""
    listed = [getattr(module, name) for module in LISTS for name in module.__all__]
    defined = [
        value
        for module in DEFINES
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    functions = [one for one in (*listed, *defined) if inspect.isfunction(one)]
    classes = [
        one
        for one in (*listed, *defined, terms.ImplicitUpdate)
        if inspect.isclass(one) and not one.__module__.startswith("minattn.engines")
    ]
    for one in classes:
        functions += [
            getattr(one, name)
            for base in one.__mro__
            if base.__module__.startswith("minattn")
            for name in vars(base)
            if not name.startswith("_")
            and (inspect.isfunction(getattr(one, name)) or inspect.ismethod(getattr(one, name)))
        ]
    names = {one.__qualname__ for one in functions}
    names |= {one.__qualname__ for one in classes if one.__name__ not in READ}
    return sorted(names - set(WITHIN))


@pytest.mark.parametrize("name", public())
def test_a_public_function_has_a_row(name):
    assert name in {one.function.__qualname__ for one in ROWS}


@pytest.mark.parametrize("one", ROWS, ids=str)
def test_a_row_says_of_every_argument_what_it_refuses(one):
    assert set(inspect.signature(one.function).parameters) == set(one.bad)


@pytest.mark.parametrize(("one", "argument"), list(argument_cases()))
def test_a_bad_value_is_refused_by_name_and_left_alone(one, argument):
    for says, value in one.refused(argument):
        arguments = one.arguments(**{argument: value})
        before = contents(arguments)
        error = error_of(one, arguments)
        assert re.match(rf"{re.escape(says)}(\[.*\])?: got .*, needs ", error), (value, error)
        assert contents(arguments) == before


@pytest.mark.parametrize(("one", "argument"), list(argument_cases()))
def test_nothing_at_all_is_called_none(one, argument):
    for says, value in one.refused(argument):
        if value is None:
            error = error_of(one, one.arguments(**{argument: None}))
            assert re.match(rf"{re.escape(says)}: got '?None", error), error


def error_of(one, arguments):
    try:
        one.call(arguments)
    except ValueError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}, which is no ValueError: {error}"
    return "none"


# Good arguments, however their arrays lie in memory


def read_only(array):
    array = array.copy()
    array.setflags(write=False)
    return array


def strided(array):
    wide = np.zeros((*array.shape, 2), array.dtype)
    wide[..., 0] = array
    return wide[..., 0]


def backwards(array):
    return np.flip(np.flip(array).copy()) if array.ndim else array


@pytest.mark.parametrize("layout", [read_only, np.asfortranarray, strided, backwards])
@pytest.mark.parametrize("one", ROWS, ids=str)
def test_values_do_not_depend_on_the_layout_and_arguments_are_left_alone(one, layout):
    plain, laid = one.arguments(), laid_out(one.arguments(), layout)
    own = [name for name, value in one.good.items() if not isinstance(value, Fresh)]
    before = contents({name: laid[name] for name in own})
    expected, found = one.call(plain), one.call(laid)
    assert contents({name: laid[name] for name in own}) == before
    assert_alike(found, expected)


def laid_out(value, layout):
    if isinstance(value, np.ndarray) and value.ndim:
        return layout(value)
    if isinstance(value, dict):
        return {name: laid_out(item, layout) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(laid_out(item, layout) for item in value)
    if isinstance(value, (ma.Batch, terms.ImplicitUpdate, Layer)):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **laid_out(fields, layout))
    return value


def contents(value):
    """What can be compared before and after: all numbers, and whose they are."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return [(str(name), contents(item)) for name, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [contents(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return contents({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    return repr(value) if isinstance(value, (str, int, float, complex)) else id(value)


def assert_alike(found, expected):
    assert type(found) is type(expected)
    if isinstance(found, dict):
        assert found.keys() == expected.keys()
        for name in found:
            assert_alike(found[name], expected[name])
    elif isinstance(found, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other)
    elif isinstance(found, (np.ndarray, np.generic, float, int)):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    elif dataclasses.is_dataclass(found) and not isinstance(found, (type, SearchStrategy)):
        for field in dataclasses.fields(found):
            assert_alike(getattr(found, field.name), getattr(expected, field.name))


# Values that are no numbers, or hardly


@pytest.mark.parametrize("config", [CONFIG, PRE_NORM], ids=["no norm", "pre"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["unembedding", "token_embedding"])
def test_a_model_of_values_that_are_not_finite_is_an_error_and_no_result(
    engine, config, bad, where
):
    params = ma.init_params(config, replicas=2)
    params[where][1] = bad
    assert_both_fail(engine, config, params)


def test_a_model_that_overflows_is_an_error_and_no_warning(engine):
    scales = [1, 1e200]
    params = {
        name: np.array([scale * W for scale, W in zip(scales, value, strict=True)])
        for name, value in PARAMS.items()
    }
    assert_both_fail(engine, CONFIG, params)


def assert_both_fail(engine, config, params):
    for run in (
        lambda: ma.forward(config, params, TOKENS, engine=engine),
        lambda: ma.loss_and_grad(config, params, ma.next_token(TOKENS), engine=engine),
    ):
        with pytest.raises(FloatingPointError, match=r"non-finite value in .*, replica 1$"):
            run()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_gradients_of_values_that_are_not_finite_are_an_error_and_no_result(engine, bad):
    logits, tape = ma.forward(CONFIG, PARAMS, TOKENS, engine=engine, tape=True)
    logits[1, 0, 0, 0] = bad
    with pytest.raises(FloatingPointError, match=r"backward: non-finite value in .*, replica 1$"):
        ma.backward(CONFIG, PARAMS, tape, logits)
    assert tape.grads is None


def test_parameters_too_small_to_matter_are_a_uniform_guess(engine):
    params = {name: 1e-310 * value for name, value in PARAMS.items()}
    loss, _, _ = ma.loss_and_grad(CONFIG, params, ma.next_token(TOKENS), engine=engine)
    np.testing.assert_allclose(loss, np.log(3))

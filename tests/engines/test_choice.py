"""Which engine runs: by name, or the fastest that can."""

import importlib.util
import sys

import numpy as np
import pytest

import minattn as ma
from minattn.engines import Reference, choose
from minattn.engines.numba_cpu import NumbaCPU


@pytest.fixture
def without_numba(monkeypatch):
    """Make numba look as if it were not installed."""
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "minattn.engines.numba_cpu")


@pytest.mark.parametrize(
    ("asked", "dtype", "given"),
    [
        ("numpy", "float64", "numpy"),
        ("numpy", "float32", "numpy"),
        ("numpy", "complex128", "numpy"),
        ("numba", "float64", "numba"),
        ("numba", np.float32, "numba"),
        ("auto", "float64", "numba"),
        ("auto", "float32", "numba"),
        ("auto", np.dtype(complex), "numpy"),
    ],
)
def test_an_engine_says_which_it_is(asked, dtype, given):
    assert choose(asked, dtype).name == given


def test_an_engine_may_be_given_as_it_is():
    engine = NumbaCPU()
    assert choose(engine, "float32") is engine


@pytest.mark.parametrize("asked", ["numby", "NumPy", "", None, 1, Reference])
def test_an_unknown_engine_is_refused_by_name(asked):
    with pytest.raises(ValueError, match=r"engine: got .*, needs one of 'auto', .*, 'cupy'"):
        choose(asked)


@pytest.mark.parametrize(
    ("asked", "dtype", "message"),
    [
        ("numba", "complex128", "'numba' for complex128"),
        (NumbaCPU(), "complex128", "'numba' for complex128"),
        ("numpy", "float16", "'numpy' for float16"),
        ("auto", "float16", "'numba' for float16"),
    ],
)
def test_an_engine_refuses_a_dtype_that_it_does_not_know(asked, dtype, message):
    with pytest.raises(ValueError, match=rf"engine: got {message}.*float64"):
        choose(asked, dtype)


def test_without_numba_the_choice_falls_on_numpy(without_numba):
    assert choose("auto").name == "numpy"


def test_without_numba_the_named_engine_says_why(without_numba):
    with pytest.raises(ValueError, match=r"engine: got 'numba', which cannot run here, .*numba"):
        choose("numba")


def test_an_installed_numba_that_cannot_be_imported_is_not_chosen(without_numba, monkeypatch):
    # As when numba refuses the version of NumPy beside it.
    found = importlib.util.find_spec("math")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    assert choose("auto").name == "numpy"


def test_public_functions_report_the_engine_that_ran(engine):
    config = ma.TransformerConfig(vocab_size=3, width=4, layers=1, heads=1, max_length=4)
    tokens = np.array([[0, 1, 2]])
    _, tape = ma.forward(config, ma.init_params(config), tokens, engine=engine, tape=True)
    assert tape.engine.name == engine

"""The public names, and what importing them costs."""

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import minattn

HEAVY = ("numpy", "numba", "scipy", "matplotlib", "tqdm", "safetensors", "hypothesis", "pytest")
ROOT = Path(minattn.__file__).parent.parent


def absent(name):
    """Whether a public module is not there (yet)."""
    return name in minattn._MODULES and importlib.util.find_spec(f"minattn.{name}") is None


def imported_by(code):
    """Return the top-level names of what a fresh interpreter has loaded after `code`."""
    script = f"{code}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(run.stdout.split())


@pytest.mark.parametrize("name", minattn.__all__)
def test_a_public_name_resolves_and_is_documented(name):
    if absent(name):
        pytest.skip("not part of the package yet")
    value = getattr(minattn, name)
    if name != "__version__":
        assert len(inspect.getdoc(value) or "") > 20
        assert value.__doc__ != (type(value).__doc__)
        assert value.__name__.split(".")[-1] == name
        assert getattr(minattn, name) is value


@pytest.mark.parametrize("name", minattn._HOME)
def test_a_public_function_or_method_has_a_docstring_of_its_own(name):
    value = getattr(minattn, name)
    documented = [value]
    if inspect.isclass(value):
        members = {n: m for n, m in vars(value).items() if not n.startswith("_")}
        documented += [m for m in members.values() if inspect.isfunction(m)]
    for one in documented:
        assert inspect.getdoc(one), one
        assert not inspect.getdoc(one).startswith(f"{one.__name__}("), one  # as dataclasses write


def test_the_public_names_are_listed_once_and_completed():
    assert len(set(minattn.__all__)) == len(minattn.__all__)
    assert dir(minattn) == sorted(minattn.__all__)


def test_a_star_import_gives_the_public_names():
    if any(map(absent, minattn._MODULES)):
        pytest.skip("not every module is part of the package yet")
    names = {}
    exec("from minattn import *", names)
    assert names.keys() - {"__builtins__"} == set(minattn.__all__)


@pytest.mark.parametrize("name", ["atention", "NAMES", "_private", "np"])
def test_an_unknown_name_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match=f"'minattn' has no attribute '{name}'"):
        getattr(minattn, name)


def test_importing_the_package_imports_nothing_heavy():
    loaded = imported_by("import minattn")
    assert "minattn" in loaded
    assert not loaded & set(HEAVY)


def test_models_need_no_compiler_no_figures_and_no_progress_bar():
    code = """
import minattn as ma, numpy as np
config = ma.TransformerConfig(vocab_size=2, width=2, layers=1, heads=1, max_length=2)
ma.loss_and_grad(config, ma.init_params(config), ma.next_token(np.array([[0, 1]])), engine="numpy")
"""
    loaded = imported_by(code)
    assert "numpy" in loaded
    assert not loaded & (set(HEAVY) - {"numpy"})


def test_training_imports_a_progress_bar_only_when_it_is_shown():
    assert not imported_by("import minattn\nminattn.fit") & {"tqdm", "matplotlib", "safetensors"}


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "minattn" / "py.typed").is_file()


def test_the_version_is_a_version():
    assert all(part.isdigit() for part in minattn.__version__.split("."))

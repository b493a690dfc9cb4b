"""Everything of CuPy that is used exists, in CuPy itself and, as there, in its stand-in.

CuPy can be imported without a device.
"""

import ast
import inspect
import re
from functools import reduce
from pathlib import Path

import fake_cupy
import pytest

import minattn

PACKAGE = Path(minattn.__file__).parent


def used():
    """Return dotted names, without "cupy.": what follows it or an attribute or name `xp`."""
    names = set()
    for path in [
        *PACKAGE.glob("engines/*.py"),
        *PACKAGE.glob("layers/*.py"),
        *PACKAGE.glob("*.py"),
    ]:
        for node in ast.walk(ast.parse(path.read_text())):
            found = re.search(r"(?:^|\.)(?:cupy|xp)\.([A-Za-z][\w.]*)$", dotted(node))
            if found:
                names.add(found[1])
    return sorted(names)


def dotted(node):
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def test_the_names_are_found():
    assert {"concatenate", "RawModule", "where", "cuda.cublas", "tanh"} <= set(used())


@pytest.mark.parametrize("name", used())
def test_a_function_that_is_used_is_one_of_cupy(name):
    cupy = pytest.importorskip("cupy", reason="needs cupy")
    try:
        reduce(getattr, name.split("."), cupy)
    except ImportError as error:
        pytest.skip(f"needs CUDA's libraries ({error})")


@pytest.mark.parametrize("name", used())
def test_a_function_that_is_used_has_a_stand_in(name):
    reduce(getattr, name.split("."), fake_cupy)


def test_the_stand_in_has_nothing_that_cupy_lacks():
    cupy = pytest.importorskip("cupy", reason="needs cupy")
    public = {name for name in vars(fake_cupy) if not name.startswith("_")}
    own = {"Kernel", "CUDARuntimeError", "installed"}
    imported = {"SimpleNamespace", "contextlib", "copy", "ctypes", "np", "perf_counter"}
    for name in public - own - imported:
        assert hasattr(cupy, name), name
    members = {name for name in vars(fake_cupy.ndarray) if name != "__dict__"}
    for name in members - {"_host", "__weakref__", "__array_ufunc__", "__module__"}:
        assert hasattr(cupy.ndarray, name), name


@pytest.mark.parametrize("kind", ["s", "d"])
def test_cublas_takes_the_arguments_in_that_order(kind):
    cupy = pytest.importorskip("cupy", reason="needs cupy")
    try:
        says = inspect.getdoc(getattr(cupy.cuda.cublas, f"{kind}gemmStridedBatched"))
    except ImportError as error:
        pytest.skip(f"needs CUDA's libraries ({error})")
    found = re.findall(r"(\w+)[,)]", says)
    expected = "handle transa transb m n k alpha A lda strideA B ldb strideB beta C ldc strideC"
    assert found == [*expected.split(), "batchCount"]

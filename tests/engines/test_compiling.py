"""Compilation: which flags, and what happens where no cache can be written."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

import minattn
from minattn.engines.compiling import FAST_MATH, compiled

jit = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="the compiler is switched off")

TRAINING_STEP = """
import numpy as np
import minattn as ma
from minattn.engines import numba_cpu

config = ma.TransformerConfig(vocab_size=3, width=4, layers=1, heads=1, max_length=4)
batch = ma.next_token(np.array([[0, 1, 2], [2, 1, 0]]))
params = ma.init_params(config)
loss, grads, tape = ma.loss_and_grad(config, params, batch, engine="numba")
expected, _, _ = ma.loss_and_grad(config, params, batch, engine="numpy")
np.testing.assert_allclose(loss, expected, rtol=1e-12)
print(ma.__file__, tape.engine.name, numba_cpu._softmax.stats.cache_path, sep="\\n")
"""


def add(a, b):
    """Add; a kernel like any other."""
    return a + b


def is_empty(total, count):
    """Tell whether a total is NaN, which flags that assume finite values would deny."""
    return np.isnan(total / count)


def test_sums_may_be_reordered_but_values_are_not_assumed_finite():
    assert {"reassoc", "contract"} == FAST_MATH


@jit
def test_a_compiled_kernel_releases_the_interpreter_and_keeps_its_python_form():
    kernel = compiled(add)
    assert kernel(1.0, 2.0) == 3.0
    assert kernel.py_func is add
    assert kernel.targetoptions["nogil"]
    assert kernel.targetoptions["fastmath"] == FAST_MATH


@jit
def test_a_compiled_kernel_sees_a_nan():
    assert compiled(is_empty)(0.0, 0.0)
    assert not compiled(is_empty)(0.0, 1.0)


@jit
def test_import_and_first_step_where_nothing_can_be_written(tmp_path):
    """Each folder that the compiler tries is, or is under, a regular file: root fails too."""
    package = tmp_path / "minattn"
    shutil.copytree(
        Path(minattn.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    for folder in [package, *(path for path in package.rglob("*") if path.is_dir())]:
        (folder / "__pycache__").touch()
    blocked = tmp_path / "file"
    blocked.touch()
    homes = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"), str(blocked / "home"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}
    run = subprocess.run(
        [sys.executable, "-B", "-c", TRAINING_STEP],
        cwd=tmp_path,
        env=kept | homes | {"PYTHONPATH": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [str(package / "__init__.py"), "numba", "None"]

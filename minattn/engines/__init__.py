"""The primitives that layers call, on plain arrays or compiled, and the choice between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from minattn import checks
from minattn.engines.reference import Reference
from minattn.engines.threads import get_threads, set_threads
from minattn.engines.workspace import Buffers, Workspace

__all__ = ["NAMES", "Buffers", "Reference", "Workspace", "choose", "get_threads", "set_threads"]

NAMES = ("auto", "numpy", "numba")


def choose(engine: str | Reference, dtype: Any = "float64") -> Reference:
    """Return the engine of this name; "auto" is the fastest that can run with `dtype`.

    The result's `name` says which it is.

    Raises
    ------
    ValueError
        If the name is unknown, or the engine cannot run here or with this dtype.
    """
    kind = np.dtype(dtype).name
    if not isinstance(engine, Reference):
        name = checks.one_of("engine", engine, NAMES)
        if name == "auto":
            name = "numba" if kind != "complex128" and _can_compile() else "numpy"
        engine = _make(name)
    if kind not in engine.dtypes:
        checks.fail("engine", f"{engine.name!r} for {kind}", f"one of {engine.dtypes} for it")
    return engine


def _can_compile() -> bool:
    try:
        import minattn.engines.numba_cpu  # noqa: F401
    except ImportError:
        return False
    return True


def _make(name: str) -> Reference:
    if name == "numpy":
        return Reference()
    try:
        from minattn.engines.numba_cpu import NumbaCPU
    except ImportError as error:
        checks.fail("engine", f"'numba', which cannot run: {error}", "the package numba")
    return NumbaCPU()

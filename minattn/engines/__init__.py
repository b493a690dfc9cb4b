"""The primitives that layers call, on plain arrays or compiled, and the choice between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from minattn import checks
from minattn.engines.reference import Reference
from minattn.engines.threads import get_threads, set_threads
from minattn.engines.workspace import Buffers, Call, Workspace

__all__ = [
    "NAMES",
    "Buffers",
    "Call",
    "Reference",
    "Workspace",
    "availability",
    "choose",
    "get_threads",
    "set_threads",
]

NAMES = ("auto", "numpy", "numba", "cupy")


def choose(engine: str | Reference, dtype: Any = "float64") -> Reference:
    """Return the engine of this name; "auto" is the fastest on CPUs that can run with `dtype`.

    "cupy" runs only where it is asked for: small models are faster on CPUs, and its results differ
    in the last digits. The result's `name` says which engine it is.

    Raises
    ------
    ValueError
        If the name is unknown, or the engine cannot run here or with this dtype.
    """
    try:
        kind = np.dtype(dtype).name
    except TypeError:
        checks.fail("dtype", repr(dtype), "a NumPy dtype or its name")
    if not isinstance(engine, Reference):
        name = checks.one_of("engine", engine, NAMES)
        if name == "auto":
            name = "numba" if kind != "complex128" and _lack("numba") is None else "numpy"
        engine = _make(name)
    if kind not in engine.dtypes:
        checks.fail("engine", f"{engine.name!r} for {kind}", f"one of {engine.dtypes} for it")
    return engine


def availability() -> dict[str, str | None]:
    """Return for each engine, by name, what it needs and lacks to run here; None if nothing."""
    return {name: _lack(name) for name in NAMES if name != "auto"}


def _make(name: str) -> Reference:
    lack = _lack(name)
    if lack is not None:
        checks.fail("engine", f"{name!r}, which cannot run here", lack)
    if name == "numba":
        from minattn.engines.numba_cpu import NumbaCPU

        return NumbaCPU()
    if name == "cupy":
        from minattn.engines.cupy_gpu import CupyGPU

        return CupyGPU()
    return Reference()


def _lack(name: str) -> str | None:
    """Return what an engine lacks to run here, or None."""
    try:
        if name == "numba":
            import minattn.engines.numba_cpu  # noqa: F401
        elif name == "cupy":
            from minattn.engines.cupy_gpu import what_is_missing

            return what_is_missing()
    except ImportError as error:
        how = ": pip install 'minattn[gpu]', which is cupy-cuda12x[ctk]" if name == "cupy" else ""
        return f"the package {name} ({error}){how}"
    return None

"""How plain Python kernels become compiled ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Kernel = TypeVar("Kernel", bound=Callable[..., object])

# Reordering and fusing of sums only: the flags that assume finite values would delete the guards
# for rows without a key.
FAST_MATH = {"reassoc", "contract"}


def compiled(kernel: Kernel) -> Kernel:
    """Compile a kernel with Numba: without the GIL, cached on disk where a folder can be written.

    Compile by assignment, ``_softmax = compiled(softmax_rows)``, so that the plain function stays
    importable, readable and testable. Kernels must not call kernels of another file: the cache
    notices changes in its own file only.
    """
    import numba

    options: dict[str, Any] = {"nogil": True, "fastmath": FAST_MATH, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(kernel)
    except RuntimeError:  # no cache directory can be written
        return numba.njit(**options)(kernel)

"""For tests of one's own: gradient checks, and Hypothesis strategies for whole cases.

`check_gradient` needs NumPy alone; `strategies` needs Hypothesis, which loads on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

from minattn.testing.gradients import GradientCheck, check_gradient

__all__ = ["GradientCheck", "check_gradient", "strategies"]


def __getattr__(name: str) -> Any:
    if name == "strategies":
        return importlib.import_module(f"{__name__}.strategies")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""The array types that signatures name, and what any module may do to arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Params: TypeAlias = dict[str, Array]


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """Return what holds arrays anew, with `change` applied to each: dicts, lists, dataclasses."""
    if hasattr(tree, "dtype"):
        return change(tree)
    if isinstance(tree, dict):
        return {name: mapped(change, value) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(mapped(change, value) for value in tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = [field.name for field in dataclasses.fields(tree)]
        return type(tree)(**{name: mapped(change, getattr(tree, name)) for name in fields})
    return tree


def ratio(part: Any, whole: Any, empty: float = 0.0) -> Any:
    """Return part / whole entry by entry, and `empty` where the whole is not above 0."""
    out = np.full(np.shape(whole), empty, np.result_type(part, whole, np.float32))
    return np.divide(part, whole, out=out, where=np.greater(whole, 0))[()]

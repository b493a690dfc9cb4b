"""How material is split in two: to learn from, and to be tested on."""

from __future__ import annotations

from minattn.arrays import Array


def train_and_validation(tokens: Array) -> tuple[Array, Array]:
    """Return all but the last tenth of the first axis, rounded up, and that tenth."""
    cut = len(tokens) - -(-len(tokens) // 10)
    return tokens[:cut], tokens[cut:]

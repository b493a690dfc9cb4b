"""Layer norm of rows: y = gain (x - mean) / sqrt(variance + 1e-5) + shift."""

from __future__ import annotations

from dataclasses import dataclass

from minattn.arrays import Array
from minattn.engines import Reference


@dataclass
class NormTape:
    """What `backward` needs: the normalised rows (R, T, d) and 1/s (R, T)."""

    normed: Array
    inverse: Array


def forward(engine: Reference, gain: Array, shift: Array, x: Array) -> tuple[Array, NormTape]:
    """Return y (R, T, d) and the tape; gain and shift (R, d)."""
    y, normed, inverse = engine.layer_norm(x, gain, shift)
    return y, NormTape(normed, inverse)


def backward(
    engine: Reference, gain: Array, tape: NormTape, dy: Array
) -> tuple[Array, Array, Array]:
    """Return dx (R, T, d), dgain and dshift (R, d)."""
    return engine.layer_norm_backward(dy, gain, tape.normed, tape.inverse)

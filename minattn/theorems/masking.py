"""Which ordered pairs contribute under masked training: Remark A.13."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from minattn.arrays import Array
from minattn.objectives import MaskedToken
from minattn.step import loss_and_grad
from minattn.theorems.counting import all_sequences
from minattn.theorems.instances import small_model
from minattn.theorems.registry import Outcome, Trial, statement
from minattn.theorems.verdicts import DOES_NOT_HOLD, HOLDS_EXACTLY, is_exact, only_if
from minattn.update import implicit_update

RateFormula: TypeAlias = Callable[[float], float]


def odds(rate: float) -> float:
    """Return p / (1 - p)."""
    return rate / (1 - rate)


def count_masked_pairs(rate: float, length: int) -> tuple[float, float]:
    """Return the expected numbers of pairs i != j whose query is masked, key masked and not.

    Over all 2^N patterns: what counts where only masked queries receive a gradient.
    """
    masked = all_sequences(2, length).astype(bool)
    hidden = masked.sum(axis=1)
    law = rate**hidden * (1 - rate) ** (length - hidden)
    return float(law @ (hidden * (hidden - 1))), float(law @ (hidden * (length - hidden)))


def unmasked_shares(seed: int, layers: int, rate: float, symbols: int = 8) -> Array:
    """Return the share of sum beta^2 in rows of unmasked queries, by layer, (L,).

    A small masked model at initialisation, one batch of uniform tokens.
    """
    rng = np.random.default_rng(seed)
    config, params = small_model(rng, layers=layers, width=16, symbols=symbols, length=16)
    tokens = rng.integers(symbols, size=(32, 16))
    batch = MaskedToken(rate=rate, mask_symbol=symbols)(tokens, rng)
    _, _, tape = loss_and_grad(config, params, batch)
    shares = []
    for layer in range(layers):
        update = implicit_update(config, params, tape, layer)
        energy = (update.beta**2).sum(axis=(2, 4))  # (R, B, N): by query
        shares.append(energy[update.tokens != symbols].sum() / energy.sum())
    return np.array(shares)


def remark_a13_rule(residual: float, last: Array, below: Array) -> str:
    """Judge the count by its own residual and the shares of unmasked queries, last layer and below.

    A share counts as none up to 1e-12.
    """
    if not is_exact([residual]) or np.max(last) > 1e-12:
        return DOES_NOT_HOLD
    if below.size == 0 or np.max(below) <= 1e-12:
        return HOLDS_EXACTLY
    return only_if("the layer is the last attention layer")


@statement(
    "Remark A.13",
    text="of the ordered pairs that contribute under masked training at rate p, those with both "
    "tokens masked are to those with one masked as p to 1 - p",
    source="Remark A.13",
    assumptions="each position masked independently with probability p = .15; the shares of beta "
    "are those of a three-layer model at initialisation",
    method="counting",
    predicted="p/(1-p) in every layer, with no contribution of unmasked queries",
    rule="the count is exact and unmasked queries have no share of sum beta^2; if they have none "
    "in the last layer alone, the remark is conditional",
    draws=6,
)
def remark_a13(
    trial: Trial,
    *,
    ratio: RateFormula = odds,
    rate: float = 0.15,
    length: int = 8,
    layers: int = 3,
) -> Outcome:
    """Count over all patterns; then see who contributes in real models."""
    both, one = count_masked_pairs(rate, length)
    counted = both / one
    seeds = trial.rng.integers(2**31, size=trial.draws)
    shares = np.array([unmasked_shares(int(seed), layers, rate) for seed in seeds])
    residual = abs(counted - ratio(rate)) / counted
    verdict = remark_a13_rule(residual, shares[:, -1], shares[:, :-1])
    means = ", ".join(f"{share:.0%}" for share in shares.mean(axis=0))
    found = (
        f"Counted ratio {counted:.4f} at p = {rate:g} (the text says about a quarter), formula "
        f"{ratio(rate):.4f}; queries that are not masked carry {means} of sum beta^2 in layers 0 "
        f"to {layers - 1}, at initialisation."
    )
    return Outcome(counted, None, verdict, found)

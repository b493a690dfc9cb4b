"""Small random models and batches, to measure identities on."""

from __future__ import annotations

from typing import Any

import numpy as np

from minattn.arrays import Params
from minattn.config import TransformerConfig
from minattn.masks import Mask
from minattn.objectives import Batch
from minattn.params import init_params


def small_model(
    rng: np.random.Generator,
    *,
    layers: int = 2,
    heads: int = 2,
    width: int = 6,
    symbols: int = 4,
    length: int = 5,
    **options: Any,
) -> tuple[TransformerConfig, Params]:
    """Draw a model of one replica; `options` go to `TransformerConfig`.

    Biases are drawn as well, since zeros would hide what they do.
    """
    config = TransformerConfig(
        vocab_size=symbols, width=width, layers=layers, heads=heads, max_length=length, **options
    )
    params = init_params(config, 1, int(rng.integers(2**31)), embedding_scale=width**0.5 / 2)
    for name, value in params.items():
        if ".b_" in name:
            params[name] = np.asarray(rng.standard_normal(value.shape) / 2)
    return config, params


def small_batch(
    rng: np.random.Generator, config: TransformerConfig, mask: Mask, sequences: int = 2
) -> Batch:
    """Draw tokens, the mask symbol among them, unrelated targets, and unequal weights."""
    shape = (sequences, config.max_length)
    return Batch(
        inputs=rng.integers(config.vocab_size + 1, size=shape),
        targets=rng.integers(config.vocab_size, size=shape),
        weights=rng.uniform(0.2, 1, size=shape),
        mask=mask,
    )

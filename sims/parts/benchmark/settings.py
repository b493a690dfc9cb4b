"""What is timed: sizes of model and data, their floor in operations, and numbers to run on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minattn.arrays import Params
from minattn.config import TransformerConfig
from minattn.objectives import Batch
from minattn.params import init_params


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One training step: R replicas, B sequences of N tokens, V symbols, L layers of width d."""

    width: int
    length: int
    batch: int
    vocabulary: int
    layers: int
    heads: int
    replicas: int = 1
    dtype: str = "float32"
    feed_forward: bool = False  # with pre-norm, and f = 4 d

    def __str__(self) -> str:
        parts = [f"d {self.width}, N {self.length}, B {self.batch}, L {self.layers}"]
        parts.append(f"H {self.heads}")
        if self.replicas > 1:
            parts.append(f"R {self.replicas}")
        if self.feed_forward:
            parts.append("feed-forward")
        return ", ".join([*parts, self.dtype])

    @property
    def config(self) -> TransformerConfig:
        """The model."""
        return TransformerConfig(
            vocab_size=self.vocabulary,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            max_length=self.length,
            norm="pre" if self.feed_forward else "none",
            feed_forward=4 * self.width if self.feed_forward else 0,
        )

    @property
    def flops(self) -> int:
        """Operations of all matrix products of a step, forward and backward.

        A product (a, b) (b, c) takes 2abc, and its backward two more of that size. Blocks of
        scores are counted whole, although the causal mask leaves half of them unused.
        """
        d, N, tokens = self.width, self.length, self.replicas * self.batch * self.length
        projections = 4 * d * d  # W_q, W_k, W_v, W_o
        scores = 2 * N * d  # q k^T and A v
        hidden = 2 * d * self.config.feed_forward
        layers = self.layers * (projections + scores + hidden)
        return 3 * 2 * tokens * (layers + d * self.vocabulary)

    def numbers(self, seed: int) -> tuple[Params, Batch]:
        """Draw parameters, and a batch of random tokens that asks for random tokens."""
        params = init_params(self.config, self.replicas, seed, dtype=self.dtype)
        rng = np.random.default_rng(seed)
        shape = (2, self.replicas, self.batch, self.length)
        inputs, targets = rng.integers(self.vocabulary, size=shape)
        weights = np.ones(inputs.shape)
        return params, Batch(inputs=inputs, targets=targets, weights=weights, mask="causal")

"""What is asked for must not be shown: the masked objective on tokens that nothing foretells."""

import math

import numpy as np
import pytest

import minattn as ma

V = 5
CONFIG = ma.TransformerConfig(vocab_size=V, width=16, layers=1, heads=2, max_length=12)
MASKED = ma.MaskedToken(mask_symbol=V, rate=0.3)


def leaky(tokens, rng):
    """The same objective with the tokens asked for left in sight."""
    batch = MASKED(tokens, rng)
    return ma.Batch(inputs=tokens, targets=batch.targets, weights=batch.weights, mask=batch.mask)


@pytest.mark.parametrize("objective", [MASKED, leaky])
def test_changing_a_hidden_token_changes_no_logit(objective):
    tokens = np.random.default_rng(0).integers(V, size=(3, 12))
    hidden = MASKED(tokens, np.random.default_rng(1)).weights > 0
    other = np.where(hidden, (tokens + 1) % V, tokens)
    params = ma.init_params(CONFIG)
    one, two = (
        ma.forward(CONFIG, params, objective(t, np.random.default_rng(1)).inputs, "bidirectional")
        for t in (tokens, other)
    )
    assert np.array_equal(one, two) == (objective is MASKED)


@pytest.mark.parametrize("objective", [MASKED, leaky])
def test_no_honest_model_beats_chance_on_uniform_tokens(objective):
    source = ma.data.MarkovChain.independent(np.full(V, 1 / V))
    options = {"steps": 150, "batch_size": 16, "length": 12, "optimizer": ma.AdamW(1e-2)}
    params = ma.fit(CONFIG, ma.init_params(CONFIG), source, objective, **options).params
    rng = np.random.default_rng(2)
    batch = objective(source.sample(2000, 12, rng), rng)
    loss = ma.mean_loss(CONFIG, params, batch).item()
    beats_chance = loss < math.log(V) - 0.02  # five standard errors of some 7000 losses at most
    assert beats_chance == (objective is leaky)

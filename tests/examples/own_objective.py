"""An objective of one's own: each position is asked for the token before it."""

import numpy as np

import minattn as ma


def previous_token(tokens, rng):
    asked = tokens[:, :-1]
    weights = np.ones(asked.shape)
    return ma.Batch(inputs=tokens[:, 1:], targets=asked, weights=weights, mask="bidirectional")


config = ma.TransformerConfig(vocab_size=8, width=32, layers=1, heads=1, max_length=16)
initial = ma.init_params(config, replicas=8)
chain = ma.data.MarkovChain.random(8, concentration=0.1, seed=0)
for name, objective in {"previous": previous_token, "next": ma.next_token}.items():
    history = ma.fit(config, initial, chain, objective, steps=400, length=16)
    change = ma.W_qk(history.params) - ma.W_qk(initial)
    _, low, high, _ = ma.claims.mean_interval(ma.symmetry(change))
    print(f"{name}: change of W_qk has symmetry {low:.2f} to {high:.2f}")

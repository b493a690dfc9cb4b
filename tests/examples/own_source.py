"""A source of one's own under two masks: the second half of a window mirrors the first."""

import numpy as np

import minattn as ma


class Mirror:
    n_symbols = 8

    def sample(self, B, N, rng):
        half = rng.integers(self.n_symbols, size=(B, N // 2))
        return np.concatenate([half, half[:, ::-1]], axis=1)


config = ma.TransformerConfig(vocab_size=8, width=32, layers=1, heads=1, max_length=12)
initial = ma.init_params(config, replicas=8)
for mask in ("bidirectional", "causal"):
    objective = ma.MaskedToken(mask_symbol=8, mask=mask)
    history = ma.fit(config, initial, Mirror(), objective, steps=500, length=12)
    change = ma.W_qk(history.params) - ma.W_qk(initial)
    _, low, high, _ = ma.claims.mean_interval(ma.symmetry(change))
    print(f"{mask}: change of W_qk has symmetry {low:.2f} to {high:.2f}")

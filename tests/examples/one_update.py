"""One update of W_qk, read term by term: beta_ij x_i^T x_j, i the query and j the key."""

import numpy as np

import minattn as ma

config = ma.TransformerConfig(vocab_size=3, width=8, layers=1, heads=1, max_length=4)
params = ma.init_params(config, seed=0)
batch = ma.next_token(np.array([[0, 1, 2, 0, 1]]))  # reads 0 1 2 0, asks for 1 2 0 1
loss, grads, tape = ma.loss_and_grad(config, params, batch)
update = ma.implicit_update(config, params, tape, layer=0)

x, beta, Ghat = update.x[0, 0], update.beta[0, 0, 0], update.total[0, 0]
running = np.zeros_like(Ghat)
for i, j in sorted(zip(*np.nonzero(beta), strict=True), key=lambda pair: -abs(beta[pair])):
    running += beta[i, j] * np.outer(x[i], x[j])
    left = np.linalg.norm(running - Ghat) / np.linalg.norm(Ghat)
    verb = "more" if beta[i, j] > 0 else "less"
    print(f"query {i} is to attend {verb} to key {j}: beta {beta[i, j]:+.4f}, left {left:.0%}")

proof = ma.prove_update(config, params, batch, layer=0)
print(f"off by {update.residual[0]:.0e} from backprop, {proof.residual[0]:.0e} from the loss")

"""A gradient identity of one's own: what plain gradient descent conserves."""

import numpy as np
from hypothesis import given, settings

import minattn as ma


@settings(deadline=None)  # the first call compiles
@given(case=ma.testing.strategies.cases(bias=False))
def test_gradient_flow_keeps_queries_and_keys_balanced(case):
    """W_q^T W_q - W_k^T W_k is conserved: W_q^T dW_q = dW_k^T W_k, for every layer and head."""
    config, params, batch = case
    _, grads, _ = ma.loss_and_grad(config, params, batch)
    for layer in range(config.layers):
        W_q, W_k = (params[f"layers.{layer}.{name}"].swapaxes(1, 2) for name in ("W_q", "W_k"))
        dW_q, dW_k = (grads[f"layers.{layer}.{name}"].swapaxes(1, 2) for name in ("W_q", "W_k"))
        query_side = W_q.swapaxes(-2, -1) @ dW_q
        key_side = dW_k.swapaxes(-2, -1) @ W_k
        scale = max(1e-3, np.abs(query_side).max())
        assert np.abs(query_side - key_side).max() <= 1e-10 * scale

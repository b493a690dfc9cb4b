"""Loss, logits, gradients and beta against PyTorch's autograd.

The oracle computes in float64 throughout; float32 is compared with it at the same rounded values.
"""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings

import minattn as ma
from minattn.config import ATTENTIONS, NORMS, TransformerConfig
from minattn.masks import NAMES, allowed_pairs
from minattn.testing.strategies import build_case, cases

torch = pytest.importorskip("torch", reason="the oracle needs PyTorch")
torch.set_num_threads(1)  # the arrays are tiny, and other tests run beside these

LENGTH = 7
CUSTOM = np.random.default_rng(0).random((LENGTH, LENGTH)) < 0.5
CUSTOM[2] = CUSTOM[:, 4] = False  # a query without a key, a key without a query
MASKS = {name: name for name in NAMES} | {"custom": CUSTOM}
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}


def torch_logits(config, p, tokens, allowed):
    """Logits (R, B, N, V) and the scaled scores (R, B, H, N, N) of each layer."""
    replicas = torch.arange(len(tokens))[:, None, None]
    x = p["token_embedding"][replicas, tokens]
    if config.positions:
        x = x + p["position_embedding"][:, None, : tokens.shape[-1]]
    scores = []
    for layer in range(config.layers):
        start = f"layers.{layer}."
        w = {name[len(start) :]: value for name, value in p.items() if name.startswith(start)}
        y, z = torch_attention(config, w, torch_norm(config, "pre", w, "attention", x), allowed)
        scores.append(z)
        x = torch_norm(config, "post", w, "attention", x + y)
        if config.feed_forward:
            u = torch_norm(config, "pre", w, "feed_forward", x) @ w["W_in"][:, None]
            u = u + w["b_in"][:, None, None] if config.bias else u
            y = torch.nn.functional.gelu(u, approximate="tanh") @ w["W_out"][:, None]
            y = y + w["b_out"][:, None, None] if config.bias else y
            x = torch_norm(config, "post", w, "feed_forward", x + y)
    if config.norm == "pre":
        x = torch_norm(config, "pre", p, "final", x)
    return x @ p["unembedding"][:, None], scores


def torch_attention(config, w, x, allowed):
    def project(name):
        found = torch.einsum("rbnd,rdhk->rbhnk", x, w[f"W_{name}"])
        return found + w[f"b_{name}"][:, None, :, None] if config.bias else found

    q, k, v = (project(name) for name in "qkv")
    z = q @ k.transpose(-2, -1) / config.h**0.5
    z.retain_grad()
    if config.attention == "softmax":
        top = z.masked_fill(~allowed, -torch.inf).amax(dim=-1, keepdim=True).detach()
        exponentials = torch.where(allowed, z - top, -torch.inf).exp()
        exponentials = torch.where(allowed, exponentials, 0.0)
        total = exponentials.sum(dim=-1, keepdim=True)
        A = exponentials / torch.where(total == 0, 1.0, total)
    else:
        A = torch.where(allowed, z, 0.0)
    y = torch.einsum("rbhnk,rhkd->rbnd", A @ v, w["W_o"])
    return (y + w["b_o"][:, None, None] if config.bias else y), z


def torch_norm(config, where, w, name, x):
    if config.norm != where:
        return x
    normed = torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1e-5)
    return w[f"norm_{name}.gain"][:, None, None] * normed + w[f"norm_{name}.shift"][:, None, None]


def torch_step(config, params, batch):
    """Loss (R,), logits, gradients and beta by autograd."""
    exact = {name: value.astype(np.float64) for name, value in params.items()}
    p = {name: torch.tensor(value, requires_grad=True) for name, value in exact.items()}
    allowed = torch.tensor(np.array(allowed_pairs(batch.mask, batch.inputs.shape[-1])))
    logits, scores = torch_logits(config, p, torch.tensor(batch.inputs), allowed)
    weights, targets = torch.tensor(batch.weights), torch.tensor(batch.targets)
    each = -logits.log_softmax(dim=-1).gather(-1, targets[..., None])[..., 0]
    loss = (weights * each).sum(dim=(1, 2)) / weights.sum(dim=(1, 2))
    loss.sum().backward()
    grads = {
        name: np.zeros(value.shape) if value.grad is None else value.grad.numpy()
        for name, value in p.items()
    }
    betas = [-z.grad.numpy() / config.h**0.5 for z in scores]
    return loss.detach().numpy(), logits.detach().numpy(), grads, betas


def agrees(case, engine, dtype="float64"):
    config, params, batch = case
    params = {name: value.astype(dtype) for name, value in params.items()}
    tolerance = TOLERANCE[dtype]
    loss, logits, grads, betas = torch_step(config, params, batch)
    found, found_grads, tape = ma.loss_and_grad(config, params, batch, engine=engine)
    np.testing.assert_allclose(found, loss, rtol=tolerance)
    forward = ma.forward(config, params, batch.inputs, batch.mask, engine)
    np.testing.assert_allclose(forward, logits, atol=tolerance * max(abs(logits).max(), 1))
    largest = max(abs(gradient).max() for gradient in grads.values())
    for name, gradient in grads.items():
        assert abs(found_grads[name] - gradient).max() <= tolerance * largest, name
    for layer, beta in enumerate(betas):
        update = ma.implicit_update(config, params, tape, layer)
        assert abs(update.beta - beta).max() <= tolerance * max(abs(beta).max(), largest)


@settings(max_examples=40)
@given(case=cases())
def test_random_cases(engine, case):
    agrees(case, engine)


CHOICES = {
    "attention": ATTENTIONS,
    "norm": NORMS,
    "feed_forward": (0, 9),
    "positions": (True, False),
    "bias": (False, True),
}
SIZES = {"vocab_size": 6, "width": 8, "layers": 2, "heads": 2, "head_width": 3, "max_length": 9}


def test_no_field_of_a_configuration_is_left_out():
    fields = {field.name for field in dataclasses.fields(TransformerConfig)}
    assert fields == CHOICES.keys() | SIZES.keys()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("choice", list(itertools.product(*CHOICES.values())), ids=str)
def test_every_choice(engine, choice, mask, dtype):
    config = TransformerConfig(**SIZES, **dict(zip(CHOICES, choice, strict=True)))
    case = build_case(config, replicas=2, batch_size=3, length=LENGTH, mask=MASKS[mask])
    agrees(case, engine, dtype)


def test_the_oracle_sees_a_wrong_gradient(monkeypatch):
    from minattn.engines import Reference

    right = Reference.gelu_backward
    monkeypatch.setattr(Reference, "gelu_backward", lambda s, u, dy: right(s, u, dy) * (1 + 1e-8))
    config = ma.TransformerConfig(
        vocab_size=4, width=4, layers=1, heads=1, max_length=4, feed_forward=4
    )
    with pytest.raises(AssertionError, match="token_embedding"):
        agrees(build_case(config, length=4), "numpy")

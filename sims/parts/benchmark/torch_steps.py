"""The peer PyTorch: the same step, written for it. Imported only where torch is wanted."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no idle compilers beside the timing

import torch
from parts.benchmark.contestants import Maker, Stepper, pack, unpack
from parts.benchmark.settings import Setting
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (its usual name)

from minattn.arrays import Params
from minattn.engines.reference import NORM_EPSILON
from minattn.objectives import Batch

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # mask, q, k, v


def makers(threads: int) -> dict[str, Maker]:
    """Return what makes each of PyTorch's steps."""
    torch.set_num_threads(threads)
    return {
        "torch eager": partial(_step, "torch eager", False, _explicit),
        "torch SDPA": partial(_step, "torch SDPA", False, _fused),
        "torch compiled": partial(_step, "torch compiled", True, _explicit),
    }


def _step(
    name: str, compiled: bool, attend: Attend, setting: Setting, params: Params, batch: Batch
) -> Stepper:
    leaves = {n: torch.tensor(v, requires_grad=True) for n, v in pack(params).items()}
    tokens = torch.tensor(batch.inputs)
    if setting.replicas > 1:  # one table for all replicas: a row a replica and symbol
        first = torch.arange(setting.replicas) * (setting.vocabulary + 1)
        tokens = tokens + first[:, None, None]
    tokens, targets = tokens.flatten(), torch.tensor(batch.targets).flatten()
    N, dtype = setting.length, getattr(torch, setting.dtype)
    mask = torch.full((N, N), -torch.inf, dtype=dtype).triu(1)
    loss = partial(_loss, setting, attend, mask)
    if compiled:
        torch._dynamo.reset()
        loss = torch.compile(loss, fullgraph=True, dynamic=False)
    inputs = list(leaves.values())

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss(leaves, tokens, targets), inputs)

    def read(grads: tuple[Tensor, ...]) -> Params:
        arrays = [grad.numpy() for grad in grads]
        return unpack(dict(zip(leaves, arrays, strict=True)), params)

    return Stepper(name=name, step=step, read=read)


def _loss(
    setting: Setting,
    attend: Attend,
    mask: Tensor,
    p: dict[str, Tensor],
    tokens: Tensor,
    targets: Tensor,
) -> Tensor:
    """Return the loss, summed over replicas. Rows are (T, d), or (R, T, d) of several replicas."""
    d, N, H = setting.width, setting.length, setting.heads
    E, P = p["token_embedding"], p["position_embedding"]
    x = F.embedding(tokens, E.reshape(-1, d)).view(*E.shape[:-2], -1, N, d)
    x = (x + P.unsqueeze(-3)).view(*E.shape[:-2], -1, d)
    for layer in range(setting.layers):
        names = f"layers.{layer}."
        inner = _norm(p, names + "norm_attention", x)
        qkv = (inner @ p[names + "W_qkv"]).view(-1, N, 3, H, d // H)
        o = attend(mask, *qkv.permute(2, 0, 3, 1, 4).unbind())
        o = o.view(-1, H, N, d // H).transpose(1, 2)
        x = x + o.reshape(x.shape) @ p[names + "W_o"]
        if setting.feed_forward:
            u = _norm(p, names + "norm_feed_forward", x) @ p[names + "W_in"]
            x = x + F.gelu(u, approximate="tanh") @ p[names + "W_out"]
    logits = _norm(p, "norm_final", x) @ p["unembedding"]
    rows = logits.view(-1, setting.vocabulary)
    return F.cross_entropy(rows, targets, reduction="sum") * (setting.replicas / len(targets))


def _norm(p: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    if name + ".gain" not in p:
        return x
    gain, shift = p[name + ".gain"], p[name + ".shift"]
    return F.layer_norm(x, gain.shape, gain, shift, NORM_EPSILON)


def _explicit(mask: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    # Scaled and masked within the product: the fastest way that was tried.
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    S = torch.baddbmm(mask, q, k.transpose(-2, -1), alpha=q.shape[-1] ** -0.5)
    return S.softmax(dim=-1) @ v


def _fused(_: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)

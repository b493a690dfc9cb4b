"""One layer's query and key projections, and the bilinear forms that can be made of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minattn import checks
from minattn.arrays import Array
from minattn.checkpoints.rotary import Rotary, rotate


@dataclass(frozen=True, eq=False)
class Norm:
    """Gain and shift of a layer norm or RMS norm; each (d,), the shift None where there is none."""

    gain: Array
    shift: Array | None = None


@dataclass(frozen=True, eq=False)
class Layer:
    """The projections of one attention layer: ``q = x @ W_q + b_q``, ``k = y @ W_k + b_k``.

    In self-attention y is x. Row index of ``W_qk = W_q W_k^T`` is the query side.
    """

    family: str
    tower: str  # "encoder", "decoder" or "cross"
    index: int  # within its tower, from 0
    W_q: Array  # (d, H, h)
    W_k: Array  # (d, H_kv, h); query head i reads key head i // (H // H_kv)
    b_q: Array | None = None  # (H, h)
    b_k: Array | None = None  # (H_kv, h)
    norm: Norm | None = None  # right before W_q (and W_k, in self-attention); None where absent
    key_norm: Norm | None = None  # right before W_k in cross-attention, otherwise `norm`
    pre_norm: bool = False  # whether the rows come out of `norm`, or are embeddings as they are
    rotary: Rotary | None = None
    uses: int = 1  # layers of the model that share these weights
    form: tuple[str, ...] = ()  # what was done to the stored weights, in words

    @property
    def width(self) -> int:
        """Model width d."""
        return int(self.W_q.shape[0])

    @property
    def heads(self) -> int:
        """Number of query heads H."""
        return int(self.W_q.shape[1])

    @property
    def key_heads(self) -> int:
        """Number of key heads H_kv."""
        return int(self.W_k.shape[1])

    @property
    def head_width(self) -> int:
        """Width h of a head."""
        return int(self.W_q.shape[2])

    @property
    def label(self) -> str:
        """Name for messages: family, tower and index."""
        return f"{self.family} {self.tower} layer {self.index}"

    def raw_scores(self, x: Any, y: Any = None) -> Array:
        """Scores q_i . k_j before scaling, position terms and softmax.

        Parameters
        ----------
        x : array_like, shape (N, d)
            What the projections multiply (after a pre-norm, unless the norm was folded in).
        y : array_like, shape (M, d), optional
            The key side's rows, in cross-attention; x when not given.

        Returns
        -------
        Array, shape (H, N, M)

        Raises
        ------
        ValueError
            If x or y is not of this width.
        """
        rows = [_rows("x", x, self.W_q), _rows("y", x if y is None else y, self.W_k)]
        q = np.einsum("nd,dhc->hnc", rows[0], self.W_q)
        k = np.einsum("nd,dhc->hnc", rows[1], self.W_k)
        if self.b_q is not None:
            q = q + self.b_q[:, None]
        if self.b_k is not None:
            k = k + self.b_k[:, None]
        keys = np.repeat(k, self.heads // self.key_heads, axis=0)
        products: Array = q @ keys.swapaxes(1, 2)
        return products

    def folded(self) -> Layer:
        """Fold the norm's gain and shift in: W_qk becomes diag(g) W_qk diag(g), on normalised rows.

        The first layer of ModernBERT, which has no norm of its own, stays as it is.

        Raises
        ------
        ValueError
            If the layer has no norm right before the projections: a post-norm stands between
            layers, and its output also goes past the projections.
        """
        if not self.pre_norm:
            needs = "a pre-norm layer, whose norm sits right before W_q and W_k"
            checks.fail("fold", f"the {self.label}", needs)
        if self.norm is None:
            return self
        key_norm = self.norm if self.tower != "cross" else self.key_norm
        if key_norm is None:
            checks.fail("fold", f"the {self.label}", "a norm before the keys, which is absent")
        W_q, b_q = _fold(self.W_q, self.b_q, self.norm)
        W_k, b_k = _fold(self.W_k, self.b_k, key_norm)
        layer = replace(self, W_q=W_q, b_q=b_q, W_k=W_k, b_k=b_k, norm=None, key_norm=None)
        return replace(layer, pre_norm=False, form=(*self.form, "norm folded in"))

    def rotated(self, offset: int) -> Layer:
        """Return W_q R_D W_k^T: the form between a query and a key `offset` positions before it.

        Raises
        ------
        ValueError
            If the layer has no rotary positions, or of a kind whose frequencies are not known here.
        """
        offset = checks.integer("rotary offset", offset)
        if self.rotary is None:
            checks.fail("rotary offset", f"the {self.label}", "a layer with rotary positions")
        W_q = rotate(self.W_q, self.rotary, offset)
        b_q = None if self.b_q is None else rotate(self.b_q, self.rotary, offset)
        form = (*self.form, f"rotary offset {offset}")
        return replace(self, W_q=W_q, b_q=b_q, rotary=None, form=form)

    def as_published(self) -> Layer:
        """Pair query head i with key head i mod H_kv, as the code published with the paper does.

        The model itself pairs it with i // (H // H_kv). Query heads are put in another order, so
        that the right rule makes the published pairs; without grouped queries nothing changes.
        """
        order = np.argsort(np.arange(self.heads) % self.key_heads, kind="stable")
        b_q = None if self.b_q is None else self.b_q[order]
        form = (*self.form, "heads paired as published")
        return replace(self, W_q=self.W_q[:, order], b_q=b_q, form=form)


def _rows(name: str, value: Any, W: Array) -> Array:
    needs = f"real rows (N, {W.shape[0]})"
    array = checks.array(name, value, needs=needs)
    if array.ndim != 2 or array.shape[1] != W.shape[0]:
        checks.fail(name, f"the shape {array.shape}", needs)
    return array


def _fold(W: Array, b: Array | None, norm: Norm) -> tuple[Array, Array | None]:
    if norm.shift is not None:
        shift = np.einsum("d,dhc->hc", norm.shift, W)
        b = shift if b is None else b + shift
    return norm.gain[:, None, None] * W, b

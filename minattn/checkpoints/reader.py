"""`read`: from a path to layers, one in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from minattn import checks
from minattn.arrays import Array
from minattn.checkpoints.detection import choose, find_towers
from minattn.checkpoints.files import open_model
from minattn.checkpoints.layer import Layer, Norm
from minattn.checkpoints.layouts import FAMILIES, Layout, Tower
from minattn.checkpoints.packing import Heads, biases, projections, vector
from minattn.checkpoints.rotary import Rotary
from minattn.checkpoints.settings import Settings
from minattn.checkpoints.tensors import TensorFile


class Checkpoint:
    """The layers of one model file. Iterating reads them one by one, as often as asked.

    Attributes
    ----------
    family : str
        Row of the table of layouts.
    towers : dict of str to int
        Number of stored layers of each tower: "encoder", "decoder", "cross".
    """

    def __init__(
        self, file: TensorFile, settings: Settings, layout: Layout, prefix: str, replica: int
    ) -> None:
        self.family = layout.family
        self._file, self._settings, self._layout = file, settings, layout
        self._prefix, self._replica = prefix, replica
        self._found = find_towers(file, layout, prefix)
        self.towers = {self._name(tower): len(indices) for tower, indices in self._found}

    def __len__(self) -> int:
        """Return the number of stored layers."""
        return sum(self.towers.values())

    def __iter__(self) -> Iterator[Layer]:
        """Read the layers, tower by tower.

        Raises
        ------
        ValueError
            If a tensor is missing, or its shape or dtype does not fit.
        """
        for tower, indices in self._found:
            for number, index in enumerate(indices):
                yield self._layer(tower, number, index)

    def _name(self, tower: Tower) -> str:
        single = len(self._layout.towers) == 1 or self.family == "bert"
        if self._settings.is_decoder and tower.name == "encoder" and single:
            return "decoder"
        return tower.name

    def _layer(self, tower: Tower, number: int, index: dict[str, int]) -> Layer:
        def stem(pattern: str) -> str:
            return self._prefix + pattern.format(**index) if pattern else ""

        read = self._own_projections if self._layout.own else self._projections
        W_q, W_k, b_q, b_k = read(stem(tower.query), stem(tower.key), self._heads(tower))
        d = W_q.shape[0]
        if W_k.shape[0] != d:
            checks.fail("path", f"queries of width {d}, keys of {W_k.shape[0]}", "one width")
        pre_norm = self._settings.is_pre_norm(self._layout)
        norm, key_norm = (
            self._norm(stem(pattern), d) if pre_norm else None
            for pattern in (tower.norm, tower.key_norm)
        )
        bare = self._layout.bare_first and number == 0
        return Layer(
            family=self.family,
            tower=self._name(tower),
            index=number,
            W_q=W_q,
            W_k=W_k,
            b_q=b_q,
            b_k=b_k,
            norm=norm,
            key_norm=key_norm,
            pre_norm=pre_norm and (bare or norm is not None),
            rotary=self._rotary(number, W_q.shape[2]),
            uses=self._uses(),
        )

    def _heads(self, tower: Tower) -> int | None:
        """Return the number of query heads, where it is known."""
        of_decoder = self._settings.decoder_heads
        return self._settings.heads if tower.name == "encoder" or of_decoder is None else of_decoder

    def _projections(self, query: str, key: str, heads: int | None) -> tuple[Any, ...]:
        """Read weights and biases under the names that other libraries write."""
        q, k = (f"{stem}.weight" if stem else "" for stem in (query, key))
        W_q, W_k = projections(self._file, q, k, self._layout, self._settings, heads)
        found = Heads(W_q.shape[1], W_k.shape[1], W_q.shape[2])
        q, k = (f"{stem}.bias" if stem else "" for stem in (query, key))
        return W_q, W_k, *biases(self._file, q, k, self._layout, found)

    def _own_projections(self, query: str, key: str, heads: int | None) -> tuple[Any, ...]:
        """Read one replica of minattn's own parameters, which are (R, d, H, h) already."""
        names = (query, key, query.replace("W_q", "b_q"), key.replace("W_k", "b_k"))
        found = [self._own(name, axes) for name, axes in zip(names, (4, 4, 3, 3), strict=True)]
        _, H, h = found[0].shape  # type: ignore[union-attr]
        asked = self._settings
        for name, given, there in (
            ("heads", heads, H),
            ("key_heads", asked.key_heads, H),
            ("head_width", asked.head_width, h),
        ):
            if given not in (None, there):
                checks.fail(name, given, f"{there}, as the save has, or none")
        return tuple(found)

    def _own(self, name: str, axes: int) -> Array | None:
        if name not in self._file.stored:
            if axes == 4:
                checks.fail("path", f"no tensor {name!r}", "every W_q and W_k of a minattn save")
            return None
        shape = self._file.stored[name].shape
        if len(shape) != axes or 0 in shape:
            checks.fail("path", f"{name!r} of shape {shape}", f"{axes} axes, replicas first")
        if self._replica >= shape[0]:
            checks.fail("replica", self._replica, f"less than {shape[0]}, the file's replicas")
        part: Array = self._file.read(name, self._replica, self._replica + 1)[0]
        return part

    def _norm(self, stem: str, width: int) -> Norm | None:
        if not stem:
            return None
        if self._layout.own:
            gain, shift = (self._own(f"{stem}.{part}", 2) for part in ("gain", "shift"))
        else:
            gain, shift = (
                vector(self._file, f"{stem}.{part}", width) for part in ("weight", "bias")
            )
        return None if gain is None else Norm(gain, shift)

    def _rotary(self, layer: int, head_width: int) -> Rotary | None:
        rotary = self._settings.rotary(self._layout, layer, head_width)
        if rotary is None or rotary.problem or not self._layout.gguf:
            return rotary
        if any(name.startswith("rope_factors") for name in self._file.stored):
            return replace(rotary, problem="rotary factors that depend on the length")
        factors = vector(self._file, "rope_freqs.weight", len(rotary.frequencies))
        if factors is None:
            return rotary
        return replace(rotary, frequencies=rotary.frequencies / factors.astype(np.float64))

    def _uses(self) -> int:
        if not self._layout.shared or self._settings.layers is None:
            return 1
        return max(self._settings.layers // (self._settings.groups or 1), 1)


def read(
    path: str | Path,
    *,
    family: str | None = None,
    prefix: str | None = None,
    heads: int | None = None,
    key_heads: int | None = None,
    head_width: int | None = None,
    pre_norm: bool | None = None,
    rotary_width: int | None = None,
    rotary_base: float | None = None,
    replica: int = 0,
) -> Checkpoint:
    """Open a model file, or a folder with one, for its query and key projections.

    Headers are checked against the file's size before anything is read; no code in a file is run.
    What config.json beside the weights (or GGUF metadata, or the notes of minattn's saves) says of
    heads and positions is used; an option comes before it, and stands in where there is none.

    Parameters
    ----------
    path : path
        A safetensors file, single or the index of shards; a GGUF file (needs `minattn[gguf]`); a
        save of `minattn.fit`; or a folder that holds one of these.
    family : str, optional
        Row of the table of layouts (`minattn.checkpoints.FAMILIES`). Found from config.json, or
        from the tensors' names where only one row fits them.
    prefix : str, optional
        What stands before every tensor name of the model, such as ``"language_model.model."``.
    heads, key_heads, head_width : int, optional
        Query heads H, key heads H_kv, and their width h. Two of them follow from the third and
        the shapes of the tensors.
    pre_norm : bool, optional
        Whether blocks have their norm before the projections.
    rotary_width : int, optional
        Components of a head that rotary positions turn.
    rotary_base : float, optional
    replica : int
        Which replica of minattn's own save.

    Returns
    -------
    Checkpoint
        Iterating it yields a `Layer` at a time.

    Raises
    ------
    ValueError
        If the file is missing, damaged or of a kind that would run code; if its layout is unknown
        (the error lists the attention tensors seen), or an option does not fit it.
    """
    path = checks.path("path", path)
    replica = checks.integer("replica", replica, minimum=0)
    if prefix is not None:
        checks.text("prefix", prefix)
    if family is not None:
        checks.one_of("family", family, FAMILIES)
    file, settings, gguf = open_model(path)
    settings = settings.with_options(
        heads=heads,
        key_heads=key_heads,
        head_width=head_width,
        pre_norm=pre_norm,
        rotary_width=rotary_width,
        rotary_base=rotary_base,
    )
    layout, found_prefix = choose(file, settings, family, prefix, gguf)
    return Checkpoint(file, settings, layout, found_prefix, replica)

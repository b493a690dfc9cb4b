"""What tensors alone do not say: heads, rotary positions, where norms act.

From config.json, GGUF metadata or the notes of minattn's own saves, all brought to the same names;
what the caller says comes before them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from minattn import checks
from minattn.checkpoints.layouts import Layout
from minattn.checkpoints.rotary import Rotary, make
from minattn.checkpoints.tensors import damaged

# By our name, the names that models use, the first found first.
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")
_NAMES: dict[str, tuple[str, ...]] = {
    "heads": _HEADS,
    "decoder_heads": ("decoder_attention_heads",),
    "key_heads": ("num_key_value_heads",),
    "head_width": ("head_dim", "d_kv"),
    "layers": ("num_hidden_layers",),
    "groups": ("num_hidden_groups",),
    "rotary_width": ("rotary_dim",),
}


@dataclass(frozen=True)
class Settings:
    """Everything that decides how tensors are read; None where it is not known."""

    model_type: str | None = None
    heads: int | None = None
    decoder_heads: int | None = None  # where they differ from the encoder's
    key_heads: int | None = None
    head_width: int | None = None
    layers: int | None = None
    groups: int | None = None  # stored layers that the model's layers share
    is_decoder: bool = False
    pre_norm: bool | None = None
    flags: dict[str, bool] = field(default_factory=dict)
    rotary_width: int | None = None  # rotated components of a head
    rotary_share: float | None = None
    rotary_base: float | None = None
    scaling: dict[str, Any] = field(default_factory=dict)
    local_base: float | None = None  # of the layers with a sliding window, where it differs
    global_every: int | None = None
    layer_types: tuple[str, ...] = ()

    def with_options(self, **options: Any) -> Settings:
        """Put what the caller says in the place of what the file says."""
        given = {name: value for name, value in options.items() if value is not None}
        for name in ("heads", "key_heads", "head_width", "rotary_width"):
            if name in given:
                given[name] = checks.integer(name, given[name], minimum=1)
        if "rotary_base" in given:
            given["rotary_base"] = checks.positive("rotary_base", given["rotary_base"])
        if "pre_norm" in given:
            given["pre_norm"] = checks.flag("pre_norm", given["pre_norm"])
        decoder = None if "heads" in given else self.decoder_heads
        return replace(self, **given, decoder_heads=decoder)

    def is_pre_norm(self, layout: Layout) -> bool:
        """Whether norms of this layout sit right before the projections."""
        if self.pre_norm is not None:
            return self.pre_norm
        if layout.pre_norm_if:
            return self.flags.get(layout.pre_norm_if, False)
        return any(tower.norm for tower in layout.towers)

    def rotary(self, layout: Layout, layer: int, head_width: int) -> Rotary | None:
        """Return the rotary positions of a layer, or None where the layout has none."""
        if not layout.rotary:
            return None
        share = layout.rotary_share if self.rotary_share is None else self.rotary_share
        width = self.rotary_width or int(share * head_width)
        base = 10_000.0 if self.rotary_base is None else self.rotary_base
        if self.local_base is not None and not self._is_global(layer):
            base = self.local_base
        return make(width, base, self.scaling, layout.rotary == "interleaved")

    def _is_global(self, layer: int) -> bool:
        if layer < len(self.layer_types):
            return self.layer_types[layer] == "full_attention"
        return layer % (self.global_every or 1) == 0


def from_config(path: Path, config: dict[str, Any]) -> Settings:
    """Read config.json's table.

    Raises
    ------
    ValueError
        If a setting is not of the kind it has to be.
    """
    values: dict[str, Any] = {}
    for ours, theirs in _NAMES.items():
        found = [config[name] for name in theirs if config.get(name) is not None]
        if found:
            if type(found[0]) is not int or not 0 < found[0] < 2**31:
                damaged(path, f"{found[0]!r:.40} for one of {', '.join(theirs)}")
            values[ours] = found[0]
    model_type = config.get("model_type")
    if model_type is not None and not isinstance(model_type, str):
        damaged(path, f"the model_type {model_type!r:.40}")
    flags = {name: value for name, value in config.items() if isinstance(value, bool)}
    is_decoder = flags.get("is_decoder", False)
    return Settings(model_type, is_decoder=is_decoder, flags=flags, **values, **_rope(path, config))


def _rope(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Read what config.json says on rotary positions, in its older and newer form."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        damaged(path, f"rotary settings {rope!r:.40}")
    sliding: dict[str, Any] = {}
    if isinstance(rope.get("full_attention"), dict):
        told = rope.get("sliding_attention")
        sliding = {"local_rope_theta": told.get("rope_theta")} if isinstance(told, dict) else {}
        rope = rope["full_attention"]
    theta = ("rope_theta", "rotary_emb_base", "global_rope_theta")
    base = _number(path, rope, config, theta)
    share = _number(path, rope, config, ("partial_rotary_factor", "rotary_pct"))
    every, types = config.get("global_attn_every_n_layers"), config.get("layer_types")
    return {
        "rotary_base": base,
        "rotary_share": share,
        "scaling": rope,
        "local_base": _number(path, sliding, config, ("local_rope_theta",)),
        "global_every": every if isinstance(every, int) else None,
        "layer_types": tuple(types) if isinstance(types, list) else (),
    }


def _number(
    path: Path, rope: dict[str, Any], config: dict[str, Any], names: tuple[str, ...]
) -> float | None:
    for table in (rope, config):
        for name in names:
            value = table.get(name)
            if value is not None:
                # Within these limits float() cannot fail, nor int() of a share of a head.
                if isinstance(value, bool) or not isinstance(value, (int, float)):
                    damaged(path, f"{value!r:.40} for {name}")
                if not abs(value) < 1e15:
                    damaged(path, f"{name} out of all bounds")
                return float(value)
    return None


def from_gguf(path: Path, metadata: dict[str, Any]) -> Settings:
    """Read GGUF metadata.

    Raises
    ------
    ValueError
        If layers differ in their number of heads, or a setting is not a number.
    """
    kind = metadata.get("general.architecture")
    if not isinstance(kind, str):
        damaged(path, "no general.architecture")
    names = {
        "heads": "attention.head_count",
        "key_heads": "attention.head_count_kv",
        "head_width": "attention.key_length",
        "rotary_width": "rope.dimension_count",
    }
    values: dict[str, Any] = {ours: metadata.get(f"{kind}.{name}") for ours, name in names.items()}
    for ours, value in values.items():
        if isinstance(value, list) and len(set(value)) == 1:
            value = values[ours] = value[0]
        if value is not None and (type(value) is not int or not 0 < value < 2**31):
            damaged(path, f"{value!r:.40} for {kind}.{names[ours]}")
    base = metadata.get(f"{kind}.rope.freq_base")
    scaling = {
        "rope_type": metadata.get(f"{kind}.rope.scaling.type"),
        "factor": metadata.get(f"{kind}.rope.scaling.factor"),
    }
    if scaling["rope_type"] == "none":
        scaling = {}
    number = float(base) if isinstance(base, (int, float)) else None
    return Settings(kind, rotary_base=number, scaling=scaling, **values)


def from_notes(path: Path, notes: str) -> Settings:
    """Read the notes of minattn's own saves; those of `fit` hold the model's config.

    Raises
    ------
    ValueError
        If they are not what minattn writes.
    """
    try:
        settings = json.loads(notes).get("settings", {})
        pre_norm = settings.get("config", {}).get("norm") == "pre"
        bidirectional = "bidirectional" in json.dumps(settings.get("objective"))
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        damaged(path, f"notes that minattn did not write: {error!s:.60}")
    return Settings("minattn", is_decoder=not bidirectional, flags={"pre_norm": pre_norm})

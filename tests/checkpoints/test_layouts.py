"""Every family's own file layout, against raw attention scores computed without the table."""

import dataclasses
import importlib.util

import by_hand
import numpy as np
import pytest

from minattn.checkpoints import FAMILIES, LAYOUTS, detection, read, score, score_heads
from minattn.scores import scores

GGUF = [
    pytest.param(
        family,
        id=family.name,
        marks=pytest.mark.skipif(
            importlib.util.find_spec("gguf") is None, reason="needs minattn[gguf]"
        ),
    )
    for family in by_hand.GGUF_FAMILIES
]
ALL = [pytest.param(family, id=family.name) for family in by_hand.FAMILIES] + GGUF


def options(family):
    return {"heads": by_hand.HEADS} if family.name == "timm_vit" else {}


def check(layers, family, made):
    """Compare raw scores, and scores, of every layer with the model's own."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 3, by_hand.D))
    layers = list(layers)
    assert len(layers) == by_hand.LAYERS * len(family.towers)
    for layer in layers:

        def raw(x, y, tower=layer.tower, index=layer.index):
            return by_hand.raw_scores(family, made, tower, index, x, y)

        assert layer.W_q.shape == (by_hand.D, by_hand.HEADS, by_hand.WIDTH)
        assert layer.W_k.shape == (by_hand.D, family.key_heads, by_hand.WIDTH)
        expected = raw(x, y)
        tolerance = {"rtol": 1e-9, "atol": 1e-9 * np.abs(expected).max()}
        np.testing.assert_allclose(layer.raw_scores(x, y), expected, **tolerance)
        M = by_hand.bilinear(raw)
        np.testing.assert_allclose(score(layer), scores(M.sum(axis=0)), rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(score_heads(layer), scores(M), rtol=1e-7, atol=1e-9)


@pytest.fixture
def write(tmp_path):
    def write(family, seed=0):
        made = by_hand.tensors(family, seed)
        return by_hand.write(tmp_path / family.name, family, made), made

    return write


@pytest.mark.parametrize("family", ALL)
def test_scores_are_those_of_the_models_own_raw_scores(family, write):
    path, made = write(family)
    checkpoint = read(path, **options(family))
    assert checkpoint.family == (family.family or family.name)
    assert checkpoint.towers == dict.fromkeys(family.towers, by_hand.LAYERS)
    check(checkpoint, family, made)


def altered(layout):
    """Yield wrong rows: queries and keys exchanged, orientation and packing mistaken."""
    exchanged = [dataclasses.replace(t, query=t.key, key=t.query) for t in layout.towers if t.key]
    if exchanged:
        yield dataclasses.replace(layout, towers=tuple(exchanged))
    yield dataclasses.replace(layout, transposed=not layout.transposed)
    other = {"thirds": "per_head", "per_head": "thirds"}.get(layout.packing)
    if other:
        yield dataclasses.replace(layout, packing=other)


@pytest.mark.parametrize("family", ALL)
def test_a_wrong_row_of_the_table_is_caught(family, write, monkeypatch):
    path, made = write(family)
    right = next(
        layout
        for layout in LAYOUTS
        if layout.family == (family.family or family.name)
        and layout.gguf == bool(family.gguf)
        and (not layout.model_types or not family.gguf or family.gguf in layout.model_types)
    )
    wrong_rows = list(altered(right))
    assert len(wrong_rows) == 2
    for wrong in wrong_rows:
        monkeypatch.setattr(detection, "LAYOUTS", (wrong,))
        with pytest.raises(
            (AssertionError, ValueError), match=r"Not equal|rows in|one width|shape|12, 4, 3"
        ):
            check(read(path, **options(family)), family, made)


def mistaken(layer):
    """Yield layers as a careless reader would make them."""
    d, H, h = layer.W_q.shape
    replace = dataclasses.replace
    yield "interleaved", replace(layer, W_q=layer.W_q.reshape(d, h, H).swapaxes(1, 2))
    yield (
        "keys interleaved",
        replace(layer, W_k=layer.W_k.reshape(d, h, layer.key_heads).swapaxes(1, 2)),
    )
    yield "mispaired", replace(layer, W_k=np.roll(layer.W_k, 1, axis=1))
    if layer.key_heads < H:
        yield "paired as published", layer.as_published()
    else:
        yield "swapped", replace(layer, W_q=layer.W_k, W_k=layer.W_q, b_q=layer.b_k, b_k=layer.b_q)
    flat = layer.W_q.reshape(d, H * h)
    yield "transposed", replace(layer, W_q=flat.T.reshape(d, H, h))


@pytest.mark.parametrize("family", ALL)
def test_a_wrong_order_of_heads_is_caught(family, write):
    path, made = write(family)
    layers = [dict(mistaken(layer)) for layer in read(path, **options(family))]
    assert len(layers[0]) == 5
    for name in layers[0]:
        wrong = [mistakes[name] for mistakes in layers]
        with pytest.raises(AssertionError, match=r"Not equal to tolerance"):
            check(wrong, family, made)


def test_every_row_of_the_table_has_a_file():
    written = {(family.family or family.name, bool(family.gguf)) for family in by_hand.FAMILIES}
    written |= {(family.family, True) for family in by_hand.GGUF_FAMILIES}
    rows = {(layout.family, layout.gguf) for layout in LAYOUTS}
    assert rows - written == {("minattn", False)}  # whose saves test_reader.py reads
    assert {family for family, _ in rows} == set(FAMILIES)


@pytest.mark.parametrize("family", [f for f in ALL if not f.values[0].gguf])
def test_names_alone_are_enough_where_they_can_be(family, write):
    path, made = write(family)
    (path / "config.json").unlink()
    layers = list(read(path, heads=by_hand.HEADS, key_heads=family.key_heads))
    assert {layer.tower for layer in layers} == set(family.towers)
    assert layers[0].family == (family.family or family.name)
    x = np.eye(by_hand.D)[:2]
    expected = by_hand.raw_scores(family, made, layers[0].tower, 0, x, x)
    np.testing.assert_allclose(layers[0].raw_scores(x), expected, rtol=1e-9)


NORMS = {  # by family and tower: what stands right before the projections
    "vit": {"encoder": "vit.encoder.layer.{}.layernorm_before"},
    "t5": {
        "encoder": "encoder.block.{}.layer.0.layer_norm",
        "decoder": "decoder.block.{}.layer.0.layer_norm",
        "cross": "decoder.block.{}.layer.1.layer_norm",
    },
    "whisper": {
        "encoder": "model.encoder.layers.{}.self_attn_layer_norm",
        "decoder": "model.decoder.layers.{}.self_attn_layer_norm",
        "cross": "model.decoder.layers.{}.encoder_attn_layer_norm",
    },
    "llama": {"decoder": "model.layers.{}.input_layernorm"},
    "phi": {"decoder": "model.layers.{}.input_layernorm"},
    "gpt_neo": {"decoder": "transformer.h.{}.ln_1"},
    "gptj": {"decoder": "transformer.h.{}.ln_1"},
    "gpt2": {"decoder": "transformer.h.{}.ln_1"},
    "timm_vit": {"encoder": "blocks.{}.norm1"},
    "modernbert": {"encoder": "model.layers.{}.attn_norm"},
    "phi3": {"decoder": "model.layers.{}.input_layernorm"},
    "gpt_neox": {"decoder": "gpt_neox.layers.{}.input_layernorm"},
    "bloom": {"decoder": "transformer.h.{}.input_layernorm"},
    "llama_gguf": {"decoder": "blk.{}.attn_norm"},
    "t5_gguf": {
        "encoder": "enc.blk.{}.attn_norm",
        "decoder": "dec.blk.{}.attn_norm",
        "cross": "dec.blk.{}.cross_attn_norm",
    },
    "gptneox_gguf": {"decoder": "blk.{}.attn_norm"},
}
KEY_NORMS = {
    "t5": "encoder.final_layer_norm",
    "whisper": "model.encoder.layer_norm",
    "t5_gguf": "enc.output_norm",
}
HALVES = "llama mistral mixtral qwen2 phi phi3 modernbert gpt_neox"
HALVES += " qwen2_gguf phi2_gguf phi3_gguf gptneox_gguf"
INTERLEAVED = {"llama_gguf": True, "gptj": True} | dict.fromkeys(HALVES.split(), False)


@pytest.mark.parametrize("family", ALL)
def test_norms_and_positions_are_found_where_the_family_has_them(family, tmp_path):
    rng = np.random.default_rng(3)
    made = by_hand.tensors(family)
    stems = NORMS.get(family.name, {})
    for layer in range(by_hand.LAYERS):
        for stem in stems.values():
            made[f"{stem.format(layer)}.weight"] = rng.normal(size=by_hand.D)
            made[f"{stem.format(layer)}.bias"] = rng.normal(size=by_hand.D)
    if family.name in KEY_NORMS:
        made[f"{KEY_NORMS[family.name]}.weight"] = rng.normal(size=by_hand.D)
    for layer in read(by_hand.write(tmp_path / "model", family, made), **options(family)):
        if stems:
            stem = stems[layer.tower].format(layer.index)
            np.testing.assert_array_equal(layer.norm.gain, made[f"{stem}.weight"])
            np.testing.assert_array_equal(layer.norm.shift, made[f"{stem}.bias"])
            assert layer.folded().form == ("norm folded in",)
        if layer.tower == "cross" and family.name in KEY_NORMS:
            gain = made[f"{KEY_NORMS[family.name]}.weight"]
            np.testing.assert_array_equal(layer.key_norm.gain, gain)
        assert (layer.rotary is not None) == (family.name in INTERLEAVED)
        if layer.rotary is not None:
            assert layer.rotary.interleaved == INTERLEAVED[family.name]

"""Tiny files in each family's own layout, and raw scores straight from their documented forward.

Nothing here looks at minattn's table of layouts: tensor names are written out, and queries and keys
are computed as each model's documentation says.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from safetensors.numpy import save_file

D, HEADS, WIDTH, LAYERS = 12, 4, 3, 2


@dataclass(frozen=True)
class Family:
    """How one family stores its attention."""

    name: str
    config: dict
    towers: dict  # by tower: stems of query and key, or of the one tensor that has both
    how: str = "linear"  # "linear", "conv1d", "thirds", "per_head"
    biases: str = "qk"  # which of queries and keys have one
    key_heads: int = HEADS
    others: tuple = ()  # vectors (D,), such as norms
    mark: str = ""
    family: str = ""  # in minattn, where it is another row's
    gguf: str = ""  # architecture
    metadata: dict = field(default_factory=dict)


def _sub(stem):
    return {"encoder": (f"{stem}.query", f"{stem}.key")}


def _proj(tower, stem):
    return {tower: (f"{stem}.q_proj", f"{stem}.k_proj")}


def _bart(prefix):
    return (
        _proj("encoder", prefix + "encoder.layers.{}.self_attn")
        | _proj("decoder", prefix + "decoder.layers.{}.self_attn")
        | _proj("cross", prefix + "decoder.layers.{}.encoder_attn")
    )


_T5 = {
    "encoder": tuple(f"encoder.block.{{}}.layer.0.SelfAttention.{x}" for x in "qk"),
    "decoder": tuple(f"decoder.block.{{}}.layer.0.SelfAttention.{x}" for x in "qk"),
    "cross": tuple(f"decoder.block.{{}}.layer.1.EncDecAttention.{x}" for x in "qk"),
}
_BLK = {"decoder": ("blk.{}.attn_q", "blk.{}.attn_k")}
_QKV = {"decoder": ("blk.{}.attn_qkv",)}
_HEADS = {"num_attention_heads": HEADS}
_GROUPED = _HEADS | {"num_key_value_heads": 2}
_ROPE_NORM = ("model.layers.{}.input_layernorm.weight",)

FAMILIES = (
    Family("bert", {"model_type": "bert"} | _HEADS,
           _sub("bert.encoder.layer.{}.attention.self")),
    Family("roberta", {"model_type": "roberta"} | _HEADS,
           _sub("roberta.encoder.layer.{}.attention.self"), family="bert"),
    Family("distilbert", {"model_type": "distilbert", "n_heads": HEADS},
           {"encoder": tuple(f"distilbert.transformer.layer.{{}}.attention.{x}_lin"
                             for x in "qk")}),
    Family("albert", {"model_type": "albert", "num_hidden_layers": 12, "num_hidden_groups": 2}
           | _HEADS, _sub("albert.encoder.albert_layer_groups.{}.albert_layers.0.attention")),
    Family("vit", {"model_type": "vit"} | _HEADS,
           _sub("vit.encoder.layer.{}.attention.attention"),
           others=("vit.encoder.layer.{}.layernorm_before.weight",)),
    Family("t5", {"model_type": "t5", "num_heads": HEADS, "d_kv": WIDTH}, _T5, biases=""),
    Family("bart", {"model_type": "bart", "encoder_attention_heads": HEADS,
                    "decoder_attention_heads": HEADS}, _bart("model."),
           mark="model.encoder.layernorm_embedding.weight"),
    Family("whisper", {"model_type": "whisper", "encoder_attention_heads": HEADS,
                       "decoder_attention_heads": HEADS}, _bart("model."), biases="q",
           mark="model.encoder.conv1.weight"),
    Family("wav2vec2", {"model_type": "wav2vec2"} | _HEADS,
           _proj("encoder", "wav2vec2.encoder.layers.{}.attention")),
    Family("hubert", {"model_type": "hubert"} | _HEADS,
           _proj("encoder", "hubert.encoder.layers.{}.attention"), family="wav2vec2"),
    Family("llama", {"model_type": "llama", "head_dim": WIDTH} | _GROUPED,
           _proj("decoder", "model.layers.{}.self_attn"), biases="", key_heads=2,
           others=_ROPE_NORM, mark="model.layers.0.self_attn.o_proj.weight"),
    Family("mistral", {"model_type": "mistral"} | _GROUPED,
           _proj("decoder", "model.layers.{}.self_attn"), biases="", key_heads=2, family="llama",
           mark="model.layers.0.self_attn.o_proj.weight"),
    Family("mixtral", {"model_type": "mixtral"} | _GROUPED,
           _proj("decoder", "model.layers.{}.self_attn"), biases="", key_heads=2, family="llama",
           mark="model.layers.0.self_attn.o_proj.weight"),
    Family("qwen2", {"model_type": "qwen2"} | _GROUPED,
           _proj("decoder", "model.layers.{}.self_attn"), key_heads=2, family="llama",
           mark="model.layers.0.self_attn.o_proj.weight"),
    Family("phi", {"model_type": "phi"} | _HEADS,
           _proj("decoder", "model.layers.{}.self_attn"), others=_ROPE_NORM,
           mark="model.layers.0.self_attn.dense.weight"),
    Family("gpt_neo", {"model_type": "gpt_neo", "num_heads": HEADS},
           _proj("decoder", "transformer.h.{}.attn.attention"), biases=""),
    Family("gptj", {"model_type": "gptj", "n_head": HEADS, "rotary_dim": 2},
           _proj("decoder", "transformer.h.{}.attn"), biases=""),
    Family("gpt2", {"model_type": "gpt2", "n_head": HEADS},
           {"decoder": ("transformer.h.{}.attn.c_attn",)}, "conv1d",
           others=("transformer.h.{}.attn.masked_bias",)),
    Family("timm_vit", {"architecture": "vit_tiny"}, {"encoder": ("blocks.{}.attn.qkv",)},
           "thirds"),
    Family("modernbert", {"model_type": "modernbert"} | _HEADS,
           {"encoder": ("model.layers.{}.attn.Wqkv",)}, "thirds", biases=""),
    Family("phi3", {"model_type": "phi3"} | _GROUPED,
           {"decoder": ("model.layers.{}.self_attn.qkv_proj",)}, "thirds", biases="", key_heads=2,
           others=_ROPE_NORM),
    Family("gpt_neox", {"model_type": "gpt_neox"} | _HEADS,
           {"decoder": ("gpt_neox.layers.{}.attention.query_key_value",)}, "per_head"),
    Family("bloom", {"model_type": "bloom", "n_head": HEADS},
           {"decoder": ("transformer.h.{}.self_attention.query_key_value",)}, "per_head",
           mark="transformer.word_embeddings_layernorm.weight"),
)  # fmt: skip

GGUF_FAMILIES = (
    Family("llama_gguf", {}, _BLK, biases="", key_heads=2, family="llama", gguf="llama"),
    Family("qwen2_gguf", {}, _BLK, key_heads=2, family="llama", gguf="qwen2"),
    Family("phi2_gguf", {}, _BLK, family="phi", gguf="phi2"),
    Family("bert_gguf", {}, {"encoder": _BLK["decoder"]}, family="bert", gguf="bert"),
    Family("t5_gguf", {}, {"encoder": ("enc.blk.{}.attn_q", "enc.blk.{}.attn_k"),
                           "decoder": ("dec.blk.{}.attn_q", "dec.blk.{}.attn_k"),
                           "cross": ("dec.blk.{}.cross_attn_q", "dec.blk.{}.cross_attn_k")},
           biases="", family="t5", gguf="t5"),
    Family("gpt2_gguf", {}, _QKV, "thirds", family="gpt2", gguf="gpt2"),
    Family("bloom_gguf", {}, _QKV, "thirds", family="bloom", gguf="bloom"),
    Family("gptneox_gguf", {}, _QKV, "thirds", family="gpt_neox", gguf="gptneox"),
    Family("phi3_gguf", {}, _QKV, "thirds", biases="", key_heads=2, family="phi3", gguf="phi3"),
)  # fmt: skip


def tensors(family, seed=0, dtype=np.float64):
    """Draw every tensor of a file, under the family's own names."""
    rng = np.random.default_rng(seed)
    made = {}

    def draw(name, *shape):
        # Columns of different size, so that no score is near zero.
        made[name] = (rng.normal(size=shape) * rng.lognormal(size=shape[-1])).astype(dtype)

    rows = {"q": HEADS * WIDTH, "k": family.key_heads * WIDTH}
    for layer in range(LAYERS):
        for stems in family.towers.values():
            if len(stems) == 1:
                total = (HEADS + 2 * family.key_heads) * WIDTH
                shape = (D, total) if family.how == "conv1d" else (total, D)
                draw(stems[0].format(layer) + ".weight", *shape)
                if family.biases:
                    draw(stems[0].format(layer) + ".bias", total)
                continue
            for side, stem in zip("qk", stems, strict=True):
                draw(stem.format(layer) + ".weight", rows[side], D)
                if side in family.biases:
                    draw(stem.format(layer) + ".bias", rows[side])
        for name in family.others:
            draw(name.format(layer), D)
    if family.mark:
        draw(family.mark, D)
    return made


def raw_scores(family, made, tower, layer, x, y):
    """Return q_i . k_j of every head (H, N, M), as the model itself computes them."""
    stems = [stem.format(layer) for stem in family.towers[tower]]

    def linear(stem, rows):
        weight, bias = made[f"{stem}.weight"], made.get(f"{stem}.bias", 0.0)
        return rows @ weight + bias if family.how == "conv1d" else rows @ weight.T + bias

    H, G, h = HEADS, family.key_heads, WIDTH
    scores = np.zeros((H, len(x), len(y)))
    for i, j, head in np.ndindex(len(x), len(y), H):
        key_head = head // (H // G)
        if len(stems) == 2:
            q = linear(stems[0], x[i])[head * h : (head + 1) * h]
            k = linear(stems[1], y[j])[key_head * h : (key_head + 1) * h]
        elif family.how == "per_head":
            q = linear(stems[0], x[i]).reshape(H, 3, h)[head, 0]
            k = linear(stems[0], y[j]).reshape(H, 3, h)[head, 1]
        else:
            q = linear(stems[0], x[i])[head * h : (head + 1) * h]
            start = H * h + key_head * h
            k = linear(stems[0], y[j])[start : start + h]
        scores[head, i, j] = sum(a * b for a, b in zip(q, k, strict=True))
    return scores


def bilinear(raw):
    """Return M (H, d, d) from raw scores alone: what is left when each side's offset is taken off.

    `raw` maps rows x and y to scores (H, N, M); M_mk is the second difference at e_m and e_k.
    """
    rows = np.vstack([np.zeros(D), np.eye(D)])
    S = raw(rows, rows)
    return S[:, 1:, 1:] - S[:, 1:, :1] - S[:, :1, 1:] + S[:, :1, :1]


def write(folder, family, made):
    """Write the model's file, with its config.json; return the path to read."""
    import json

    folder.mkdir(exist_ok=True)
    if family.gguf:
        return _write_gguf(folder / "model.gguf", family, made)
    save_file(made, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(family.config))
    return folder


def _write_gguf(path, family, made):
    import gguf

    writer = gguf.GGUFWriter(path, family.gguf)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(family.key_heads)
    writer.add_rope_dimension_count(2)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_array("tokenizer.ggml.scores", [0.5] * 5000)
    for name, value in made.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

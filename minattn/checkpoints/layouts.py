"""The table of layouts: under which names, and in which order, files keep W_q and W_k.

Names are those of the files that the model's own library writes; `{l}` is the number of the layer.
A stem stands for `stem.weight` and `stem.bias`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tower:
    """Where one tower's layers are: stems of tensor names."""

    name: str  # "encoder", "decoder" or "cross"
    query: str
    key: str = ""  # empty where one tensor holds queries, keys and values
    norm: str = ""  # right before the projections: pre-norm blocks only
    key_norm: str = ""  # right before the keys of cross-attention


@dataclass(frozen=True)
class Layout:
    """One row of the table."""

    family: str
    model_types: tuple[str, ...]  # config.json's model_type, or GGUF's general.architecture
    towers: tuple[Tower, ...]
    prefixes: tuple[str, ...] = ("",)  # before every stem
    packing: str = "separate"
    # "thirds": rows [all queries; all keys; all values], of grouped widths where keys are fewer.
    # "per_head": rows [query; key; value] of head 0, then of head 1, and so on.
    transposed: bool = False  # stored (in, out), as Conv1D does; nn.Linear stores (out, in)
    mark: str = ""  # a tensor that others with the same stems lack; decides when config.json cannot
    rotary: str = ""  # "halves" or "interleaved": which components are turned together
    rotary_share: float = 1.0  # of a head's components, unless the settings say
    pre_norm_if: str = ""  # the setting that makes blocks of this family pre-norm
    bare_first: bool = False  # whether the first layer takes normalised embeddings as they are
    shared: bool = False  # whether layers of the model share a stored one
    refused: tuple[str, ...] = ()  # stems of norms after the projections: no bilinear form is left
    own: bool = False  # minattn's own names: W_q and b_q, gain and shift, with a replica axis
    gguf: bool = False


def _pair(stem: str, query: str = "q_proj", key: str = "k_proj") -> tuple[str, str]:
    return f"{stem}.{query}", f"{stem}.{key}"


_DECODER_NORMS = ("layers.{l}.self_attn.q_norm", "layers.{l}.self_attn.q_layernorm")
_GGUF_NORMS = ("blk.{l}.attn_q_norm",)


def _bart(norms: bool) -> tuple[Tower, ...]:
    """Return the towers of BART and Whisper, which differ in where their norms act."""
    towers = []
    for name, part, attention in (
        ("encoder", "encoder", "self_attn"),
        ("decoder", "decoder", "self_attn"),
        ("cross", "decoder", "encoder_attn"),
    ):
        stem = f"{part}.layers.{{l}}.{attention}"
        norm = f"{stem}_layer_norm" if norms else ""
        key_norm = "encoder.layer_norm" if norms and name == "cross" else ""
        towers.append(Tower(name, *_pair(stem), norm, key_norm))
    return tuple(towers)


_T5 = tuple(
    Tower(name, *_pair(f"{stem}.{attention}", "q", "k"), f"{stem}.layer_norm", key_norm)
    for name, stem, attention, key_norm in (
        ("encoder", "encoder.block.{l}.layer.0", "SelfAttention", ""),
        ("decoder", "decoder.block.{l}.layer.0", "SelfAttention", ""),
        ("cross", "decoder.block.{l}.layer.1", "EncDecAttention", "encoder.final_layer_norm"),
    )
)
_T5_GGUF = tuple(
    Tower(name, f"{stem}_q", f"{stem}_k", f"{stem}_norm", key_norm)
    for name, stem, key_norm in (
        ("encoder", "enc.blk.{l}.attn", ""),
        ("decoder", "dec.blk.{l}.attn", ""),
        ("cross", "dec.blk.{l}.cross_attn", "enc.output_norm"),
    )
)
_LLAMA = Tower("decoder", *_pair("layers.{l}.self_attn"), "layers.{l}.input_layernorm")
_GGUF = Tower("decoder", "blk.{l}.attn_q", "blk.{l}.attn_k", "blk.{l}.attn_norm")
_GGUF_FUSED = Tower("decoder", "blk.{l}.attn_qkv", "", "blk.{l}.attn_norm")

# fmt: off
LAYOUTS: tuple[Layout, ...] = (
    # Separate W_q and W_k
    Layout("bert", ("bert", "roberta", "xlm-roberta", "camembert", "electra"),
           (Tower("encoder", *_pair("encoder.layer.{l}.attention.self", "query", "key")),
            Tower("cross", *_pair("encoder.layer.{l}.crossattention.self", "query", "key"))),
           ("", "bert.", "roberta.", "electra.")),
    Layout("distilbert", ("distilbert",),
           (Tower("encoder", *_pair("transformer.layer.{l}.attention", "q_lin", "k_lin")),),
           ("", "distilbert.")),
    Layout("albert", ("albert",),
           (Tower("encoder", *_pair("encoder.albert_layer_groups.{g}.albert_layers.{l}.attention",
                                    "query", "key")),),
           ("", "albert."), shared=True),
    Layout("vit", ("vit", "deit"),
           (Tower("encoder", *_pair("encoder.layer.{l}.attention.attention", "query", "key"),
                  "encoder.layer.{l}.layernorm_before"),),
           ("", "vit.", "deit.")),
    Layout("t5", ("t5", "mt5"), _T5),
    Layout("bart", ("bart",), _bart(norms=False), ("", "model."),
           mark="encoder.layernorm_embedding.weight"),
    Layout("whisper", ("whisper",), _bart(norms=True), ("", "model."),
           mark="encoder.conv1.weight"),
    Layout("wav2vec2", ("wav2vec2", "hubert"),
           (Tower("encoder", *_pair("encoder.layers.{l}.attention"),
                  "encoder.layers.{l}.layer_norm"),),
           ("", "wav2vec2.", "hubert."), pre_norm_if="do_stable_layer_norm"),
    Layout("llama", ("llama", "mistral", "mixtral", "qwen2"), (_LLAMA,), ("", "model."),
           mark="layers.0.self_attn.o_proj.weight", rotary="halves", refused=_DECODER_NORMS),
    Layout("phi", ("phi",), (_LLAMA,), ("", "model."),
           mark="layers.0.self_attn.dense.weight", rotary="halves", rotary_share=0.5,
           refused=_DECODER_NORMS),
    Layout("gpt_neo", ("gpt_neo",),
           (Tower("decoder", *_pair("h.{l}.attn.attention"), "h.{l}.ln_1"),),
           ("", "transformer.")),
    Layout("gptj", ("gptj",),
           (Tower("decoder", *_pair("h.{l}.attn"), "h.{l}.ln_1"),),
           ("", "transformer."), rotary="interleaved"),
    Layout("minattn", ("minattn",),
           (Tower("encoder", "layers.{l}.W_q", "layers.{l}.W_k", "layers.{l}.norm_attention"),),
           ("", "params."), pre_norm_if="pre_norm", own=True),
    # One tensor: all queries, all keys, all values
    Layout("gpt2", ("gpt2",),
           (Tower("decoder", "h.{l}.attn.c_attn", "", "h.{l}.ln_1"),),
           ("", "transformer."), packing="thirds", transposed=True),
    Layout("timm_vit", (),
           (Tower("encoder", "blocks.{l}.attn.qkv", "", "blocks.{l}.norm1"),),
           packing="thirds", refused=("blocks.{l}.attn.q_norm",)),
    Layout("modernbert", ("modernbert",),
           (Tower("encoder", "layers.{l}.attn.Wqkv", "", "layers.{l}.attn_norm"),),
           ("", "model."), packing="thirds", rotary="halves", bare_first=True),
    Layout("phi3", ("phi3",),
           (Tower("decoder", "layers.{l}.self_attn.qkv_proj", "", "layers.{l}.input_layernorm"),),
           ("", "model."), packing="thirds", rotary="halves", refused=_DECODER_NORMS),
    # One tensor: query, key and value of each head in turn
    Layout("gpt_neox", ("gpt_neox",),
           (Tower("decoder", "layers.{l}.attention.query_key_value", "",
                  "layers.{l}.input_layernorm"),),
           ("", "gpt_neox."), packing="per_head", rotary="halves", rotary_share=0.25),
    Layout("bloom", ("bloom",),
           (Tower("decoder", "h.{l}.self_attention.query_key_value", "",
                  "h.{l}.input_layernorm"),),
           ("", "transformer."), packing="per_head", mark="word_embeddings_layernorm.weight"),
    # GGUF, whose writer puts LLaMA's components in interleaved order, and unpacks heads
    Layout("llama", ("llama",), (_GGUF,), rotary="interleaved", refused=_GGUF_NORMS, gguf=True),
    Layout("llama", ("qwen2",), (_GGUF,), rotary="halves", refused=_GGUF_NORMS, gguf=True),
    Layout("phi", ("phi2",), (_GGUF,), rotary="halves", rotary_share=0.5, gguf=True),
    Layout("bert", ("bert",), (Tower("encoder", "blk.{l}.attn_q", "blk.{l}.attn_k"),), gguf=True),
    Layout("t5", ("t5", "t5encoder"), _T5_GGUF, gguf=True),
    Layout("gpt2", ("gpt2",), (_GGUF_FUSED,), packing="thirds", gguf=True),
    Layout("bloom", ("bloom",), (_GGUF_FUSED,), packing="thirds", gguf=True),
    Layout("gpt_neox", ("gptneox",), (_GGUF_FUSED,), packing="thirds", rotary="halves",
           rotary_share=0.25, gguf=True),
    Layout("phi3", ("phi3",), (_GGUF_FUSED,), packing="thirds", rotary="halves", gguf=True),
)
# fmt: on
FAMILIES = tuple(dict.fromkeys(layout.family for layout in LAYOUTS))

"""Files that the transformers library writes, against the attention that its models pay.

A model's attention module is fed rows of our choice. Differences of log attention weights within a
row are differences of its raw scores, and linear in the entries of W_qk: least squares recovers
W_qk from the weights alone, with no word on how the file is laid out.
"""

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, of the extra test-checkpoints")
T = pytest.importorskip("transformers", reason="needs transformers, of the extra test-checkpoints")

from minattn.checkpoints import read, score, score_heads  # noqa: E402
from minattn.scores import scores  # noqa: E402

D, HEADS, LAYERS, N = 12, 3, 2, 48
BASE = {"hidden_size": D, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
SMALL = BASE | {"intermediate_size": 8, "vocab_size": 32, "max_position_embeddings": 64}
GROUPED = SMALL | {"num_attention_heads": 6, "num_key_value_heads": 3, "pad_token_id": 0}
GPT = {"n_embd": D, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": 32, "n_positions": 64}
SEQ2SEQ = {
    "d_model": D, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "vocab_size": 32,
    "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip
TOKENS = {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
AUDIO = BASE | {
    "intermediate_size": 8, "vocab_size": 32, "conv_dim": (4,), "conv_kernel": (3,),
    "conv_stride": (2,), "num_feat_extract_layers": 1, "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "do_stable_layer_norm": True,
    "feat_extract_norm": "layer",
}  # fmt: skip

MODELS = {
    "bert": ("BertForMaskedLM", "BertConfig", SMALL),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", SMALL),
    "distilbert": ("DistilBertForMaskedLM", "DistilBertConfig",
                   {"dim": D, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 8,
                    "vocab_size": 32}),
    "albert": ("AlbertForMaskedLM", "AlbertConfig",
               SMALL | {"embedding_size": 6, "num_hidden_layers": 4, "num_hidden_groups": 2}),
    "vit": ("ViTForImageClassification", "ViTConfig",
            BASE | {"intermediate_size": 8, "image_size": 28, "patch_size": 4}),
    "t5": ("T5ForConditionalGeneration", "T5Config",
           {"d_model": D, "d_kv": 5, "num_heads": HEADS, "num_layers": LAYERS, "d_ff": 8,
            "vocab_size": 32, "decoder_start_token_id": 0}),
    "bart": ("BartForConditionalGeneration", "BartConfig", SEQ2SEQ),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig",
                SEQ2SEQ | {"max_source_positions": N, "num_mel_bins": 4}),
    "wav2vec2": ("Wav2Vec2Model", "Wav2Vec2Config", AUDIO),
    "hubert": ("HubertModel", "HubertConfig", AUDIO),
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED | {"head_dim": 4}),
    "mistral": ("MistralForCausalLM", "MistralConfig", GROUPED),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", GROUPED | {"num_local_experts": 2}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    "phi": ("PhiForCausalLM", "PhiConfig", SMALL | {"num_attention_heads": 3}),
    "gpt_neo": ("GPTNeoForCausalLM", "GPTNeoConfig",
                {"hidden_size": D, "num_layers": LAYERS, "num_heads": HEADS, "vocab_size": 32,
                 "attention_types": [[["global"], LAYERS]], "intermediate_size": 8}),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", GPT | {"rotary_dim": 2}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig",
                   SMALL | TOKENS | {"pad_token_id": 0, "num_attention_heads": 2}),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", GROUPED),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", SMALL | {"rotary_pct": 0.5}),
    "bloom": ("BloomForCausalLM", "BloomConfig",
              {"hidden_size": D, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": 32}),
}  # fmt: skip
UNSCALED = ("t5", "gpt_neo")  # attention without 1 / sqrt(h)
ROTARY = ("llama", "mistral", "mixtral", "qwen2", "phi", "gptj", "modernbert", "phi3", "gpt_neox")
QUERIES = ("query", "q_proj", "q_lin", "q", "c_attn", "qkv", "Wqkv", "qkv_proj", "query_key_value")


@pytest.fixture(autouse=True)
def quiet():
    """Let other libraries' warnings be their own affair."""
    import warnings

    T.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def make(name):
    model_class, config_class, sizes = MODELS[name]
    torch.manual_seed(0)
    config = getattr(T, config_class)(**sizes)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = getattr(T, model_class)(config).double().eval()
    generator = torch.Generator().manual_seed(1)
    for parameter_name, value in model.named_parameters():
        if "relative_attention_bias" in parameter_name:  # a position term, not a score
            value.data.zero_()
        elif re.search("att|Att|qkv", parameter_name):
            value.data = 0.5 * torch.randn(value.shape, generator=generator, dtype=value.dtype)
    return model


def attention_modules(model):
    """Return modules that have a projection of queries, in the order of their layers."""
    found = []
    for name, module in model.named_modules():
        if any(isinstance(getattr(module, q, None), torch.nn.Module) for q in QUERIES):
            found.append((name, module))
    return found


def tower_of(name, module):
    if "encoder_attn" in name or "EncDec" in name:
        return "cross"
    if module.__class__.__name__.startswith(("T5", "Bart", "Whisper")):
        return "decoder" if "decoder" in name else "encoder"
    return None


def inputs(name, model, positions):
    ids = torch.arange(N)[None] % 30 + 1
    if name == "vit":
        return {"pixel_values": torch.randn(1, 3, 28, 28, dtype=torch.float64)}
    if name in ("wav2vec2", "hubert"):
        return {"input_values": torch.randn(1, 2 * N + 1, dtype=torch.float64)}
    if name == "whisper":
        features = torch.randn(1, 4, 2 * N, dtype=torch.float64)
        return {"input_features": features, "decoder_input_ids": ids}
    given = {"input_ids": ids}
    if name in ("t5", "bart"):
        given["decoder_input_ids"] = ids
    if name in ROTARY:
        given["position_ids"] = positions[None]
        given["attention_mask"] = torch.ones_like(ids)  # or equal positions part the sequence
    return given


def pay_attention(name, model, positions, replace=True):
    """Feed every attention module rows of ours; return (tower, x, y, weights) of each call."""
    rng = np.random.default_rng(2)
    fed = []

    def feed(module, args, kwargs):
        where = "hidden_states" if "hidden_states" in kwargs else None
        old = kwargs[where] if where else args[0]
        x = torch.tensor(rng.normal(size=old.shape)) if replace else old
        y = x
        if where:
            kwargs = kwargs | {"hidden_states": x}
        else:
            args = (x, *args[1:])
        for key in ("key_value_states", "encoder_hidden_states"):
            if kwargs.get(key) is not None:
                old = kwargs[key]
                y = torch.tensor(rng.normal(size=old.shape)) if replace else old
                kwargs = kwargs | {key: y}
        fed.append([module, x[0].numpy(), y[0].numpy()])
        return args, kwargs

    modules = attention_modules(model)
    hooks = [m.register_forward_pre_hook(feed, with_kwargs=True) for _, m in modules]
    with torch.no_grad():
        out = model(**inputs(name, model, positions), output_attentions=True, use_cache=False)
    for hook in hooks:
        hook.remove()
    names = {id(module): module_name for module_name, module in modules}
    kinds = ("encoder_attentions", "decoder_attentions", "cross_attentions", "attentions")
    weights = {
        kind.split("_")[0]: [w[0].numpy() for w in out[kind]]
        for kind in kinds
        if out.get(kind) is not None
    }
    calls = []
    for module, x, y in fed:
        tower = tower_of(names[id(module)], module)
        calls.append((tower, x, y, weights[tower or "attentions"].pop(0), names[id(module)]))
    return calls


def recover(x, y, A, scale):
    """Return W_qk (H, d, d) from attention weights A (H, N, M) alone."""
    rows, keys = np.hstack([x, np.ones((len(x), 1))]), y - y[0]
    found = []
    for weights in A:
        seen = (weights > 0) & (weights[:, :1] > 0)
        seen[:, 0] = False
        i, j = np.nonzero(seen)
        difference = np.log(weights[i, j] / weights[i, 0]) / scale
        terms = np.einsum("pa,pb->pab", rows[i], keys[j]).reshape(len(i), -1)
        solution, _, rank, _ = np.linalg.lstsq(terms, difference, rcond=1e-10)
        assert rank == terms.shape[1]
        found.append(solution.reshape(rows.shape[1], -1)[:-1])
    return np.array(found)


def layers_and_calls(name, tmp_path, monkeypatch, positions=None):
    if name == "bloom":  # without its position term
        bloom = T.models.bloom.modeling_bloom
        monkeypatch.setattr(bloom, "_get_alibi_slopes", lambda heads, _: torch.zeros(heads))
    model = make(name)
    model.save_pretrained(tmp_path)
    positions = torch.zeros(N, dtype=torch.long) if positions is None else positions
    calls = pay_attention(name, model, positions)
    layers = list(read(tmp_path))
    by_tower = {}
    pairs, stored = [], {}
    for tower, x, y, A, module_name in calls:
        mine = [one for one in layers if tower is None or one.tower == tower]
        if module_name not in stored:
            stored[module_name] = mine[by_tower.get(tower, 0)]
            by_tower[tower] = by_tower.get(tower, 0) + 1
        pairs.append((stored[module_name], x, y, A))
    assert len(stored) == len(layers)
    return pairs


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_the_attention_paid(name, tmp_path, monkeypatch):
    for layer, x, y, A in layers_and_calls(name, tmp_path, monkeypatch):
        scale = 1.0 if name in UNSCALED else layer.head_width**-0.5
        M = recover(x, y, A, scale)
        keys = np.repeat(layer.W_k, layer.heads // layer.key_heads, axis=1)
        ours = np.einsum("dhc,ehc->hde", layer.W_q, keys)
        np.testing.assert_allclose(ours, M, atol=1e-7 * np.abs(M).max())
        np.testing.assert_allclose(score_heads(layer), scores(M), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(score(layer), scores(M.sum(axis=0)), rtol=1e-5, atol=1e-6)
        others = [np.einsum("dhc,ehc->hed", layer.W_q, keys)]  # exchanged
        if layer.heads * layer.head_width == layer.width:
            flat = layer.W_q.reshape(layer.width, -1)
            others.append(np.einsum("dhc,ehc->hde", flat.T.reshape(layer.W_q.shape), keys))
        others.append(np.einsum("dhc,ehc->hde", layer.W_q, np.roll(keys, 1, axis=1)))
        swapped = layer.W_q.reshape(layer.width, -1, layer.heads).swapaxes(1, 2)  # interleaved
        others.append(np.einsum("dhc,ehc->hde", swapped, keys))
        for other in others:
            assert np.abs(other - M).max() > 1e-3 * np.abs(M).max()


@pytest.mark.parametrize("name", ROTARY)
def test_rotary_offsets_are_the_models_own(name, tmp_path, monkeypatch):
    positions = torch.arange(N)
    for layer, x, y, A in layers_and_calls(name, tmp_path, monkeypatch, positions):
        for i, j in ((9, 2), (20, 17), (47, 1)):
            raw = {key: layer.rotated(i - key).raw_scores(x[i : i + 1], y) for key in (j, i)}
            ours = (raw[j][:, 0, j] - raw[i][:, 0, i]) / layer.head_width**0.5
            np.testing.assert_allclose(ours, np.log(A[:, i, j] / A[:, i, i]), rtol=1e-4, atol=1e-5)


POST_NORM = ("bert", "roberta", "distilbert", "albert", "bart")


def normalised(rows, norm):
    """Undo gain and shift; what is left must be what a norm puts out."""
    return (rows - (0.0 if norm.shift is None else norm.shift)) / norm.gain


@pytest.mark.parametrize("name", [name for name in MODELS if name not in POST_NORM])
def test_norms_sit_where_the_models_apply_them(name, tmp_path):
    model = make(name)
    for parameter_name, value in model.named_parameters():
        if re.search("norm|ln_", parameter_name):
            value.data = torch.rand(value.shape, dtype=value.dtype) + 0.5
        elif re.search("embed|wte|wpe", parameter_name):
            value.data = torch.randn(value.shape, dtype=value.dtype)
    model.save_pretrained(tmp_path)
    calls = pay_attention(name, model, torch.arange(N), replace=False)
    counts = {}
    layers = list(read(tmp_path))
    for tower, x, y, _, _ in calls:
        number = counts[tower] = counts.get(tower, -1) + 1
        layer = [one for one in layers if tower in (None, one.tower)][number]
        if name == "modernbert" and number == 0:
            assert layer.norm is None
            continue
        found = normalised(x, layer.norm)
        np.testing.assert_allclose(np.mean(found**2, axis=1), 1.0, atol=0.02)
        np.testing.assert_allclose(layer.folded().raw_scores(found, layer_keys(layer, x, y)),
                                   layer.raw_scores(x, y), rtol=1e-6, atol=1e-6)  # fmt: skip
        if layer.norm.shift is not None or name == "modernbert":
            np.testing.assert_allclose(found.mean(axis=1), 0.0, atol=1e-6)


def layer_keys(layer, x, y):
    """Return what the key side sees before gain and shift."""
    if layer.tower != "cross":
        return normalised(x, layer.norm)
    found = normalised(y, layer.key_norm)
    np.testing.assert_allclose(np.mean(found**2, axis=1), 1.0, atol=0.02)
    return found


@pytest.mark.parametrize("name", POST_NORM)
def test_post_norm_families_have_no_norm_to_fold(name, tmp_path):
    make(name).save_pretrained(tmp_path)
    layer = next(iter(read(tmp_path)))
    assert layer.norm is None
    with pytest.raises(ValueError, match=r"pre-norm"):
        layer.folded()


def test_timm_files(tmp_path):
    timm = pytest.importorskip("timm", reason="needs timm, of the extra test-checkpoints")
    from safetensors.torch import save_file

    model = timm.create_model(
        "vit_tiny_patch16_224", embed_dim=D, num_heads=HEADS, depth=LAYERS, img_size=112
    )
    model = model.double().eval()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    x = torch.randn(1, N, D, dtype=torch.float64)
    paid = []
    for block, layer in zip(model.blocks, read(tmp_path, heads=HEADS), strict=True):
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _, args, __: paid.append(args[0]))
        with torch.no_grad():
            block.attn(x)
        M = recover(x[0].numpy(), x[0].numpy(), paid[-1][0].numpy(), layer.head_width**-0.5)
        ours = np.einsum("dhc,ehc->hde", layer.W_q, layer.W_k)
        np.testing.assert_allclose(ours, M, atol=1e-6 * np.abs(M).max())

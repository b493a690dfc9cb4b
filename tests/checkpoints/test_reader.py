"""Which layout a file is taken for, what options mean, and minattn's own saves."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

import minattn as ma
from minattn.checkpoints import read, score
from minattn.saving import save_arrays

STEM = "model.layers.{}.self_attn"


def llama(q_rows=12, k_rows=6, d=10, layers=2, stem=STEM, seed=0):
    rng = np.random.default_rng(seed)
    made = {f"{stem.format(0)}.o_proj.weight": rng.normal(size=(d, q_rows))}
    for layer in range(layers):
        made[f"{stem.format(layer)}.q_proj.weight"] = rng.normal(size=(q_rows, d))
        made[f"{stem.format(layer)}.k_proj.weight"] = rng.normal(size=(k_rows, d))
    return made


@pytest.fixture
def write(tmp_path):
    def write(arrays, config=None):
        save_file(arrays, tmp_path / "model.safetensors")
        if config is not None:
            (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return write


# Heads


@pytest.mark.parametrize(
    "options",
    [
        {"heads": 4},
        {"head_width": 3},
        {"heads": 4, "key_heads": 2},
        {"heads": 4, "head_width": 3, "key_heads": 2},
    ],
)
def test_two_of_the_sizes_follow_from_the_third_and_the_shapes(options, write):
    layers = list(read(write(llama()), **options))
    assert [layer.index for layer in layers] == [0, 1]
    assert {(one.width, one.heads, one.key_heads, one.head_width) for one in layers} == {
        (10, 4, 2, 3)
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no word on heads, needs heads or head_width"),
        ({"heads": 5}, "heads: got 12 rows in .* needs a multiple of 5"),
        ({"heads": 3}, "key heads of width 4"),
        ({"head_width": 5}, "12 rows in .* needs a multiple of 5: heads of width 5"),
        ({"heads": 4, "key_heads": 1}, "key_heads: got 1, needs 2, by the shape"),
        ({"heads": 4, "head_width": 2}, "head_width: got 2, needs 3"),
        ({"heads": 0}, "heads: got 0, needs an integer of at least 1"),
        ({"heads": 2.5}, "heads: got 2.5"),
        ({"head_width": True}, "head_width: got True"),
        ({"replica": -1, "heads": 4}, "replica: got -1"),
        ({"rotary_base": -1.0, "heads": 4}, "rotary_base: got -1"),
        ({"pre_norm": 1, "heads": 4}, "pre_norm: got 1"),
        ({"family": "lama"}, "family: got 'lama', needs one of 'bert'"),
        (
            {"family": "bert", "heads": 4},
            "an unknown layout; its attention tensors: model.layers.0",
        ),
        ({"prefix": "text.", "heads": 4}, "an unknown layout"),
    ],
)
def test_what_does_not_fit_is_named(options, message, write):
    with pytest.raises(ValueError, match=message):
        list(read(write(llama()), **options))


def test_query_heads_are_a_multiple_of_key_heads(write):
    with pytest.raises(ValueError, match=r"4 query heads beside 3 key heads"):
        list(read(write(llama(k_rows=9)), heads=4))


def test_options_come_before_config_json(write):
    config = {"model_type": "llama", "num_attention_heads": 6, "rope_theta": 5.0}
    (layer, _) = read(write(llama(), config), heads=2, rotary_base=7.0, rotary_width=4)
    assert (layer.heads, layer.key_heads, layer.head_width) == (2, 1, 6)
    np.testing.assert_allclose(layer.rotary.frequencies, [1, 7.0**-0.5])
    (layer, _) = read(write(llama(), config))
    np.testing.assert_allclose(layer.rotary.frequencies, [1])
    assert (layer.heads, layer.key_heads, layer.head_width) == (6, 3, 2)


@pytest.mark.parametrize(
    "config",
    [
        {"num_attention_heads": "four"},
        {"num_attention_heads": -4},
        {"num_attention_heads": 2**80},
        {"num_attention_heads": True},
        {"model_type": 3},
        {"rope_scaling": "fast"},
        {"rope_theta": "high"},
        {"rope_theta": 10**400},
        {"partial_rotary_factor": float("inf")},
        {"local_rope_theta": float("nan")},
        {"rope_parameters": {"partial_rotary_factor": True}},
    ],
)
def test_settings_of_the_wrong_kind_are_refused(config, write):
    with pytest.raises(ValueError, match=r"config.json \(.*needs an undamaged file"):
        read(write(llama(), config), heads=4)


def test_per_head_tensors_have_no_grouped_keys(write):
    rng = np.random.default_rng(0)
    arrays = {"gpt_neox.layers.0.attention.query_key_value.weight": rng.normal(size=(36, 12))}
    with pytest.raises(ValueError, match=r"key_heads: got 2, needs 4"):
        list(read(write(arrays), heads=4, key_heads=2))
    (layer,) = read(write(arrays), head_width=3)
    assert (layer.heads, layer.key_heads) == (4, 4)


# Layouts


def test_an_unknown_layout_lists_its_attention_tensors(write):
    arrays = {f"deep.{i}.mixer.q_proj.weight": np.ones((2, 2)) for i in range(12)}
    arrays["embedding.weight"] = np.ones(2)
    with pytest.raises(ValueError, match=r"unknown layout") as error:
        read(write(arrays), heads=1)
    assert "deep.0.mixer.q_proj.weight" in str(error.value)
    assert "and 4 more" in str(error.value)
    assert "embedding" not in str(error.value)
    assert "gpt_neox" in str(error.value)


def test_a_model_type_that_is_not_known_is_not_guessed(write):
    path = write(llama(), {"model_type": "gemma", "num_attention_heads": 4})
    with pytest.raises(ValueError, match=r"model type 'gemma'; its attention tensors: model"):
        read(path)
    assert read(path, family="llama").family == "llama"


def test_no_attention_at_all(write):
    with pytest.raises(ValueError, match=r"its attention tensors: none"):
        read(write({"x": np.ones(2)}))


def test_names_that_fit_two_families_need_a_word(write):
    arrays = llama()
    arrays["model.layers.0.self_attn.dense.weight"] = np.ones((2, 2))
    with pytest.raises(ValueError, match=r"tensors that fit llama and phi"):
        read(write(arrays), heads=4)
    assert read(write(arrays), heads=4, family="phi").family == "phi"


def test_a_prefix_finds_the_model_within_another(write):
    arrays = llama(stem="language_model.model.layers.{}.self_attn")
    checkpoint = read(write(arrays), heads=4, prefix="language_model.model.")
    assert checkpoint.towers == {"decoder": 2}


def test_two_models_in_one_file_need_a_prefix(write):
    arrays = llama() | llama(stem="layers.{}.self_attn", layers=1)
    with pytest.raises(ValueError, match=r"two models in one file, needs the option prefix"):
        read(write(arrays), heads=4)
    assert len(read(write(arrays), heads=4, prefix="")) == 1


def test_a_missing_layer_or_tensor_is_named(write):
    arrays = llama(layers=4)
    del arrays[f"{STEM.format(2)}.q_proj.weight"]
    with pytest.raises(ValueError, match=r"a decoder without layer 2"):
        read(write(arrays), heads=4)
    arrays = llama()
    del arrays[f"{STEM.format(1)}.k_proj.weight"]
    checkpoint = read(write(arrays), heads=4)
    with pytest.raises(ValueError, match=r"no tensor 'model.layers.1.self_attn.k_proj.weight'"):
        list(checkpoint)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("k_proj.weight", (6,), "of shape .6,., needs a matrix"),
        ("k_proj.weight", (0, 10), "needs a matrix"),
        ("k_proj.weight", (6, 8), "queries of width 10, keys of 8, needs one width"),
        ("q_proj.bias", (3,), "q_proj.bias' of shape .3,., needs .12,."),
        ("k_proj.bias", (6, 1), "k_proj.bias' of shape"),
    ],
)
def test_shapes_that_do_not_fit_are_named(name, shape, message, write):
    arrays = llama() | {f"{STEM.format(0)}.{name}": np.ones(shape)}
    with pytest.raises(ValueError, match=message):
        list(read(write(arrays), heads=4))


def test_queries_that_are_normalised_after_the_projection_are_refused(write):
    arrays = llama() | {f"{STEM.format(0)}.q_norm.weight": np.ones(3)}
    with pytest.raises(ValueError, match=r"q_norm.weight', needs scores bilinear in the layer's"):
        read(write(arrays), heads=4)


def test_a_gpt2_file_in_the_other_orientation_is_no_gpt2_file(write):
    arrays = {"h.0.attn.c_attn.weight": np.ones((36, 12)), "h.0.ln_1.weight": np.ones(12)}
    with pytest.raises(ValueError, match=r"ln_1.weight' of shape .12,., needs .36,."):
        list(read(write(arrays), heads=2))


# Towers and layers


def test_shared_layers_come_once_with_the_number_of_their_uses(write):
    stem = "encoder.albert_layer_groups.{}.albert_layers.0.attention"
    arrays = {
        f"{stem.format(group)}.{side}.weight": np.random.default_rng(group).normal(size=(4, 4))
        for group in (0, 1)
        for side in ("query", "key")
    }
    config = {"model_type": "albert", "num_hidden_layers": 12, "num_hidden_groups": 2}
    layers = list(read(write(arrays, config | {"num_attention_heads": 2})))
    assert [(layer.index, layer.uses) for layer in layers] == [(0, 6), (1, 6)]
    np.testing.assert_array_equal(
        layers[1].W_q.reshape(4, 4).T, arrays[f"{stem.format(1)}.query.weight"]
    )


def test_layers_come_in_the_order_of_their_numbers(write):
    arrays = llama(layers=12)
    for index, layer in enumerate(read(write(arrays), heads=4)):
        stored = arrays[f"{STEM.format(index)}.q_proj.weight"]
        np.testing.assert_array_equal(layer.W_q.reshape(10, 12).T, stored)


def test_a_bert_that_decodes_is_a_decoder(write):
    arrays = {
        f"bert.encoder.layer.0.{attention}.self.{side}.weight": np.eye(4)
        for attention in ("attention", "crossattention")
        for side in ("query", "key")
    }
    config = {"model_type": "bert", "num_attention_heads": 2, "is_decoder": True}
    assert read(write(arrays, config)).towers == {"decoder": 1, "cross": 1}


def test_decoders_may_have_heads_of_their_own(write):
    stems = {"encoder": "self_attn", "decoder": "self_attn"}
    arrays = {
        f"model.{tower}.layers.0.{stem}.{side}_proj.weight": np.eye(12)
        for tower, stem in stems.items()
        for side in "qk"
    }
    config = {
        "model_type": "bart",
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 3,
    }
    layers = {layer.tower: layer for layer in read(write(arrays, config))}
    assert (layers["encoder"].heads, layers["decoder"].heads) == (2, 3)


def test_wav2vec2_norms_its_input_only_where_the_settings_say(write):
    stem = "wav2vec2.encoder.layers.0"
    arrays = {f"{stem}.attention.{side}_proj.weight": np.eye(4) for side in "qk"}
    arrays |= {f"{stem}.layer_norm.weight": np.full(4, 2.0)}
    config = {"model_type": "wav2vec2", "num_attention_heads": 2}
    (post,) = read(write(arrays, config))
    assert post.norm is None
    (asked,) = read(write(arrays, config), pre_norm=True)
    (stable,) = read(write(arrays, config | {"do_stable_layer_norm": True}))
    for layer in (asked, stable):
        np.testing.assert_array_equal(layer.norm.gain, np.full(4, 2.0))


def test_rotary_positions_of_local_layers(write):
    rng = np.random.default_rng(0)
    arrays = {f"model.layers.{i}.attn.Wqkv.weight": rng.normal(size=(24, 8)) for i in range(4)}
    old = {
        "model_type": "modernbert", "num_attention_heads": 2, "global_rope_theta": 16.0,
        "local_rope_theta": 9.0, "global_attn_every_n_layers": 3,
    }  # fmt: skip
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    new = {
        "model_type": "modernbert", "num_attention_heads": 2, "layer_types": kinds,
        "rope_parameters": {"full_attention": {"rope_theta": 16.0},
                            "sliding_attention": {"rope_theta": 9.0}},
    }  # fmt: skip
    for config in (old, new):
        found = [layer.rotary.frequencies[1] for layer in read(write(arrays, config))]
        np.testing.assert_allclose(found, [1 / 4, 1 / 3, 1 / 3, 1 / 4])


def test_rotary_settings_in_their_older_names(write):
    rng = np.random.default_rng(0)
    arrays = {"gpt_neox.layers.0.attention.query_key_value.weight": rng.normal(size=(48, 16))}
    config = {"model_type": "gpt_neox", "num_attention_heads": 2}
    (layer,) = read(write(arrays, config))
    assert len(layer.rotary.frequencies) == 1  # a quarter of the head's 8 components
    (layer,) = read(write(arrays, config | {"rotary_pct": 0.5, "rotary_emb_base": 100}))
    np.testing.assert_allclose(layer.rotary.frequencies, [1, 0.1])
    slowed = {"rope_theta": 100.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    (layer, _) = read(write(llama(), {"model_type": "llama"} | slowed), head_width=6)
    np.testing.assert_allclose(layer.rotary.frequencies, 100.0 ** (-np.arange(3) / 3) / 2)


# minattn's own saves


def train(path, objective, **choices):
    config = ma.TransformerConfig(
        vocab_size=4, width=8, layers=2, heads=2, max_length=6, bias=True, **choices
    )
    chain = ma.data.MarkovChain.random(4, seed=0)
    start = ma.init_params(config, replicas=2)
    return ma.fit(config, start, chain, objective, steps=2, length=6, save=path, engine="numpy")


def test_a_saved_run_gives_its_own_parameters(tmp_path):
    path = tmp_path / "run"
    history = train(path, ma.next_token, norm="pre")
    checkpoint = read(path, replica=1)
    assert (checkpoint.family, checkpoint.towers) == ("minattn", {"decoder": 2})
    for layer in checkpoint:
        name = f"layers.{layer.index}"
        for part in ("W_q", "W_k", "b_q", "b_k"):
            expected = history.params[f"{name}.{part}"][1]
            np.testing.assert_array_equal(getattr(layer, part), expected)
        gain = history.params[f"{name}.norm_attention.gain"][1]
        np.testing.assert_array_equal(layer.norm.gain, gain)
        M = ma.W_qk(history.params, layer=layer.index)[1]
        np.testing.assert_allclose(score(layer), ma.scores.scores(M), rtol=1e-9)


@pytest.mark.parametrize("options", [{"heads": 4}, {"key_heads": 1}, {"head_width": 2}])
def test_sizes_that_a_saved_run_does_not_have_are_refused(tmp_path, options):
    train(tmp_path / "run", ma.next_token)
    (name,) = options
    with pytest.raises(ValueError, match=f"^{name}: got {options[name]}, needs "):
        list(read(tmp_path / "run", **options))


def test_a_saved_masked_run_is_an_encoder_and_post_norm_is_not_folded(tmp_path):
    objective = ma.MaskedToken(mask_symbol=4, mask="bidirectional")
    train(tmp_path / "run", objective, norm="post")
    checkpoint = read(tmp_path / "run")
    assert checkpoint.towers == {"encoder": 2}
    assert next(iter(checkpoint)).norm is None


def test_plain_parameters_are_a_save_too(tmp_path):
    config = ma.TransformerConfig(vocab_size=4, width=8, layers=1, heads=2, max_length=6)
    save_arrays(tmp_path / "x.safetensors", ma.init_params(config, replicas=3), {})
    (layer,) = read(tmp_path / "x.safetensors", replica=2)
    assert (layer.W_q.shape, layer.b_q) == ((8, 2, 4), None)
    with pytest.raises(ValueError, match=r"replica: got 3, needs less than 3"):
        list(read(tmp_path / "x.safetensors", replica=3))


@pytest.mark.parametrize(
    "notes", ["{", "[]", "3", '{"settings": []}', '{"settings": {"config": 1}}']
)
def test_notes_of_another_kind(notes, tmp_path):
    arrays = {"layers.0.W_q": np.ones((1, 4, 2, 2)), "layers.0.W_k": np.ones((1, 4, 2, 2))}
    save_file(arrays, tmp_path / "x.safetensors", metadata={"minattn": notes})
    with pytest.raises(ValueError, match=r"notes that minattn did not write"):
        read(tmp_path / "x.safetensors")


@pytest.mark.parametrize("shape", [(4, 2, 2), (1, 4, 2, 0)])
def test_own_arrays_of_another_shape(shape, tmp_path):
    arrays = {"layers.0.W_q": np.ones(shape), "layers.0.W_k": np.ones((1, 4, 2, 2))}
    save_arrays(tmp_path / "x.safetensors", arrays, {})
    with pytest.raises(ValueError, match=r"4 axes, replicas first"):
        list(read(tmp_path / "x.safetensors"))

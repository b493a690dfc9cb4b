"""Hand-worked layers: pairing, orientation, biases, gains, rotary positions."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from minattn.checkpoints import Layer, Norm, Rotary, read, score, score_heads
from minattn.checkpoints.rotary import make
from minattn.scores import directionality, scores, symmetry


def layer(W_q, W_k, **others):
    """Return a one-head layer of matrices (d, h), or one of stacks (d, H, h)."""
    W_q, W_k = (np.asarray(W, np.float64) for W in (W_q, W_k))
    if W_q.ndim == 2:
        W_q, W_k = W_q[:, None], W_k[:, None]
    return Layer("hand", "decoder", 0, W_q, W_k, **others)


def product(one):
    """Return the sum of W_qk over heads, the obvious way."""
    group = one.heads // one.key_heads
    return sum(one.W_q[:, i] @ one.W_k[:, i // group].T for i in range(one.heads))


def random_layer(heads=6, key_heads=2, width=4, d=8, seed=0, **others):
    rng = np.random.default_rng(seed)
    W_q, W_k = rng.normal(size=(d, heads, width)), rng.normal(size=(d, key_heads, width))
    b_q, b_k = rng.normal(size=(heads, width)), rng.normal(size=(key_heads, width))
    return Layer("hand", "decoder", 0, W_q, W_k, b_q, b_k, **others)


# Grouped queries


def test_grouped_queries_by_hand():
    W_k = np.zeros((8, 4))
    W_k[range(4), range(4)] = 1
    one = layer(np.eye(8).reshape(8, 4, 2), W_k.reshape(8, 2, 2))
    expected = np.zeros((8, 8))
    expected[range(8), [0, 1, 0, 1, 2, 3, 2, 3]] = 1
    np.testing.assert_array_equal(product(one), expected)
    assert score(one).symmetry == pytest.approx(0.25, abs=1e-12)
    assert score(one.as_published()).symmetry == pytest.approx(0.5, abs=1e-12)


def test_the_published_pairing_is_by_remainder():
    one = random_layer()
    published = one.as_published()
    expected = sum(one.W_q[:, i] @ one.W_k[:, i % 2].T for i in range(6))
    np.testing.assert_allclose(product(published), expected, rtol=1e-12)
    assert published.form == ("heads paired as published",)
    assert not np.allclose(expected, product(one))


def test_without_grouped_queries_both_pairings_agree():
    one = random_layer(heads=3, key_heads=3)
    np.testing.assert_array_equal(one.as_published().W_q, one.W_q)


# Orientation, from files


def from_file(tmp_path, names, config):
    save_file({name: np.asarray(value, np.float64) for name, value in names.items()},
              tmp_path / "model.safetensors")  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    return next(iter(read(tmp_path)))


def test_linear_weights_are_stored_out_in(tmp_path):
    stem = "encoder.layer.0.attention.self"
    weights = {f"{stem}.query.weight": [[0, 2], [0, 0]], f"{stem}.key.weight": [[1, 0], [1, 1]]}
    one = from_file(tmp_path, weights, {"model_type": "bert", "num_attention_heads": 1})
    assert one.raw_scores([[1, 2]], [[3, 5]]).item() == 12
    np.testing.assert_array_equal(product(one), [[0, 0], [2, 0]])


def test_conv1d_weights_are_stored_in_out(tmp_path):
    W_q, W_k = [[0, 0], [2, 0]], [[1, 1], [0, 1]]  # the same maps, the other way round
    fused = np.hstack([W_q, W_k, np.full((2, 2), 9)])
    names = {"h.0.attn.c_attn.weight": fused, "h.0.attn.bias": np.tri(3).reshape(1, 1, 3, 3)}
    one = from_file(tmp_path, names, {"model_type": "gpt2", "n_head": 1})
    assert one.raw_scores([[1, 2]], [[3, 5]]).item() == 12
    assert one.b_q is None  # attn.bias is a mask
    assert one.b_k is None


@pytest.mark.parametrize("variant", ["definition", "published"])
def test_a_dominant_column_is_of_the_key_side(variant):
    M = np.ones((8, 8))
    M[:, 0] = 5
    assert directionality(M, variant) == pytest.approx(-1)
    one = layer(np.ones((8, 1)), M[:1].T)  # M = 1 W_k^T: keys differ, so columns do
    field = "directionality" + ("_published" if variant == "published" else "")
    assert getattr(score(one), field) == pytest.approx(-1)
    assert getattr(score(layer(M[:1].T, np.ones((8, 1)))), field) == pytest.approx(1)


# Biases and gains


def test_biases_by_hand():
    b_q, b_k = np.array([[1.0, -1]]), np.array([[2.0, 3]])
    one = layer(np.diag([1, 2]), [[1, 1], [0, 1]], b_q=b_q, b_k=b_k)
    expected = [[24, 40, 56], [54, 90, 126], [84, 140, 196]]
    np.testing.assert_array_equal(one.raw_scores([[1, 2], [3, 4], [5, 6]])[0], expected)


def test_gains_by_hand():
    gain = np.array([2, 1, 0.5])
    W_q, W_k = [[1, 0], [0, 1], [1, 1]], [[1, 1], [0, 1], [1, 0]]
    one = layer(W_q, W_k, norm=Norm(gain), pre_norm=True)
    np.testing.assert_array_equal(product(one), [[1, 0, 1], [1, 1, 0], [2, 1, 1]])
    assert score(one).symmetry == pytest.approx(0.7, abs=1e-12)
    folded = one.folded()
    np.testing.assert_allclose(product(folded), gain[:, None] * product(one) * gain)
    assert score(folded).symmetry == pytest.approx(0.8004750594, abs=1e-9)
    assert (one.form, folded.form) == ((), ("norm folded in",))


def test_a_folded_shift_becomes_part_of_the_biases():
    gain, shift = np.random.default_rng(1).normal(size=(2, 8))
    one = random_layer(norm=Norm(gain, shift), pre_norm=True)
    rows = np.random.default_rng(2).normal(size=(5, 8))
    expected = one.raw_scores(gain * rows + shift)
    np.testing.assert_allclose(one.folded().raw_scores(rows), expected, rtol=1e-10)


def test_a_norm_is_folded_once_and_only_where_it_is():
    one = random_layer(norm=Norm(np.ones(8)), pre_norm=True)
    with pytest.raises(ValueError, match=r"fold: got the hand decoder layer 0, needs a pre-norm"):
        one.folded().folded()
    with pytest.raises(ValueError, match=r"pre-norm"):
        random_layer().folded()
    bare = random_layer(pre_norm=True)
    assert bare.folded() is bare


def test_cross_attention_needs_a_norm_on_either_side():
    rng = np.random.default_rng(0)
    W_q, W_k = rng.normal(size=(2, 8, 2, 4))
    norms = [Norm(gain) for gain in rng.normal(size=(2, 8))]
    one = Layer("hand", "cross", 0, W_q, W_k, norm=norms[0], key_norm=norms[1], pre_norm=True)
    expected = norms[0].gain[:, None] * product(one) * norms[1].gain
    np.testing.assert_allclose(product(one.folded()), expected)
    half = Layer("hand", "cross", 0, W_q, W_k, norm=norms[0], pre_norm=True)
    with pytest.raises(ValueError, match=r"a norm before the keys"):
        half.folded()


# Rotary positions


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("offset", [0, 3, -5])
def test_rotary_scores_depend_on_the_offset_alone(interleaved, offset):
    rotary = make(4, 100.0, {}, interleaved)
    one = random_layer(width=6, rotary=rotary)
    x, y = np.random.default_rng(1).normal(size=(2, 1, 8))

    def turned(vector, position):
        vector = vector.copy()
        for pair in range(2):
            first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + 2)
            angle = position * 100.0 ** (-2 * pair / 4)
            a, b = vector[first], vector[second]
            vector[first] = a * np.cos(angle) - b * np.sin(angle)
            vector[second] = a * np.sin(angle) + b * np.cos(angle)
        return vector

    expected = np.zeros(6)
    for head in range(6):
        q = turned(x[0] @ one.W_q[:, head] + one.b_q[head], 11 + offset)
        k = turned(y[0] @ one.W_k[:, head // 3] + one.b_k[head // 3], 11)
        expected[head] = q @ k
    moved = one.rotated(offset)
    np.testing.assert_allclose(moved.raw_scores(x, y)[:, 0, 0], expected, rtol=1e-10)
    assert moved.form == (f"rotary offset {offset}",)
    assert moved.rotary is None


def test_the_angles_of_rescaled_positions():
    plain = 10_000.0 ** (-np.arange(0, 8, 2) / 8)
    np.testing.assert_allclose(make(8, 10_000.0, {}, False).frequencies, plain)
    linear = make(8, 10_000.0, {"type": "linear", "factor": 4.0}, False)
    np.testing.assert_allclose(linear.frequencies, plain / 4)
    llama3 = {
        "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 100,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    }  # fmt: skip
    found = make(8, 10_000.0, llama3, False).frequencies
    assert found[0] == plain[0]  # 16 turns over the first length: kept
    kept = (100 * 0.1 / (2 * np.pi) - 1) / 3  # 1.6 turns: in between
    assert found[1] == pytest.approx(plain[1] * (kept + (1 - kept) / 8))
    np.testing.assert_allclose(found[2:], plain[2:] / 8)  # less than one turn: slowed


@pytest.mark.parametrize(
    ("width", "base", "scaling", "message"),
    [
        (3, 10.0, {}, "3 rotated components"),
        (0, 10.0, {}, "0 rotated components"),
        (4, 0.0, {}, "base 0"),
        (4, 10.0, {"rope_type": "yarn", "factor": 2.0}, "'yarn'"),
        (4, 10.0, {"rope_type": "linear"}, "linear"),
        (4, 10.0, {"rope_type": "llama3", "factor": "many"}, "llama3"),
    ],
)
def test_angles_that_are_not_known_are_refused_when_asked_for(width, base, scaling, message):
    one = random_layer(rotary=make(width, base, scaling, False))
    score(one)  # needs no positions
    with pytest.raises(ValueError, match=message):
        one.rotated(1)


def test_rotary_offsets_need_rotary_positions():
    with pytest.raises(ValueError, match=r"a layer with rotary positions"):
        random_layer().rotated(1)
    with pytest.raises(ValueError, match=r"rotary offset: got 1.5"):
        random_layer(rotary=Rotary(np.ones(1))).rotated(1.5)
    with pytest.raises(ValueError, match=r"6 rotated components of a head of 4"):
        random_layer(rotary=Rotary(np.ones(3))).rotated(1)


# Scores


def test_scores_are_those_of_the_explicit_products():
    one = random_layer()
    np.testing.assert_allclose(score(one), scores(product(one)), rtol=1e-9, atol=1e-12)
    products = np.array([one.W_q[:, i] @ one.W_k[:, i // 3].T for i in range(6)])
    np.testing.assert_allclose(score_heads(one), scores(products), rtol=1e-9, atol=1e-12)
    assert score(one).symmetry == pytest.approx(symmetry(product(one)))


def test_a_weight_that_is_not_finite_names_its_layer():
    W = np.ones((4, 2))
    W[0, 0] = np.nan
    with pytest.raises(ValueError, match=r"hand decoder layer 0: W_q: got NaN"):
        score(layer(W, np.ones((4, 2))))
    with pytest.raises(ValueError, match=r"hand decoder layer 0: W_k: got NaN"):
        score_heads(layer(np.ones((4, 2)), W))


@pytest.mark.parametrize("rows", [np.ones(8), np.ones((2, 7)), np.ones((2, 8), complex), "text"])
def test_rows_that_do_not_fit_are_refused(rows):
    with pytest.raises(ValueError, match=r"x: .* needs real rows \(N, 8\)"):
        random_layer().raw_scores(rows)
    with pytest.raises(ValueError, match=r"y: .* needs real rows \(N, 8\)"):
        random_layer().raw_scores(np.ones((1, 8)), rows)

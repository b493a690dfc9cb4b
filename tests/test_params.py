"""Parameters: names, shapes, the distributions that they are drawn from."""

import dataclasses

import numpy as np
import pytest

from minattn import TransformerConfig, init_params, parameter_shapes
from minattn.params import W_qk as checked_W_qk
from minattn.params import below, check_params, prefixed

SIZES = {"vocab_size": 5, "width": 6, "layers": 2, "heads": 3, "max_length": 7}
plain = TransformerConfig(**SIZES)
full = TransformerConfig(**SIZES, head_width=4, norm="pre", feed_forward=9, bias=True)
# Large enough that standard deviations are sharp.
wide = TransformerConfig(
    **SIZES | {"width": 40, "vocab_size": 60, "max_length": 50, "layers": 1},
    **{"head_width": 12, "feed_forward": 70, "norm": "pre", "bias": True},
)
heads = TransformerConfig(**SIZES | {"width": 8, "heads": 2, "layers": 1})


def equal(params, others):
    assert params.keys() == others.keys()
    for name, value in params.items():
        np.testing.assert_array_equal(value, others[name], err_msg=name)


def W_qk(params, layer=0):
    """Return (R, H, d, d)."""
    W_q, W_k = (params[f"layers.{layer}.{name}"] for name in ("W_q", "W_k"))
    return np.einsum("rdhk,rehk->rhde", W_q, W_k, optimize=True)


# Names and shapes


ATTENTION = {"W_q": (6, 3, 2), "W_k": (6, 3, 2), "W_v": (6, 3, 2), "W_o": (3, 2, 6)}
BIAS = {"b_q": (3, 2), "b_k": (3, 2), "b_v": (3, 2), "b_o": (6,)}
NORM = {"norm_attention.gain": (6,), "norm_attention.shift": (6,)}
HIDDEN = {"W_in": (6, 9), "W_out": (9, 6)}
HIDDEN_BIAS = {"b_in": (9,), "b_out": (6,)}
HIDDEN_NORM = {"norm_feed_forward.gain": (6,), "norm_feed_forward.shift": (6,)}
POSITIONS = {"position_embedding": (7, 6)}
FINAL = {"norm_final.gain": (6,), "norm_final.shift": (6,)}


@pytest.mark.parametrize(
    ("choices", "outside", "inside"),
    [
        ({}, POSITIONS, ATTENTION),
        ({"positions": False}, {}, ATTENTION),
        ({"attention": "linear"}, POSITIONS, ATTENTION),
        ({"bias": True}, POSITIONS, ATTENTION | BIAS),
        ({"norm": "pre"}, POSITIONS | FINAL, ATTENTION | NORM),
        ({"norm": "post"}, POSITIONS, ATTENTION | NORM),
        ({"feed_forward": 9}, POSITIONS, ATTENTION | HIDDEN),
        ({"feed_forward": 9, "bias": True}, POSITIONS, ATTENTION | BIAS | HIDDEN | HIDDEN_BIAS),
        (
            {"feed_forward": 9, "norm": "post"},
            POSITIONS,
            ATTENTION | NORM | HIDDEN | HIDDEN_NORM,
        ),
        (
            {"feed_forward": 9, "norm": "pre", "bias": True, "positions": False},
            FINAL,
            ATTENTION | BIAS | NORM | HIDDEN | HIDDEN_BIAS | HIDDEN_NORM,
        ),
        (
            {"head_width": 4},
            POSITIONS,
            dict.fromkeys(("W_q", "W_k", "W_v"), (6, 3, 4)) | {"W_o": (3, 4, 6)},
        ),
    ],
    ids=str,
)
def test_names_and_shapes(choices, outside, inside):
    config = TransformerConfig(**SIZES, **choices)
    expected = {"token_embedding": (6, 6), "unembedding": (6, 5)} | outside
    for layer in range(2):
        expected |= {f"layers.{layer}.{name}": shape for name, shape in inside.items()}
    assert parameter_shapes(config) == expected
    params = init_params(config, replicas=4)
    assert {name: value.shape for name, value in params.items()} == {
        name: (4, *shape) for name, shape in expected.items()
    }


# Distributions


STANDARD_DEVIATIONS = {
    "token_embedding": 3 / 40**0.5,
    "position_embedding": 3 / 40**0.5,
    "layers.0.W_q": 0.5 / 40**0.5,
    "layers.0.W_k": 0.5 / 40**0.5,
    "layers.0.W_v": 1 / 40**0.5,
    "layers.0.W_o": 1 / 36**0.5,
    "layers.0.W_in": 1 / 40**0.5,
    "layers.0.W_out": 1 / 70**0.5,
    "unembedding": 1 / 40**0.5,
}


@pytest.fixture(scope="module")
def drawn():
    return init_params(wide, replicas=5, seed=1, embedding_scale=3, qk_scale=0.5)


@pytest.mark.parametrize(("name", "std"), STANDARD_DEVIATIONS.items())
def test_weights_are_normal_with_the_documented_deviation(drawn, name, std):
    z = drawn[name].ravel() / std
    assert abs(z.mean()) < 5 / z.size**0.5
    assert abs((z**2).mean() - 1) < 5 * (2 / z.size) ** 0.5
    assert abs((z**4).mean() - 3) < 5 * (96 / z.size) ** 0.5  # kurtosis: normal, not uniform


def test_everything_else_starts_constant(drawn):
    for name in drawn.keys() - STANDARD_DEVIATIONS.keys():
        assert (drawn[name] == (1 if name.endswith("gain") else 0)).all(), name
    assert {name.split(".")[-1] for name in drawn.keys() - STANDARD_DEVIATIONS.keys()} == {
        *("gain", "shift", "b_q", "b_k", "b_v", "b_o", "b_in", "b_out")
    }


def test_no_two_arrays_replicas_or_seeds_share_draws(drawn):
    again = init_params(wide, replicas=5, seed=2, embedding_scale=3, qk_scale=0.5)
    draws = [
        params[name][replica].ravel()[:3] / std
        for params in (drawn, again)
        for name, std in STANDARD_DEVIATIONS.items()
        for replica in range(5)
    ]
    assert len({tuple(draw.round(9)) for draw in draws}) == len(draws)


def test_one_replica_of_seed_0_is_what_is_drawn_unless_asked_otherwise():
    equal(init_params(plain), init_params(plain, 1, 0))


@pytest.mark.parametrize("scale", ["embedding_scale", "qk_scale"])
def test_scales_multiply_their_own_arrays_and_may_be_zero(scale):
    own = ("_embedding",) if scale == "embedding_scale" else ("W_q", "W_k")
    one = init_params(plain)
    for factor in (0, 4.0):  # a power of two: exact
        scaled = init_params(plain, **{scale: factor})
        expected = {n: v * (factor if n.endswith(own) else 1) for n, v in one.items()}
        equal(scaled, expected)


@pytest.mark.parametrize("kind", ["random", "symmetric", "random_matched", "symmetric_matched"])
def test_zero_queries_and_keys_stay_zero(kind):
    params = init_params(plain, qk_init=kind, qk_scale=0)
    for name in ("layers.0.W_q", "layers.1.W_k"):
        assert (params[name] == 0).all()


# The relation of W_q and W_k


def norms(params):
    """Frobenius norm of each head's W_qk, (R, H)."""
    return np.linalg.norm(W_qk(params), axis=(-2, -1))


def test_W_qk_is_the_product_of_queries_and_keys():
    params = init_params(full, replicas=2)
    for layer in range(2):
        apart = checked_W_qk(params, layer, per_head=True)
        np.testing.assert_allclose(apart, W_qk(params, layer), rtol=0, atol=1e-13)
        together = checked_W_qk(params, layer)
        np.testing.assert_allclose(together, W_qk(params, layer).sum(axis=1), rtol=0, atol=1e-13)
    np.testing.assert_array_equal(checked_W_qk(params), checked_W_qk(params, 0))


def expected_norm(kind, scale, d, h):
    return scale**2 * (h * (1 + (h + 1) / d) if kind == "symmetric" else h) ** 0.5


@pytest.mark.parametrize("kind", ["random", "symmetric"])
def test_the_mean_square_norm_is_the_documented_one(kind):
    params = init_params(heads, replicas=600, qk_init=kind, qk_scale=1.5)
    squares = norms(params).ravel() ** 2
    expected = expected_norm(kind, 1.5, d=8, h=4) ** 2
    assert abs(squares.mean() - expected) < 5 * squares.std() / squares.size**0.5


@pytest.mark.parametrize(
    ("kind", "other"), [("random_matched", "symmetric"), ("symmetric_matched", "random")]
)
def test_matched_kinds_have_the_norm_of_the_other_in_every_head(kind, other):
    params = init_params(plain, replicas=3, qk_init=kind, qk_scale=1.5)
    for layer in range(2):
        found = np.linalg.norm(W_qk(params, layer), axis=(-2, -1))
        np.testing.assert_allclose(found, expected_norm(other, 1.5, d=6, h=2), rtol=1e-12)
    small = init_params(plain, replicas=3, qk_init=kind, qk_scale=1e-3)
    np.testing.assert_allclose(norms(small), expected_norm(other, 1e-3, d=6, h=2), rtol=1e-12)


@pytest.mark.parametrize("kind", ["random", "symmetric"])
def test_matching_rescales_the_same_draw_and_queries_and_keys_alike(kind):
    params = init_params(plain, replicas=3, qk_init=kind)
    matched = init_params(plain, replicas=3, qk_init=f"{kind}_matched")
    for name in params:
        if name.endswith(("W_q", "W_k")):
            ratio = matched[name] / params[name]
            np.testing.assert_allclose(ratio, ratio[:, :1, :, :1] * np.ones_like(ratio), rtol=1e-12)
            query, key = (name[:-1] + letter for letter in "qk")
            np.testing.assert_allclose(ratio, matched[query] / params[query], rtol=1e-12)
            assert np.allclose(matched[key] / params[key], ratio, rtol=1e-12, atol=0)
            assert np.abs(ratio - 1).min() > 1e-6
        else:
            np.testing.assert_array_equal(matched[name], params[name])


def test_the_kinds_share_every_other_draw_and_W_q():
    params, symmetric = (init_params(plain, 2, qk_init=kind) for kind in ("random", "symmetric"))
    for name in params:
        source = params[name.replace("W_k", "W_q")]
        np.testing.assert_array_equal(symmetric[name], source, err_msg=name)
    assert not np.shares_memory(symmetric["layers.0.W_k"], symmetric["layers.0.W_q"])
    assert np.abs(params["layers.0.W_k"] - params["layers.0.W_q"]).min() > 0


# Replicas, precision, what a choice leaves alone


@pytest.mark.parametrize("kind", ["random", "random_matched", "symmetric_matched"])
def test_a_replica_alone_is_that_replica_among_others(kind):
    eight = init_params(full, replicas=8, seed=3, qk_init=kind)
    for chosen in ([5], [7, 0]):
        equal(
            init_params(full, replicas=chosen, seed=3, qk_init=kind),
            {name: value[chosen] for name, value in eight.items()},
        )


@pytest.mark.parametrize("kind", ["random", "random_matched"])
def test_single_precision_is_double_precision_rounded(kind):
    double, single = (init_params(full, 2, qk_init=kind, dtype=d) for d in ("float64", "float32"))
    assert {value.dtype.name for value in double.values()} == {"float64"}
    assert {value.dtype.name for value in single.values()} == {"float32"}
    equal(single, {name: value.astype("float32") for name, value in double.items()})


@pytest.mark.parametrize("choice", [{"bias": True}, {"norm": "pre"}, {"norm": "post"}])
def test_constants_do_not_disturb_draws(choice):
    before = init_params(dataclasses.replace(plain, feed_forward=9), replicas=2)
    after = init_params(dataclasses.replace(plain, feed_forward=9, **choice), replicas=2)
    assert after.keys() > before.keys()
    equal({name: after[name] for name in before}, before)


def test_the_same_arguments_give_the_same_arrays_and_never_the_same_memory():
    one, other = init_params(plain), init_params(plain)
    equal(one, other)
    one["unembedding"][...] = 0
    equal(init_params(plain), other)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"qk_init": "Random"}, "qk_init"),
        ({"qk_init": None}, "qk_init"),
        ({"embedding_scale": -1}, "embedding_scale"),
        ({"embedding_scale": np.nan}, "embedding_scale"),
        ({"qk_scale": np.inf}, "qk_scale"),
        ({"qk_scale": "1"}, "qk_scale"),
        ({"dtype": "float16"}, "dtype"),
        ({"dtype": "complex128"}, "dtype"),
        ({"dtype": None}, "dtype"),
        ({"replicas": 0}, "replicas"),
        ({"replicas": [1, 1]}, "replicas"),
        ({"seed": -1}, "seed"),
        ({"seed": 0.0}, "seed"),
    ],
    ids=str,
)
def test_a_bad_argument_is_refused_by_name(arguments, name):
    with pytest.raises(ValueError, match=f"^{name}: got"):
        init_params(plain, **arguments)


# What check_params accepts


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
def test_good_params_pass(dtype):
    params = {name: value.astype(dtype) for name, value in init_params(full, 3).items()}
    assert check_params(full, params) == (3, np.dtype(dtype))


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("unembedding", None, r"params: got names that differ in \['unembedding'\]"),
        ("extra", np.zeros((2, 1)), r"params: got names that differ in \['extra'\]"),
        ("layers.1.W_k", [[1.0]], r"params\['layers.1.W_k'\]: got list, needs a NumPy array"),
        ("layers.1.W_k", np.zeros((2, 6, 3, 4), int), "got int64, needs a NumPy array of floats"),
        ("layers.1.W_k", np.zeros((6, 3, 4)), r"got shape \(6, 3, 4\), needs shape \(R, "),
        ("layers.1.W_k", np.zeros((2, 6, 3, 5)), r"got shape \(2, 6, 3, 5\)"),
        ("layers.1.W_k", np.zeros((0, 6, 3, 4)), r"got shape \(0, 6, 3, 4\)"),
        ("layers.1.W_k", np.zeros(()), r"got shape \(\)"),
        ("layers.1.W_k", np.zeros((3, 6, 3, 4)), "got 3 replicas of float64, needs 2 of float64"),
        ("layers.1.W_k", np.zeros((2, 6, 3, 4), "f4"), "got 2 replicas of float32, needs 2 of"),
    ],
)
def test_params_that_do_not_fit_are_refused_by_name(name, spoil, message):
    params = init_params(full, 2)
    if spoil is None:
        del params[name]
    else:
        params[name] = spoil
    with pytest.raises(ValueError, match=message):
        check_params(full, params)


def test_params_must_be_a_dict():
    with pytest.raises(ValueError, match=r"^params: got"):
        check_params(full, list(init_params(full).values()))


def test_a_config_that_is_none_is_refused_by_name():
    for call in (parameter_shapes, init_params):
        with pytest.raises(ValueError, match=r"^config: got dict, needs a minattn"):
            call({"width": 8})


def test_W_qk_refuses_bad_arguments_by_name():
    params = init_params(TransformerConfig(vocab_size=3, width=4, layers=1, heads=1, max_length=2))
    with pytest.raises(ValueError, match=r"^params: got NoneType"):
        checked_W_qk(None)
    with pytest.raises(ValueError, match=r"^per_head: got 1"):
        checked_W_qk(params, per_head=1)
    for layer in (1, -1, 0.0, "0"):
        with pytest.raises(ValueError, match=r"^layer: got"):
            checked_W_qk(params, layer)
    two = init_params(full)
    with pytest.raises(ValueError, match=r"^layer: got 3, needs a layer within 0\.\.1$"):
        checked_W_qk(two, layer=3)
    with pytest.raises(ValueError, match=r"^layer: got 0, needs params with layers$"):
        checked_W_qk({})


def test_the_arrays_of_a_layer_go_by_short_names():
    params = {name: np.zeros(i) for i, name in enumerate(parameter_shapes(full))}
    first = below(params, "layers.0.")
    assert first.keys() == (ATTENTION | BIAS | NORM | HIDDEN | HIDDEN_BIAS | HIDDEN_NORM).keys()
    assert all(value is params[f"layers.0.{name}"] for name, value in first.items())
    assert prefixed("layers.0.", first).items() <= params.items()


def test_outputs_are_scaled_by_their_own_fan_in_where_heads_do_not_fill_the_width():
    config = TransformerConfig(
        vocab_size=2, width=8, layers=1, heads=4, max_length=2, head_width=50, feed_forward=300
    )
    params = init_params(config, replicas=3)
    for name, fan_in in (("W_o", 200), ("W_out", 300), ("W_v", 8), ("W_in", 8)):
        found = params[f"layers.0.{name}"].std() * fan_in**0.5
        assert abs(found - 1) < 0.06, name  # six standard errors of 4800 entries at most

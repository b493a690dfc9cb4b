"""The model as a whole: against loops and complex steps, replicas, causality, bad arguments."""

import dataclasses
import re

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minattn as ma
from minattn.engines import Reference
from minattn.testing import check_gradient
from minattn.testing.strategies import build_batch, build_case, build_params, cases

CONFIG = ma.TransformerConfig(
    vocab_size=5, width=6, layers=2, heads=2, head_width=4, max_length=6, bias=True, feed_forward=3
)
VARIANTS = [
    CONFIG,
    dataclasses.replace(CONFIG, norm="pre", attention="linear", positions=False),
    dataclasses.replace(CONFIG, norm="post", bias=False, layers=3),
    dataclasses.replace(CONFIG, norm="pre", feed_forward=0, head_width=1, heads=3),
]
variants = pytest.mark.parametrize("config", VARIANTS, ids=lambda c: f"{c.norm}-{c.attention}")


def scalar_loss(config, batch, weights):
    """The weighted sum of the replicas' losses as a function of the parameters, complex too."""
    return lambda p: (weights * ma.mean_loss(config, p, batch, "numpy")).sum()


def frozen(arrays):
    for array in arrays:
        array.setflags(write=False)


@given(case=cases(max_replicas=2, max_batch=2))
def test_loss_and_logits_against_loops(engine, case):
    config, params, batch = case
    loss, _, _ = ma.loss_and_grad(*case, engine=engine)
    logits = ma.forward(config, params, batch.inputs, batch.mask, engine)
    assert logits.shape == (*batch.inputs.shape, config.vocab_size)
    for r in range(len(loss)):
        p = naive.replica(params, r)
        arrays = (batch.inputs[r], batch.targets[r], batch.weights[r])
        np.testing.assert_allclose(loss[r], naive.loss(config, p, *arrays, batch.mask), rtol=1e-9)
        for b, tokens in enumerate(batch.inputs[r]):
            expected = naive.logits(config, p, tokens, batch.mask)
            np.testing.assert_allclose(logits[r, b], expected, rtol=1e-8, atol=1e-9)


@settings(max_examples=50)
@given(case=cases(), seed=st.integers(0, 99))
def test_gradient_along_a_random_direction(engine, case, seed):
    config, params, batch = case

    def gradient(p, cotangent):
        _, grads, _ = ma.loss_and_grad(config, p, batch, engine)
        return {name: np.einsum("r,r...->r...", cotangent, g) for name, g in grads.items()}

    check = check_gradient(
        lambda p: ma.loss_and_grad(config, p, batch, "numpy")[0], gradient, params, "complex", seed
    )
    assert check.residual < 1e-11


@variants
def test_gradient_in_every_entry(config):
    _, params, batch = build_case(config, replicas=2, batch_size=2, length=5)
    weights = np.array([1.0, -2.0])
    expected = naive.gradient(scalar_loss(config, batch, weights), params)
    largest = max(abs(gradient).max() for gradient in expected.values())
    for engine in ("numpy", "numba"):
        _, found, _ = ma.loss_and_grad(config, params, batch, engine)
        for name, gradient in expected.items():
            error = abs(np.einsum("r,r...->r...", weights, found[name]) - gradient).max()
            assert error <= 1e-12 * largest, (engine, name)


@variants
def test_complex_loss_of_loops_has_the_same_derivative(config):
    """Loops and complex numbers only: neither the forward pass nor the step of minattn."""
    _, params, batch = build_case(config, length=3, mask="strictly_causal")
    _, grads, _ = ma.loss_and_grad(config, params, batch)
    p = naive.replica(params, 0)
    rng = np.random.default_rng(0)
    direction = {name: rng.standard_normal(value.shape) for name, value in p.items()}
    moved = {name: value + 1e-30j * direction[name] for name, value in p.items()}
    arrays = (batch.inputs[0], batch.targets[0], batch.weights[0], batch.mask)
    measured = naive.loss(config, moved, *arrays).imag / 1e-30
    predicted = sum((grads[name][0] * direction[name]).sum() for name in p)
    np.testing.assert_allclose(predicted, measured, rtol=1e-10)


@variants
def test_names_shapes_and_types(engine, config):
    _, params, batch = build_case(config, replicas=3, batch_size=2, length=4)
    logits, tape = ma.forward(config, params, batch.inputs, engine=engine, tape=True)
    assert logits.shape == (3, 2, 4, config.vocab_size)
    assert tape.engine.name == engine
    assert tape.grads is None
    assert len(tape.layers) == config.layers
    grads = ma.backward(config, params, tape, np.ones_like(logits))
    assert list(grads) == list(params)
    for name, gradient in grads.items():
        assert gradient.shape == params[name].shape
        assert gradient.dtype == np.float64
        assert gradient.flags.c_contiguous


def test_a_loss_of_ones_own(engine):
    """Backward is the transpose of the derivative, for any dlogits; it completes the tape."""
    config, params, batch = build_case(CONFIG, replicas=2, batch_size=2, length=4)
    tapes = []

    def gradient(p, cotangent):
        _, tape = ma.forward(config, p, batch.inputs, engine=engine, tape=True)
        tapes.append(tape)
        with pytest.raises(ValueError, match="tape"):
            ma.implicit_update(config, p, tape)
        return ma.backward(config, p, tape, cotangent)

    forward = lambda p: ma.forward(config, p, batch.inputs, engine="numpy")  # noqa: E731
    assert check_gradient(forward, gradient, params).residual < 1e-12
    assert ma.implicit_update(config, params, tapes[0], layer=1).residual.max() < 1e-12


def test_backward_twice_on_one_tape(engine):
    config, params, batch = build_case(CONFIG, replicas=2, batch_size=2, length=4)
    logits, tape = ma.forward(config, params, batch.inputs, engine=engine, tape=True)
    rng = np.random.default_rng(0)
    dlogits = rng.standard_normal(logits.shape)
    first = ma.backward(config, params, tape, dlogits)
    kept = {name: value.copy() for name, value in first.items()}
    ma.backward(config, params, tape, rng.standard_normal(logits.shape))
    second = ma.backward(config, params, tape, dlogits)
    for name, value in first.items():
        assert np.array_equal(value, kept[name])
        assert np.array_equal(value, second[name])


def test_step_and_forward_with_backward_agree(engine):
    config, params, batch = build_case(CONFIG, replicas=2, batch_size=2, length=4)
    loss, grads, tape = ma.loss_and_grad(config, params, batch, engine)
    logits, other = ma.forward(config, params, batch.inputs, engine=engine, tape=True)
    shares = batch.weights / batch.weights.sum(axis=(1, 2), keepdims=True)
    p = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    chosen = np.take_along_axis(p, batch.targets[..., None], -1)[..., 0]
    np.testing.assert_allclose(loss, -(shares * np.log(chosen)).sum(axis=(1, 2)))
    dlogits = shares[..., None] * (p - np.eye(config.vocab_size)[batch.targets])
    mine = ma.backward(config, params, other, dlogits)
    for name in params:
        np.testing.assert_allclose(mine[name], grads[name], atol=1e-14)
    np.testing.assert_allclose(tape.final, other.final)


@variants
def test_a_replica_alone_is_bit_equal(engine, config):
    _, params, batch = build_case(config, replicas=3, batch_size=2, length=5)
    together = ma.loss_and_grad(config, params, batch, engine)
    logits = ma.forward(config, params, batch.inputs, engine=engine)
    for r in range(3):
        alone = {name: value[r : r + 1] for name, value in params.items()}
        part = ma.Batch(
            inputs=batch.inputs[r], targets=batch.targets[r], weights=batch.weights[r],
            mask=batch.mask,
        )  # fmt: skip
        loss, grads, tape = ma.loss_and_grad(config, alone, part, engine)
        assert np.array_equal(loss, together[0][r : r + 1])
        for name, gradient in grads.items():
            assert np.array_equal(gradient[0], together[1][name][r]), name
        for layer, other in zip(tape.layers, together[2].layers, strict=True):
            assert np.array_equal(layer.attention.A[0], other.attention.A[r])
        assert np.array_equal(ma.forward(config, alone, part.inputs, engine=engine)[0], logits[r])


def test_shared_tokens_are_stacked_tokens(engine):
    params = build_params(CONFIG, replicas=3)
    tokens = build_batch(CONFIG, None, 2, 5).inputs
    shared = ma.forward(CONFIG, params, tokens, engine=engine)
    stacked = ma.forward(CONFIG, params, np.stack([tokens] * 3), engine=engine)
    assert np.array_equal(shared, stacked)


@variants
@pytest.mark.parametrize("mask", ["causal", "strictly_causal"])
def test_the_past_does_not_see_the_future(engine, config, mask):
    t, length = 3, 6
    _, params, batch = build_case(config, replicas=2, batch_size=2, length=length, mask=mask)
    weights = batch.weights.copy()
    weights[..., t:] = 0
    weights[..., 0] += 1
    tokens = batch.inputs % (config.vocab_size - 1)
    tokens[..., t:] = config.vocab_size - 1  # a symbol of its own, so that its row is theirs
    other = tokens.copy()
    other[..., t] = config.mask_symbol
    past = dataclasses.replace(batch, inputs=tokens, weights=weights)

    before = ma.forward(config, params, tokens, mask, engine)
    after = ma.forward(config, params, other, mask, engine)
    assert np.array_equal(before[..., :t, :], after[..., :t, :])
    assert (before[..., t, :] != after[..., t, :]).any()

    loss, grads, _ = ma.loss_and_grad(config, params, past, engine)
    changed = ma.loss_and_grad(config, params, dataclasses.replace(past, inputs=other), engine)
    assert np.array_equal(loss, changed[0])
    for name in params:
        assert np.array_equal(grads[name], changed[1][name]), name
    later = grads["token_embedding"][:, config.vocab_size - 1]
    assert np.array_equal(later, np.zeros_like(later))
    if config.positions:
        assert (grads["position_embedding"][:, t:] == 0).all()
        assert (grads["position_embedding"][:, :t] != 0).any(axis=-1).all()


def test_under_the_bidirectional_mask_the_past_sees_the_future(engine):
    t = 3
    _, params, batch = build_case(CONFIG, batch_size=2, length=6, mask="bidirectional")
    weights = batch.weights.copy()
    weights[..., t:] = 0
    weights[..., 0] += 1
    other = batch.inputs.copy()
    other[..., t] = (other[..., t] + 1) % CONFIG.vocab_size
    before = ma.forward(CONFIG, params, batch.inputs, "bidirectional", engine)
    after = ma.forward(CONFIG, params, other, "bidirectional", engine)
    assert (before != after).any(axis=-1).all()
    past = dataclasses.replace(batch, weights=weights)
    _, grads, _ = ma.loss_and_grad(CONFIG, params, past, engine)
    assert (grads["position_embedding"][:, t:] != 0).any(axis=-1).all()
    _, changed, _ = ma.loss_and_grad(
        CONFIG, params, dataclasses.replace(past, inputs=other), engine
    )
    assert all((grads[name] != changed[name]).any() for name in params if "b_k" not in name)


def test_one_symbol_leaves_nothing_to_learn(engine):
    config = dataclasses.replace(CONFIG, vocab_size=1)
    for batch in (
        ma.next_token(np.zeros((2, 5), int)),
        ma.MaskedToken(mask_symbol=1, rate=0.5)(np.zeros((2, 5), int), np.random.default_rng(0)),
    ):
        loss, grads, _ = ma.loss_and_grad(config, build_params(config, 2), batch, engine)
        assert (loss == 0).all()
        assert all((gradient == 0).all() for gradient in grads.values())


def test_inputs_are_not_modified(engine):
    config, params, batch = build_case(dataclasses.replace(CONFIG, norm="pre"), 2, 2, 4)
    allowed = naive.pairs("causal", 4)
    arrays = [*params.values(), batch.inputs, batch.targets, batch.weights, allowed]
    copies = [array.copy() for array in arrays]
    frozen(arrays)  # writing would raise; the copies catch writes through other views
    logits, tape = ma.forward(config, params, batch.inputs, allowed, engine, tape=True)
    dlogits = np.ones_like(logits)
    frozen([dlogits])
    ma.backward(config, params, tape, dlogits)
    ma.loss_and_grad(config, params, dataclasses.replace(batch, mask=allowed), engine)
    assert all(np.array_equal(a, b) for a, b in zip(arrays, copies, strict=True))


def test_strided_and_fortran_arrays_give_the_values_of_contiguous_ones(engine):
    config, params, batch = build_case(CONFIG, replicas=2, batch_size=3, length=4)
    odd = {name: np.asfortranarray(value) for name, value in params.items()}
    odd["unembedding"] = np.repeat(params["unembedding"], 2, axis=2)[:, :, ::2]
    tokens = np.repeat(batch.inputs, 2, axis=-1)[..., ::2].astype(np.int16)
    allowed = np.asfortranarray(naive.pairs("causal", 4))
    other = dataclasses.replace(batch, inputs=tokens, mask=allowed)
    loss, grads, _ = ma.loss_and_grad(config, params, batch, engine)
    odd_loss, odd_grads, _ = ma.loss_and_grad(config, odd, other, engine)
    np.testing.assert_allclose(odd_loss, loss, rtol=1e-13)
    for name in params:
        np.testing.assert_allclose(odd_grads[name], grads[name], atol=1e-13)


PARAMS = build_params(CONFIG, replicas=2)
TOKENS = build_batch(CONFIG, 2, 3, 4).inputs


def spoilt(name, change):
    return {"params": PARAMS | {name: change(PARAMS[name])}}


BAD = {
    "token beyond the mask symbol": ({"tokens": TOKENS + 6}, "tokens"),
    "negative token": ({"tokens": TOKENS - 6}, "tokens"),
    "fractions": ({"tokens": TOKENS + 0.5}, "tokens"),
    "too long": ({"tokens": np.zeros((2, 7), int)}, "tokens"),
    "one axis": ({"tokens": TOKENS[0, 0]}, "tokens"),
    "four axes": ({"tokens": TOKENS[None]}, "tokens"),
    "other replicas": ({"tokens": TOKENS[:1]}, "tokens"),
    "no sequence": ({"tokens": TOKENS[:, :0]}, "tokens"),
    "no position": ({"tokens": TOKENS[:, :, :0]}, "tokens"),
    "missing": ({"params": {n: v for n, v in PARAMS.items() if n != "unembedding"}}, "params"),
    "unknown": ({"params": PARAMS | {"spare": PARAMS["unembedding"]}}, "params"),
    "no dict": ({"params": list(PARAMS.values())}, "params"),
    "shape": (spoilt("layers.1.W_q", lambda W: W[..., :3]), r"params\['layers.1.W_q'\]"),
    "no replica axis": (spoilt("unembedding", lambda W: W[0]), r"params\['unembedding'\]"),
    "replica count": (spoilt("unembedding", lambda W: W[:1]), r"params\['unembedding'\]"),
    "no replica": (
        {"params": {n: v[:0] for n, v in PARAMS.items()}},
        r"params\['token_embedding'\]",
    ),
    "mixed dtype": (spoilt("layers.0.b_o", np.float32), r"params\['layers.0.b_o'\]"),
    "integers": (spoilt("layers.0.b_o", lambda b: b.astype(int)), r"params\['layers.0.b_o'\]"),
    "a list": (spoilt("layers.0.b_o", lambda b: b.tolist()), r"params\['layers.0.b_o'\]"),
    "half": ({"params": {n: v.astype(np.float16) for n, v in PARAMS.items()}}, "engine"),
    "mask name": ({"mask": "diagonal"}, "mask"),
    "mask shape": ({"mask": np.ones((5, 5), bool)}, "mask"),
    "mask axes": ({"mask": np.ones((2, 4, 4), bool)}, "mask"),
    "mask dtype": ({"mask": np.ones((4, 4))}, "mask"),
    "unknown engine": ({"engine": "abacus"}, "engine"),
    "engine of another type": ({"engine": 3}, "engine"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_name_what_they_are(case):
    changes, name = BAD[case]
    good = {"config": CONFIG, "params": PARAMS, "tokens": TOKENS}
    with pytest.raises(ValueError, match=rf"^{name}: got .*, needs "):
        ma.forward(**(good | changes))


@pytest.mark.parametrize("token", [-1, 6])
def test_a_token_out_of_range_is_named_on_every_engine(engine, token):
    tokens = TOKENS.copy()
    tokens[1, 2, 3] = token
    needs = r"needs every value within 0\.\.4, or the mask symbol 5$"
    with pytest.raises(ValueError, match=rf"tokens: got the value {token}, {needs}"):
        ma.forward(CONFIG, PARAMS, tokens, engine=engine)


def test_complex_parameters_need_the_numpy_engine():
    params = {name: value.astype(complex) for name, value in PARAMS.items()}
    assert ma.forward(CONFIG, params, TOKENS).dtype == complex
    with pytest.raises(ValueError, match="engine: got 'numba' for complex128"):
        ma.forward(CONFIG, params, TOKENS, engine="numba")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tape": 1}, "tape: got 1, needs True or False"),
        (
            {"tokens": TOKENS[:1]},
            "tokens: got shape (1, 3, 4), needs shape (B, N) or (2, B, N), none of them 0",
        ),
        ({"tokens": np.zeros((2, 7), int)}, "tokens: got length 7, needs at most max_length 6"),
    ],
)
def test_forward_says_what_it_needs(changes, message):
    good = {"config": CONFIG, "params": PARAMS, "tokens": TOKENS}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ma.forward(**(good | changes))


LOGITS, TAPE = ma.forward(CONFIG, PARAMS, TOKENS, engine="numpy", tape=True)
SHALLOW = dataclasses.replace(CONFIG, layers=1)
SINGLE = {name: value.astype(np.float32) for name, value in PARAMS.items()}
ONE = {name: value[:1] for name, value in PARAMS.items()}
DLOGITS = "needs float64 of shape (2, 3, 4, 5)"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dlogits": LOGITS[:1]}, f"dlogits: got float64 of shape (1, 3, 4, 5), {DLOGITS}"),
        ({"dlogits": LOGITS[..., 0]}, f"dlogits: got float64 of shape (2, 3, 4), {DLOGITS}"),
        ({"dlogits": LOGITS.astype(str)}, f"dlogits: got an array of <U32, {DLOGITS}"),
        ({"dlogits": LOGITS + 1j}, f"dlogits: got an array of complex128, {DLOGITS}"),
        ({"tape": None}, "tape: got NoneType, needs the tape of a forward pass of this model"),
        ({"tape": LOGITS}, "tape: got ndarray, needs the tape of a forward pass of this model"),
        (
            {"config": SHALLOW, "params": build_params(SHALLOW, 2)},
            "tape: got 2 layers, needs 1, as config has",
        ),
        (
            {"params": ONE},
            "tape: got one of 2 replicas of float64, "
            "needs one of 1 replicas of float64, as params have",
        ),
        (
            {"params": SINGLE},
            "tape: got one of 2 replicas of float64, "
            "needs one of 2 replicas of float32, as params have",
        ),
    ],
)
def test_backward_says_what_it_needs(changes, message):
    good = {"config": CONFIG, "params": PARAMS, "tape": TAPE, "dlogits": LOGITS}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ma.backward(**(good | changes))


@pytest.mark.parametrize("kind", [int, np.uint8, np.float32, np.float64])
def test_dlogits_of_any_real_kind_are_taken(kind):
    dlogits = np.arange(LOGITS.size).reshape(LOGITS.shape) % 5
    expected = ma.backward(CONFIG, PARAMS, TAPE, dlogits.astype(np.float64))
    found = ma.backward(CONFIG, PARAMS, TAPE, dlogits.astype(kind))
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_an_engine_of_ones_own_runs_backward_too():
    class Counting(Reference):
        name = "counting"
        calls = 0

        def masked_softmax_backward(self, *arrays, **options):
            type(self).calls += 1
            return super().masked_softmax_backward(*arrays, **options)

    logits, tape = ma.forward(CONFIG, PARAMS, TOKENS, engine=Counting(), tape=True)
    ma.backward(CONFIG, PARAMS, tape, logits)
    assert Counting.calls == CONFIG.layers


def test_parameters_in_the_other_byte_order():
    swapped = {name: value.astype(">f8") for name, value in PARAMS.items()}
    with pytest.raises(ValueError, match=r"^params\['token_embedding'\]: got >f8"):
        ma.forward(CONFIG, swapped, TOKENS, engine="numba")


@pytest.mark.parametrize("norm", ["none", "pre"])
def test_what_overflows_is_an_error_of_its_own_and_no_warning(engine, norm):
    config = ma.TransformerConfig(vocab_size=3, width=4, layers=1, heads=2, max_length=3, norm=norm)
    params = ma.init_params(config, replicas=2)
    large = {
        name: value * [[[1.0]], [[1e200]]] for name, value in params.items() if value.ndim == 3
    }
    with pytest.raises(
        FloatingPointError, match=r"^forward: non-finite value in the logits, replica 1$"
    ):
        ma.forward(config, params | large, np.array([[0, 1, 2]]), engine=engine)
    params["unembedding"][1] *= 100
    _, tape = ma.forward(config, params, np.array([[0, 1, 2]]), engine=engine, tape=True)
    with pytest.raises(
        FloatingPointError,
        match=r"^backward: non-finite value in the gradient of token_embedding, replica 1$",
    ):
        ma.backward(config, params, tape, np.full((2, 1, 3, 3), 1e307))


def test_gradients_are_of_the_precision_of_params(engine):
    config = ma.TransformerConfig(vocab_size=3, width=4, layers=1, heads=2, max_length=3)
    params = ma.init_params(config, dtype="float32")
    _, tape = ma.forward(config, params, np.array([[0, 1, 2]]), engine=engine, tape=True)
    grads = ma.backward(config, params, tape, np.ones((1, 1, 3, 3)))
    assert {gradient.dtype for gradient in grads.values()} == {np.dtype(np.float32)}

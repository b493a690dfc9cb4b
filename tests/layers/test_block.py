"""One layer of the stack: residual sums, norms and their backward."""

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minattn.config import TransformerConfig
from minattn.engines import choose
from minattn.layers import attention, block
from minattn.params import below
from minattn.testing.strategies import build_params, configs, masks

CONFIGS = configs(layers=1, positions=False, vocab_size=2)


@given(data=st.data(), config=CONFIGS, seed=st.integers(0, 999))
def test_against_complex_step_and_loops(engine, data, config, seed):
    rng = np.random.default_rng(seed)
    R, B, N = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2)), config.max_length
    p = below(build_params(config, R, seed), "layers.0.")
    allowed = naive.pairs(data.draw(masks(N)), N)
    x, dy = (
        rng.standard_normal((R, B * N, config.width)),
        rng.standard_normal((R, B * N, config.width)),
    )
    chosen, exact = choose(engine), choose("numpy")

    joined = attention.joined(p)
    y, tape = block.forward(chosen, config, joined, x, allowed)
    dx, found = block.backward(chosen, config, joined, tape, dy.copy(), allowed)
    for r in range(R):
        for b in range(B):
            rows = slice(b * N, (b + 1) * N)
            expected = naive.block(config, naive.replica(p, r), x[r, rows], allowed)
            np.testing.assert_allclose(y[r, rows], expected, rtol=1e-10, atol=1e-10)

    def functional(arrays):
        weights = attention.joined({name: a for name, a in arrays.items() if name != "x"})
        return (dy * block.forward(exact, config, weights, arrays["x"], allowed)[0]).sum()

    found |= {"x": dx}
    expected = naive.gradient(functional, p | {"x": x})
    assert found.keys() == expected.keys()
    largest = max(abs(gradient).max() for gradient in expected.values())
    for name, gradient in expected.items():
        assert found[name].shape == gradient.shape
        assert abs(found[name] - gradient).max() <= 1e-12 * largest, name


@pytest.mark.parametrize("norm", ["none", "pre", "post"])
@pytest.mark.parametrize("feed_forward", [0, 4])
def test_inputs_are_not_written(engine, norm, feed_forward):
    config = TransformerConfig(
        vocab_size=2, width=4, layers=1, heads=2, max_length=3, norm=norm,
        feed_forward=feed_forward, bias=True,
    )  # fmt: skip
    p = attention.joined(below(build_params(config), "layers.0."))
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((1, 6, 4)), rng.standard_normal((1, 6, 4))
    for array in (x, dy, *p.values()):
        array.setflags(write=False)
    allowed = naive.pairs("causal", 3)
    _, tape = block.forward(choose(engine), config, p, x, allowed)
    first = block.backward(choose(engine), config, p, tape, dy, allowed)
    second = block.backward(choose(engine), config, p, tape, dy, allowed)
    assert np.array_equal(first[0], second[0])
    assert all(np.array_equal(first[1][name], second[1][name]) for name in first[1])


def test_an_offset_moves_W_qk(engine):
    config = TransformerConfig(vocab_size=2, width=4, layers=1, heads=2, max_length=3)
    p, rng = below(build_params(config), "layers.0."), np.random.default_rng(0)
    x, change = rng.standard_normal((1, 6, 4)), rng.standard_normal(p["W_q"].shape)
    offset = np.einsum("rdhi,rehi->rhde", change, p["W_k"])
    allowed = naive.pairs("causal", 3)
    y, _ = block.forward(choose(engine), config, attention.joined(p), x, allowed, offset)
    moved = attention.joined(p | {"W_q": p["W_q"] + change})
    expected, _ = block.forward(choose(engine), config, moved, x, allowed)
    np.testing.assert_allclose(y, expected, rtol=1e-10)


def test_a_tape_has_none_of_what_a_layer_has_not(engine):
    config = TransformerConfig(vocab_size=2, width=4, layers=1, heads=2, max_length=3, norm="none")
    p = attention.joined(below(build_params(config), "layers.0."))
    x, allowed = np.ones((1, 6, 4)), naive.pairs("causal", 3)
    _, tape = block.forward(choose(engine), config, p, x, allowed)
    assert tape.norm_attention is tape.feed_forward is tape.norm_feed_forward is None

"""Null bands, and what a large layer costs."""

import subprocess
import sys

import numpy as np
import pytest

from minattn.checkpoints import Layer, null_band, score, score_heads


def random_layer(seed, d=32, heads=4, key_heads=2, width=8):
    rng = np.random.default_rng(seed)
    W_q, W_k = rng.normal(size=(d, heads, width)), rng.normal(size=(d, key_heads, width))
    return Layer("random", "decoder", 0, W_q, W_k)


def test_random_layers_lie_in_the_band_as_often_as_promised():
    layers = [random_layer(seed) for seed in range(400)]
    band = null_band(layers[0], draws=39)
    for field in ("symmetry", "dispersion"):
        values = np.array([getattr(score(layer), field) for layer in layers])
        low, high = getattr(band.low, field), getattr(band.high, field)
        outside = np.mean((values < low) | (values > high))
        assert outside < 0.15  # 0.05 on average over bands


def test_the_band_of_a_head_is_that_of_its_shape():
    layer = random_layer(0)
    assert null_band(layer, per_head=True) == null_band(random_layer(1, heads=1, key_heads=1))
    band = null_band(layer, per_head=True)
    inside = [
        (band.low.symmetry <= s) & (s <= band.high.symmetry)
        for seed in range(100)
        for s in score_heads(random_layer(seed)).symmetry
    ]
    assert np.mean(inside) > 0.85


def test_bands_are_seeded_and_made_once():
    layer = random_layer(0)
    assert null_band(layer, seed=3) is null_band(random_layer(5), seed=3)
    assert null_band(layer, seed=3) != null_band(layer, seed=4)
    few, many = null_band(layer, draws=2), null_band(layer, draws=20)
    assert many.low.symmetry <= few.low.symmetry < few.high.symmetry <= many.high.symmetry
    assert many != few


@pytest.mark.parametrize("wrong", [{"draws": 1}, {"draws": 2.5}, {"seed": -1}])
def test_bad_arguments_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        null_band(random_layer(0), **wrong)


def test_a_large_layer_takes_no_more_memory_than_a_few_of_its_arrays():
    """A layer of d 4096, 32 query heads, 4 key heads of 128: W_q alone is 64 MiB."""
    code = """
import resource
import numpy as np
from minattn.checkpoints import Layer, score, score_heads
make = np.random.default_rng(0).standard_normal
W_q, W_k = (make((n, 4096), dtype=np.float32).reshape(-1, 128, 4096) for n in (4096, 512))
layer = Layer("random", "decoder", 0, W_q.transpose(2, 0, 1), W_k.transpose(2, 0, 1))
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
score(layer)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) / 2**10)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 150  # one copy of W_q in float64 is 128 MiB

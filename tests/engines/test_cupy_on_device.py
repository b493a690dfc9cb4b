"""The engine "cupy" on a device, where there is one."""

import numpy as np
import pytest
from test_primitives import IN_PLACE, PURE, close

import minattn as ma
from minattn.engines import Reference, availability, choose

pytestmark = pytest.mark.gpu
ALL = PURE | IN_PLACE
CONFIG = ma.TransformerConfig(
    vocab_size=5, width=4, layers=2, heads=2, max_length=8, norm="pre", feed_forward=6, bias=True
)
PARAMS = ma.init_params(CONFIG, replicas=3)
CHAIN = ma.data.MarkovChain.random(5, seed=0)


@pytest.fixture(autouse=True)
def _device():
    lack = availability()["cupy"]
    if lack is not None:
        pytest.skip(f"needs {lack}")


@pytest.mark.parametrize("primitive", ALL.values(), ids=ALL)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_primitive_is_that_of_the_reference(primitive, dtype):
    arrays, engine = primitive.arrays(0, (2, 140, 130), dtype), choose("cupy", dtype)
    found = engine.get(list(primitive.results(engine, engine.put(arrays))))
    for value, wanted in zip(found, primitive.results(Reference(), arrays), strict=True):
        close(value, wanted, dtype, arrays.values())


def test_training_is_that_of_the_reference_and_repeats_bit_for_bit():
    first, second, expected = (
        ma.fit(CONFIG, PARAMS, CHAIN, ma.next_token, 30, 4, 8, engine=name)
        for name in ("cupy", "cupy", "numpy")
    )
    for name, value in expected.params.items():
        np.testing.assert_allclose(first.params[name], value, atol=1e-10)
        np.testing.assert_array_equal(second.params[name], first.params[name])

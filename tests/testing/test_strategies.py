"""The strategies draw what fits together, reach the corners, shrink, and print well."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

import minattn as ma
from minattn.testing import strategies


@given(case=strategies.cases())
def test_cases_unpack_and_run(case):
    config, params, batch = case
    loss, grads, _ = ma.loss_and_grad(*case)
    assert loss.shape == (len(params["unembedding"]),)
    assert (loss > 0).all()
    assert grads.keys() == ma.parameter_shapes(config).keys()
    assert (batch.weights.reshape(len(loss), -1).sum(axis=1) > 0).all()


@given(case=strategies.cases(attention="softmax", layers=st.integers(2, 3), mask="causal"))
def test_fields_may_be_fixed_to_values_and_strategies(case):
    assert case.config.attention == "softmax"
    assert case.config.layers in (2, 3)
    assert case.batch.mask == "causal"


@given(case=strategies.cases(bias=True, norm="pre", feed_forward=3))
def test_parameters_are_not_at_their_constant_initial_values(case):
    for name, value in case.params.items():
        assert (value != (1 if name.endswith("gain") else 0)).all(), name


@given(data=st.data(), config=strategies.configs())
def test_parts_fit_the_configuration(data, config):
    params = data.draw(strategies.params(config, replicas=2))
    tokens = data.draw(strategies.tokens(config))
    assert ma.forward(config, params, tokens).shape == (2, *tokens.shape, config.vocab_size)
    assert data.draw(strategies.tokens(config, replicas=2)).ndim == 3
    assert data.draw(strategies.batches(config, replicas=2)).inputs.ndim == 3
    shared = data.draw(strategies.batches(config, replicas=None))
    assert ma.loss_and_grad(config, params, shared)[0].shape == (2,)


@given(chain=strategies.markov_chains(max_symbols=4))
def test_markov_chains_are_sources(chain):
    assert 2 <= chain.n_symbols <= 4
    assert chain.sample(2, 5, np.random.default_rng(0)).shape == (2, 5)


def reached(strategy, condition, phases=(Phase.generate,)):
    """An example that meets the condition, the smallest one with Phase.shrink."""
    return find(
        strategy, condition, settings=settings(database=None, max_examples=2000, phases=phases)
    )


@pytest.mark.parametrize(
    "condition",
    [
        lambda m: isinstance(m, str) and m == "strictly_causal",
        lambda m: not isinstance(m, str) and m.any() and not m.any(axis=1).all(),
        lambda m: not isinstance(m, str) and m.any() and not m.any(axis=0).all(),
        lambda m: not isinstance(m, str) and m.all(),
    ],
    ids=["named", "empty row", "unseen key", "full"],
)
def test_masks_reach_the_corners(condition):
    assert reached(strategies.masks(3), condition) is not None


@pytest.mark.parametrize(
    "condition",
    [
        lambda c: (c.batch.inputs == c.config.mask_symbol).any(),
        lambda c: (c.batch.weights == 0).any(),
        lambda c: c.config.h * c.config.heads != c.config.width,
        lambda c: c.config.h > c.config.width,
        lambda c: len(c.params["unembedding"]) == 3,
    ],
)
def test_cases_reach_the_corners(condition):
    assert reached(strategies.cases(), condition) is not None


def test_cases_shrink_to_the_smallest_model():
    phases = (Phase.generate, Phase.shrink)
    case = reached(strategies.cases(), lambda case: case.config.layers >= 2, phases)
    assert case.config.layers == 2
    assert (case.config.heads, case.config.h, case.config.width) == (1, 1, 2)
    assert case.batch.inputs.shape == (1, 1, 1)
    assert case.batch.mask == "causal"


def test_a_failing_example_prints_the_call_that_makes_it_again():
    @settings(database=None, print_blob=False, max_examples=50)
    @given(case=strategies.cases(mask="causal"))
    def fails(case):
        assert case.config.layers < 2

    with pytest.raises(AssertionError) as caught:
        fails()
    notes = "\n".join(caught.value.__notes__)
    assert "build_case(" in notes
    assert "TransformerConfig(" in notes
    assert "seed=0" in notes
    assert "array(" not in notes
    assert len(notes) < 900


def test_unknown_fields_are_named():
    with pytest.raises(ValueError, match="configs: got 'depth'"):
        strategies.configs(depth=3)


def test_hypothesis_is_imported_only_when_strategies_are_touched():
    code = (
        "import sys, minattn.testing; assert 'hypothesis' not in sys.modules;"
        "minattn.testing.strategies; assert 'hypothesis' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


def test_a_missing_hypothesis_is_named_with_its_extra():
    code = (
        "import sys; sys.modules['hypothesis'] = None; import minattn.testing\n"
        "minattn.testing.check_gradient\n"
        "try: minattn.testing.strategies\n"
        "except ImportError as error: assert \"pip install 'minattn[test]'\" in str(error)\n"
        "else: raise SystemExit('imported')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


def test_public_names():
    from minattn import testing

    assert sorted(testing.__all__) == dir(testing)
    assert all(hasattr(testing, name) for name in testing.__all__)
    assert all(hasattr(strategies, name) for name in strategies.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = testing.nothing

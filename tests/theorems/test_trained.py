"""The trained models: the same for the same seed, shared, and measured as said."""

import numpy as np
import pytest

from minattn.theorems.trained import LAYERS, trained_models


@pytest.fixture(scope="module")
def models():
    return trained_models(0, 3, 2)


def every(models):
    return models.causal, models.bidirectional, models.reversible


def test_runs_are_shared_and_repeatable(models):
    assert trained_models(0, 3, 2) is models
    again = trained_models.__wrapped__(0, 3, 2)
    for ours, theirs in zip(every(models), every(again), strict=True):
        for name in ("symmetry", "dispersion", "share_removed"):
            assert np.array_equal(getattr(ours, name), getattr(theirs, name))


def test_replicas_are_their_own_chains_whatever_their_number(models):
    alone = trained_models(0, 3, 1)
    for many, one in zip(every(models), every(alone), strict=True):
        np.testing.assert_allclose(many.symmetry[:, :1], one.symmetry, rtol=1e-6)
        assert abs(many.symmetry[:, 0] - many.symmetry[:, 1]).min() > 1e-6


def test_causal_models_have_no_pair_to_compare(models):
    assert np.isnan(models.causal.agreement).all()
    assert np.isfinite(models.bidirectional.agreement).all()
    assert models.bidirectional.agreement.shape == (2, LAYERS, 2)
    assert models.reversible.update_symmetry.shape == (2, LAYERS, 2)


def test_objectives_and_chains_differ(models):
    shares = np.array([trained.share_removed for trained in every(models)])
    assert len(np.unique(shares)) == shares.size


def test_training_learns():
    for few, more in zip(
        every(trained_models(0, 3, 2)), every(trained_models(0, 100, 2)), strict=True
    ):
        assert few.learnt + 0.05 < more.learnt < 1

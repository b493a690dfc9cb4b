import dataclasses

import numpy as np
import pytest

import minattn as ma
from minattn.comparison import ARMS, Training, chain_task, frequency_loss, text_task, train
from minattn.objectives import Batch

HOW = Training(
    width=8,
    heads=1,
    length=8,
    batch_size=4,
    steps=4,
    record_every=2,
    held_out_windows=16,
    optimizer=ma.AdamW(1e-2),
    seed=3,
    engine="numpy",
    dtype="float64",
)


def test_chains_differ_between_replicas_and_agree_between_lags():
    one, two = (chain_task("chain", 3, 5, lag, 1, seed=0) for lag in (1, 2))
    for a, b in zip(one.sources, two.sources, strict=True):
        assert (a.transition == b.transition).all()
        assert (a.lag, b.lag) == (1, 2)
    assert not np.allclose(one.sources[0].transition, one.sources[1].transition)
    more = chain_task("chain", 5, 5, 1, 1, seed=0)
    assert (more.sources[2].transition == one.sources[2].transition).all()


def test_an_iid_source_has_equal_rows():
    task = chain_task("iid", 2, 5, None, 1, seed=0)
    for chain in task.sources:
        assert np.ptp(chain.transition, axis=0).max() == 0
    laws = [chain.stationary for chain in task.sources]
    entropy = np.mean([-(law * np.log(law)).sum() for law in laws])
    assert task.context_free_loss == pytest.approx(entropy, rel=1e-12)


def test_arms_share_initial_parameters_and_held_out_tokens():
    task = chain_task("chain", 2, 5, 1, 1, seed=0)
    runs = {arm: train(task, arm, HOW) for arm in ARMS}
    first = runs["next_causal"]
    for run in runs.values():
        for name, value in first.initial.items():
            assert (run.initial[name] == value).all()
    bidirectional, causal = runs["masked_bidirectional"], runs["masked_causal"]
    assert (bidirectional.test.inputs == causal.test.inputs).all()
    assert (bidirectional.test.targets[..., 1:] == first.test.targets).all()
    assert (bidirectional.test.mask, causal.test.mask) == ("bidirectional", "causal")


@pytest.mark.parametrize("arm", ARMS)
def test_losses_shares_and_proofs(arm):
    task = chain_task("chain", 2, 8, 1, 2, seed=1)
    run = train(task, arm, dataclasses.replace(HOW, steps=100))
    assert run.proof_residual.shape == (2, 2)
    assert run.proof_residual.max() < 1e-9
    assert (run.excess > -1e-3).all()
    assert run.loss[-1] == pytest.approx(
        ma.mean_loss(run.config, run.history.params, run.test), rel=1e-12
    )
    assert (run.share_removed[0] == 0).all()
    assert run.share_removed[-1] == pytest.approx(1 - run.excess[-1] / run.excess[0])
    assert run.share_removed[-1].max() > 0.1
    assert run.metric("change_symmetry").shape == run.loss.shape


def test_text_has_no_known_optimum(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abcab cabca\n" * 40)
    corpus = ma.data.load_text(path)
    task = text_task("text", 2, corpus, 1)
    run = train(task, "next_causal", HOW)
    assert run.optimum is None
    with pytest.raises(ValueError, match="best reachable"):
        _ = run.excess
    counts = np.bincount(corpus.train.tokens)
    law = counts[counts > 0] / counts.sum()
    assert task.context_free_loss == pytest.approx(-(law * np.log(law)).sum())
    written = [task.written(token) for token in range(task.n_symbols + 1)]
    assert written[-1] == "■"
    assert {"␣", "↵", "a", "b", "c"} == set(written[:-1])


def test_the_loss_of_frequencies_counts_the_asked_positions_only():
    tokens, targets, weights = np.array([0, 0, 0, 1]), np.zeros((1, 2, 3), int), np.zeros((1, 2, 3))
    targets[0, 0, 0] = targets[0, 1, 1] = 2  # never seen
    weights[0, 0, 0], weights[0, 1, 2] = 1, 3
    test = Batch(inputs=targets, targets=targets, weights=weights, mask="causal")
    expected = -(np.log(1 / 7) + 3 * np.log(4 / 7)) / 4
    np.testing.assert_allclose(frequency_loss(tokens, 3, test), [expected])

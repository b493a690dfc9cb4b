"""The small trained models that statements about training are measured on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from minattn.arrays import Array
from minattn.comparison import Task, Training, train
from minattn.data import MarkovChain
from minattn.optim import AdamW
from minattn.randomness import generator

SYMBOLS, WIDTH, LAYERS, HEADS, LENGTH, BATCH = 8, 32, 2, 2, 16, 16
REPLICAS = 6
# Enough for masked training, which learns later than next token, to get most of the way.
STEPS = 500
LEARNING_RATE = 5e-3
HELD_OUT_WINDOWS = 64
# Share of the initial loss above the best reachable one that training has to remove, in the mean
# over replicas, before a model says anything about what training does.
LEAST_LEARNT = 0.5


@dataclass(frozen=True)
class Trained:
    """What one objective did to R models of L layers.

    Attributes
    ----------
    agreement : (2, L, R) array
        `ImplicitUpdate.agreement` at initialisation and after training; NaN where undefined.
    update_symmetry : (2, L, R) array
        Symmetry of the update Ghat, likewise; the mean over heads.
    symmetry, dispersion : (L, R) arrays
        Scores of the change of W_qk, summed over heads.
    share_removed : (R,) array
        Share of the initial held-out loss above the best reachable one that training removed.
    """

    agreement: Array
    update_symmetry: Array
    symmetry: Array
    dispersion: Array
    share_removed: Array

    @property
    def learnt(self) -> float:
        """Mean over replicas of the share removed."""
        return float(self.share_removed.mean())


@dataclass(frozen=True)
class TrainedModels:
    """The same models: next token, masked token, and masked token on reversible chains."""

    causal: Trained
    bidirectional: Trained
    reversible: Trained


@lru_cache(maxsize=8)
def trained_models(seed: int, steps: int, replicas: int) -> TrainedModels:
    """Train small models by next token (causal mask) and masked token (bidirectional mask).

    Each replica has a Dirichlet chain of its own. Statements that share seed, steps and replicas
    share the run.
    """
    rngs = [generator(seed, "source", replica) for replica in range(replicas)]
    seeds = [int(rng.integers(2**32)) for rng in rngs]
    chains, reversible = (
        [MarkovChain.random(SYMBOLS, 0.3, reversible=kind, seed=one) for one in seeds]
        for kind in (False, True)
    )
    return TrainedModels(
        causal=_train(seed, steps, "next_causal", chains),
        bidirectional=_train(seed, steps, "masked_bidirectional", chains),
        reversible=_train(seed, steps, "masked_bidirectional", reversible),
    )


def _train(seed: int, steps: int, arm: str, chains: list[MarkovChain]) -> Trained:
    how = Training(
        width=WIDTH,
        heads=HEADS,
        length=LENGTH,
        batch_size=BATCH,
        steps=steps,
        record_every=steps,
        held_out_windows=HELD_OUT_WINDOWS,
        optimizer=AdamW(lr=LEARNING_RATE),
        seed=seed,
        engine="auto",
        dtype="float64",
    )
    run = train(Task("dirichlet", "Dirichlet chains", chains, chains, LAYERS), arm, how)
    metrics = run.history.metrics
    return Trained(
        agreement=metrics["agreement"],
        update_symmetry=metrics["update_symmetry"],
        symmetry=metrics["change_symmetry"][-1],
        dispersion=metrics["change_dispersion"][-1],
        share_removed=run.share_removed[-1],
    )

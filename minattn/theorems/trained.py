"""The small trained models that statements about training are measured on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from minattn.arrays import Array
from minattn.config import TransformerConfig
from minattn.data import MarkovChain
from minattn.loop import Objective
from minattn.objectives import MaskedToken, next_token
from minattn.observers import account
from minattn.optim import AdamW
from minattn.params import init_params
from minattn.randomness import generator
from minattn.training import fit

SYMBOLS, WIDTH, LAYERS, HEADS, LENGTH, BATCH = 8, 32, 2, 2, 16, 16
REPLICAS = 6
STEPS = 300
# Steps in their hundreds should get somewhere: a loss about a fifth below guessing, when masked.
LEARNING_RATE = 5e-3


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
    loss : (2, R) array
    """

    agreement: Array
    update_symmetry: Array
    symmetry: Array
    dispersion: Array
    loss: Array


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
    masked = MaskedToken(mask_symbol=SYMBOLS)
    return TrainedModels(
        causal=_train(seed, steps, next_token, chains),
        bidirectional=_train(seed, steps, masked, chains),
        reversible=_train(seed, steps, masked, reversible),
    )


def _train(seed: int, steps: int, objective: Objective, chains: list[MarkovChain]) -> Trained:
    config = TransformerConfig(
        vocab_size=SYMBOLS, width=WIDTH, layers=LAYERS, heads=HEADS, max_length=LENGTH
    )
    start = init_params(config, len(chains), seed)
    metrics = fit(
        config,
        start,
        chains,
        objective,
        steps=steps,
        batch_size=BATCH,
        length=LENGTH,
        optimizer=AdamW(lr=LEARNING_RATE),
        seed=seed,
        record_every=steps,
        observe=account(config, start),
    ).metrics
    return Trained(
        agreement=metrics["agreement"],
        update_symmetry=metrics["update_symmetry"],
        symmetry=metrics["change_symmetry"][-1],
        dispersion=metrics["change_dispersion"][-1],
        loss=metrics["loss"],
    )

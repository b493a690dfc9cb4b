"""How `time_reversal.py` trains and measures: its chains, one model, exchangeability."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minattn.arrays import Array, Params, ratio
from minattn.comparison import held_out_batches
from minattn.config import TransformerConfig
from minattn.data import MarkovChain, optimal_loss
from minattn.data.stationary import entropies
from minattn.objectives import Batch, MaskedToken, next_token, stack
from minattn.observers import account, held_out_loss
from minattn.optim import AdamW
from minattn.params import init_params
from minattn.randomness import generator
from minattn.scores import symmetry
from minattn.step import loss_and_grad
from minattn.training import fit
from minattn.update import ImplicitUpdate, implicit_update

OBJECTIVES = {"masked": "masked token, bidirectional", "next": "next token, causal"}
CURVES = ("change_symmetry", "symmetry", "update_symmetry", "agreement", "change_norm")
OFFSETS = (1, 2, 3, 4)  # |i - j| at which exchangeability is tested
POWERS = (1, 2, 3)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model to train, in all replicas."""

    objective: str
    positions: bool
    flux: float
    replicas: int
    layers: int
    width: int
    n_symbols: int
    pairs: int
    entropy: float
    lag: int
    length: int
    batch_size: int
    steps: int
    record_every: int
    held_out_windows: int
    learning_rate: float
    seed: int
    engine: str
    dtype: str


Key = tuple[str, bool, float]  # objective, positions, net flux
Results = dict[Key, dict[str, Array]]


def train(setting: Setting) -> dict[str, Array]:
    """Train and return what was recorded.

    Returns
    -------
    dict of arrays
        "steps" (records,); "loss" (records, R), held out, in nats; "optimum" (R,), the best
        reachable one; "flux" and "entropy" (R,), of the chains; `CURVES` (records, layers, R), on
        the batches of training; and `snapshot`, "untrained" and "trained", on the held-out batch.
    """
    chains = [chain_of(setting, replica) for replica in range(setting.replicas)]
    objective = next_token
    if setting.objective == "masked":
        objective = MaskedToken(mask_symbol=setting.n_symbols)
    config = TransformerConfig(
        vocab_size=setting.n_symbols,
        width=setting.width,
        layers=setting.layers,
        heads=1,
        max_length=setting.length,
        positions=setting.positions,
    )
    params = init_params(config, setting.replicas, setting.seed, dtype=setting.dtype)
    sizes = (setting.held_out_windows, setting.length)
    tests = held_out_batches(chains, objective, *sizes, setting.seed)
    optimum = [optimal_loss(chain, objective, t) for chain, t in zip(chains, tests, strict=True)]
    test = stack(tests)
    history = fit(
        config,
        params,
        chains,
        objective,
        steps=setting.steps,
        batch_size=setting.batch_size,
        length=setting.length,
        optimizer=AdamW(setting.learning_rate),
        seed=setting.seed,
        engine=setting.engine,
        record_every=setting.record_every,
        observe=(account(config, params), held_out_loss(config, test, "held_out")),
    )
    found = {name: history.metrics[name] for name in CURVES}
    for when, values in (("untrained", params), ("trained", history.params)):
        shot = snapshot(config, values, test, setting.engine)
        found |= {f"{when}_{name}": value for name, value in shot.items()}
    return found | {
        "steps": history.steps,
        "loss": history.metrics["held_out"],
        "optimum": np.array(optimum),
        "flux": np.array([chain.net_flux for chain in chains]),
        "entropy": np.array([chain.entropy_rate for chain in chains]),
    }


def chain_of(setting: Setting, replica: int) -> MarkovChain:
    """Return a replica's chain; those of one replica differ in nothing but the knob."""
    rng = generator(setting.seed, "source", replica)
    steps = disjoint_permutations(setting.n_symbols, setting.pairs, rng)
    return knob_chain(steps, setting.flux, setting.entropy, setting.lag)


def disjoint_permutations(n_symbols: int, count: int, rng: np.random.Generator) -> Array:
    """Draw permutations (count, V) that, with their inverses, never agree on a symbol."""
    symbols = np.arange(n_symbols)
    taken = np.zeros((n_symbols, n_symbols), dtype=bool)  # steps i -> j of those so far
    found: list[Array] = []
    while len(found) < count:
        drawn = rng.permutation(n_symbols)
        back = np.argsort(drawn)
        if not ((drawn == back) | taken[symbols, drawn]).any():
            taken[symbols, drawn] = taken[symbols, back] = True
            found.append(drawn)
    return np.array(found)


def knob_chain(permutations: Array, flux: float, entropy: float, lag: int = 1) -> MarkovChain:
    """Return a chain that takes each permutation with weight w (1 + flux) / 2, back otherwise.

    At flux 0 the chain is reversible, at flux 1 it never takes a step back; its net flux is exactly
    `flux`, and its stationary law uniform. The entropy rate is H(w) + H((1 + flux) / 2): the
    weights w_k, in proportion to exp(-t k), are the ones that make it `entropy` nats.
    """
    count, V = permutations.shape
    forward = (1 + flux) / 2
    weights = _weights_of(entropy - float(entropies(np.array([forward, 1 - forward]))), count)
    P = np.zeros((V, V))
    for weight, step in zip(weights, permutations, strict=True):
        P[np.arange(V), step] += weight * forward
        P[step, np.arange(V)] += weight * (1 - forward)
    return MarkovChain(P, lag)


def _weights_of(entropy: float, count: int) -> Array:
    """Return weights in proportion to exp(-t k), k below `count`, of this entropy in nats."""
    from scipy.optimize import brentq

    def weights(t: float) -> Array:
        drawn = np.exp(-t * np.arange(count))
        return drawn / drawn.sum()

    return weights(brentq(lambda t: float(entropies(weights(t))) - entropy, 0.0, 100.0))


def snapshot(
    config: TransformerConfig, params: Params, batch: Batch, engine: str
) -> dict[str, Array]:
    """Return, each (layers, R): "agreement" and its "pairs", "exchange" and "later", "ghat".

    "ghat" is the symmetry of Ghat, the mean over heads.
    """
    _, _, tape = loss_and_grad(config, params, batch, engine)
    rows = []
    for layer in range(config.layers):
        update = implicit_update(config, params, tape, layer)
        agreement, pairs = update.agreement()
        exchange, later = exchangeability(update)
        ghat = symmetry(update.total).mean(axis=-1)
        rows.append((agreement, pairs, exchange, later, ghat))
    names = ("agreement", "pairs", "exchange", "later", "ghat")
    return dict(zip(names, map(np.stack, zip(*rows, strict=True)), strict=True))


def exchangeability(update: ImplicitUpdate) -> tuple[Array, Array]:
    """Return how far (beta_ij, beta_ji), i < j, are from having one law in either order.

    Returns
    -------
    index : (R,) array
        Mean over powers p, offsets j - i and heads of z^2 = (sum_b D_b)^2 / sum_b D_b^2, with D_b
        the sum of beta_ij^p - beta_ji^p over the pairs of sequence b. If reversing a sequence
        exchanges the two, D_b is as likely as -D_b, and the mean of z^2 is exactly 1; otherwise
        it grows with the number of sequences. NaN where an offset has no pair.
    later : (R,) array
        Size of the effect: share of sum (beta_ij^2 + beta_ji^2) that is the later key's, minus that
        of the earlier key's. NaN where there is no pair.
    """
    active = (update.beta != 0).any(axis=-1)
    both = update.allowed & update.allowed.T
    faced = both & active[..., None, :] & active[..., :, None]
    beta = np.where(faced, update.beta, 0).astype(np.float64)
    squares = []
    for offset in OFFSETS:
        to_later = np.diagonal(beta, offset, -2, -1)  # (R, B, H, N - offset)
        to_earlier = np.diagonal(beta, -offset, -2, -1)
        for power in POWERS:
            D = (to_later**power - to_earlier**power).sum(axis=-1)
            z_squared = ratio(D.sum(axis=1) ** 2, (D**2).sum(axis=1), empty=np.nan)
            squares.append(z_squared.mean(axis=-1))
    later, earlier = (
        (part**2).sum(axis=(1, 2, 3, 4)) for part in (np.triu(beta, 1), np.tril(beta, -1))
    )
    return np.mean(squares, axis=0), ratio(later - earlier, later + earlier, empty=np.nan)


def share_removed(result: dict[str, Array]) -> Array:
    """Share (R,) of the initial loss above the best reachable one that training removed."""
    excess = result["loss"] - result["optimum"]
    return 1 - excess[-1] / excess[0]


def last(result: dict[str, Array], metric: str) -> Array:
    """Return the last record (layers, R) of a curve, or a number of the end as it is."""
    return result[metric][-1] if metric in CURVES else result[metric]

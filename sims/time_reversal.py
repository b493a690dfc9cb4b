"""Is beta_ij = beta_ji a property of the objective or of the data?

The paper derives symmetry from bidirectional training by assuming that the two error signals of a
pair, beta_ij and beta_ji, are nearly equal (its Theorem 2.4). Here chains are turned, by one knob
at the same entropy rate and stationary law, from reversible (a step is as likely as its way back:
net flux 0) to cyclic (no step has a way back: net flux 1), and everything else stays as it is: the
permutations that a replica's chain takes, initial parameters, random streams. Transformers with two
layers are trained on masked tokens under the bidirectional mask and on the next token under the
causal one, with and without positions. Agreement is 2 sum beta_ij beta_ji / sum (beta_ij^2 +
beta_ji^2) over pairs that can both be non-zero, on held-out windows: 1 if equal, 0 if unrelated.
In the top layer of a masked model only masked queries count; in the lower one all do.

Primary claims, each decided by the 95% interval over replicas, which are paired across the knob.
Masked training with positions, unless it says otherwise:
  1. Before training the assumption does not hold even for reversible chains: agreement in the lower
     layer below 0.1.
  2. After training on reversible chains it does: agreement in the lower layer above 0.5.
  3. It is of the data: that agreement is larger at net flux 0 than at 1 (difference above 0).
  4. It is of the objective: at net flux 1 more than half of it is left (agreement at 1 minus half
     of that at 0 above 0).
  5. Symmetry follows the data: the change of W_qk is more symmetric at net flux 0 than at 1
     (difference above 0, mean over layers), for either objective.
  6. Symmetry is of the objective: at net flux 1 the change of W_qk after masked training is still
     symmetric (above 0.3), and more so than after next-token training (difference above 0).
  7. Control, exact: for a reversible chain and a model without positions, reversing a sequence
     exchanges beta_ij and beta_ji, trained or not. The index of `exchangeability`, whose mean is
     then 1, is below 2 (mean over layers, untrained and trained).
Secondary claims, corrected for their number by Holm's method:
  8. Agreement, the symmetry of Ghat (masked) and that of the change of W_qk (both objectives) fall
     along the whole knob: slope of the least-squares line below 0; layer by layer.
  9. Agreement in the top layer after training on reversible chains is above 0.
 10. Without positions a cyclic chain is not exchangeable: index above 2 after training.
 11. Without positions: agreement in the lower layer is larger at net flux 0 than at 1.
"Undertrained": training removed less than half of the initial loss above the best reachable one
(mean over replicas, of any setting that a claim is about); no verdict is drawn. This does not
concern claims 1 and 7.

Training is in float32 unless --dtype says otherwise. The default run takes about two minutes on
two cores, --quick ten seconds.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
from time_reversal_report import report, write
from time_reversal_training import OBJECTIVES, Setting, last, share_removed, train

from minattn import checks, experiment, sweep
from minattn.arrays import Array
from minattn.claims import Claim, Rule, above, below, holm, judge
from minattn.engines import NAMES as ENGINES
from minattn.engines import choose
from minattn.params import DTYPES

NAME = "time_reversal"
FLUXES = (0.0, 0.25, 0.5, 0.75, 1.0)
ENDS = (0.0, 0.5, 1.0)  # without positions
UNDERTRAINED_BELOW = 0.5
LAYERS = 2
LOWER, TOP = 0, 1
Key = tuple[str, bool, float]  # objective, positions, net flux
Results = dict[Key, dict[str, Array]]


@dataclass(frozen=True)
class Size:
    """What --quick makes smaller."""

    replicas: int
    steps: int
    width: int
    n_symbols: int
    length: int
    record_every: int
    held_out_windows: int


FULL = Size(8, 1000, 32, 16, 32, 25, 256)
QUICK = Size(3, 40, 16, 12, 16, 10, 32)


def main(arguments: list[str] | None = None) -> None:
    """Train every setting, then report."""
    options = parse(arguments)
    with experiment.result_folder(options.out) as folder:
        results = run_all(options)
        claims = judge_all(results)
        settings = {n: value for n, value in vars(options).items() if n not in ("out", "resume")}
        settings["first"] = asdict(setting_of(options, *next(iter(results))))
        engine = choose(options.engine, options.dtype).name
        summary = experiment.summary(NAME, settings, options.seed, engine, claims)
        write(results, summary, folder)
        folder.complete()
    report(results, claims)
    print(f"results in {options.out}")
    if options.publish:
        print(f"published in {experiment.publish(options.out, NAME)}")


def parse(arguments: list[str] | None) -> Namespace:
    """Read the options; what --quick makes smaller has defaults of its own."""
    parser = experiment.parser(NAME, __doc__)
    for name in ("replicas", "steps", "width"):
        text = f"default {getattr(FULL, name)}, with --quick {getattr(QUICK, name)}"
        parser.add_argument(f"--{name}", type=int, help=text)
    parser.add_argument("--lag", type=int, default=1, help="of the chains (default 1)")
    parser.add_argument("--engine", choices=ENGINES, default="auto")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of training")
    sweep.add_options(parser)
    options = parser.parse_args(arguments)
    for field, value in asdict(QUICK if options.quick else FULL).items():
        if getattr(options, field, None) is None:
            setattr(options, field, value)
    for name in ("replicas", "steps", "width", "lag"):
        checks.integer(f"--{name}", getattr(options, name), minimum=1)
    checks.integer("--seed", options.seed, minimum=0)
    return options


def run_all(options: Namespace) -> Results:
    """Train every setting, those with positions along the whole knob."""
    settings = {
        (objective, positions, flux): setting_of(options, objective, positions, flux)
        for objective in OBJECTIVES
        for positions in (True, False)
        for flux in (FLUXES if positions else ENDS)
    }
    found = sweep.run_as_asked(train, list(settings.values()), options, NAME)
    return dict(zip(settings, found, strict=True))


def setting_of(options: Namespace, objective: str, positions: bool, flux: float) -> Setting:
    """Return one setting as the options have it."""
    return Setting(
        objective=objective,
        positions=positions,
        flux=flux,
        layers=LAYERS,
        pairs=3,
        entropy=1.0,
        lag=options.lag,
        batch_size=16,
        learning_rate=3e-3,
        seed=options.seed,
        engine=choose(options.engine, options.dtype).name,
        dtype=options.dtype,
        **{field: getattr(options, field) for field in Size.__dataclass_fields__},
    )


def judge_all(results: Results) -> list[Claim]:
    """Return the primary claims, then the others with Holm's correction."""
    return [*primary(results), *holm(secondary(results))]


def primary(results: Results) -> Iterator[Claim]:
    """Claims 1 to 7 of the docstring."""
    ends = [("masked", True, flux) for flux in (0.0, 1.0)]
    reversible, cyclic = ends
    before = results[reversible]["untrained_agreement"][LOWER]
    at_0, at_1 = (results[key]["trained_agreement"][LOWER] for key in ends)

    def about(keys: Iterable[Key], claim: str, predicted: str, values: Array, rule: Rule) -> Claim:
        return judge(claim, predicted, values, rule, undertrained(results, keys))

    claim = "untrained, reversible: beta_ij does not agree with beta_ji (lower layer)"
    yield judge(claim, "agreement < 0.1", before, below(0.1))
    claim = "trained, reversible: beta_ij agrees with beta_ji (lower layer)"
    yield about([reversible], claim, "agreement > 0.5", at_0, above(0.5))
    claim = "agreement is of the data: larger on reversible chains than on cyclic ones"
    yield about(ends, claim, "flux 0 - flux 1 > 0", at_0 - at_1, above(0))
    claim = "agreement is of the objective: more than half of it is left on cyclic chains"
    yield about(ends, claim, "flux 1 - half of flux 0 > 0", at_1 - at_0 / 2, above(0))
    for objective, title in OBJECTIVES.items():
        keys = [(objective, True, 0.0), (objective, True, 1.0)]
        difference = np.subtract(*(change_symmetry(results[key]) for key in keys))
        claim = f"{title}: the change of W_qk is more symmetric on reversible chains"
        yield about(keys, claim, "flux 0 - flux 1 > 0", difference, above(0))
    masked, other = (change_symmetry(results[name, True, 1.0]) for name in OBJECTIVES)
    claim = "cyclic chains: masked training still makes the change of W_qk symmetric"
    yield about([cyclic], claim, "symmetry > 0.3", masked, above(0.3))
    claim = "cyclic chains: masked training makes it more symmetric than next-token training"
    keys = [cyclic, ("next", True, 1.0)]
    yield about(keys, claim, "masked - next token > 0", masked - other, above(0))
    for when in ("untrained", "trained"):
        index = results["masked", False, 0.0][f"{when}_exchange"].mean(axis=0)
        claim = f"control: reversible, no positions, {when}: beta_ij and beta_ji exchangeable"
        yield judge(claim, "index 1, below 2", index, below(2))


def secondary(results: Results) -> Iterator[Claim]:
    """Claims 8 to 11 of the docstring."""
    for objective, title in OBJECTIVES.items():
        keys = [(objective, True, flux) for flux in FLUXES]
        metrics = {"change_symmetry": "symmetry of the change of W_qk"}
        if objective == "masked":
            metrics |= {"trained_agreement": "agreement", "trained_ghat": "symmetry of Ghat"}
        for metric, text in metrics.items():
            for layer, place in ((LOWER, "lower"), (TOP, "top")):
                values = np.stack([last(results[key], metric)[layer] for key in keys])
                claim = f"{title}: {text} falls with the net flux, {place} layer"
                bad = undertrained(results, keys)
                yield judge(claim, "slope < 0", slope(FLUXES, values), below(0), bad)
    key = ("masked", True, 0.0)
    values, bad = results[key]["trained_agreement"][TOP], undertrained(results, [key])
    claim = "trained, reversible: beta_ij agrees with beta_ji (top layer)"
    yield judge(claim, "agreement > 0", values, above(0), bad)
    keys = [("masked", False, flux) for flux in (0.0, 1.0)]
    bad = undertrained(results, keys)
    values = results[keys[1]]["trained_exchange"].mean(axis=0)
    claim = "no positions: on cyclic chains beta_ij and beta_ji are not exchangeable"
    yield judge(claim, "index > 2", values, above(2), bad)
    values = np.subtract(*(results[key]["trained_agreement"][LOWER] for key in keys))
    claim = "no positions: agreement is larger on reversible chains than on cyclic ones"
    yield judge(claim, "flux 0 - flux 1 > 0", values, above(0), bad)


def undertrained(results: Results, keys: Iterable[Key]) -> bool:
    """Whether training removed too little, in any of the settings, to draw a verdict."""
    return any(share_removed(results[key]).mean() < UNDERTRAINED_BELOW for key in keys)


def change_symmetry(result: dict[str, Array]) -> Array:
    """Symmetry (R,) of the change of W_qk at the end, the mean over layers."""
    return result["change_symmetry"][-1].mean(axis=0)


def slope(x: Iterable[float], values: Array) -> Array:
    """Slope (R,) of the least-squares line through values (len(x), R)."""
    centred = np.asarray(x, dtype=float) - np.mean(list(x))
    return centred @ values / (centred @ centred)


if __name__ == "__main__":
    sys.exit(experiment.run(main))

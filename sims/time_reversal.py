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
two quiet cores, --quick ten seconds.

Files, in the result folder; figures are PNG or, with --format pdf, vector graphics:
  summary.json           how it was run; every claim, and the results of each setting
  metrics.csv            every curve, a row a setting, replica, layer and step
  overview               agreement and symmetry against the net flux
  exchangeability        are beta_ij and beta_ji exchangeable?
  training               loss, agreement and symmetry over training
"""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import asdict, dataclass
from typing import Any

from parts.time_reversal.claims import FLUXES, judge_all
from parts.time_reversal.report import report, write
from parts.time_reversal.training import OBJECTIVES, Results, Setting, train

from minattn import checks, experiment, sweep
from minattn.engines import choose

NAME = "time_reversal"
ENDS = (0.0, 0.5, 1.0)  # without positions
LAYERS = 2


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
    settings, engine = said(options), choose(options.engine, options.dtype).name
    experiment.check_rerun(options, settings, engine)
    with experiment.result_folder(options.out, options.format) as folder:
        results = run_all(options)
        claims = judge_all(results)
        summary = experiment.summary(NAME, settings, options.seed, engine, claims)
        write(results, summary, folder)
        folder.complete()
    report(results, claims)
    experiment.finish(options, NAME)


def parse(arguments: list[str] | None) -> Namespace:
    """Read the options; what --quick makes smaller has defaults of its own."""
    parser = experiment.parser(NAME, __doc__)
    parser.add_sizes(vars(FULL), vars(QUICK), replicas=1, steps=1, width=1)
    parser.add_argument("--lag", type=int, default=1, help="of the chains (default 1)")
    parser.add_engine()
    parser.add_dtype()
    sweep.add_options(parser)
    options = parser.parse_args(arguments)
    checks.integer("--lag", options.lag, minimum=1)
    return options


def said(options: Namespace) -> dict[str, Any]:
    """Return what a summary says of the settings."""
    first = setting_of(options, next(iter(OBJECTIVES)), True, FLUXES[0])
    return experiment.config(options, first=asdict(first))


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


if __name__ == "__main__":
    sys.exit(experiment.run(main))

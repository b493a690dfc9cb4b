"""Does starting from a symmetric W_qk make masked training faster, and is it the symmetry?

The paper copies W_k into W_q once, before training, and reports encoders that reach the plain run's
final loss up to 73% earlier; decoders gain nothing, lose the symmetry quickly, and |W_qk|/|sym
W_qk| added to the loss gains nothing either. Copying also raises |W_qk|: here two more starts hold
the Frobenius norm of each head's W_qk, so that symmetry and scale are told apart. Transformers with
three layers (pre-norm, feed-forward, two heads) are trained on masked tokens, of text and of random
chains in which x_t depends on x_{t-2} (lag2, one chain a replica), under the bidirectional and the
causal mask, from the same initial draws and on the same tokens:
  random             plain
  symmetric          W_k = W_q
  random_matched     plain, each head's W_qk rescaled to the norm of symmetric
  symmetric_matched  symmetric, each head's W_qk rescaled to the norm of plain
  penalty            plain, with the mean over layers of |W_qk|/|sym W_qk| added to the loss
  redrawn            control: plain, from other initial draws
Speed-up of a run over another: (T - first step at which it reaches the other's final held-out
loss)/T, as in the paper, which is never negative: between two plain runs it is above 0 half of the
time. Net speed-up: that, minus the same the other way round; 0 on average between equals.

Primary claims, for each source, decided by the 95% interval over replicas, which are paired:
  1. Symmetric start, bidirectional mask: net speed-up of symmetric over random above 0.
  2. It is the symmetry: net speed-up of symmetric_matched over random above 0, same mask.
  3. Causal mask, no gain: net speed-up of symmetric over random below 0.1.
  4. Causal mask, symmetry is lost: from the symmetric start, the symmetry of W_qk after training is
     lower than under the bidirectional mask (difference above 0), and quickly: after a quarter of
     training it is below 0.5.
  5. Penalty, no gain: net speed-up of penalty over random below 0.1, for each mask.
Secondary claims and controls, corrected for their number by Holm's method, for each source:
  6. Final held-out loss, for each mask: symmetric_matched below random, symmetric below
     random_matched (symmetry at either scale), random_matched below random (scale alone).
  7. The penalty does its work: symmetry of W_qk after training above 0.9, for each mask.
  8. The bidirectional mask makes the plain start symmetric: symmetry after training minus before
     above 0, and minus that under the causal mask above 0.
  9. Control: net speed-up of redrawn over random below 0.1, bidirectional mask.
"Undertrained": on chains, training removed less than half of the initial loss above the best
reachable one; on text, the final loss is not below that of the symbols' frequencies (means over
replicas). No verdict is drawn from such a run. Symmetry is of W_qk summed over heads, the mean over
layers; the learning rate is constant.

Training is in float32 unless --dtype says otherwise. The default run takes about four minutes on
two quiet cores, --quick some ten seconds.

Files, in the result folder; figures are PNG or, with --format pdf, vector graphics:
  summary.json           how it was run; every claim, and the results of each setting
  metrics.csv            loss, symmetry and norm, a row a setting, replica, layer and step
  overview               loss and symmetry over training
  speed_up               net speed-up of each start over the plain one
"""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import asdict, dataclass
from typing import Any

from parts.symmetric_init.claims import primary, secondary
from parts.symmetric_init.report import report, write
from parts.symmetric_init.training import MASKS, SOURCES, STARTS, Results, Setting, train

from minattn import checks, experiment, sweep
from minattn.claims import holm
from minattn.engines import choose

NAME = "symmetric_init"


@dataclass(frozen=True)
class Size:
    """What --quick makes smaller."""

    replicas: int
    steps: int
    layers: int
    width: int
    feed_forward: int
    n_symbols: int
    length: int
    record_every: int
    held_out_windows: int


FULL = Size(8, 800, 3, 32, 64, 16, 24, 40, 128)
QUICK = Size(3, 30, 2, 16, 16, 8, 16, 5, 32)


def main(arguments: list[str] | None = None) -> None:
    """Train every setting, then report."""
    options = parse(arguments)
    corpus = experiment.load_windows(options) if "text" in options.sources else None
    settings, engine = said(options), choose(options.engine, options.dtype).name
    digests = {"text": corpus.sha256} if corpus is not None else {}
    experiment.check_rerun(options, settings, engine, digests)
    with experiment.result_folder(options.out, options.format) as folder:
        results = run_all(options)
        claims = [*primary(results), *holm(secondary(results))]
        summary = experiment.summary(NAME, settings, options.seed, engine, claims)
        if corpus is not None:
            summary["text"] = experiment.text_facts(corpus)
        write(results, summary, folder)
        folder.complete()
    report(results, claims)
    experiment.finish(options, NAME)


def parse(arguments: list[str] | None) -> Namespace:
    """Read the options; what --quick makes smaller has defaults of its own."""
    parser = experiment.parser(NAME, __doc__)
    text = f"comma-separated, of {', '.join(SOURCES)} (default all)"
    parser.add_argument("--sources", default=",".join(SOURCES), metavar="LIST", help=text)
    parser.add_sizes(vars(FULL), vars(QUICK), replicas=1, steps=1, layers=1, width=1)
    parser.add_argument(
        "--penalty-weight", type=float, default=1.0, help="of |W_qk|/|sym W_qk| (default 1)"
    )
    parser.add_engine()
    parser.add_dtype()
    parser.add_text()
    sweep.add_options(parser)
    options = parser.parse_args(arguments)
    options.sources = experiment.names(options.sources, "--sources", SOURCES)
    if options.width % 2:
        checks.fail("--width", options.width, "an even number, for two heads")
    checks.real("--penalty-weight", options.penalty_weight, minimum=0.0)
    experiment.beside(options, "text", "text among --sources", "text" in options.sources)
    return options


def said(options: Namespace) -> dict[str, Any]:
    """Return what a summary says of the settings."""
    first = setting_of(options, options.sources[0], MASKS[0], next(iter(STARTS)))
    return experiment.config(options, first=asdict(first))


def run_all(options: Namespace) -> Results:
    """Train every setting; the control under the bidirectional mask alone."""
    settings = {
        (source, mask, start): setting_of(options, source, mask, start)
        for source in options.sources
        for mask in MASKS
        for start in STARTS
        if start != "redrawn" or mask == "bidirectional"
    }
    found = sweep.run_as_asked(train, list(settings.values()), options, NAME)
    return dict(zip(settings, found, strict=True))


def setting_of(options: Namespace, source: str, mask: str, start: str) -> Setting:
    """Return one setting as the options have it."""
    return Setting(
        source=source,
        mask=mask,
        start=start,
        heads=2,
        batch_size=8,
        learning_rate=3e-3,
        penalty_weight=options.penalty_weight,
        seed=options.seed,
        engine=choose(options.engine, options.dtype).name,
        dtype=options.dtype,
        text=None if options.text is None else str(options.text.resolve()),
        **{field: getattr(options, field) for field in Size.__dataclass_fields__},
    )


if __name__ == "__main__":
    sys.exit(experiment.run(main))

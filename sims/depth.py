"""Do early layers deviate from the theory, and by how much?

The authors told a referee that early layers deviate most from the predictions, without numbers. Two
to six layers (pre-norm, feed-forward) are trained on text: masked token under the bidirectional
mask, and next token under the causal mask; by AdamW and by SGD. In every layer and over training:

  scores         symmetry, dispersion and directionality of W_qk and of its change (sum over heads),
                 symmetry of the update Ghat, agreement of beta_ij with beta_ji
  real change    cosine of what one optimiser step does to W_qk with Ghat (Remark A.6: they are
                 parallel), and with the exact first order of a step of gradient descent,
                 Ghat W_k W_k^T + W_q W_q^T Ghat; the mean over heads
  other paths    G_i, the gradient at position i's head output, comes from the loss at i and,
                 through the attention above, from losses at other positions, which the derivation
                 ignores (S39). Update = Ghat_own + Ghat_other; the share through other positions is
                 |Ghat_other|^2 / (|Ghat_own|^2 + |Ghat_other|^2), on four held-out windows a
                 replica, and cosine_of_own that of Ghat_own with Ghat. In the last layer there is
                 nothing above that mixes positions: the share there is 0, exactly.

Primary claims, each decided by the 95% interval over replicas, paired by replica, in the deepest
model. "First" and "last" are layers; cosines are means over the recorded steps; scores are of the
final parameters and AdamW's:
  1. The real change deviates most from Ghat in the first layer: cosine first - last below 0, for
     each objective and optimiser.
  2. The first layer is moved mostly through other positions: its share above 0.5, the mean over
     training, for each objective, AdamW.
  3. What is predicted of the change shows least in the first layer: symmetry (masked) and
     dispersion (next token), first - last below 0.
  4. Under SGD the first order is all there is: 1 - cosine with it at most 0.01, in every layer,
     replica and recorded step, for each objective.
  5. Check: the share through other positions in the last layer is at most 1e-10, everywhere.
Secondary claims and controls, corrected for their number by Holm's method:
  6. Claims 1 and 3 in the shallower models.
  7. In each layer of the deepest model, AdamW: symmetry of the change above 0 after masked
     training, dispersion above 0 after next-token training.
  8. Other positions matter less as training goes on: the first layer's share at the end minus that
     of the untrained model below 0, AdamW.
  9. AdamW turns the step away from gradient descent's: cosine with the first order below 0.9, the
     mean over layers and recorded steps of the deepest model.
  10. Control: an untrained W_qk is not symmetric, below 0.1 in the mean over layers.
"Undertrained": the held-out loss is not below that of symbol frequencies alone (mean over
replicas); no verdict is drawn but for 4, 5 and 10. Replicas share the text: they differ in initial
parameters and windows. Training is in float32.

The default run takes about two minutes on two quiet cores, --quick about ten seconds.

Files, in the result folder; figures are PNG or, with --format pdf, vector graphics:
  summary.json           how it was run; every claim, and every metric by layer
  scores                 symmetry and dispersion of the change, symmetry of Ghat, by layer
  steps                  cosines of the real change, share through other positions, by layer
  over_training          the same over training, in the deepest model
"""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError, Namespace
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from parts.depth.claims import primary, secondary, summarised, undertrained
from parts.depth.figures import draw
from parts.depth.training import (
    HELD_OUT_WINDOWS,
    LEARNING_RATES,
    OBJECTIVES,
    OPTIMIZERS,
    PATH_WINDOWS,
    Results,
    Setting,
    train,
)

from minattn import checks, experiment, sweep
from minattn.claims import Claim, holm, table
from minattn.comparison import ARMS
from minattn.engines import choose

NAME = "depth"
SHOWN = {
    "change_symmetry": "symmetry",
    "change_dispersion": "dispersion",
    "cosine_with_update": "cos Ghat",
    "cosine_with_first_order": "cos E4",
    "share_through_others": "others",
}


@dataclass(frozen=True)
class Size:
    """What --quick makes smaller."""

    replicas: int
    steps: int
    width: int
    length: int
    batch_size: int
    record_every: int
    depths: tuple[int, ...]


FULL = Size(8, 480, 32, 24, 8, 40, (2, 4, 6))
QUICK = Size(2, 8, 8, 8, 4, 2, (2, 3))


def main(arguments: list[str] | None = None) -> None:
    """Train every depth, objective and optimiser, then report."""
    options = parse(arguments)
    corpus = experiment.load_windows(options)
    experiment.check_rerun(options, said(options), options.engine, {"text": corpus.sha256})
    with experiment.result_folder(options.out, options.format) as folder:
        settings = all_settings(options, corpus.sha256)
        found = sweep.run_as_asked(train, settings, options, NAME)
        results = dict(zip(settings, found, strict=True))
        claims = [*primary(results), *holm(secondary(results))]
        summary = experiment.summary(NAME, said(options), options.seed, options.engine, claims)
        summary |= {"complete": True, "training": training_rows(results)}
        summary["scores"] = scores(results)
        summary["text"] = experiment.text_facts(corpus)
        experiment.write_json(folder.path("summary.json"), summary)
        draw(results, folder)
        folder.complete()
    report(results, claims)
    experiment.finish(options, NAME)


def parse(arguments: list[str] | None) -> Namespace:
    """Read the options; what --quick makes smaller has defaults of its own."""
    parser = experiment.parser(NAME, __doc__)
    parser.add_sizes(vars(FULL), vars(QUICK), replicas=1, steps=1, width=2)
    depths = ",".join(map(str, FULL.depths))
    text = f"comma-separated numbers of layers (default {depths})"
    parser.add_argument("--depths", type=depths_of, metavar="LIST", help=text)
    parser.add_engine()
    parser.add_text()
    sweep.add_options(parser)
    options = parser.parse_args(arguments)
    if options.width % 2:
        checks.fail("--width", options.width, "an even number: there are two heads")
    options.engine = choose(options.engine, "float32").name
    return options


def depths_of(text: str) -> tuple[int, ...]:
    """Read --depths: at least two layers, or there is no first and last."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= 2 for part in parts):
        needs = "numbers of at least 2, separated by commas"
        raise ArgumentTypeError(f"got {text!r}, needs {needs}")
    return tuple(sorted({int(part) for part in parts}))


def all_settings(options: Namespace, sha256: str) -> list[Setting]:
    """Return every depth, objective and optimiser."""
    names = ("seed", "replicas", "steps", "width", "length", "batch_size", "record_every", "engine")
    sizes = {name: getattr(options, name) for name in names}
    text = options.text and str(options.text)
    return [
        Setting(*place, heads=2, text=text, sha256=sha256, **sizes)
        for place in product(options.depths, OBJECTIVES, OPTIMIZERS)
    ]


def said(options: Namespace) -> dict[str, Any]:
    """Return what a summary says of the settings."""
    return experiment.config(
        options,
        learning_rates=LEARNING_RATES,
        heads=2,
        norm="pre",
        held_out_windows=HELD_OUT_WINDOWS,
        path_windows=PATH_WINDOWS,
    )


def report(results: Results, claims: list[Claim]) -> None:
    """Print every layer's numbers and the table of claims."""
    for row in training_rows(results):
        note = "  undertrained" if row["undertrained"] else ""
        losses = f"{row['loss_initial']:.2f} > {row['loss_final']:.2f}"
        print(f"\n{row['setting']}: held-out loss {losses}, frequencies {row['goal']:.2f}{note}")
        print(f"  {'layer':6}" + "".join(f"{title:>12}" for title in SHOWN.values()))
        for layer, values in enumerate(row["layers"]):
            print(f"  {layer:<6}" + "".join(f"{values[name]:12.3f}" for name in SHOWN))
    print("\nSymmetry and dispersion of the change, at the end; cosines of the real change with")
    print("Ghat and with gradient descent's first order, and the share of the update through other")
    print("positions, means over training.\n")
    print(f"{table(claims)}\n")
    print('Intervals are over replicas; where the rule is "every value", the range.\n')


def training_rows(results: Results) -> list[dict[str, Any]]:
    """Return for each setting its losses, and the shown numbers of each layer."""
    rows = []
    for place, result in results.items():
        first, last = result["loss"]
        columns = {name: summarised(name, result[name]).mean(axis=-1) for name in SHOWN}
        layers = [{n: v[layer] for n, v in columns.items()} for layer in range(place.layers)]
        rows.append(
            {
                "setting": label(place),
                "loss_initial": first.mean(),
                "loss_final": last.mean(),
                "goal": result["goal"].mean(),
                "undertrained": undertrained(result),
                "layers": layers,
            }
        )
    return rows


def label(place: Setting) -> str:
    """Name a setting in a table."""
    return f"{place.layers} layers, {ARMS[place.objective].title}, {place.optimizer}"


def scores(results: Results) -> dict[str, Any]:
    """Return mean and interval of every metric's summary, a row a layer; null where undefined."""
    found: dict[str, Any] = {}
    for place, result in results.items():
        entry = found.setdefault(label(place), {})
        for name, values in result.items():
            if values.ndim != 3 or np.isnan(values).all():
                continue
            entry[name] = experiment.estimates(summarised(name, values))
    return found


if __name__ == "__main__":
    sys.exit(experiment.run(main))

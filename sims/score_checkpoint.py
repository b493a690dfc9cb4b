"""Is W_qk = W_q W_k^T of a trained model symmetric, directional, or as if random?

    python sims/score_checkpoint.py PATH [NAME=PATH ...]

PATH is a safetensors file, the index of its shards, a GGUF file (pip install 'minattn[gguf]'), a
save of minattn.fit, or a folder with one of these; NAME is what tables and figure call it. Without
a path two tiny models are trained on the spot, one on the next token under the causal mask, one on
masked tokens under the bidirectional mask. Nothing is downloaded, and no code in a file is run.

A score is of the bilinear form x_i W_qk x_j^T on the layer's input, rows: query side. It is of the
sum over heads, as in the paper (Remark A.5), and of each head. Query head i belongs to key head
i // (H / H_kv). Biases and positions take no part, unless asked for:

  --fold-norm        diag(g) W_qk diag(g), with the gains g of the norm right before the
                     projections: the form on normalised rows. Pre-norm models only.
  --rotary-offset D  W_q R_D W_k^T, the form between a query and the key D positions before it
  --as-published     query head i with key head i mod H_kv, as the code published with the paper
                     pairs them; the model itself does not. For comparison.

Each score stands beside its null band: the range over --draws random normal factors of the same
shape. A further random layer lies outside with probability 2 / (draws + 1), 5% for the 39 of the
default; in the table * marks what lies outside. A folded norm is not part of the band.

There are no claims: these are measurements. The table has a row a layer; the summary, for each
tower (encoder, decoder, cross-attention), the median and quartiles over its layers.

The default run takes some ten seconds on two quiet cores, --quick hardly less.

Files, in the result folder; figures are PNG or, with --format pdf, vector graphics:
  summary.json           how it was run; scores of the sums over heads, by tower and layer
  scores.csv             every score and null band, a row a layer and head
  scores                 scores of the sums over heads against depth
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from parts.score_checkpoint.figures import against_depth
from parts.score_checkpoint.report import csv_rows, describe, report
from parts.score_checkpoint.scoring import TINY, Model, form, score_all

import minattn as ma
from minattn import checks, experiment, plots
from minattn.checkpoints import FAMILIES

NAME = "score_checkpoint"
ENGINE = "numpy"  # trains the tiny models; scores need none
QUICK_DRAWS = 9


def main(arguments: list[str] | None = None) -> None:
    """Score every model, then report."""
    options = parse(arguments)
    experiment.check_rerun(options, said(options), ENGINE)
    with experiment.result_folder(options.out, options.format) as folder:
        with experiment.given_as("PATH", "path"):
            models = score_all(options)
        write(models, options, folder)
        folder.complete()
    report(models)
    experiment.finish(options, NAME)


def parse(arguments: list[str] | None) -> Namespace:
    """Read the options; `models` becomes a dict of paths by name."""
    parser = experiment.parser(NAME, __doc__)
    parser.add_argument("paths", nargs="*", metavar="PATH", help="a model, or NAME=PATH")
    parser.add_argument("--family", choices=FAMILIES, help="default: as its settings or names say")
    parser.add_argument("--prefix", help="what stands before every tensor name of the model")
    for name in ("heads", "key-heads", "head-width", "rotary-width"):
        parser.add_argument(f"--{name}", type=int, help="where no settings lie beside the weights")
    parser.add_argument("--rotary-base", type=float, help="likewise")
    parser.add_argument("--pre-norm", action="store_true", default=None, help="likewise")
    parser.add_argument("--replica", type=int, default=0, help="of minattn's own saves (default 0)")
    parser.add_argument("--fold-norm", action="store_true", help="fold the pre-norm's gains in")
    parser.add_argument(
        "--rotary-offset", type=int, metavar="D", help="turn queries by D positions"
    )
    parser.add_argument("--as-published", action="store_true", help="the paper's pairing of heads")
    parser.add_argument(
        "--draws",
        type=int,
        help=f"random layers a shape (default {ma.checkpoints.DRAWS}, with --quick {QUICK_DRAWS})",
    )
    options = parser.parse_args(arguments)
    if options.draws is None:
        options.draws = QUICK_DRAWS if options.quick else ma.checkpoints.DRAWS
    checks.integer("--draws", options.draws, minimum=2)
    turned = options.rotary_offset is not None
    experiment.beside(options, "rotary_base", "--rotary-offset", turned)
    experiment.beside(options, "rotary_width", "--rotary-offset", turned)
    experiment.beside(options, "pre_norm", "--fold-norm", options.fold_norm)
    options.models = named(options.paths)
    return options


def said(options: Namespace) -> dict[str, Any]:
    """Return what a summary says of the settings; where the models lie is nobody's business."""
    chosen = experiment.config(options)
    del chosen["paths"]
    return chosen | {"models": list(options.models or TINY)}


def named(paths: list[str]) -> dict[str, Path]:
    """Give every path a name: its own, or that of its file or folder."""
    models: dict[str, Path] = {}
    for text in paths:
        name, equals, rest = text.partition("=")
        path = Path(rest if equals and not Path(text).exists() else text)
        if path == Path(text):
            resolved = path.resolve()
            name = resolved.name if resolved.is_dir() else resolved.stem
            name = resolved.parent.name if name == "model" else name
        if not name or name in models:
            checks.fail("PATH", text, "models of different names; NAME=PATH gives one")
        models[name] = path
    return models


def write(models: list[Model], options: Namespace, folder: experiment.ResultFolder) -> None:
    """Write summary.json, scores.csv and the figure."""
    summary = experiment.summary(NAME, said(options), options.seed, ENGINE, [])
    summary["form"] = form(row for model in models for row in model.rows)
    summary["models"] = [describe(model) for model in models]
    experiment.write_json(folder.path("summary.json"), summary)
    header = ("model", "family", "tower", "layer", "uses", "head", "form", "score", "value")
    rows = csv_rows(models)
    experiment.write_csv(folder.path("scores.csv"), (*header, "null_low", "null_high"), rows)
    plots.save(against_depth(models, summary["form"]), folder.figure("scores"))


if __name__ == "__main__":
    sys.exit(experiment.run(main))

"""What W_qk = W_q W_k^T looks like in a published model: symmetric, directional, or as if random?

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

The table has a row a layer; the summary, for each tower (encoder, decoder, cross-attention), the
median and quartiles over its layers. scores.csv has every layer and head, summary.json and the
figure the sums over heads.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from score_checkpoint_figures import LABELS, against_depth
from tqdm import tqdm

import minattn as ma
from minattn import checks, experiment, plots
from minattn.checkpoints import FAMILIES, Band, Checkpoint, Layer, null_band, read, score_heads
from minattn.checkpoints import score as score_sum
from minattn.scores import Scores

NAME = "score_checkpoint"
HEADER = ("tower", "layer", "symmetry", "directionality", "same, published", "dispersion")
QUICK_DRAWS = 9


@dataclass(frozen=True)
class Row:
    """One layer's scores and what random layers of its shape score."""

    tower: str
    layer: int
    uses: int
    shape: tuple[int, int, int, int]  # d, H, H_kv, h
    form: tuple[str, ...]
    scores: Scores
    per_head: Scores
    band: Band
    head_band: Band


@dataclass(frozen=True)
class Model:
    """One model's layers in the order of their towers."""

    name: str
    family: str
    rows: list[Row]

    @property
    def towers(self) -> dict[str, list[Row]]:
        """The rows of each tower."""
        names = dict.fromkeys(row.tower for row in self.rows)
        return {name: [row for row in self.rows if row.tower == name] for name in names}


def main(arguments: list[str] | None = None) -> None:
    """Score every model, then report."""
    options = parse(arguments)
    with experiment.result_folder(options.out) as folder:
        models = score_all(options)
        write(models, options, folder)
        folder.complete()
    report(models)
    print(f"results in {options.out}")
    if options.publish:
        print(f"published in {experiment.publish(options.out, NAME)}")


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
    checks.integer("--seed", options.seed, minimum=0)
    options.models = named(options.paths)
    return options


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


def score_all(options: Namespace) -> list[Model]:
    """Open every model, so that a wrong path is an error at once, then score them."""
    with ExitStack() as stack:
        paths = options.models
        if not paths:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            paths = train_tiny(Path(folder), options)
        opened = {name: open_model(path, options) for name, path in paths.items()}
        total = sum(len(checkpoint) for checkpoint in opened.values())
        with tqdm(total=total, unit="layer", dynamic_ncols=True) as bar:
            return [
                Model(name, checkpoint.family, list(score_layers(checkpoint, options, name, bar)))
                for name, checkpoint in opened.items()
            ]


def open_model(path: Path, options: Namespace) -> Checkpoint:
    """Open one model with the options that say how to read it."""
    return read(
        path,
        family=options.family,
        prefix=options.prefix,
        heads=options.heads,
        key_heads=options.key_heads,
        head_width=options.head_width,
        pre_norm=options.pre_norm,
        rotary_width=options.rotary_width,
        rotary_base=options.rotary_base,
        replica=options.replica,
    )


def train_tiny(folder: Path, options: Namespace) -> dict[str, Path]:
    """Train two tiny models that differ in objective and mask; return where they are saved."""
    config = ma.TransformerConfig(
        vocab_size=8, width=16, layers=3, heads=4, max_length=16, norm="pre"
    )
    start = ma.init_params(config, seed=options.seed)
    chain = ma.data.MarkovChain.random(8, concentration=0.1, seed=options.seed)
    objectives = {
        "next token, causal": ma.next_token,
        "masked, bidirectional": ma.MaskedToken(mask_symbol=8, mask="bidirectional"),
    }
    paths = {}
    for number, (name, objective) in enumerate(objectives.items()):
        paths[name] = folder / f"{number}.safetensors"
        ma.fit(
            config,
            start,
            chain,
            objective,
            steps=50 if options.quick else 300,
            length=16,
            optimizer=ma.AdamW(lr=3e-3),
            seed=options.seed,
            engine="numpy",
            save=paths[name],
        )
    return paths


def score_layers(checkpoint: Checkpoint, options: Namespace, name: str, bar: tqdm) -> Iterator[Row]:
    """Score the layers of one model, one in memory at a time."""
    bar.set_description(name)
    for stored in checkpoint:
        layer = prepare(stored, options)
        bands = [
            null_band(layer, per_head, options.draws, options.seed) for per_head in (False, True)
        ]
        shape = (layer.width, layer.heads, layer.key_heads, layer.head_width)
        yield Row(
            layer.tower,
            layer.index,
            layer.uses,
            shape,
            layer.form,
            score_sum(layer),
            score_heads(layer),
            *bands,
        )
        bar.update()


def prepare(layer: Layer, options: Namespace) -> Layer:
    """Return the form that the options ask for."""
    if options.fold_norm:
        layer = layer.folded()
    if options.rotary_offset is not None:
        layer = layer.rotated(options.rotary_offset)
    return layer.as_published() if options.as_published else layer


def form(models: list[Model]) -> str:
    """Say what was scored: the stored product, or what was done to it."""
    done = dict.fromkeys(what for model in models for row in model.rows for what in row.form)
    return ", ".join(["W_qk", *done])


def report(models: list[Model]) -> None:
    """Print a table per layer for each model, then the summary."""
    for model in models:
        print(f"\n{model.name} ({model.family}): {form([model])}, summed over heads\n")
        print(line(HEADER))
        for tower, rows in model.towers.items():
            for row in rows:
                numbers = (f"{value:.3f}{mark}" for value, mark in zip(*marked(row), strict=True))
                print(line((tower, str(row.layer), *numbers)))
            ends = (f"{a:.3f} to {b:.3f}" for a, b in zip(*rows[0].band, strict=True))
            print(line(("", "random", *ends)))
            d, heads, key_heads, width = rows[0].shape
            used = f"; each layer used {rows[0].uses} times" if rows[0].uses > 1 else ""
            print(f"{tower}: d {d}, {heads} query and {key_heads} key heads of {width}{used}\n")
    print("* outside the range of random factors of the same shape\n")
    print(f"{'':40}  {'median':>8}  {'quartiles':>17}  layers outside that range")
    for model in models:
        print(f"{model.name} ({model.family})")
        for tower, rows in model.towers.items():
            for score in LABELS:
                cell = summarise(rows, score)
                quartiles = f"{cell['low']:.3f} to {cell['high']:.3f}"
                name = score.replace("_", ", ")
                start = f"  {tower:10}{name:28}  {cell['median']:8.3f}  {quartiles:>17}"
                print(f"{start}  {cell['outside']} of {len(rows)}")
    print()


def line(cells: tuple[str, ...]) -> str:
    """Lay out two names and four numbers in columns."""
    widths = (8, 7, 17, 17, 17, 17)
    return " ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def marked(row: Row) -> tuple[Scores, list[str]]:
    """Return the scores of a layer, and a * for each outside its null band."""
    ends = zip(row.scores, row.band.low, row.band.high, strict=True)
    return row.scores, ["" if low <= value <= high else "*" for value, low, high in ends]


def summarise(rows: list[Row], score: str) -> dict[str, Any]:
    """Return median and quartiles of a score over layers, and how many lie outside the band."""
    values = np.array([getattr(row.scores, score) for row in rows])
    # Between infinite values nothing can be interpolated.
    method = "linear" if np.isfinite(values).all() else "lower"
    low, median, high = np.percentile(values, (25, 50, 75), method=method)
    place = Scores._fields.index(score)
    outside = sum(marked(row)[1][place] == "*" for row in rows)
    return {"median": median, "low": low, "high": high, "outside": outside}


def write(models: list[Model], options: Namespace, folder: experiment.ResultFolder) -> None:
    """Write summary.json, scores.csv and the figure."""
    left_out = ("out", "paths", "models")  # names of folders are nobody's business
    settings = {key: value for key, value in vars(options).items() if key not in left_out}
    summary = experiment.summary(NAME, settings, options.seed, "numpy", [])
    summary["form"] = form(models)
    summary["models"] = [describe(model) for model in models]
    experiment.write_json(folder.path("summary.json"), summary)
    header = ("model", "family", "tower", "layer", "uses", "head", "form", "score", "value")
    rows = csv_rows(models)
    experiment.write_csv(folder.path("scores.csv"), (*header, "null_low", "null_high"), rows)
    plots.save(against_depth(models, form(models)), folder.path("scores.png"))


def describe(model: Model) -> dict[str, Any]:
    """Return a model's entry in summary.json."""
    towers = {}
    for tower, rows in model.towers.items():
        d, heads, key_heads, width = rows[0].shape
        towers[tower] = {
            "width": d,
            "heads": heads,
            "key_heads": key_heads,
            "head_width": width,
            "layers": len(rows),
            "uses": rows[0].uses,
            "scores": {score: summarise(rows, score) for score in LABELS},
            "null_band": {score: [getattr(end, score) for end in rows[0].band] for score in LABELS},
            "by_layer": {score: [getattr(row.scores, score) for row in rows] for score in LABELS},
        }
    return {"name": model.name, "family": model.family, "towers": towers}


def csv_rows(models: list[Model]) -> Iterator[tuple[Any, ...]]:
    """Yield scores.csv; the head is empty for the sum over heads."""
    for model in models:
        for row in model.rows:
            start = (model.name, model.family, row.tower, row.layer, row.uses)
            what = form([Model(model.name, model.family, [row])])
            for score in LABELS:
                ends = (float(getattr(end, score)) for end in row.band)
                yield *start, "", what, score, float(getattr(row.scores, score)), *ends
                for head, value in enumerate(getattr(row.per_head, score)):
                    ends = (float(getattr(end, score)) for end in row.head_band)
                    yield *start, head, what, score, float(value), *ends


if __name__ == "__main__":
    sys.exit(experiment.run(main))

"""What `score_checkpoint.py` scores: every layer of every model, beside random layers."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

import minattn as ma
from minattn.checkpoints import Band, Checkpoint, Layer, null_band, read, score_heads
from minattn.checkpoints import score as score_sum
from minattn.scores import Scores

TINY = {
    "next token, causal": ma.next_token,
    "masked, bidirectional": ma.MaskedToken(mask_symbol=8, mask="bidirectional"),
}


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
    paths = {}
    for number, (name, objective) in enumerate(TINY.items()):
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


def form(rows: Iterable[Row]) -> str:
    """Say what was scored: the stored product, or what was done to it."""
    done = dict.fromkeys(what for row in rows for what in row.form)
    return ", ".join(["W_qk", *done])

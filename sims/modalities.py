"""Does the contrast between bidirectional and causal training survive the modality?

The three arms (next token under the causal mask; masked token under the bidirectional mask; masked
token under the causal mask) are trained on

  text     characters (Python's help, or --text)
  images   scikit-learn's handwritten digits, 8 x 8 pixels in 8 levels, row by row: a window is one
           image (extra "images": pip install 'minattn[images]'; left out if that is missing, unless
           --modalities asks for it)
  sound    samples in 16 levels after the mu-law, of --wav FILE; without one, of a synthetic
           mixture of tones that this script writes (tones.wav in the result folder)

and, as controls, on the same symbols shuffled: drawn one by one, with nothing to learn from the
context. The same windows of 64 tokens, two layers and optimiser everywhere. Replicas share the
material; they differ in initial parameters and windows, and intervals speak of these.

Primary claims, for each modality, by the 95% interval over replicas, arms paired by replica. Scores
are of the change of W_qk at the end of training, the mean over layers:
  1. The mask alone makes the change more symmetric: masked bidirectional - masked causal above 0.
  2. The paper's contrast in symmetry: masked bidirectional - next token above 0.
  3. Columns are more spread than rows after next-token training: dispersion above 0.
  4. <Ghat, D> equals minus the loss's derivative along a random full-rank D: relative residual at
     most 1e-9 in float64, in every arm, layer and replica.
Secondary claims and controls, corrected for their number by Holm's method:
  5. Columns dominate after next-token training: directionality below 0.
  6. The paper's contrast in directionality: next token - masked bidirectional below 0.
  7. Columns are more spread than rows after masked causal training: dispersion above 0.
  8. Controls: shuffled symbols move W_qk less than half as much, masked bidirectional (ratio of
     the norms of the change below 0.5); an untrained W_qk is not symmetric (below 0.1).
"Undertrained": the held-out loss is not below that of symbol frequencies alone (mean over
replicas); no verdict is drawn from such an arm. Training is in float32.

The default run takes one to two minutes on two quiet cores, --quick about ten seconds.

Files, in the result folder; figures are PNG or, with --format pdf, vector graphics:
  summary.json           how it was run; every claim, loss and final score, what was read
  tones.wav              the sound, without --wav
  overview               scores of the change over training
  loss                   held-out loss over training
  matrices_MODALITY      the change of W_qk
"""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from parts.modalities.claims import MASKED, primary, score, secondary, undertrained
from parts.modalities.figures import draw
from parts.modalities.training import (
    LEARNING_RATE,
    MODALITIES,
    RATE,
    Results,
    Setting,
    material,
    tones,
    train,
)

from minattn import experiment, sweep
from minattn.claims import Claim, holm, table
from minattn.comparison import ARMS
from minattn.data import write_wav
from minattn.engines import choose

NAME = "modalities"


@dataclass(frozen=True)
class Size:
    """What --quick makes smaller."""

    replicas: int
    steps: int
    width: int
    layers: int
    length: int
    record_every: int


FULL = Size(8, 600, 32, 2, 64, 25)
QUICK = Size(2, 10, 8, 1, 16, 5)


def main(arguments: list[str] | None = None) -> None:
    """Train every arm on every modality, then report."""
    options = parse(arguments)
    materials = load(options)
    digests = {name: facts["sha256"] for name, facts in materials.items()}
    experiment.check_rerun(options, said(options), options.engine, digests)
    with experiment.result_folder(options.out, options.format) as folder:
        settings = all_settings(options, materials)
        found = sweep.run_as_asked(train, settings, options, NAME)
        results = dict(zip(settings, found, strict=True))
        claims = [*primary(results), *holm(secondary(results))]
        summary = experiment.summary(NAME, said(options), options.seed, options.engine, claims)
        summary |= {"complete": True, "training": training_rows(results)}
        summary |= {"scores": scores(results), "materials": materials}
        experiment.write_json(folder.path("summary.json"), summary)
        if "sound" in options.modalities and options.wav is None:
            write_wav(folder.path("tones.wav"), tones(options.seed), RATE)
        draw(results, {name: entry["title"] for name, entry in materials.items()}, folder)
        folder.complete()
    report(results, claims)
    experiment.finish(options, NAME)


def parse(arguments: list[str] | None) -> Namespace:
    """Read the options; what --quick makes smaller has defaults of its own."""
    parser = experiment.parser(NAME, __doc__)
    known = ", ".join(MODALITIES)
    parser.add_argument(
        "--modalities", metavar="LIST", help=f"comma-separated, of {known} (default all)"
    )
    parser.add_sizes(vars(FULL), vars(QUICK), replicas=1, steps=1, width=1)
    parser.add_engine()
    parser.add_text()
    parser.add_argument("--wav", type=Path, metavar="FILE", help="a PCM WAV file")
    sweep.add_options(parser)
    options = parser.parse_args(arguments)
    options.modalities = chosen_modalities(options.modalities)
    for option, modality in (("text", "text"), ("wav", "sound")):
        needs = f"{modality} among --modalities"
        experiment.beside(options, option, needs, modality in options.modalities)
    options.engine = choose(options.engine, "float32").name
    return options


def said(options: Namespace) -> dict[str, Any]:
    """Return what a summary says of the settings."""
    return experiment.config(options, learning_rate=LEARNING_RATE)


def chosen_modalities(asked: str | None) -> tuple[str, ...]:
    """Return the modalities asked for; by default all that can be loaded here."""
    if asked is not None:
        return experiment.names(asked, "--modalities", MODALITIES)
    if find_spec("sklearn") is not None:
        return MODALITIES
    print("without images: scikit-learn is missing (pip install 'minattn[images]')")
    return tuple(name for name in MODALITIES if name != "images")


def load(options: Namespace) -> dict[str, Any]:
    """Check before any training that everything can be loaded and is long enough."""
    found, given = {}, {"text": "--text", "sound": "--wav"}
    for name in options.modalities:
        with experiment.given_as("--text", "path"), experiment.given_as("--wav", "wav"):
            source = material(name, options.seed, *paths(options))
        if name in given:  # an image is as long as a window
            experiment.check_windows(given[name], source.validation, options.length)
        facts = {"title": source.title, "sha256": source.sha256, "n_symbols": source.n_symbols}
        found[name] = facts
    return found


def paths(options: Namespace) -> tuple[str | None, str | None]:
    """Return --text and --wav as what JSON can hold."""
    return options.text and str(options.text), options.wav and str(options.wav)


def all_settings(options: Namespace, materials: dict[str, Any]) -> list[Setting]:
    """Return every arm of every modality, and the shuffled controls."""
    names = ("seed", "replicas", "steps", "width", "layers", "length", "record_every", "engine")
    sizes = {name: getattr(options, name) for name in names}
    places = [(name, False, arm) for name, arm in product(options.modalities, ARMS)]
    places += [(name, True, MASKED) for name in options.modalities]
    text, wav = paths(options)
    return [
        Setting(*place, **sizes, text=text, wav=wav, sha256=materials[place[0]]["sha256"])
        for place in places
    ]


def report(results: Results, claims: list[Claim]) -> None:
    """Print how far each arm was trained, and the table of claims."""
    heads = ("loss", "frequencies", "symmetry", "dispersion", "direct.")
    print(f"\n{'modality':10}{'arm':40}" + "".join(f"{head:>13}" for head in heads))
    for row in training_rows(results):
        numbers = [row["goal"], *(row[name] for name in SHOWN)]
        loss = f"{row['loss_initial']:.2f} > {row['loss_final']:.2f}"
        note = "  undertrained" if row["undertrained"] and not row["shuffled"] else ""
        title = row["title"] + (", shuffled" if row["shuffled"] else "")
        cells = "".join(f"{number:13.2f}" for number in numbers)
        print(f"{row['modality']:10}{title:40.40}{loss:>13}{cells}{note}")
    print("\nHeld-out loss in nats, beside that of symbol frequencies; scores of the change.\n")
    print(f"{table(claims)}\n")
    print("Intervals are over replicas; of residuals, the range.\n")


SHOWN = ("symmetry", "dispersion", "directionality")


def training_rows(results: Results) -> list[dict[str, Any]]:
    """Return for each arm its losses and the scores of the change."""
    rows = []
    for place, result in results.items():
        row = {"modality": place.modality, "arm": place.arm, "title": ARMS[place.arm].title}
        row |= {"shuffled": place.shuffled, "goal": result["goal"].mean()}
        row |= {"loss_initial": result["loss"][0].mean(), "loss_final": result["loss"][-1].mean()}
        row |= {"undertrained": undertrained(result)}
        for name in SHOWN:
            row[name] = score(results, place.modality, place.arm, name, place.shuffled)[0].mean()
        rows.append(row)
    return rows


def scores(results: Results) -> dict[str, Any]:
    """Return mean and interval of every metric's last record, by modality, arm and layer."""
    found: dict[str, Any] = {}
    for place, result in results.items():
        arm = place.arm + ("_shuffled" if place.shuffled else "")
        entry = found.setdefault(place.modality, {}).setdefault(arm, {})
        for name, values in result.items():
            if values.ndim != 3 or name == "change_of_first_replica":
                continue
            entry[name] = experiment.estimates(values[-1])
    return found


if __name__ == "__main__":
    sys.exit(experiment.run(main))

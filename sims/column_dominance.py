"""When do columns of W_qk dominate its rows after training, as Thm. 2.3 says?

The theory: under next-token training a symbol that predicts others is key more often than query,
so the norms of W_qk's columns (key side) become more spread than those of its rows. Here this is
put to the test with a source in which symbols really differ in how early they come, by a knob, and
the conditions that the theory does not mention are varied one against another:

  source     lag-2 chains, one a replica, whose steps favour early symbols first and late ones last,
             and some symbols always; knob 0: stationary, both counts equal; knob 1: they differ
  optimizer  AdamW or SGD
  attention  softmax, or linear, the form that the theory differentiates
  trained    the factors W_q and W_k, or W_qk itself (one head as wide as the model, W_k the
             identity and frozen); both start with W_qk of the same size
  by hand    controls: embeddings of the early symbols and positions ("keys") or of the late ones
             ("queries") stretched by coordinate, and frozen

One layer, one head, float64. Dispersion and directionality are those of the change of W_qk.

Two stages. Stage 1, on exploration seeds (--seed + 1000), picks (a) the condition (optimizer,
attention, trained) with the largest mean dispersion over both knobs, and (b) the candidate below
whose predicted dispersion correlates best with the measured one, over all conditions and knobs (the
mean over replicas). Stage 2, on fresh seeds (--seed) and on text, tests both. A candidate predicts
log(spread of keys / spread of queries), where the spread of a side is Var / mean^2 over coordinates
of sum_j weight_j x_j^2, summed over the records of training, with weights

  positions    number of pairs that the mask gives position j in that role: the theory's argument
  squares      sum_i beta_ij^2 (keys), sum_j beta_ij^2 (queries)
  partners     |sum_i beta_ij x_i|^2 (keys), |sum_j beta_ij x_j|^2 (queries)
  rows         as partners, with the sum over all occurrences of each row of the embeddings inside
               the norm

or the dispersion of a matrix:

  descent      the sum over records of dW_q W_k^T + W_q dW_k^T, as if gradient descent moved W_qk
  consistency  the same with each entry of dW_q and dW_k divided by its root mean square over the
               records where AdamW trains: what is left is how steadily it pushes

Primary claims, each decided by the 95% interval over replicas, paired by replica:
  1. Prop. A.9: counted over drawn windows, the ratio of the counts as key and as query is the
     closed form (N + 1 - mu) / mu: mean |log difference| below 0.02, at knob 1.
  2. Thm. 2.3 as the authors train (AdamW, softmax, factors), knob 1: dispersion above 0,
     directionality below 0.
  3. The count ratio is what does it, same condition: dispersion at knob 1 minus knob 0 above 0.
  4. The condition found in stage 1 has dispersion above 0: fresh seeds at knob 1, and text.
  5. The candidate found in stage 1 predicts: its correlation with the dispersion, over conditions
     and knobs within a replica, is above 0: on fresh seeds, and on text.
Secondary claims and controls, corrected for their number by Holm's method:
  6. Claim 2's dispersion in each other condition, and on text.
  7. Claim 3 in the mean over all conditions.
  8. The theory's own argument, "positions", predicts: correlation above 0 on fresh seeds; the
     candidate found predicts better: difference of the correlations above 0.
  9. Controls: keys made uneven by hand give more dispersion than queries made uneven; untrained,
     the mean dispersion lies within -0.2 and 0.2.
"Undertrained": on chains, training removed less than half of the excess over the best reachable
loss (mean over replicas); on text, it did not get below the loss of symbol frequencies alone. No
verdict is drawn from such a setting; correlations use all settings.

The default run takes one to two minutes on two quiet cores, --quick about ten seconds.

Files, in the result folder; figures are PNG or, with --format pdf, vector graphics:
  summary.json           how it was run; every claim, what stage 1 saw, final scores and predictions
  conditions             dispersion and directionality of every condition
  predictions            predicted against measured dispersion
  over_training          dispersion over training
"""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from parts.column_dominance.claims import (
    Condition,
    Found,
    conditions,
    explore,
    primary,
    secondary,
    undertrained,
)
from parts.column_dominance.figures import draw
from parts.column_dominance.training import LEARNING_RATES, OPTIMIZERS, Results, Setting, train

from minattn import experiment, sweep
from minattn.claims import Claim, holm, table
from minattn.engines import choose
from minattn.intervals import finite

NAME = "column_dominance"
EXPLORATION = 1000  # added to the seed in stage 1
KNOBS = (0.0, 1.0)
SHOWN = ("dispersion", "directionality")


@dataclass(frozen=True)
class Size:
    """What --quick makes smaller."""

    replicas: int
    explored: int
    steps: int
    width: int
    n_symbols: int
    length: int
    record_every: int


FULL = Size(8, 4, 400, 32, 16, 24, 20)
QUICK = Size(2, 2, 12, 32, 16, 24, 4)  # as wide as the learning rates were chosen for


def main(arguments: list[str] | None = None) -> None:
    """Explore, predict, test, then report."""
    options = parse(arguments)
    corpus = experiment.load_windows(options)
    experiment.check_rerun(options, said(options), options.engine, {"text": corpus.sha256})
    settings = said(options)
    options.sha256 = corpus.sha256
    with experiment.result_folder(options.out, options.format) as folder:
        explored = run(options, exploration_settings(options), "stage 1: explore")
        found = explore(explored)
        tested = run(options, test_settings(options), "stage 2: test")
        claims = [*primary(tested, found), *holm(secondary(tested, found))]
        summary = experiment.summary(NAME, settings, options.seed, options.engine, claims)
        summary["seeds"] = [options.seed + EXPLORATION, options.seed]
        summary |= {"complete": True, "training": training_rows(tested)}
        summary |= {"exploration": exploration_rows(explored, found), "scores": scores(tested)}
        summary["text"] = experiment.text_facts(corpus)
        experiment.write_json(folder.path("summary.json"), summary)
        draw(tested, found, folder)
        folder.complete()
    report(tested, found, claims)
    experiment.finish(options, NAME)


def parse(arguments: list[str] | None) -> Namespace:
    """Read the options; what --quick makes smaller has defaults of its own."""
    parser = experiment.parser(NAME, __doc__)
    parser.add_sizes(vars(FULL), vars(QUICK), replicas=1, steps=1, width=2)
    parser.add_engine()
    parser.add_text()
    sweep.add_options(parser)
    options = parser.parse_args(arguments)
    options.explored = min(options.explored, options.replicas)
    options.engine = choose(options.engine, "float64").name
    return options


def said(options: Namespace) -> dict[str, Any]:
    """Return what a summary says of the settings."""
    rates = {" ".join(place): rate for place, rate in LEARNING_RATES.items()}
    return experiment.config(options, learning_rates=rates)


def run(options: Namespace, settings: list[Setting], label: str) -> Results:
    """Train settings, in so many workers as asked for."""
    results = sweep.run_as_asked(train, settings, options, label)
    return dict(zip(settings, results, strict=True))


def exploration_settings(options: Namespace) -> list[Setting]:
    """Return every condition at both knobs, on exploration seeds."""
    seed, replicas = options.seed + EXPLORATION, options.explored
    return [
        setting(options, condition, knob, seed=seed, replicas=replicas)
        for condition, knob in product(conditions(), KNOBS)
    ]


def test_settings(options: Namespace) -> list[Setting]:
    """Return the same on fresh seeds; with it the controls by hand, and text."""
    made = [setting(options, *place) for place in product(conditions(), KNOBS)]
    for optimizer, side in product(OPTIMIZERS, ("keys", "queries")):
        made.append(setting(options, (optimizer, "softmax", "W_qk"), 1.0, spread=side))
    return made + [setting(options, place, 0.0, source="text") for place in conditions()]


def setting(options: Namespace, condition: Condition, knob: float, **change: Any) -> Setting:
    """Return a setting of these sizes; by default on drifting chains, with nothing by hand."""
    optimizer, attention, trained = condition
    names = ("seed", "replicas", "steps", "width", "n_symbols", "length", "record_every", "engine")
    sizes = {name: getattr(options, name) for name in names}
    plain = {"source": "drifting", "spread": "none", "sha256": options.sha256}
    plain |= {"text": options.text and str(options.text)}
    place = {"optimizer": optimizer, "attention": attention, "trained": trained, "knob": knob}
    return Setting(**(sizes | plain | place | change))


def report(tested: Results, found: Found, claims: list[Claim]) -> None:
    """Print every condition's scores, what stage 1 found, and the table of claims."""
    print(f"\n{'condition':42}{'learnt':>9}{'dispersion':>12}{'directionality':>16}")
    for place, row in zip(tested, training_rows(tested), strict=True):
        values = [float(finite(tested[place][f"change_{n}"]).mean()) for n in SHOWN]
        note = "  undertrained" if row["undertrained"] else ""
        print(f"{row['setting']:42}{row['learnt']:>9}{values[0]:12.2f}{values[1]:16.2f}{note}")
    condition, candidate, correlations = found
    print(f'\nStage 1 found: {" ".join(condition)}; "{candidate}". Correlations there:')
    print(", ".join(f"{name} {value:.2f}" for name, value in correlations.items()))
    print(f"\n{table(claims)}\n")
    print('Intervals are over replicas. "learnt": share of the excess loss removed; on text, nats')
    print("below the loss of symbol frequencies alone.\n")


def training_rows(results: Results) -> list[dict[str, Any]]:
    """Return for each setting how much was learnt."""
    rows = []
    for place, result in results.items():
        first, last = result["loss"]
        if place.source == "text":
            learnt = f"{(result['goal'] - last).mean():.2f} nats"
        else:
            learnt = f"{((first - last) / (first - result['goal'])).mean():.0%}"
        rows.append(
            {
                "setting": label(place),
                "loss_initial": first.mean(),
                "loss_final": last.mean(),
                "goal": result["goal"].mean(),
                "learnt": learnt,
                "undertrained": undertrained(place, result),
            }
        )
    return rows


def label(place: Setting) -> str:
    """Name a setting in a table."""
    where = "text" if place.source == "text" else f"knob {place.knob:g}"
    hand = "" if place.spread == "none" else f", uneven {place.spread}"
    return f"{' '.join(place.condition)}, {where}{hand}"


def scores(results: Results) -> dict[str, Any]:
    """Return mean and interval of every number of each setting that has one a replica."""
    found: dict[str, Any] = {}
    for place, result in results.items():
        entry = found.setdefault(label(place), {})
        for name, values in result.items():
            if values.shape == (place.replicas,) and np.isfinite(values).all():
                (entry[name],) = experiment.estimates(values[None])
    return found


def exploration_rows(explored: Results, found: Found) -> dict[str, Any]:
    """Return what stage 1 saw and chose."""
    condition, candidate, correlations = found
    means = {label(s): r["change_dispersion"].mean() for s, r in explored.items()}
    chosen = {"condition": " ".join(condition), "candidate": candidate}
    return chosen | {"correlations": correlations, "dispersion": means}


if __name__ == "__main__":
    sys.exit(experiment.run(main))

"""What is one update of W_qk made of, term by term?

A microscope. One small model, trained or not, and one sequence, under three arms from the same
initial parameters and on the same tokens: next token under the causal mask, masked token under the
bidirectional mask, masked token under the causal mask. The loss of that sequence moves W_qk along

    Ghat = -dL/dW_qk = sum_ij beta_ij K_ij,    K_ij = x_i^T x_j,    i the query, j the key

and every term is weighed by itself:
  beta_ij      the coefficient; its sign says whether i is to attend more to j (+) or less
  K+, K-       energy of the term's symmetric and skew part, |beta_ij K+|^2 and |beta_ij K-|^2, over
               |Ghat|^2; terms are not orthogonal, so that these do not add up to 1
  share        <term, Ghat> / |Ghat|^2: signed, and over all terms the sum is 1. A symbol's share as
               key is that of all terms whose key it is, and likewise as query: two families, each
               with sum 1
  own, all     how fast the score z_ij moves, per unit of a step along the term, and along Ghat
  symmetry     how fast the symmetry of W_qk moves, per unit of a step along the term
Steps are those of W_qk taken as a free matrix; how far a plain SGD step on W_q and W_k goes along
Ghat is the cosine at the end. Of 64 unseen windows the one with most masked tokens is taken.

Claims, each of which must hold to rounding in every arm:
  1. Ghat W_k and Ghat^T W_q are backprop's -dL/dW_q and -dL/dW_k.
  2. <Ghat, D> equals minus the loss's derivative along a random full-rank D, by complex step.
  3. Shares sum to 1 over the symbols as keys, and as queries.
  4. The running sum of the terms ends at Ghat.
  5. The energies of symmetric and skew part of Ghat add up to its own.
  6. The terms' effects on the symmetry of W_qk add up to its derivative along Ghat.
  7. One SGD step, eta = 1, moves W_qk by the exact second-order formula.
  8. In layer 0, the contributions of tokens, of positions and across the two add up to Ghat.

The default run takes about ten seconds on two quiet cores, --quick a little less.

Files, in the result folder; figures are PNG or, with --format pdf, vector graphics:
  summary.json           how it was run; every claim, and what each arm is made of
  terms.csv              every term, with all that is said of it above
  beta, symbols          coefficients; shares by symbol
  running_sum, parts     how fast terms add up to Ghat; where its energy lies
  Ghat, change           the update, and what training has changed
  blocks_Ghat            Ghat as a form on tokens and positions; blocks_change: the change
"""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from parts.term_by_term.claims import judge_all
from parts.term_by_term.dissection import Dissection
from parts.term_by_term.report import facts, report, write
from tqdm import tqdm

from minattn import checks, experiment
from minattn.comparison import ARMS, Task, chain_task, held_out_batches, text_task
from minattn.config import TransformerConfig
from minattn.data import Corpus
from minattn.engines import choose
from minattn.objectives import Batch
from minattn.optim import AdamW
from minattn.params import init_params
from minattn.step import loss_and_grad, mean_loss
from minattn.training import fit
from minattn.update import implicit_update, prove_update

NAME = "term_by_term"
SOURCES = ("lag1", "lag2", "iid", "text")
WINDOWS = 64
N_SYMBOLS = 8
BATCH_SIZE = 16
OPTIMIZER = AdamW(3e-3)
FULL = {"steps": 300, "width": 32, "length": 16}
QUICK = {"steps": 50, "width": 16, "length": 10}


def main(arguments: list[str] | None = None) -> None:
    """Train the arms, take their updates apart, then report."""
    options = parse(arguments)
    corpus = experiment.load_windows(options) if options.source == "text" else None
    task = make_task(options, corpus)
    engine = choose(options.engine, "float64").name
    digests = {"text": corpus.sha256} if corpus is not None else {}
    experiment.check_rerun(options, said(options), engine, digests)
    with experiment.result_folder(options.out, options.format) as folder:
        with tqdm(total=options.steps * len(ARMS), unit="step", dynamic_ncols=True) as bar:
            arms = [dissect(arm, task, options, engine, bar) for arm in ARMS]
        claims = list(judge_all(arms))
        found = [facts(arm) for arm in arms]
        summary = experiment.summary(NAME, said(options), options.seed, engine, claims)
        if corpus is not None:
            summary["text"] = experiment.text_facts(corpus)
        write(arms, summary | {"arms": found}, folder)
        folder.complete()
    report(arms, found, claims, options.top)
    experiment.finish(options, NAME)


def parse(arguments: list[str] | None) -> Namespace:
    """Read the options; what --quick makes smaller has defaults of its own."""
    parser = experiment.parser(NAME, __doc__)
    parser.add_argument("--source", choices=SOURCES, default="lag2", help="default lag2")
    parser.add_sizes(FULL, QUICK, steps=0, width=1, length=4)
    parser.add_argument("--layers", type=int, default=1, help="of the model (default 1)")
    parser.add_argument("--layer", type=int, default=0, help="to look at, from 0 (default 0)")
    parser.add_argument("--top", type=int, default=6, help="terms in the tables (default 6)")
    parser.add_engine()
    parser.add_text()
    options = parser.parse_args(arguments)
    for name, minimum in (("layers", 1), ("layer", 0), ("top", 0)):
        checks.integer(f"--{name}", getattr(options, name), minimum)
    if options.layer >= options.layers:
        checks.fail("--layer", options.layer, f"a layer within 0..{options.layers - 1}")
    experiment.beside(options, "text", "--source text", options.source == "text")
    return options


def said(options: Namespace) -> dict[str, Any]:
    """Return what a summary says of the settings."""
    return experiment.config(options, optimizer=repr(OPTIMIZER), batch_size=BATCH_SIZE)


def make_task(options: Namespace, corpus: Corpus | None) -> Task:
    """Return the task of a text, or of chains."""
    if corpus is not None:
        return text_task("text", 1, corpus, options.layers)
    lag = {"lag1": 1, "lag2": 2, "iid": None}[options.source]
    return chain_task(options.source, 1, N_SYMBOLS, lag, options.layers, options.seed)


def dissect(arm: str, task: Task, options: Namespace, engine: str, bar: tqdm) -> Dissection:
    """Train one arm, if asked to, and take its update on the chosen sequence apart."""
    bar.set_description(ARMS[arm].title)
    config = TransformerConfig(
        vocab_size=task.n_symbols,
        width=options.width,
        layers=options.layers,
        heads=1,
        max_length=options.length,
    )
    initial = params = init_params(config, 1, options.seed)
    if options.steps > 0:
        params = fit(
            config,
            initial,
            task.sources[0],
            ARMS[arm].objective(task.n_symbols),
            steps=options.steps,
            batch_size=BATCH_SIZE,
            length=options.length,
            optimizer=OPTIMIZER,
            seed=options.seed,
            engine=engine,
            record_every=options.steps,
            progress=bar,
        ).params
    batch = one_window(arm, task, options)
    start = float(mean_loss(config, initial, batch, engine)[0])
    loss, grads, tape = loss_and_grad(config, params, batch, engine)
    update = implicit_update(config, params, tape, options.layer)
    if not update.total.any():
        checks.fail("--length", options.length, "windows in which a masked token has a context")
    proof = prove_update(config, params, batch, options.layer, options.seed, engine)
    return Dissection(
        arm=arm,
        task=task,
        config=config,
        initial=initial,
        params=params,
        grads=grads,
        update=update,
        proof_residual=float(proof.residual[0]),
        losses=(start, float(loss[0])),
        trained=options.steps > 0,
    )


def one_window(arm: str, task: Task, options: Namespace) -> Batch:
    """Return the same unseen window for every arm: the one with most masked tokens."""

    def batch_of(name: str) -> Batch:
        objective = ARMS[name].objective(task.n_symbols)
        sizes = (WINDOWS, options.length)
        return held_out_batches(task.held_out, objective, *sizes, options.seed)[0]

    masked = batch_of("masked_bidirectional").weights.sum(axis=1)
    first = int(masked.argmax())
    return batch_of(arm).sequences(slice(first, first + 1))


if __name__ == "__main__":
    sys.exit(experiment.run(main))

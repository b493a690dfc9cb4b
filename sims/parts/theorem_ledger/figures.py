"""The figures of `theorem_ledger.py`: statements whose outcome is best seen.

Each is drawn from the ingredients of the statement's own check, on draws of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from minattn import plots
from minattn.arrays import Array
from minattn.scores import dispersion
from minattn.theorems import counting, tails
from minattn.theorems.bidirectional import NEARLY
from minattn.theorems.dominance import QUERY_SHARE, VARIANCES, norm_ratio
from minattn.theorems.roles import both_roles, squared_norms
from minattn.theorems.sampling import estimate_ratio
from minattn.theorems.trained import REPLICAS, STEPS, Trained, trained_models

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, TERMS = 64, 100  # of the updates whose rows and columns are compared
BLUE, ORANGE, GREEN, PINK = plots.COLOURS[:4]


def prop_a7(seed: int, quick: bool) -> Figure:
    """Draw how spread columns are against rows, under the proposition's own hypotheses."""
    rng = np.random.default_rng((seed, 7))
    count = 100 if quick else 500
    unequal = rng.lognormal(size=(count, WIDTH))
    mild = rng.uniform(0.5, 1.5, size=(count, WIDTH))
    updates = _key_updates(rng, unequal)
    shown = [
        ("key role, log-normal(0, 1) variances", dispersion(updates), BLUE),
        ("key role, variances uniform on (0.5, 1.5)", dispersion(_key_updates(rng, mild)), GREEN),
        # The query role is the transpose of the key role, which turns the sign.
        ("query role, log-normal(0, 1) variances", -dispersion(_key_updates(rng, unequal)), ORANGE),
    ]
    made = plots.figure(10.4, 4.4)
    made.suptitle(
        "Prop A.7 under its own hypotheses: which side of the update is spread?\n"
        f"sums of {TERMS} terms, each with a token t* of its own, width {WIDTH}"
    )
    left, right = made.subplots(1, 2, width_ratios=(1.25, 1))
    ends = np.concatenate([values for _, values, _ in shown])
    bins = np.linspace(ends.min(), ends.max(), 50)
    for label, values, colour in shown:
        text = f"{label}: mean {values.mean():+.2f}"
        left.hist(values, bins, color=colour, alpha=0.6, label=text, edgecolor="0.3")
    left.axvline(0, color="black", linewidth=1)
    left.set_ylim(top=1.45 * left.get_ylim()[1])
    left.legend(fontsize=8, loc="upper center")
    xlabel = "dispersion, log Var|col|² / Var|row|²\n< 0: rows more spread      > 0: columns"
    plots.tidy(left, title=f"{count} updates each", xlabel=xlabel, ylabel="updates")
    rows, columns = squared_norms(updates[0])
    lines = ("rows", rows, ORANGE, "-"), ("columns", columns, BLUE, "--")
    for name, norms, colour, style in lines:
        ordered = np.sort(norms)[::-1] / norms.mean()
        right.plot(np.arange(1, WIDTH + 1), ordered, style, color=colour, label=name)
    right.axhline(1, color="black", linewidth=1)
    right.legend()
    ylabel = "squared norm / mean squared norm"
    title = "one update: key role, log-normal variances"
    plots.tidy(right, title=title, xlabel="rank of the norm", ylabel=ylabel, yscale="log")
    return made


def _key_updates(rng: np.random.Generator, variances: Array) -> Array:
    """Draw sum_i beta_i x_i^T x_i* (draws, d, d): tokens x_i of the given variances (draws, d)."""
    draws, width = variances.shape
    beta = rng.standard_normal((draws, TERMS, 1))
    x = np.sqrt(variances)[:, None] * rng.standard_normal((draws, TERMS, width))
    return (beta * x).swapaxes(-2, -1) @ rng.standard_normal((draws, TERMS, width))


def remark_a10(seed: int, quick: bool) -> Figure:
    """Draw how often a symbol is key over how often it is query, against its mean position."""
    rng = np.random.default_rng((seed, 10))
    symbols, length = 3, 5
    sequences = counting.all_sequences(symbols, length)
    kinds = (
        ("any law of the sequences", counting.any_law, GREEN, "o", 60),
        ("a symbol that grows rarer", counting.early_symbol, BLUE, "v", 1),
        ("a symbol that grows more frequent", counting.late_symbol, ORANGE, "^", 1),
        ("stationary, correlated Markov chains", counting.stationary_chain, PINK, "s", 60),
    )
    made = plots.figure(7.4, 4.6)
    made.suptitle("Remark A.10: stationary sources favour neither role, however correlated")
    axes = made.subplots()
    mu = np.linspace(1.6, length - 0.6, 200)
    axes.plot(mu, (length - mu) / (mu - 1), "k-", linewidth=1, label="(N - μ) / (μ - 1)")
    for label, source, colour, marker, number in kinds:
        places, ratios = [], []
        for _ in range(min(number, 15) if quick else number):
            law = source(rng, sequences, symbols)
            marginal = counting.position_law(sequences, law, symbols)
            key, query = counting.role_counts(sequences, law, symbols, "strictly_causal")
            k = np.arange(1, length + 1)
            places.append((k @ marginal)[0] / marginal[:, 0].sum())
            ratios.append(key[0] / query[0])
        axes.plot(
            places,
            ratios,
            marker,
            label=label,
            color=colour,
            alpha=0.5 if number > 1 else 1.0,
            markeredgecolor="black",
        )
    axes.axhline(1, color="0.5", linewidth=0.8)
    axes.axvline((length + 1) / 2, color="0.5", linewidth=0.8)
    ylabel = "pairs as key / pairs as query"
    xlabel = (
        f"mean position μ of the symbol (positions 1 to N = {length}; middle {(length + 1) / 2:g})"
    )
    plots.tidy(axes, xlabel=xlabel, ylabel=ylabel, yscale="log")
    axes.set_yticks([1 / 4, 1 / 2, 1, 2, 4], ["1/4", "1/2", "1", "2", "4"])
    axes.set_yticks([], minor=True)
    axes.legend(fontsize=8)
    return made


def lemma_a11(seed: int, quick: bool) -> Figure:
    """Draw the tails of the pairs that contradict the lemma."""
    pairs = tails.counterexamples()
    ranges = ((-0.5, 6.0), (0.0, 6.0), (-1.5, 5.0))
    made = plots.figure(11.6, 4.5)
    made.suptitle(
        "Lemma A.11: the law of larger variance need not have the heavier tail\n"
        "shaded: beyond the printed threshold, and the smaller variance has the heavier tail"
    )
    panels = made.subplots(1, len(pairs))
    for axes, pair, ends in zip(panels, pairs, ranges, strict=True):
        z = np.linspace(*ends, 1501)
        heavy, light = (np.array([tail(p) for p in z]) for tail in (pair.heavy, pair.light))
        larger, smaller = (deviation**2 for deviation in pair.deviations)
        names = f"X_a: variance {larger:.2g}", f"X_b: variance {smaller:.2g}"
        axes.plot(z, np.where(heavy > 0, heavy, np.nan), color=BLUE, label=names[0])
        axes.plot(z, np.where(light > 0, light, np.nan), "--", color=ORANGE, label=names[1])
        axes.axvline(pair.threshold, color="black", linestyle=":", label="threshold √(s_a s_b) - μ")
        axes.axvline(pair.mean, color="0.5", linewidth=0.8, label="mean μ")
        wrong = (z > pair.threshold) & (light > heavy)
        axes.fill_between(
            z,
            0,
            1,
            where=wrong,
            color=PINK,
            alpha=0.2,
            linewidth=0,
            transform=axes.get_xaxis_transform(),
        )
        title = f"{pair.name}\nmean {pair.mean:g}, threshold {pair.threshold:.2f}"
        plots.tidy(axes, title=title, xlabel="z", yscale="log", ylim=(1e-6, 1.5))
    panels[0].set_ylabel("P(X > z)")
    for axes in panels:
        axes.legend(fontsize=8, loc="lower left")
    return made


def theorem_17(seed: int, quick: bool) -> Figure:
    """Draw the ratio of expected squared norms against the weight of the query role."""
    made = plots.figure(11.0, 4.6)
    variances = ", ".join(f"{value:g}" for value in VARIANCES)
    made.suptitle(
        "Thm 2.3 (17): a column does not exceed every row of small variance\n"
        "next token, t* as key (weight B_key) and as query (weight B_query)"
    )
    left, right = made.subplots(1, 2, width_ratios=(1.25, 1))
    _ratios(left, np.random.default_rng((seed, 17)), 4000 if quick else 40_000)
    left.set_title(f"Σ = diag({variances}), τ = 1")
    _boundary(right)
    return made


def _ratios(axes: Axes, rng: np.random.Generator, draws: int) -> None:
    """Draw the formula of the ratio for three pairs, and measurements on it."""
    pairs = ((0, 1), (0, 0), (2, 1))
    variances = np.array(VARIANCES)
    grid = np.geomspace(1e-3, 10, 200)
    shares = np.array([1e-3, 1e-2, 0.1, QUERY_SHARE, 1.0, 10.0])
    ratios = []
    for share in shares:
        rows, columns = squared_norms(both_roles(rng, draws, variances, share))
        top, bottom = (
            norms[:, list(side)]
            for norms, side in zip((columns, rows), zip(*pairs, strict=True), strict=True)
        )
        ratios.append(estimate_ratio(top, bottom))
    for number, (k, m) in enumerate(pairs):
        colour, style = plots.COLOURS[number], plots.LINES[number]
        curve = [norm_ratio(variances, 1.0, share)[k, m] for share in grid]
        label = f"column {k + 1}, row {m + 1}"
        axes.plot(grid, curve, style, color=colour, label=label)
        value, low, high = (
            np.array([part[number] for part in parts])
            for parts in zip(*((r.value, r.low, r.high) for r in ratios), strict=True)
        )
        axes.errorbar(shares, value, (value - low, high - value), fmt="o", color=colour, ms=4)
    axes.axhline(1, color="black", linewidth=1)
    axes.legend(fontsize=8, title="formula; dots: measured", title_fontsize=8)
    plots.tidy(axes, xscale="log", yscale="log", xlabel="B_query / B_key")
    axes.set_ylabel("E|column|² / E|row|²\n> 1: as the theorem says")
    axes.set_yticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"])
    axes.set_yticks([], minor=True)


def _boundary(axes: Axes) -> None:
    """Draw where the theorem's ratio exceeds 1, in the plane of the two variances."""
    kk = np.linspace(0, 2, 200)
    for number, share in enumerate((0.1, QUERY_SHARE, 1.0)):
        line = 1 - share * (1 - kk)
        label = f"B_query / B_key = {share:.2g}"
        colour, style = plots.COLOURS[number], plots.LINES[number]
        axes.plot(kk, line, style, color=colour, label=label)
    wedge = 1 - QUERY_SHARE * (1 - kk)
    false = "claimed but false at 0.33"
    axes.fill_between(kk, np.minimum(wedge, 1), 1, color=PINK, alpha=0.25, label=false)
    axes.plot([VARIANCES[0]], [VARIANCES[1]], "kx", label="column 1, row 2")
    axes.axhline(1, color="black", linewidth=1)
    axes.legend(fontsize=8, loc="lower right")
    xlabel, ylabel = "variance of the column, Σ_kk / τ", "variance of the row, Σ_mm / τ"
    title = "ratio > 1 below each line;\nthe theorem claims all below 1"
    plots.tidy(axes, title=title, xlabel=xlabel, ylabel=ylabel, xlim=(0, 2), ylim=(0, 1.5))


def theorem_24(seed: int, quick: bool) -> Figure:
    """Draw the agreement of beta_ij with beta_ji, and what symmetry it leaves."""
    models = trained_models(seed, STEPS, REPLICAS)
    kinds = (
        ("any chain", models.bidirectional, BLUE),
        ("reversible chain", models.reversible, ORANGE),
    )
    made = plots.figure(10.4, 4.5)
    made.suptitle(
        "Thm 2.4: does the symmetry of W_qk come from beta_ij ≈ beta_ji?\n"
        f"masked training, {STEPS} steps, two layers, {REPLICAS} replicas"
    )
    left, right = made.subplots(1, 2)
    for number, (name, trained, colour) in enumerate(kinds):
        _agreements(left, trained, number, colour)
        for layer, marker in enumerate("os"):
            right.plot(
                trained.agreement[-1, layer],
                trained.symmetry[layer],
                marker,
                color=colour,
                label=f"{name}, layer {layer}",
                markeredgecolor="black",
                alpha=0.8,
            )
    left.axhline(NEARLY, color="black", linestyle=":", label="nearly symmetric")
    left.set_xticks(range(8), ["start", "end"] * 4)
    right.axvline(NEARLY, color="black", linestyle=":", label="nearly symmetric")
    for axes in (left, right):
        axes.axhline(0, color="0.5", linewidth=0.8)
    agreement = "agreement of beta_ij with beta_ji"
    left.set_xlabel("any chain: layer 0, layer 1    reversible chain: layer 0, layer 1")
    plots.tidy(left, title="the assumption", ylabel=agreement, ylim=(-1, 1))
    ylabel = "symmetry of the change of W_qk"
    plots.tidy(
        right,
        title="after training: a point a layer and replica",
        xlabel=agreement,
        ylabel=ylabel,
        xlim=(-1, 1),
        ylim=(-1, 1),
    )
    right.legend(fontsize=8, loc="lower right")
    return made


def _agreements(axes: Axes, trained: Trained, number: int, colour: str) -> None:
    """Draw the agreement of each replica at both ends of training, layer by layer."""
    for layer in range(2):
        place = 4 * number + 2 * layer
        axes.plot(
            [place, place + 1],
            trained.agreement[:, layer],
            "o-",
            color=colour,
            alpha=0.7,
            markeredgecolor="black",
            linewidth=1,
        )


FIGURES: dict[str, tuple[str, Callable[[int, bool], Figure]]] = {
    "Prop A.7": ("prop_a7", prop_a7),
    "Remark A.10": ("remark_a10", remark_a10),
    "Lemma A.11": ("lemma_a11", lemma_a11),
    "Thm 2.3 (17)": ("theorem_2_3_17", theorem_17),
    "Thm 2.4": ("theorem_2_4", theorem_24),
}

"""What pages say that is made from the published summaries.

    python results/published/gallery.py           # prints it
    python results/published/gallery.py --write   # puts it into the pages

The README's gallery has a sentence and a picture a sim. A sentence is written for the verdicts that
it rests on: if a published run has others, this fails, and the sentence is to be written anew. The
page beside this file lists the primary claims that a correction for their number would leave open.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from minattn.claims import Claim, holm

FOLDER = Path(__file__).parent
README, PAGE = FOLDER.parents[1] / "README.md", FOLDER / "README.md"


class Published:
    """One published run, as sentences need it."""

    def __init__(self, name: str) -> None:
        self.summary = json.loads((FOLDER / name / "summary.json").read_text(encoding="utf-8"))

    def number(self, claim: str, verdict: str) -> str:
        """Return what was measured, with its interval, of the claim that begins so.

        It has to have this verdict.
        """
        (found,) = (one for one in self.summary["claims"] if one["claim"].startswith(claim))
        if found["verdict"] != verdict:
            raise ValueError(f"{claim}: got {found['verdict']!r}, needs {verdict!r} or new words")
        return f"{short(found['measured'])} [{', '.join(map(short, found['interval']))}]"

    @property
    def primary(self) -> list[Claim]:
        """Tested claims that are not corrected for their number."""
        plain = (one for one in self.summary["claims"] if "Holm over" not in one["rule"])
        return [Claim(**one) for one in plain if one.get("p_value") is not None]

    @property
    def unsettled(self) -> list[Claim]:
        """Primary claims whose verdict Holm's correction for their number would leave open."""
        pairs = zip(self.primary, holm(self.primary), strict=True)
        return [one for one, corrected in pairs if one.verdict != corrected.verdict]


def short(value: float) -> str:
    """Write a number with two decimals and no leading zero."""
    text = f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.2f}"
    return text.removeprefix("-") if float(text) == 0 else text


def ends(values: list[float]) -> str:
    """Write a range."""
    return f"{short(min(values))} to {short(max(values))}"


def bidirectional_vs_causal(run: Published) -> str:
    """Say what the mask alone does."""
    by = [run.number(f"{source}: the mask alone makes", "holds") for source in ("lag1", "lag2")]
    one = run.number("lag1: next-token training makes", "holds")
    two = run.number("lag2: next-token training does not", "holds")
    return (
        f"The mask alone decides: bidirectional instead of causal, it makes what training adds to "
        f"W_qk more symmetric by {by[0]} on lag-1 and {by[1]} on lag-2 chains. Next-token training "
        f"is symmetric ({one}) where attending to oneself is enough, and not ({two}) where it has "
        f"to look back."
    )


def theorem_ledger(run: Published) -> str:
    """Count verdicts."""
    count = run.summary["verdicts"]
    return (
        f"Of {sum(count.values())} statements of the paper, {count['holds exactly']} hold exactly, "
        f"{count['holds in expectation']} in expectation, {count['holds under a condition']} only "
        f"under a condition that is named, and {count['does not hold']} do not hold."
    )


def term_by_term(run: Published) -> str:
    """Say how many terms matter."""
    arms = run.summary["arms"]
    terms = [arm["terms"] for arm in arms]
    ten, step = (
        ends([arm[f"cosine_of_{what}"] for arm in arms]) for what in ("ten_terms", "sgd_step")
    )
    return (
        f"Of the {min(terms)} to {max(terms)} terms of one update the ten largest point the same "
        f"way as their whole sum, cosine {ten}; an SGD step on W_q and W_k does so less, {step}."
    )


def symmetric_init(run: Published) -> str:
    """Say what a symmetric start gains."""
    gain = run.number("text: a symmetric start is faster", "inconclusive")
    cost = run.number("text, causal mask: a symmetric start gains nothing", "holds")
    return (
        f"A symmetric start gains nothing that can be told from chance under the bidirectional "
        f"mask (net speed-up {gain} on text), and nothing under the causal one ({cost})."
    )


def time_reversal(run: Published) -> str:
    """Say whether the assumption holds, and whether it is needed."""
    agreement = run.number("trained, reversible: beta_ij agrees with beta_ji (l", "does not hold")
    data = run.number("agreement is of the data", "holds")
    symmetry = run.number("cyclic chains: masked training still makes", "holds")
    return (
        f"The theory takes beta_ij and beta_ji to be nearly equal (agreement 1). After masked "
        f"training their agreement in the lower layer is {agreement} on reversible chains, and "
        f"lower by {data} on cyclic ones, which leaves next to none. W_qk becomes symmetric there "
        f"all the same: {symmetry}."
    )


def column_dominance(run: Published) -> str:
    """Say which condition spreads columns."""
    early = run.number("early symbols spread the columns, AdamW, softmax", "inconclusive")
    found = [
        run.number(f"the condition found (adamw softmax W_qk) spreads columns: {where}", "holds")
        for where in ("fresh seeds", "text")
    ]
    return (
        f"That early symbols spread the columns is not established as the authors train ({early}); "
        f"AdamW on W_qk itself spreads them, by {found[0]} on chains and {found[1]} on text."
    )


def depth(run: Published) -> str:
    """Say whether early layers deviate most."""
    nearer = "{}, adamw, 6 layers: the first layer's change deviates most"
    moved = "{}: the first of 6 layers is moved mostly through other positions"
    known, unknown = "next token, causal", "masked token, bidirectional"
    by = run.number(nearer.format(known), "does not hold")
    share = run.number(moved.format(known), "does not hold")
    open_by = run.number(nearer.format(unknown), "inconclusive")
    open_share = run.number(moved.format(unknown), "inconclusive")
    return (
        f"Early layers do not deviate most after next-token training: of six layers the first is "
        f"nearer to the theory's direction than the last, by {by} in cosine, and other positions' "
        f"losses make {share} of its update. After masked training both are inconclusive: "
        f"{open_by} and {open_share}."
    )


def modalities(run: Published) -> str:
    """Say where the contrast survives."""
    text = "masked bidirectional training makes the change more"
    names = ("text", "images", "sound")
    by = [run.number(f"{name}: {text}", "holds") for name in names]
    alone = run.number("images: the mask alone", "inconclusive")
    control = run.number("control, text: shuffled symbols move W_qk less", "does not hold")
    opened = [n for n in names if any(c.claim.startswith(f"{n}: {text}") for c in run.unsettled)]
    corrected = f" (open, if one corrects for the number of claims: {', '.join(opened)})"
    return (
        f"At the end of training masked bidirectional models have a more symmetric change of W_qk "
        f"than next-token models, by {by[0]} on text, {by[1]} on images and {by[2]} on sound"
        f"{corrected if opened else ''}; on text and sound next token is ahead before. That the "
        f"mask alone does so is established on text and sound, not on images ({alone}). A control "
        f"fails: shuffled text moves W_qk {control} as far as text."
    )


def score_checkpoint(run: Published) -> str:
    """Say how symmetric trained models are."""
    found = []
    for model in run.summary["models"]:
        ((tower, facts),) = model["towers"].items()
        symmetry, random = facts["scores"]["symmetry"], facts["null_band"]["symmetry"]
        if min(facts["by_layer"]["symmetry"]) <= max(random):
            raise ValueError(f"{model['name']}: got a layer like random ones, needs new words")
        found.append(f"{short(symmetry['median'])} in {model['name']}, {tower}")
    return (
        f"Median symmetry of W_qk over layers: {'; '.join(found)}. Every layer of each is more "
        f"symmetric than random factors of its shape."
    )


SHOWN: dict[str, tuple[str, Callable[[Published], str]]] = {
    "bidirectional_vs_causal": ("matrices_lag2", bidirectional_vs_causal),
    "theorem_ledger": ("prop_a7", theorem_ledger),
    "term_by_term": ("running_sum", term_by_term),
    "symmetric_init": ("speed_up", symmetric_init),
    "time_reversal": ("overview", time_reversal),
    "column_dominance": ("conditions", column_dominance),
    "depth": ("steps", depth),
    "modalities": ("overview", modalities),
    "score_checkpoint": ("scores", score_checkpoint),
}


def gallery() -> str:
    """Return the gallery as Markdown."""
    rows = []
    for name, (picture, sentence) in SHOWN.items():
        path = f"results/published/{name}/{picture}.png"
        image = f'<img src="{path}" alt="{picture} of {name}" width="360">'
        page = f"[all of it](results/published/README.md#{name})"
        rows.append(f"| {image} | **`{name}.py`** {sentence(Published(name))} {page} |\n")
    return "| | |\n|---|---|\n" + "".join(rows)


def primary() -> str:
    """List the primary claims that a correction for their number would leave open, as Markdown."""
    lines = []
    for name in SHOWN:
        run = Published(name)
        for claim in run.unsettled:
            verdict = f"{claim.verdict} (p = {claim.p_value:.2g}, one of {len(run.primary)})"
            number = run.number(claim.claim, claim.verdict)
            lines.append(f"- {name}: {claim.claim}: {number}, {verdict}\n")
    return "".join(lines) or "None.\n"


MADE = {"gallery": (README, gallery), "primary": (PAGE, primary)}


def placed(page: str, name: str) -> str:
    """Return a page with what is made for it in its place."""
    begin = f"<!-- {name}: made by results/published/gallery.py -->\n"
    end = f"<!-- end of {name} -->\n"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{MADE[name][1]()}\n{end}{after}"


def main(arguments: list[str]) -> None:
    """Print what is made, or write it."""
    for name, (path, make) in MADE.items():
        if arguments == ["--write"]:
            path.write_text(placed(path.read_text(encoding="utf-8"), name), encoding="utf-8")
        else:
            print(make())


if __name__ == "__main__":
    main(sys.argv[1:])

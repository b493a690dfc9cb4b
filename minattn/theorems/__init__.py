r"""The theory's numbered statements as executable checks.

>>> import minattn as ma
>>> ma.theorems.check("Prop A.9").verdict
'holds exactly'

A check returns a `Claim`: predicted, measured, interval, verdict and what was found; `check_all`
checks them all in about half a minute, as `sims/theorem_ledger.py` does.

Source: "The underlying structures of self-attention: symmetry, directionality, and emergent
dynamics in Transformer training", ICML 2025. Statements are given in our own words.

A statement of one's own is a function from a trial, which holds the random generator and the number
of draws, to an `Outcome`. What it takes for granted are keyword arguments, so that `check` can
alter them; a rule beside it turns numbers into the verdict:

>>> import numpy as np
>>> from minattn import theorems
>>> from minattn.theorems import Outcome, verdicts
>>> @theorems.statement(
...     "My Lemma", text="tr(A B) = tr(B A)", source="notebook", assumptions="square matrices",
...     method="identity", predicted="0: difference", rule="every difference is rounding", draws=9)
... def my_lemma(trial, *, other=lambda A, B: B @ A):
...     pairs = trial.rng.standard_normal((trial.draws, 2, 4, 4))
...     off = [abs(np.trace(A @ B) - np.trace(other(A, B))) for A, B in pairs]
...     worst = max(off)
...     return Outcome(worst, (min(off), worst), verdicts.identity_rule(off), f"Off by {worst:.0e}")
>>> theorems.check("My Lemma").verdict
'holds exactly'
>>> theorems.check("My Lemma", other=lambda A, B: B @ A.T).verdict
'does not hold'
>>> theorems.forget("My Lemma")
"""

from __future__ import annotations

from minattn.theorems import verdicts
from minattn.theorems.registry import (
    Outcome,
    Statement,
    Trial,
    check,
    check_all,
    forget,
    names,
    statement,
    statements,
)

# Importing a module registers its statements; the order is that in which `names` lists them.
from minattn.theorems import (  # noqa: F401 # isort: skip
    score_definitions,
    gradient,
    factors,
    expectations,
    counting,
    masking,
    tails,
    dominance,
    bidirectional,
    random_matrices,
    likelihood,
    slips,
)

__all__ = [
    "Outcome",
    "Statement",
    "Trial",
    "check",
    "check_all",
    "forget",
    "names",
    "statement",
    "statements",
    "verdicts",
]

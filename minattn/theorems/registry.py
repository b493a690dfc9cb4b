"""The registry: statements by name, and how one is checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from minattn import checks
from minattn.claims import Claim

METHODS = ("identity", "expectation", "counting", "counterexample", "training")


@dataclass(frozen=True)
class Trial:
    """What a check draws from: `rng` is its own stream of `seed`, `draws` how often to draw."""

    seed: int
    draws: int
    rng: np.random.Generator


class Outcome(NamedTuple):
    """What a check hands back: the numbers, the verdict of its rule, and one sentence."""

    measured: float | None
    interval: tuple[float, float] | None
    verdict: str
    found: str


Measure: TypeAlias = Callable[..., Outcome]


@dataclass(frozen=True)
class Statement:
    """A numbered statement and the function that measures it; see `statement`."""

    name: str
    text: str
    source: str
    assumptions: str
    method: str
    predicted: str
    rule: str
    draws: int
    measure: Measure

    @property
    def ingredients(self) -> list[str]:
        """Names of what a check can alter: all arguments of `measure` but the trial."""
        return list(inspect.signature(self.measure).parameters)[1:]

    def check(self, seed: int, draws: int, **altered: Any) -> Claim:
        """Measure, and report as a `Claim`."""
        # A stream of its own: no statement's draws depend on which others were checked before it.
        sequence = np.random.SeedSequence(seed, spawn_key=tuple(self.name.encode()))
        trial = Trial(seed, draws, np.random.default_rng(sequence))
        outcome = self.measure(trial, **altered)
        checks.instance(f"what {self.name!r} measures", outcome, Outcome, "an Outcome")
        return Claim(
            claim=f"{self.name}: {self.text}",
            predicted=self.predicted,
            measured=outcome.measured,
            interval=outcome.interval,
            rule=self.rule,
            verdict=outcome.verdict,
            source=self.source,
            method=self.method,
            assumptions=self.assumptions,
            found=outcome.found,
        )


_STATEMENTS: dict[str, Statement] = {}


def statement(
    name: str,
    *,
    text: str,
    source: str,
    assumptions: str,
    method: str,
    predicted: str,
    rule: str,
    draws: int,
) -> Callable[[Measure], Measure]:
    """Register the decorated function as the check of a statement.

    Parameters
    ----------
    name : str
        What `check` finds it by; not taken yet. A dot after the first word does not count.
    text, source, assumptions : str
        What is stated, where, and under which assumptions it is measured here.
    method : {"identity", "expectation", "counting", "counterexample", "training"}
    predicted, rule : str
        What the statement predicts for the number that is measured, and how numbers become a
        verdict.
    draws : int
        The default number of draws, at least 2.

    Returns
    -------
    decorator of functions (trial, **ingredients) -> Outcome
        Every ingredient (a formula, a law, a builder of matrices) has a default, so that it can be
        altered to see whether the check notices. The function is returned as it is.

    Raises
    ------
    ValueError
        If the name is taken, a text is no string, `method` or `draws` is not valid, or the
        function takes no trial.
    """
    stated = {"name": name, "text": text, "source": source, "assumptions": assumptions}
    for argument, value in (stated | {"predicted": predicted, "rule": rule}).items():
        checks.text(argument, value)
    if registered(name) in _STATEMENTS or not name:
        checks.fail("name", repr(name), "a name that is not taken")
    checks.one_of("method", method, METHODS)
    checks.integer("draws", draws, minimum=2)

    def register(measure: Measure) -> Measure:
        checks.function(f"what measures {name!r}", measure, "trial")
        _STATEMENTS[name] = Statement(
            name, text, source, assumptions, method, predicted, rule, draws, measure
        )
        return measure

    return register


def statements() -> list[Statement]:
    """Return all statements, in the order in which they were registered."""
    return list(_STATEMENTS.values())


def names() -> list[str]:
    """Return the names of all statements, in the order in which they were registered."""
    return list(_STATEMENTS)


def forget(name: str) -> None:
    """Remove a statement of one's own, as a notebook does before it defines it anew.

    Raises
    ------
    ValueError
        If there is none of that name.
    """
    del _STATEMENTS[_find(name).name]


def check(name: str, seed: int = 0, draws: int | None = None, **altered: Any) -> Claim:
    """Check one statement.

    Parameters
    ----------
    name : str
        One of `names()`; "Prop. A.9" means the same as "Prop A.9".
    seed : int
        The same seed gives the same claim.
    draws : int, optional
        How often to draw, at least 2; the statement's own default if not given. What is drawn
        depends on the method: "expectation" draws samples, "identity", "counting" and
        "counterexample" random instances, "training" replicas.
    **altered
        Ingredients of the check to replace: see the function that carries the statement.

    Returns
    -------
    Claim
        Its text begins with the name. Its verdict is "holds exactly", "holds in expectation",
        "holds only if ...", "does not hold" or "inconclusive".

    Raises
    ------
    ValueError
        If there is no such statement or ingredient, or `seed` or `draws` is out of range.
    """
    found = _find(name)
    seed = checks.seed("seed", seed)
    draws = found.draws if draws is None else checks.integer("draws", draws, minimum=2)
    for ingredient in altered:
        checks.one_of("altered", ingredient, found.ingredients)
    return found.check(seed, draws, **altered)


def check_all(seed: int = 0, draws: int | None = None, progress: str | None = None) -> list[Claim]:
    """Check every statement.

    Parameters
    ----------
    seed : int
    draws : int, optional
        At most so many draws for each statement, and never more than its default: a small number
        gives a quick look, in which expectations may come out inconclusive.
    progress : str, optional
        Shows a progress bar with this label.

    Returns
    -------
    list of Claim, in the order of `names()`

    Raises
    ------
    ValueError
        If `seed` or `draws` is out of range.
    """
    most = None if draws is None else checks.integer("draws", draws, minimum=2)
    counts = {s.name: s.draws if most is None else min(most, s.draws) for s in _STATEMENTS.values()}
    items: Iterable[tuple[str, int]] = counts.items()
    if progress is not None:
        checks.text("progress", progress)
        from tqdm import tqdm

        items = tqdm(list(items), desc=progress, unit="statement", leave=False)
    return [check(name, seed, count) for name, count in items]


def registered(name: str) -> str:
    """Return the name of a statement as registered, whether or not a dot ends its first word.

    A name of no statement is returned as it is.
    """
    plain = name.replace(". ", " ", 1)
    return next((one for one in _STATEMENTS if one.replace(". ", " ", 1) == plain), name)


def _find(name: Any) -> Statement:
    known = registered(name) if isinstance(name, str) else name
    return _STATEMENTS[checks.one_of("name", known, _STATEMENTS)]

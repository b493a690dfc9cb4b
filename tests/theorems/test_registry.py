"""The registry: names, errors, seeds, what every claim carries, and statements of one's own."""

import doctest

import pytest

from minattn import theorems
from minattn.claims import Claim
from minattn.theorems import Outcome, check, check_all, forget, names, statement
from minattn.theorems.registry import METHODS

LISTED = [
    "Def 3.1",
    "Def 3.2",
    "Prop 2.1",
    "Prop 2.2",
    "Remark A.5",
    "Remark A.6",
    "Prop A.7",
    "Cor A.8",
    "Prop A.9",
    "Remark A.10",
    "Lemma A.11",
    "Thm 2.3 (17)",
    "Thm 2.3 (18)",
    "Cor A.12",
    "Thm 2.4",
    "Remark A.13",
    "Lemma A.14",
    "Prop A.15",
    "Prop A.16",
    "App. A.3",
    "App. A.5.5",
    "S25",
    "S26",
    "S39",
]
VERDICTS = ("holds exactly", "holds in expectation", "does not hold", "inconclusive")


@pytest.fixture(scope="module")
def quick():
    return check_all(seed=3, draws=2)


def registered(name="Mine", method="identity", draws=3):
    """Register a statement that reports what it was given."""
    words = dict.fromkeys(("text", "source", "assumptions", "predicted", "rule"), "w")
    decorate = statement(name, method=method, draws=draws, **words)

    @decorate
    def mine(trial, *, shift=0.0):
        value = float(trial.rng.random()) + shift
        return Outcome(value, (value, value), "holds exactly", f"{trial.draws} {trial.seed}")

    return mine


@pytest.fixture
def mine():
    yield registered()
    forget("Mine")


def test_every_statement_of_the_paper_is_there_once():
    assert sorted(names()) == sorted(LISTED)
    assert len(LISTED) == len(set(LISTED)) == 24


def test_every_claim_says_what_it_is(quick):
    for name, claim in zip(names(), quick, strict=True):
        assert isinstance(claim, Claim)
        assert claim.claim.startswith(f"{name}: ")
        assert claim.method in METHODS
        assert claim.verdict in VERDICTS or claim.verdict.startswith("holds only if ")
        for part in (claim.source, claim.assumptions, claim.predicted, claim.rule, claim.found):
            assert part.strip() == part != ""
        assert claim.found.endswith(".")
        assert claim.measured is not None


def test_few_draws_leave_expectations_open_and_say_how_many_would_do(quick):
    open_ones = [claim for claim in quick if claim.verdict == "inconclusive"]
    assert {claim.claim.split(":")[0] for claim in open_ones} >= {"Prop A.7", "Prop A.15"}
    for claim in open_ones:
        assert claim.method in ("expectation", "training")
        assert "draws would settle it" in claim.found


def test_same_seed_same_claim_whatever_was_checked_before(quick):
    again = {name: check(name, seed=3, draws=2) for name in reversed(names())}
    assert [again[name] for name in names()] == quick


def test_another_seed_gives_other_numbers():
    assert check("Prop A.15", 0, 2000).measured != check("Prop A.15", 1, 2000).measured


def test_streams_differ_between_names(mine):
    registered("Other")
    try:
        assert check("Mine").measured != check("Other").measured
    finally:
        forget("Other")


def test_draws_default_and_altered_ingredients(mine):
    assert check("Mine", seed=5).found == "3 5"
    assert check("Mine", draws=2).found == "2 0"
    assert check("Mine", shift=1.0).measured == pytest.approx(check("Mine").measured + 1)


def test_check_all_never_draws_more_than_the_default(monkeypatch):
    monkeypatch.setattr(theorems.registry, "_STATEMENTS", {})
    registered("Few", draws=2)
    registered("Many", draws=10)
    assert [claim.found for claim in check_all(draws=5)] == ["2 0", "5 0"]
    assert [claim.found for claim in check_all(seed=4, progress="all")] == ["2 4", "10 4"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": "Prop A.99"}, "Prop A.7"),
        ({"name": None}, "name"),
        ({"name": "S25", "seed": -1}, "seed"),
        ({"name": "S25", "seed": 0.5}, "seed"),
        ({"name": "S25", "draws": 1}, "draws"),
        ({"name": "S25", "draws": True}, "draws"),
        ({"name": "S25", "mend": None}, "altered: got 'mend', needs one of 'printed', 'mended'"),
    ],
)
def test_arguments_are_checked(arguments, text):
    with pytest.raises(ValueError, match=text):
        check(**arguments)


def test_check_all_checks_its_arguments_before_it_starts():
    for bad in ({"draws": 1}, {"draws": 2.0}):
        with pytest.raises(ValueError, match="draws"):
            check_all(**bad)


@pytest.mark.parametrize(
    ("changed", "text"),
    [({"name": "S25"}, "taken"), ({"method": "guess"}, "method"), ({"draws": 1}, "draws")],
)
def test_statements_are_checked_when_registered(changed, text):
    before = names()
    with pytest.raises(ValueError, match=text):
        registered(**changed)
    assert names() == before


def test_a_dot_after_the_first_word_does_not_matter(mine):
    assert check("Prop. A.7", draws=2) == check("Prop A.7", draws=2)
    assert check("App A.3", draws=2).claim.startswith("App. A.3: ")
    with pytest.raises(ValueError, match=r"^name: got 'Prop A\. 7', needs one of"):
        check("Prop A. 7")
    with pytest.raises(
        ValueError, match=r"^name: got 'Prop\. A\.9', needs a name that is not taken"
    ):
        registered("Prop. A.9")
    registered("My. Lemma")
    forget("My Lemma")
    assert "My. Lemma" not in names()


def test_what_measures_a_statement_takes_a_trial_and_returns_an_outcome(monkeypatch):
    monkeypatch.setattr(theorems.registry, "_STATEMENTS", {})
    words = dict.fromkeys(("text", "source", "assumptions", "predicted", "rule"), "w")
    decorate = statement("Mine", method="identity", draws=3, **words)

    def no_trial():
        """Take nothing."""

    with pytest.raises(
        ValueError, match=r"^what measures 'Mine': got no_trial, needs .*\(trial\)$"
    ):
        decorate(no_trial)
    assert names() == []
    decorate(lambda trial: 0.5)
    with pytest.raises(ValueError, match=r"^what 'Mine' measures: got float, needs an Outcome$"):
        check("Mine")


def test_forgetting_what_is_not_there():
    with pytest.raises(ValueError, match="Mine"):
        forget("Mine")


def test_verdicts_are_qualified_claims():
    fields = {"claim": "c", "predicted": "p", "measured": 0.0, "interval": None, "rule": "r"}
    assert Claim(**fields, verdict="holds only if x = 1").as_dict()["verdict"].endswith("x = 1")
    with pytest.raises(ValueError, match="verdict"):
        Claim(**fields, verdict="perhaps")
    with pytest.raises(ValueError, match="interval"):
        Claim(**{**fields, "interval": (1.0, 0.0)}, verdict="holds exactly")


def test_the_documented_example_runs_and_is_short():
    before = names()
    example = doctest.DocTestParser().get_examples(theorems.__doc__)
    assert sum(e.source.count("\n") for e in example) < 20
    test = doctest.DocTestParser().get_doctest(theorems.__doc__, {}, "theorems", None, 0)
    outcome = doctest.DocTestRunner(verbose=False).run(test)
    assert outcome.attempted == len(example) > 0
    assert outcome.failed == 0
    assert names() == before


def test_public_names_exist():
    assert all(hasattr(theorems, name) for name in theorems.__all__)

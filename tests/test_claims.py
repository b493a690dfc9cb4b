"""Claims: intervals, rules, corrections, and what is written about them."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minattn import intervals
from minattn.claims import (
    DOES_NOT_HOLD,
    HOLDS,
    INCONCLUSIVE,
    UNDERTRAINED,
    VERDICTS,
    Claim,
    Rule,
    above,
    at_most,
    below,
    holm,
    judge,
    mean_interval,
    table,
)

eight = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]  # mean 4.5, variance 6


def claim(p_value=None, verdict=HOLDS, **fields):
    given_fields = {"claim": "c", "predicted": "p", "measured": 0.5, "interval": (0.0, 1.0)}
    return Claim(**{**given_fields, "rule": "r", **fields}, verdict=verdict, p_value=p_value)


# Intervals


def test_interval_of_eight_values_from_the_printed_quantile():
    half = 2.3646 * math.sqrt(6 / 8)  # t table: 7 degrees of freedom, 0.975
    mean, low, high, n = mean_interval(eight)
    assert (mean, n) == (4.5, 8)
    assert low == pytest.approx(4.5 - half, abs=1e-4)
    assert high == pytest.approx(4.5 + half, abs=1e-4)


@pytest.mark.parametrize(
    ("n", "level", "quantile"),
    [
        (2, 0.95, 12.7062),
        (3, 0.95, 4.3027),
        (11, 0.95, 2.2281),
        (8, 0.99, 3.4995),
        (5, 0.9, 2.1318),
    ],
)
def test_intervals_from_printed_quantiles(n, level, quantile):
    values = np.arange(n) ** 2.0
    mean = math.fsum(values) / n
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
    estimate = mean_interval(values, level)
    assert (estimate.high - estimate.low) / 2 == pytest.approx(quantile * error, rel=1e-4)
    assert (estimate.high + estimate.low) / 2 == pytest.approx(mean)


def test_interval_covers_the_mean_as_often_as_it_says():
    draws = np.random.default_rng(0).normal(3.0, 2.0, size=(6, 40_000))
    for level in (0.5, 0.95):
        _, low, high, n = mean_interval(draws, level)
        assert low.shape == (40_000,)
        assert n == 6
        covered = np.mean((low <= 3.0) & (high >= 3.0))
        assert covered == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / 40_000))


def test_no_spread_gives_no_width_and_one_replica_no_knowledge():
    assert mean_interval([0.1] * 7) == (0.1, 0.1, 0.1, 7)
    assert mean_interval([0.1]) == (0.1, -np.inf, np.inf, 1)
    mean, low, high, _ = mean_interval(np.ones((1, 3)))
    assert (mean.tolist(), low.tolist(), high.tolist()) == ([1] * 3, [-np.inf] * 3, [np.inf] * 3)


def test_values_are_not_modified_and_integers_are_numbers():
    values = np.array([3, 1, 2])
    values.flags.writeable = False
    assert mean_interval(values)[0] == 2.0
    assert values.tolist() == [3, 1, 2]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], "shape"),
        (1.0, "shape"),
        ([1.0, np.nan], "NaN"),
        ([1.0, np.inf], "finite"),
        (["a"], "<U1"),
        ([True, False], "bool"),
        ([1j], "complex"),
    ],
)
def test_values_that_have_no_mean(values, text):
    with pytest.raises(ValueError, match=text):
        mean_interval(values)
    with pytest.raises(ValueError, match=text):
        judge("c", "p", values, above(0.0))


@pytest.mark.parametrize("level", [0.0, 1.0, -1, 95, np.nan, "0.95"])
def test_level_is_a_probability(level):
    with pytest.raises(ValueError, match="level"):
        mean_interval(eight, level)


# Rules


@pytest.mark.parametrize(
    ("rule", "verdict"),
    [
        (above(2.0), HOLDS),
        (above(2.6), INCONCLUSIVE),  # the interval is [2.452, 6.548]
        (above(6.4), INCONCLUSIVE),
        (above(7.0), DOES_NOT_HOLD),
        (below(2.0), DOES_NOT_HOLD),
        (below(2.6), INCONCLUSIVE),
        (below(6.4), INCONCLUSIVE),
        (below(7.0), HOLDS),
        (at_most(8.0), HOLDS),
        (at_most(7.9), DOES_NOT_HOLD),
    ],
)
def test_every_verdict_of_every_rule(rule, verdict):
    assert judge("c", "p", eight, rule).verdict == verdict
    assert judge("c", "p", eight, rule, undertrained=True).verdict == UNDERTRAINED


def test_what_judge_reports():
    found = judge("the mean is large", "> 2", eight, above(2.0))
    assert (found.claim, found.predicted, found.measured) == ("the mean is large", "> 2", 4.5)
    assert found.interval == pytest.approx((2.4522, 6.5478), abs=1e-4)
    assert found.rule == str(above(2.0)) == "mean above 2, by its 95% interval"
    # t = 2.5 / sqrt(6 / 8) = 2.8868 with 7 degrees of freedom lies between the printed
    # two-sided quantiles of .05 (2.3646) and .02 (2.9980).
    assert 0.02 < found.p_value < 0.05
    untrained = judge("c", "p", eight, above(2.0), undertrained=True)
    assert (untrained.measured, untrained.interval) == (4.5, found.interval)
    assert untrained.p_value is None


def test_limits_look_at_the_worst_value():
    residuals = np.array([[1e-15, 3e-14], [2e-16, 0.0]])
    found = judge("exact", "0", residuals, at_most(1e-12))
    assert (found.measured, found.interval, found.verdict) == (3e-14, (0.0, 3e-14), HOLDS)
    assert found.p_value is None
    assert judge("exact", "0", 1e-15, at_most(1e-12)).verdict == HOLDS
    assert judge("exact", "0", [0.0, np.inf], at_most(1e-12)).verdict == DOES_NOT_HOLD
    with pytest.raises(ValueError, match="NaN"):
        judge("exact", "0", [0.0, np.nan], at_most(1e-12))


def test_values_without_spread_decide_unless_on_the_threshold():
    same = [0.1] * 5
    assert judge("c", "p", same, above(0.0999)).verdict == HOLDS
    assert judge("c", "p", same, below(0.0999)).verdict == DOES_NOT_HOLD
    on_it = judge("c", "p", same, above(0.1))
    assert (on_it.verdict, on_it.p_value) == (INCONCLUSIVE, 1.0)
    alone = judge("c", "p", [5.0], above(0.0))
    assert (alone.verdict, alone.interval, alone.p_value) == (INCONCLUSIVE, (-np.inf, np.inf), 1.0)


@settings(deadline=None, max_examples=200)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 12),
    threshold=st.floats(-2, 2),
    upward=st.booleans(),
)
def test_verdict_interval_and_p_value_agree(seed, n, threshold, upward):
    values = np.random.default_rng(seed).normal(0.5, 1.0, size=n)
    found = judge("c", "p", values, above(threshold) if upward else below(threshold))
    low, high = found.interval
    assert (found.p_value < 0.05) == (not low <= threshold <= high)
    expected = INCONCLUSIVE
    if not low <= threshold <= high:
        expected = HOLDS if (low > threshold) == upward else DOES_NOT_HOLD
    assert found.verdict == expected


@pytest.mark.parametrize("rule", [above, below, at_most])
def test_thresholds_are_finite_numbers(rule):
    for bad in (np.nan, np.inf, "1", None):
        with pytest.raises(ValueError, match=r"threshold|limit"):
            rule(bad)


def test_judge_checks_its_arguments():
    with pytest.raises(ValueError, match="rule"):
        judge("c", "p", eight, 0.5)
    with pytest.raises(ValueError, match="undertrained"):
        judge("c", "p", eight, above(0.0), undertrained=1)
    with pytest.raises(ValueError, match="one value a replica"):
        judge("c", "p", np.ones((3, 2)), above(0.0))
    with pytest.raises(ValueError, match="claim"):
        judge(None, "p", eight, above(0.0))


def test_a_rule_of_ones_own():
    rule = Rule("always", lambda values: (1.0, (0.0, 2.0), None, HOLDS))
    assert judge("c", "p", eight, rule).rule == "always"


# Families


def test_holm_lies_between_bonferroni_and_nothing():
    # Uncorrected all four stand. Bonferroni (p < .0125) keeps one. Holm keeps two:
    # 4 * .005 = .02 and 3 * .015 = .045 pass, 2 * .03 = .06 fails and stops the one after it.
    family = [claim(p) for p in (0.04, 0.005, 0.03, 0.015)]
    corrected = holm(family)
    verdicts = [one.verdict for one in corrected]
    assert verdicts == [INCONCLUSIVE, HOLDS, INCONCLUSIVE, HOLDS]
    assert {one.rule for one in corrected} == {"r; Holm over 4 claims"}
    assert [one.p_value for one in corrected] == [0.04, 0.005, 0.03, 0.015]
    assert all(one.interval == (0.0, 1.0) for one in corrected)
    assert [one.verdict for one in family] == [HOLDS] * 4, "the claims given are not changed"


def test_holm_keeps_the_direction_and_counts_only_tests():
    rejected = claim(0.02, DOES_NOT_HOLD)
    untested = claim(None, UNDERTRAINED)
    limit = judge("exact", "0", [1.0], at_most(0.5))
    corrected = holm([untested, rejected, limit])
    assert corrected[1].verdict == DOES_NOT_HOLD  # one test: 0.02, not 0.06
    assert corrected[1].rule == "r; Holm over 1 claims"
    assert (corrected[0], corrected[2]) == (untested, limit)
    assert holm([]) == []


def test_holm_never_draws_a_verdict_that_the_plain_rule_does_not():
    values = np.random.default_rng(3).normal(0.4, 1.0, size=(30, 12))
    family = [judge("c", "p", sample, above(0.0)) for sample in values]
    corrected = holm(family)
    changed = [(one.verdict, two.verdict) for one, two in zip(family, corrected, strict=True)]
    assert set(changed) <= {(v, v) for v in VERDICTS} | {(HOLDS, INCONCLUSIVE)}
    assert (HOLDS, INCONCLUSIVE) in changed


def test_holm_keeps_false_discoveries_of_a_family_rare():
    families, m = 400, 10
    values = np.random.default_rng(4).normal(size=(families, m, 6))
    wrong = plain_wrong = 0
    for family in values:
        plain = [judge("c", "p", sample, above(0.0)) for sample in family]
        plain_wrong += any(one.verdict != INCONCLUSIVE for one in plain)
        wrong += any(one.verdict != INCONCLUSIVE for one in holm(plain))
    assert wrong / families < 0.05 + 4 * math.sqrt(0.05 * 0.95 / families)
    assert plain_wrong / families > 0.25  # 1 - .95 ** 10 = .40


# Records


def test_dictionaries_survive_json():
    full = claim(
        np.float64(0.01), source="Prop 2.1", method="complex step", assumptions="none", found="so"
    )
    record = json.loads(json.dumps(full.as_dict(), allow_nan=False))
    assert record.pop("interval") == [0.0, 1.0]
    assert Claim(**record, interval=(0.0, 1.0)) == full


def test_dictionaries_always_have_six_keys_and_others_where_set():
    keys = ["claim", "predicted", "measured", "interval", "rule", "verdict"]
    bare = claim(measured=None, interval=None, predicted="").as_dict()
    assert list(bare) == keys
    assert (bare["measured"], bare["interval"], bare["predicted"]) == (None, None, "")
    assert set(claim(0.0, source="Def. 3.1").as_dict()) == {*keys, "p_value", "source"}


def test_what_json_cannot_hold_becomes_text():
    record = claim(measured=math.nan, interval=(-math.inf, np.float32(np.inf))).as_dict()
    assert record["measured"] == "nan"
    assert record["interval"] == ["-inf", "inf"]
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"verdict": "perhaps"}, "verdict"),
        ({"claim": 3}, "claim"),
        ({"found": None}, "found"),
        ({"interval": (1.0, 0.0)}, "interval"),
        ({"interval": (np.nan, 0.0)}, "interval"),
    ],
)
def test_claims_are_checked_when_made(fields, text):
    with pytest.raises(ValueError, match=text):
        claim(**fields)


# Tables


def test_a_short_table():
    claims = [
        judge("symmetry of W_qk is high", "> 0.5", [0.81, 0.83, 0.82], above(0.5)),
        judge("the update is exact", "0", [1.2e-14, 3e-15], at_most(1e-10)),
        claim(measured=None, interval=None, verdict=INCONCLUSIVE),
        claim(measured=-0.0, interval=(-1234.5, -0.0)),
    ]
    assert table(claims).splitlines() == [
        "claim                     predicted  measured  95% interval      verdict",
        "------------------------  ---------  --------  ----------------  ------------",
        "symmetry of W_qk is high  > 0.5      0.82      [0.795, 0.845]    holds",
        "the update is exact       0          1.2e-14   [3e-15, 1.2e-14]  holds",
        "c                         p          -         -                 inconclusive",
        "c                         p          0         [-1.23e+03, 0]    holds",
    ]


@settings(deadline=None, max_examples=100)
@given(
    texts=st.lists(
        st.tuples(
            st.text("ab -\n\tβ", max_size=400),
            st.text("xyz ", max_size=400),
            st.floats(allow_nan=True),
            st.sampled_from(VERDICTS),
        ),
        max_size=4,
    ),
    width=st.integers(72, 130),
)
def test_no_line_exceeds_the_width_and_no_word_is_lost(texts, width):
    extreme = (-1.7976931348623157e308, -1.2345678e-300)
    claims = [
        claim(claim=text, predicted=predicted, measured=measured, interval=extreme, verdict=verdict)
        for text, predicted, measured, verdict in texts
    ]
    lines = table(claims, width).splitlines()
    assert all(len(line) <= width for line in lines)
    printed = "".join(lines)
    for text, predicted, _, verdict in texts:
        assert verdict in printed
        for letter in "xyzβ":
            assert printed.count(letter) >= (text + predicted).count(letter)


def test_long_text_wraps_within_its_own_column():
    words = [f"word{number}" for number in range(40)]
    _, dashes, *lines = table([claim(claim=" ".join(words), predicted="short")], 80).splitlines()
    column = len(dashes.split()[0])
    assert " ".join(line[:column].strip() for line in lines).split() == words
    assert lines[0].endswith(HOLDS)
    assert len(lines) > 5


@pytest.mark.parametrize("width", [72, 100])
def test_two_long_texts_share_the_room(width):
    lines = table([claim(claim="a " * 200, predicted="b " * 200)], width).splitlines()
    claim_width, predicted_width = (len(dashes) for dashes in lines[1].split()[:2])
    assert claim_width > predicted_width >= len("predicted")


def test_an_empty_table_and_a_narrow_one():
    assert table([]).splitlines()[0].split() == [
        "claim",
        "predicted",
        "measured",
        "95%",
        "interval",
        "verdict",
    ]
    for width in (71, 0, 80.0):
        with pytest.raises(ValueError, match="width"):
            table([], width)


def test_a_qualified_verdict_wraps():
    verdict = "holds only if the step is small and all of this sentence is read"
    text = table([claim(claim="c " * 60, verdict=verdict)], 100)
    assert max(map(len, text.splitlines())) <= 100
    assert all(word in text for word in verdict.split())


@pytest.mark.parametrize("verdict", ["holdsx", "perhaps", "", "does not", None, 3])
def test_unknown_verdicts_are_refused(verdict):
    with pytest.raises(ValueError, match="verdict"):
        claim(verdict=verdict)


def test_infinite_scores_are_brought_within_reach():
    values = np.array([-np.inf, -3.0, np.nan, np.inf])
    assert intervals.finite(values).tolist() == [-intervals.REACH, -3.0, 0.0, intervals.REACH]

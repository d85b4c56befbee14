"""Numbers and sentences: what they say, and that they never say more than is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.contract.job import OutcomeCause
from nightshift.core.causes import EndCause
from nightshift.report import words
from nightshift.report.text import BARS, gain, resume_sentence, sparkline, target_sentence
from tests.report.support import attempt, evaluated


@given(st.lists(st.floats(), max_size=200), st.integers(2, 60))
def test_a_sparkline_has_a_bar_a_value_up_to_its_width_and_keeps_both_ends(curve: list[float], width: int) -> None:
    finite = [one for one in curve if math.isfinite(one)]

    line = sparkline(curve, width)

    assert len(line) == min(width, len(finite))
    assert set(line) <= set(BARS)
    if finite:
        assert line[0] == sparkline(finite[:1]) and line[-1] == sparkline(finite[-1:])


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_higher_share_never_has_a_lower_bar(a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert BARS.index(sparkline([low])) <= BARS.index(sparkline([high]))


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_share_is_shown_as_all_or_nothing_only_where_it_is(solved: int, of: int) -> None:
    shown = words.percent(min(solved, of) / of)
    assert (shown == "100%") == (solved >= of)
    assert (shown == "0%") == (solved == 0)


def test_every_cause_has_words_of_its_own() -> None:
    names = [one.value for one in (*EndCause, *OutcomeCause)]
    assert [name for name in names if name not in words.CAUSES] == []
    assert all("_" not in text for text in words.CAUSES.values())


def test_an_unknown_cause_is_shown_as_words_and_bounded() -> None:
    assert words.cause_words("solar_flare") == "solar flare"
    assert len(words.cause_words("x_" * 5_000)) <= 200


def test_a_gain_says_when_it_may_be_chance() -> None:
    assert "do not overlap" in gain(evaluated(28), evaluated(62))
    assert "may be chance" in gain(evaluated(28), evaluated(31))
    worse = gain(evaluated(62), evaluated(28))
    assert "worse" in worse and worse.startswith("−53.1 points")


def test_a_target_is_reached_at_exactly_its_value_and_missed_just_below() -> None:
    assert "was reached" in target_sentence(0.5, evaluated(32))
    assert "was missed by 1.6 points" in target_sentence(0.5, evaluated(31))
    assert "cannot be judged" in target_sentence(0.5, None)


@pytest.mark.parametrize(
    ("saved", "resumed", "expected"),
    [(20, 20, "exactly the last step"), (20, 10, "10 steps before"), (20, 30, "later than"), (20, None, "no step")],
)
def test_how_an_attempt_went_on_is_told_as_it_was(saved: int, resumed: int | None, expected: str) -> None:
    sentence = resume_sentence(attempt(1, last_saved_step=saved), attempt(2, resumed_step=resumed))
    assert expected in sentence
    assert ("exactly" in sentence) == (saved == resumed)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (4_000, "1 h 7 min"),
        (3_599.9, "1 h"),
        (172_800, "2 days"),
        (-5, "0 s"),
    ],
)
def test_durations_have_at_most_two_units(seconds: float, shown: str) -> None:
    assert words.duration(seconds) == shown

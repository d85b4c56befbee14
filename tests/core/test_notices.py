"""What is worth a message: levels, the night, limits that are near, and the end of a log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.core.notices import Night, is_first_eval, last_lines, may_hold_target, near_limits
from tests.builders import NOW, run, spec

HELD = {"leased_at": NOW, "dollars_per_hour": 10.0, "prices_as_of": NOW.date()}


@pytest.mark.parametrize(("hours", "told"), [(79.9, []), (80, ["budget-wall_hours-100"])])
def test_a_limit_is_near_from_four_fifths_on(hours: float, told: list[str]) -> None:
    limited = spec(budgets={"wall_hours": 100, "gpu_hours": 1e6})
    found = near_limits(run(**HELD), limited, 0.0, NOW + timedelta(hours=hours))
    assert [one.key for one in found] == told


def test_each_limit_is_told_by_itself_once_and_again_when_it_was_raised() -> None:
    limited = spec(budgets={"wall_hours": 1, "gpu_hours": 10, "dollars": 10})
    later = NOW + timedelta(minutes=50)
    found = near_limits(run(**HELD), limited, 9.0, later)
    assert [(one.use.name, one.use.used, one.use.limit) for one in found] == [
        ("wall_hours", 0.8333, 1), ("gpu_hours", 9.0, 10), ("dollars", 8.33, 10),
    ]  # fmt: skip
    told = run(**HELD, noticed=tuple(one.key for one in found))
    assert near_limits(told, limited, 9.0, later) == []
    raised = spec(budgets={"wall_hours": 1, "gpu_hours": 11, "dollars": 10})
    assert [one.key for one in near_limits(told, raised, 9.0, later)] == ["budget-gpu_hours-11"]


def test_money_is_no_limit_without_a_price_or_a_limit() -> None:
    later = NOW + timedelta(hours=50)
    assert near_limits(run(leased_at=NOW), spec(budgets={"dollars": 1}), 0.0, later) == []
    assert near_limits(run(**HELD), spec(), 0.0, later) == []


def test_a_run_in_a_queue_uses_nothing_of_its_wall_hours() -> None:
    assert near_limits(run(leased_at=None), spec(budgets={"wall_hours": 1}), 0.0, NOW + timedelta(days=20)) == []


def test_evals_are_worth_a_look_only_until_they_are_told() -> None:
    aimed = spec(target={"success": 0.6})
    assert is_first_eval(run(), 0.0) and not is_first_eval(run(), None)
    assert not is_first_eval(run(noticed=("first-eval",)), 0.5)
    assert may_hold_target(run(), aimed, 0.6) and not may_hold_target(run(), aimed, 0.59)
    assert not may_hold_target(run(noticed=("target-reached",)), aimed, 0.9)
    assert not may_hold_target(run(), spec(), 1.0), "no target"


@given(st.integers(0, 23), st.integers(0, 23), st.datetimes(timezones=st.just(UTC)))
def test_a_night_and_its_day_share_the_hours_between_them(begins: int, ends: int, at: datetime) -> None:
    night, day = Night(begins, ends), Night(ends, begins)
    if begins == ends:
        assert not night.holds(at)
    else:
        assert night.holds(at) != day.holds(at)
        assert night.holds(at.replace(hour=begins)) and not night.holds(at.replace(hour=ends))


def test_a_night_is_in_utc_whatever_zone_a_time_is_in() -> None:
    assert Night(22, 7).holds(datetime(2026, 1, 1, 8, 30, tzinfo=timezone(timedelta(hours=2))))


@given(st.text(max_size=6_000), st.integers(1, 20), st.integers(1, 2_000))
def test_the_end_of_a_log_is_whole_lines_within_its_bounds(text: str, lines: int, limit: int) -> None:
    end = last_lines(text, lines, limit)
    assert len(end) <= limit and len(end.split("\n")) <= lines
    kept = [one.rstrip() for one in text.splitlines() if one.strip()]
    assert (end == "") == (not kept)
    if end:
        assert (
            kept[-1].endswith(end.split("\n")[-1])
            and end.split("\n")[1:] == kept[len(kept) - len(end.split("\n")) + 1 :]
        )

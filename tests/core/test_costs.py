"""A run's spend by month is its spend, whatever its life was; what is only estimated says so."""

from __future__ import annotations

import itertools
from datetime import UTC, date, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from nightshift.contract.api import Retry
from nightshift.contract.costs import Span, begin_of, by_month, end_of
from nightshift.core.budgets import held_for, spend_of
from nightshift.core.costs import CapacityChange, capacity_spans, cost_of, held_spans, instances_of
from nightshift.core.reopen import reopening
from nightshift.core.run import Run, RunState
from tests.builders import run
from tests.steps.world import HYPERPOD

START = datetime(2026, 10, 1, tzinfo=UTC)
ALWAYS = Span(since=datetime(2020, 1, 1, tzinfo=UTC), until=datetime(2099, 1, 1, tzinfo=UTC))
AS_OF = date(2026, 9, 1)

waits = st.timedeltas(timedelta(0), timedelta(days=20))
lives = st.lists(st.tuples(waits, st.timedeltas(timedelta(0), timedelta(days=70))), min_size=1, max_size=4)


def lived(history: list[tuple[timedelta, timedelta]], price: float | None, ends: bool = True) -> tuple[Run, datetime]:
    """A run that waited and held its nodes in turn, each time retried; the last life goes on where it does not end."""
    now = START
    priced = {"dollars_per_hour": price, "prices_as_of": None if price is None else AS_OF}
    there = run(created_at=START, state=RunState.ADMITTED, **priced)
    for number, (waited, held) in enumerate(history):
        if number:
            there = Run.model_validate(there.model_dump() | _changed(reopening(there, Retry(), now)))
        there = there.model_copy(update={"leased_at": now + waited})
        now += waited + held
        if number < len(history) - 1 or ends:
            there = there.model_copy(update={"state": RunState.FAILED, "ended_at": now})
    return there, now


def _changed(changes: dict[str, object]) -> dict[str, object]:
    """As the store does it: a None removes a field, which then is as in a new run."""
    fields = Run.model_fields
    return {
        name: fields[name].get_default(call_default_factory=True) if value is None else value
        for name, value in changes.items()
    }


@given(lives, st.floats(0.01, 500), st.booleans(), waits)
def test_the_months_of_a_run_add_up_to_its_spend_to_the_cent(
    history: list[tuple[timedelta, timedelta]], price: float, ends: bool, later: timedelta
) -> None:
    there, now = lived(history, price, ends)
    now += later
    found, spent = cost_of(there, ALWAYS, now), spend_of(there, now)
    assert spent is not None
    if found is None:
        assert held_for(there, now) == timedelta()
        return
    assert round(sum(one.dollars or 0 for one in found.months), 2) == spent.dollars
    assert abs(sum(one.hours for one in found.months) - held_for(there, now).total_seconds() / 3_600) < 0.01
    assert not found.estimated
    for one in found.months:
        assert one.hours <= (end_of(one.month) - begin_of(one.month)).total_seconds() / 3_600


@given(lives, st.sampled_from(["2026-10", "2026-11", "2027-01", "2027-06"]))
def test_what_is_asked_for_changes_what_is_told_and_not_what_it_costs(
    history: list[tuple[timedelta, timedelta]], month: str
) -> None:
    there, now = lived(history, 36.6024)
    whole, part = cost_of(there, ALWAYS, now), cost_of(there, Span(since=begin_of(month), until=end_of(month)), now)
    in_all = {one.month: one for one in whole.months} if whole else {}
    told = {one.month: one for one in part.months} if part else {}
    assert told == ({month: in_all[month]} if month in in_all else {})


def test_a_run_over_a_months_end_is_split_at_midnight_utc() -> None:
    there = run(
        leased_at=datetime(2026, 10, 31, 22, tzinfo=UTC), dollars_per_hour=10.0, prices_as_of=AS_OF,
        ended_at=datetime(2026, 11, 1, 5, 30, tzinfo=UTC), state=RunState.SUCCEEDED,
    )  # fmt: skip
    found = cost_of(there, ALWAYS, START)
    assert found is not None
    assert [(one.month, one.hours, one.dollars) for one in found.months] == [
        ("2026-10", 2.0, 20.0),
        ("2026-11", 5.5, 55.0),
    ]


def test_a_run_without_a_price_has_hours_and_no_dollars() -> None:
    there, now = lived([(timedelta(), timedelta(hours=2))], None)
    found = cost_of(there, ALWAYS, now)
    assert found is not None
    assert (found.months[0].hours, found.months[0].dollars, found.dollars_per_hour) == (2.0, None, None)


def test_a_run_that_never_held_anything_costs_nothing() -> None:
    assert cost_of(run(leased_at=None), ALWAYS, START) is None


def test_of_a_run_retried_before_such_times_were_kept_the_sum_is_known_and_the_month_estimated() -> None:
    there, now = lived([(timedelta(), timedelta(hours=30)), (timedelta(), timedelta(hours=4))], 2.0)
    old = there.model_copy(update={"held_earlier": ()})
    found = cost_of(old, ALWAYS, now)
    assert found is not None and found.estimated
    assert sum(one.dollars or 0 for one in found.months) == 68.0
    assert held_spans(old, now)[0][0] == Span(since=START, until=START + timedelta(hours=30))


def test_an_old_price_is_shown_as_old_by_the_day_when_the_run_ended() -> None:
    there, now = lived([(timedelta(days=91), timedelta(hours=1))], 2.0)
    found = cost_of(there, ALWAYS, now)
    assert found is not None and found.prices_old


@given(st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC)), waits)
def test_a_span_falls_into_months_without_a_gap(since: datetime, length: timedelta) -> None:
    span = Span(since=since, until=since + length)
    parts = list(by_month(span))
    assert abs(sum(part.hours for _, part in parts) - span.hours) < 1e-6
    assert all(begin_of(month) <= part.since < part.until <= end_of(month) for month, part in parts)
    assert all(before.until == after.since for (_, before), (_, after) in itertools.pairwise(parts))


def test_capacity_is_what_is_there_and_each_count_lasts_until_the_next() -> None:
    assert instances_of(HYPERPOD) == {"ml.r5d.16xlarge": 1, "ml.g7e.12xlarge": 3}
    hour = timedelta(hours=1)
    changes = [
        CapacityChange(START, {"ml.g7e.12xlarge": 3, "ml.new.type": 1}),
        CapacityChange(START + 2 * hour, {"ml.g7e.12xlarge": 1}),
    ]
    wanted = Span(since=START + hour, until=START + 4 * hour)
    first, second = capacity_spans(changes, START + 3 * hour, wanted, AS_OF)
    assert (first.hours, first.dollars_per_hour, first.without_price) == (1.0, 31.0728, ["ml.new.type"])
    assert (second.hours, second.dollars_per_hour, second.prices_as_of) == (1.0, 10.3576, AS_OF)

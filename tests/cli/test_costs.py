"""Costs on a terminal and for a program: every page is summed, and what is estimated is said."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli import commands
from cli.costs import idle, sums
from nightshift.contract.costs import CapacitySpan, MonthCost, RunCost, Span
from tests.cli.test_cli import Command, api, nightshift

__all__ = ["nightshift"]

ME = "arn:aws:sts::123456789012:assumed-role/Trainer/me@example.org"
START = datetime(2026, 11, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def cost(run_id: str, since: datetime, hours: float, price: float | None = 10.0, **changes: Any) -> RunCost:
    """A run that held nodes within one month."""
    dollars = None if price is None else round(price * hours, 2)
    raw: dict[str, Any] = {
        "run_id": run_id, "owner": ME, "pool": "default", "state": "succeeded", "dollars_per_hour": price,
        "prices_as_of": "2026-09-01" if price is not None else None,
        "held": [Span(since=since, until=since + hours * HOUR)],
        "months": [MonthCost(month=since.strftime("%Y-%m"), hours=hours, dollars=dollars)],
    }  # fmt: skip
    return RunCost.model_validate(raw | changes)


def had(since: datetime, hours: float, price: float, **changes: Any) -> CapacitySpan:
    raw = {
        "since": since,
        "until": since + hours * HOUR,
        "instances": {"ml.g7e.12xlarge": 3},
        "dollars_per_hour": price,
    }
    return CapacitySpan.model_validate(raw | {"prices_as_of": "2025-01-01", "prices_old": True} | changes)


def page(runs: list[RunCost], following: str | None = None) -> dict[str, Any]:
    lines = [one.model_dump(mode="json") for one in runs]
    return {"version": 1, "first": "2026-11", "last": "2026-11", "runs": lines, "next": following}


def spans(found: list[CapacitySpan], following: str | None = None) -> dict[str, Any]:
    lines = [one.model_dump(mode="json") for one in found]
    return {"version": 1, "hyperpod_cluster": "hp", "spans": lines, "next": following}


RUNS = [
    cost("maze-1", START + 10 * HOUR, 5, project="mazes"),
    cost("maze-2", START + 20 * HOUR, 10, project="mazes", estimated=True),
    cost("chess-1", START + 40 * HOUR, 2, price=None, owner="schedule nightly\u001b[2J"),
]
HAD = [had(START, 100, 12.0), had(START + 100 * HOUR, 20, 4.0, without_price=["ml.new.type"])]


def test_costs_of_a_month_are_summed_over_every_page_with_what_stood_idle_beside_them(nightshift: Command) -> None:
    answers = [page(RUNS[:1], "t1"), page([], "t2"), page(RUNS[1:]), spans(HAD[:1], "s1"), spans(HAD[1:])]
    with api(200, answers) as to:
        done = nightshift("cost", "--from", "2026-11", "--by", "project", "--api", to.address)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "PROJECT  RUNS  HOURS  DOLLARS",
        "mazes    2     15.00  $150.00",
        "(none)   1     2.00   $0.00 and 1 run without a price",
        "all      3     17.00  $150.00 and 1 run without a price",
        "",
        "idle in 2026-11: $1,130.00 of $1,280.00 for the instances that HyperPod had from 11-01 00:00:00 to 11-06 00:00:00 UTC "
        "(120.00 h are known); $150.00 of it is attributed",
        "",
        "Estimated: list prices on demand, and no bill. Discounts, training plans and other regions are not in it.",
        "Prices are of 2025-01-01 to 2026-09-01, some of them older than 90 days.",
        "Without a price, and so in no sum: ml.new.type.",
        "What runs without a price used of instances that have one counts as idle.",
        "In which month they held nodes before a retry is estimated: maze-2.",
    ]
    asked = [path for _, path, _, _ in to.requests]
    assert asked[0] == "/costs?from=2026-11&to=2026-11&limit=100" and asked[1].endswith("&next=t1")
    assert asked[3:] == [
        "/costs/capacity?from=2026-11&to=2026-11&limit=100",
        "/costs/capacity?from=2026-11&to=2026-11&limit=100&next=s1",
    ]


def test_of_one_owners_runs_nothing_is_said_of_what_stood_idle(nightshift: Command) -> None:
    with api(200, page(RUNS[2:])) as to:
        done = nightshift(
            "cost", "--from", "2026-11", "--owner", "schedule nightly", "--by", "owner", "--api", to.address
        )
    assert len(to.requests) == 1 and "owner=schedule%20nightly" in to.requests[0][1]
    assert "idle" not in done.stdout and "\x1b" not in done.stdout
    assert done.stdout.splitlines()[1].startswith("schedule nightly [2J  1     2.00")


def test_nothing_known_and_nothing_held_are_said(nightshift: Command) -> None:
    with api(200, [page([]), spans([])]) as to:
        done = nightshift("cost", "--api", to.address)
    assert done.stdout.startswith("no run held nodes then\n\nidle: not known")
    this = datetime.now(UTC).strftime("%Y-%m")
    assert to.requests[0][1].startswith(f"/costs?from={this}&to={this}")


def test_a_program_gets_sums_idle_and_runs_as_json(nightshift: Command) -> None:
    with api(200, [page(RUNS), spans(HAD)]) as to:
        done = nightshift("cost", "--from", "2026-11", "--by", "run", "--json", "--api", to.address)
    found = json.loads(done.stdout)
    assert [(one["name"], one["dollars"], one["unpriced"]) for one in found["sums"]] == [
        ("maze-2", 100.0, 0), ("maze-1", 50.0, 0), ("chess-1", 0.0, 1),
    ]  # fmt: skip
    [month] = found["idle"]
    assert (month["month"], month["dollars"], month["had"], month["attributed"]) == ("2026-11", 1130.0, 1280.0, 150.0)
    assert [one["run_id"] for one in found["runs"]] == ["maze-1", "maze-2", "chess-1"]
    assert any("no bill" in note for note in found["notes"])


@pytest.mark.parametrize("wrong", [["--from", "november"], ["--to", "2026-13"], ["--by", "colour"]])
def test_what_is_no_month_is_wrong_usage(wrong: list[str], nightshift: Command) -> None:
    assert nightshift("cost", *wrong, "--api", "http://127.0.0.1:1").returncode == 64


def test_a_list_that_does_not_end_is_an_error_and_no_sum(nightshift: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MAX_SUMMED", 3)
    with api(200, page([], "again")) as to:
        done = nightshift("cost", "--api", to.address)
    assert done.returncode == 69 and "fewer months" in done.stderr and done.stdout == ""


times = st.integers(0, 24 * 40).map(lambda hours: START + hours * HOUR)


@given(
    st.lists(st.tuples(times, st.integers(1, 200)), max_size=6), st.lists(st.integers(1, 100), min_size=1, max_size=5)
)
def test_idle_and_attributed_are_what_hyperpod_had_and_only_where_it_is_known(
    held: list[tuple[datetime, int]], lengths: list[int]
) -> None:
    """One run after the other, as leases have it, on all that HyperPod has; whatever is known of when it had how much."""
    runs, free = [], START
    for number, (since, hours) in enumerate(sorted(held)):
        begin = max(free, since)
        free = begin + hours * HOUR
        spans = [Span(since=begin, until=free)]
        runs.append(cost(f"run-{number}", begin, hours, held=spans))
    capacity, at = [], START + 24 * HOUR
    for length in lengths:
        capacity.append(had(at, length, 10.0))
        at += length * HOUR
    found = idle(runs, capacity)
    assert round(sum(one.had for one in found), 2) == sum(lengths) * 10.0
    for one in found:
        assert 0 <= one.attributed <= one.had and one.dollars == round(one.had - one.attributed, 2)
    assert sum(one.dollars for one in sums(runs, "owner")) >= sum(one.attributed for one in found)

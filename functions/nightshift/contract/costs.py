"""What runs cost and what stood idle: the shapes of ``GET /costs`` and ``GET /costs/capacity``, and how time falls into months.

Months are those of UTC, written ``2026-11``.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Final

from pydantic import AwareDatetime, Field

from nightshift.contract.base import Document, Model

MONTH: Final = r"^20\d\d-(0[1-9]|1[0-2])$"


class Span(Model):
    """From one moment up to another."""

    since: AwareDatetime
    until: AwareDatetime

    @property
    def hours(self) -> float:
        return max(0.0, (self.until - self.since).total_seconds() / 3_600)


class MonthCost(Model):
    """A run's share in one month. The dollars of all its months are what its status calls its spend, to the cent."""

    month: str = Field(description="as 2026-11")
    hours: float = Field(ge=0, description="for which it held its nodes")
    dollars: float | None = Field(None, ge=0, description="none: an instance type of it has no price")


class RunCost(Model):
    """What one run's nodes, head and workers, cost at list prices while it held them: attributed to it, not billed for it."""

    run_id: str
    owner: str
    project: str | None = None
    pool: str
    state: str
    dollars_per_hour: float | None = None
    prices_as_of: date | None = Field(None, description="day of the oldest price in it")
    prices_old: bool = Field(False, description="that day was more than 90 days before")
    held: list[Span] = Field(description="when it held its nodes, oldest first; up to now where it still does")
    estimated: bool = Field(
        False, description="it was retried before such times were kept: how long is known, in which month is not"
    )
    months: list[MonthCost] = Field(description="of those that were asked for, in which it held nodes; oldest first")


class CostList(Document):
    """``GET /costs``: runs that held nodes in these months. A page may be empty and still have a ``next``: runs that held
    none then are left out of what was read."""

    first: str = Field(description="month, as 2026-11")
    last: str = Field(description="month, as 2026-11")
    runs: list[RunCost]
    next: str | None = Field(None, description="what the next page is asked for with; none: this was the last")


class CapacitySpan(Span):
    """For so long HyperPod had so many instances. Prices are today's: the table has one for each type."""

    instances: dict[str, int] = Field(description="instance type -> how many there were")
    dollars_per_hour: float = Field(ge=0, description="of those that have a price")
    without_price: list[str] = Field([], description="types that have none, and are not in it")
    prices_as_of: date | None = Field(None, description="day of the oldest price in it")
    prices_old: bool = False


class CapacityList(Document):
    """``GET /costs/capacity``: what instances HyperPod had in these months, oldest first. Nothing is known of the time before
    the first span of all: it is not made up."""

    hyperpod_cluster: str
    spans: list[CapacitySpan]
    next: str | None = Field(None, description="what the next page is asked for with; none: this was the last")


def month_of(moment: datetime) -> str:
    """Of which month it is."""
    return moment.astimezone(UTC).strftime("%Y-%m")


def begin_of(month: str) -> datetime:
    """The first moment of a month."""
    return datetime(int(month[:4]), int(month[5:]), 1, tzinfo=UTC)


def end_of(month: str) -> datetime:
    """The first moment of the month after."""
    year, number = int(month[:4]), int(month[5:])
    return datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC)


def by_month(span: Span) -> Iterator[tuple[str, Span]]:
    """The parts of a span, each within one month."""
    since = span.since
    while since < span.until:
        month = month_of(since)
        until = min(end_of(month), span.until)
        yield month, Span(since=since, until=until)
        since = until


def common(one: Span, other: Span) -> Span | None:
    """What two spans have in common."""
    since, until = max(one.since, other.since), min(one.until, other.until)
    return Span(since=since, until=until) if since < until else None

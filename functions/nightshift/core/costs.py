"""What a run costs in which month, and what HyperPod's instances cost an hour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from nightshift.contract.costs import CapacitySpan, MonthCost, RunCost, Span, by_month, common
from nightshift.core.capacity import HyperPodView
from nightshift.core.prices import PRICES, is_old
from nightshift.core.run import Run


@dataclass(frozen=True)
class CapacityChange:
    """From this moment on HyperPod had so many instances: type -> how many."""

    at: datetime
    instances: Mapping[str, int]


def instances_of(view: HyperPodView) -> dict[str, int]:
    """Instances that there are now, by type; those that are only meant to be are not paid for yet."""
    found: dict[str, int] = {}
    for group in view.groups:
        if group.current > 0:
            found[group.instance_type] = found.get(group.instance_type, 0) + group.current
    return found


def held_spans(run: Run, now: datetime) -> tuple[tuple[Span, ...], bool]:
    """When the run held its nodes, oldest first, and whether some of it is estimated: of a run that was retried before such
    times were kept only their sum is known, which is put right after the moment when it was asked for."""
    spans = list(run.held_earlier)
    lost = run.held_before - sum((one.until - one.since).total_seconds() for one in spans)
    if lost > 1:
        spans.insert(0, Span(since=run.created_at, until=run.created_at + timedelta(seconds=lost)))
    until = run.ended_at or now
    if run.leased_at is not None and run.leased_at < until:
        spans.append(Span(since=run.leased_at, until=until))
    return tuple(spans), lost > 1


def cost_of(run: Run, wanted: Span, now: datetime) -> RunCost | None:
    """The run's share in each month of ``wanted``; None where it held nothing in them."""
    held, estimated = held_spans(run, now)
    if not any(common(one, wanted) for one in held):
        return None
    priced = run.dollars_per_hour is not None and run.prices_as_of is not None
    months = _months(held, run.dollars_per_hour if priced else None)
    first, last = wanted.since.strftime("%Y-%m"), (wanted.until - timedelta(microseconds=1)).strftime("%Y-%m")
    return RunCost(
        run_id=run.run_id,
        owner=run.owner,
        project=run.project,
        pool=run.pool,
        state=run.state.value,
        dollars_per_hour=run.dollars_per_hour if priced else None,
        prices_as_of=run.prices_as_of if priced else None,
        prices_old=run.prices_as_of is not None and is_old(run.prices_as_of, (run.ended_at or now).date()),
        held=list(held),
        estimated=estimated,
        months=[one for one in months if first <= one.month <= last],
    )


def _months(held: Sequence[Span], dollars_per_hour: float | None) -> list[MonthCost]:
    """Each month's dollars are what the sum so far grew by, to the cent: else the months of a run would not be its spend."""
    times: dict[str, timedelta] = {}
    for span in held:
        for month, part in by_month(span):
            times[month] = times.get(month, timedelta()) + (part.until - part.since)
    months, so_far, told = [], timedelta(), 0.0
    for month, time in times.items():
        so_far += time
        dollars = None
        if dollars_per_hour is not None:
            total = round(so_far.total_seconds() / 3_600 * dollars_per_hour, 2)
            dollars, told = round(total - told, 2), total
        months.append(MonthCost(month=month, hours=round(time.total_seconds() / 3_600, 4), dollars=dollars))
    return months


def capacity_spans(changes: Sequence[CapacityChange], until: datetime, wanted: Span, today: date) -> list[CapacitySpan]:
    """From each change to the next, and from the last one to ``until``, as far as it lies in ``wanted``."""
    ends = [*(one.at for one in changes[1:]), until]
    parts = [
        (change.instances, common(Span(since=change.at, until=end), wanted))
        for change, end in zip(changes, ends, strict=False)
    ]
    return [_priced(instances, part, today) for instances, part in parts if part is not None]


def _priced(instances: Mapping[str, int], span: Span, today: date) -> CapacitySpan:
    known = [name for name in instances if name in PRICES]
    as_of = min((PRICES[name].as_of for name in known), default=None)
    return CapacitySpan(
        since=span.since,
        until=span.until,
        instances=dict(sorted(instances.items())),
        dollars_per_hour=round(sum(PRICES[name].dollars * instances[name] for name in known), 4),
        without_price=sorted(set(instances) - set(known)),
        prices_as_of=as_of,
        prices_old=as_of is not None and is_old(as_of, today),
    )

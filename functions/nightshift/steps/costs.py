"""Who used HyperPod for how much, and what it had: a page at a time, and what the reconciler notes for it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from nightshift.contract.api import RunLine
from nightshift.contract.costs import CapacityList, CostList, Span, begin_of, end_of
from nightshift.core.costs import CapacityChange, capacity_spans, cost_of, instances_of
from nightshift.core.paging import make_token, read_token
from nightshift.steps.listing import OF_A_RUN, STAMP, by_age
from nightshift.steps.ports import CapacityLog, HyperPod, Listings


@dataclass(frozen=True)
class CostFilter:
    """``first`` and ``last`` are months, both included."""

    first: str
    last: str
    owner: str | None = None
    project: str | None = None

    @property
    def span(self) -> Span:
        return Span(since=begin_of(self.first), until=end_of(self.last))

    def may_have_cost(self, line: RunLine) -> bool:
        """By what a list knows: a run can only have held nodes between its request and its end."""
        span = self.span
        return (
            self.owner in (None, line.owner)
            and line.created_at < span.until
            and (line.ended_at is None or line.ended_at > span.since)
        )


def list_costs(listings: Listings, wanted: CostFilter, now: datetime, limit: int, token: str | None) -> CostList:
    """At most ``limit`` runs are read: of an owner, where one is named, else by their age. Raises BadToken, TransientError."""
    scope = f"costs|{wanted.first}|{wanted.last}|{wanted.owner or ''}|{wanted.project or ''}"
    if wanted.owner is not None:
        page = listings.runs_of(wanted.owner, read_token(scope, token, OF_A_RUN) if token else None, limit)
        following = page.after
    else:
        page, following = by_age(listings, None, scope, limit, token)
    read = {
        run.run_id: run for run in listings.records([one.run_id for one in page.items if wanted.may_have_cost(one)])
    }
    of_project = [
        run for one in page.items if (run := read.get(one.run_id)) is not None and wanted.project in (None, run.project)
    ]
    found = [cost for run in of_project if (cost := cost_of(run, wanted.span, now)) is not None]
    return CostList(
        first=wanted.first,
        last=wanted.last,
        runs=found,
        next=make_token(scope, following) if following is not None else None,
    )


def list_capacity(
    log: CapacityLog, hyperpod_cluster: str, wanted: CostFilter, now: datetime, limit: int, token: str | None
) -> CapacityList:
    """At most ``limit`` changes are read, and the one before them. Raises BadToken."""
    scope, span = f"capacity|{wanted.first}|{wanted.last}", wanted.span
    begin = datetime.fromisoformat(read_token(scope, token, STAMP)) if token else span.since
    page = log.capacity_changes(hyperpod_cluster, begin, min(span.until, now), limit)
    before = log.capacity_at(hyperpod_cluster, begin)
    until = datetime.fromisoformat(page.after) if page.after is not None else now
    changes = [one for one in ([before] if before is not None else []) + list(page.items) if one.at < until]
    return CapacityList(
        hyperpod_cluster=hyperpod_cluster,
        spans=capacity_spans(changes, until, span, now.date()),
        next=make_token(scope, page.after) if page.after is not None else None,
    )


def note_capacity(hyperpod: HyperPod, log: CapacityLog, hyperpod_cluster: str, now: datetime) -> bool:
    """Write down how many instances HyperPod has, where that is not what was written last. Idempotent. False where it is."""
    there, before = instances_of(hyperpod.view()), log.capacity_at(hyperpod_cluster, now)
    if before is not None and dict(before.instances) == there:
        return False
    log.capacity_changed(hyperpod_cluster, CapacityChange(now, there))
    return True

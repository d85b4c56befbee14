"""One pass of the reconciler: read what there is, ask core what is wrong, repair it or say so.

A pass is bounded, in items and by the time that its invocation has left, and says what it left. What goes wrong with one
run, cluster or lease is an alarm about that one and stops none of the others.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TypeVar

from nightshift.core.errors import StaleExecution, bounded
from nightshift.core.measures import Measure, standing
from nightshift.core.observation import OwnedCluster
from nightshift.core.reconcile import (
    ClusterFact,
    Fact,
    Finding,
    Lease,
    LeaseFact,
    LineFact,
    OpenRun,
    Repair,
    RunFact,
    findings,
    oldest_look_age,
)
from nightshift.core.run import Run, RunState, Signal, SignalKind
from nightshift.steps.common import audit, execution_name, spec_or_none, start_execution
from nightshift.steps.ending import emit_final, finish_for, wake_next
from nightshift.steps.ports import Ports
from nightshift.steps.scaling import scale_down
from nightshift.steps.signals import wake

logger = logging.getLogger(__name__)
T = TypeVar("T")

RUN_SECONDS = 45.0
"""Of one run's end, which waits for its pods: a bound for each, so that one does not take the time of all."""

LAST_SIGNALS = 5


@dataclass(frozen=True)
class Budget:
    """``items`` of each kind that are read, ``repairs`` that are made, and seconds of the invocation that stay unused."""

    items: int = 200
    repairs: int = 50
    reserve_seconds: float = RUN_SECONDS + 15.0


BUDGET = Budget()


@dataclass(frozen=True)
class Alarm:
    """Something that a person should know. ``error`` is what the reconciler itself met, where it did."""

    run_id: str
    why: str
    error: Exception | None = None


@dataclass(frozen=True)
class Report:
    """What one pass did. ``left`` counts what it had no time for: the next pass begins with the oldest of it.
    ``scaled``: instance group -> how many nodes it has been made smaller to.
    ``standing``: how the open runs are, as far as they were listed."""

    repairs: tuple[Finding, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    left: int = 0
    oldest_look_age: float = 0.0
    standing: tuple[Measure, ...] = ()
    scaled: Mapping[str, int] = field(default_factory=dict)

    @property
    def by_kind(self) -> dict[Repair, int]:
        """Repairs that were made, by their kind; no others."""
        return dict(Counter(f.repair for f in self.repairs if f.repair is not None))


class _Pass:
    """Collects alarms, and keeps the budget."""

    def __init__(self, ports: Ports, budget: Budget) -> None:
        self.ports, self.budget = ports, budget
        self.alarms: list[Alarm] = []
        self.left = 0

    @property
    def in_time(self) -> bool:
        return self.ports.remaining() > self.budget.reserve_seconds

    def alarm(self, run_id: str, why: str, error: Exception | None = None) -> None:
        logger.error("reconciler: %s", why, extra={"run_id": run_id})
        self.alarms.append(Alarm(run_id, why, error))

    def guarded(self, run_id: str, what: str, call: Callable[[], T]) -> T | None:
        """None where it failed: an alarm says how."""
        try:
            return call()
        except StaleExecution:
            return None  # somebody was faster
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one thing must not stop the others
            self.alarm(run_id, bounded(f"{what} failed: {type(error).__name__}: {error}", 600), error)
            return None

    def read(self, things: Sequence[T], run_id: Callable[[T], str], fact: Callable[[T], Fact | None]) -> list[Fact]:
        """A fact of each thing, oldest first, as far as the budget goes."""
        found: list[Fact] = []
        for number, thing in enumerate(things):
            if number >= self.budget.items or not self.in_time:
                self.left += len(things) - number
                break
            one = self.guarded(run_id(thing), "reading what there is", partial(fact, thing))
            if one is not None:
                found.append(one)
        return found


def reconcile(ports: Ports, budget: Budget = BUDGET) -> Report:
    """Idempotent: a second pass right after the first finds nothing more to repair."""
    work = _Pass(ports, budget)
    one_more = budget.items + 1  # so that it is known whether some are left
    open_runs = work.guarded("-", "listing the open runs", lambda: ports.runs.open_runs(one_more)) or ()
    found = findings(_facts(work, open_runs), ports.now())
    made: list[Finding] = []
    for number, finding in enumerate(found):
        if len(made) >= budget.repairs or not work.in_time:
            work.left += len(found) - number
            break
        if finding.alarm:
            work.alarm(finding.run_id, finding.why)
        if finding.repair is not None and work.guarded(
            finding.run_id, finding.repair, partial(_repair, ports, finding)
        ):
            logger.warning(
                "repaired: %s", finding.why, extra={"run_id": finding.run_id, "repair": finding.repair.value}
            )
            made.append(finding)
    scaled: Mapping[str, int] = {}
    if work.in_time and not work.left:
        scaled = work.guarded("-", "scaling down", lambda: scale_down(ports)) or {}
    now = ports.now()
    gauges = standing((listed.run for listed in open_runs), now)
    return Report(tuple(made), tuple(work.alarms), work.left, oldest_look_age(open_runs, now), gauges, scaled)


# facts --------------------------------------------------------------------------------------------------------------


def _facts(work: _Pass, open_runs: Sequence[OpenRun]) -> Iterable[Fact]:
    ports, nothing = work.ports, "-"
    leases = work.guarded(nothing, "listing the leases", ports.runs.leases)
    clusters = work.guarded(nothing, "listing the RayClusters", ports.clusters.owned) or ()
    untold = work.guarded(
        nothing, "listing runs without a last message", lambda: ports.runs.untold(work.budget.items + 1)
    )
    yield from work.read(open_runs, lambda r: r.run.run_id, partial(_run_fact, ports))
    yield from work.read(leases or (), lambda lease: lease.run_id, partial(_lease_fact, ports))
    if leases is not None:
        yield from work.read(_free_lines(open_runs, leases), str, partial(_line_fact, ports))
    yield from work.read(_oldest(clusters), lambda c: c.run_id, partial(_cluster_fact, ports))
    yield from work.read(untold or (), str, ports.runs.get)


def _run_fact(ports: Ports, listed: OpenRun) -> Fact | None:
    """The record is read before the execution: an end that is seen here was not in flight when the record was read."""
    run = ports.runs.get(listed.run.run_id)
    if run is None or run.state.is_final:
        return None  # the index was behind
    execution = ports.executions.status(execution_name(run))
    if execution is not None:
        return RunFact(run, listed.due, execution, signalled_at=_signalled_at(ports, run))
    before = run.model_copy(update={"k": run.k - 1})
    previous = ports.executions.status(execution_name(before)) if run.k > 1 else None
    return RunFact(run, listed.due, None, previous, has_spec=spec_or_none(ports, run.run_id) is not None)


def _signalled_at(ports: Ports, run: Run) -> datetime | None:
    """When the newest signal was counted that no look has seen."""
    since = max(run.seen_counter, run.signal_counter - LAST_SIGNALS)
    signals = ports.runs.signals_since(run.run_id, since) if run.signal_counter > since else ()
    return max((s.at for s in signals), default=None)


def _lease_fact(ports: Ports, lease: Lease) -> Fact:
    return LeaseFact(lease, ports.runs.get(lease.run_id))


def _free_lines(open_runs: Sequence[OpenRun], leases: Sequence[Lease]) -> list[str]:
    held = {lease.pool for lease in leases}
    queued = {r.run.pool for r in open_runs if r.run.state is RunState.QUEUED and r.run.queue is None}
    return sorted(queued - held)


def _line_fact(ports: Ports, pool: str) -> Fact | None:
    first = ports.runs.next_in_line(pool) if ports.runs.lease_holder(pool) is None else None
    run = ports.runs.get(first) if first is not None else None
    return None if run is None else LineFact(pool, run, _signalled_at(ports, run))


def _oldest(clusters: Sequence[OwnedCluster]) -> list[OwnedCluster]:
    return sorted(clusters, key=lambda c: (c.created_at, c.name))


def _cluster_fact(ports: Ports, cluster: OwnedCluster) -> Fact:
    return ClusterFact(cluster, ports.runs.get(cluster.run_id))


# repairs ------------------------------------------------------------------------------------------------------------


def _repair(ports: Ports, finding: Finding) -> bool:
    """False where nothing was left to repair."""
    assert finding.repair is not None
    match finding.repair:
        case Repair.WAKE_RUN:
            return _wake_run(ports, finding)
        case Repair.START_EXECUTION:
            return _start(ports, finding)
        case Repair.FINISH_RUN:
            return _finish(ports, finding)
        case Repair.DELETE_CLUSTER:
            return _delete_cluster(ports, finding)
        case Repair.RELEASE_LEASE:
            return _release(ports, finding)
        case Repair.WAKE_LINE:
            wake_next(ports, finding.pool)
            return True
        case Repair.SEND_MESSAGE:
            return _send(ports, finding)


def _wake_run(ports: Ports, finding: Finding) -> bool:
    wake(ports, finding.run_id, Signal(kind=SignalKind.RECONCILE, detail=bounded(finding.why, 300), at=ports.now()))
    return True


def _start(ports: Ports, finding: Finding) -> bool:
    """As intake and the predecessor do: same name, same input."""
    run = ports.runs.load(finding.run_id, finding.k)
    start_execution(ports, run)
    audit(ports, run.run_id, "reconciler", f"started execution r{run.k}", detail=finding.why)
    return True


def _finish(ports: Ports, finding: Finding) -> bool:
    ends = ports.now().timestamp() + RUN_SECONDS
    limited = replace(ports, remaining=lambda: min(ports.remaining(), ends - ports.now().timestamp()))
    run = ports.runs.load(finding.run_id, finding.k)
    if run.state.is_final:
        return False
    audit(ports, run.run_id, "reconciler", "ends the run", detail=finding.why)
    return finish_for(limited, run.run_id, run.k, finding.status, finding.error)


def _delete_cluster(ports: Ports, finding: Finding) -> bool:
    """Its run may have been asked for since, where it was unknown."""
    run = ports.runs.get(finding.run_id)
    if run is not None and not run.state.is_final:
        return False
    ports.clusters.delete(finding.cluster)
    if run is not None:
        audit(ports, run.run_id, "reconciler", "orphan RayCluster deleted", detail=finding.why)
    return True


def _release(ports: Ports, finding: Finding) -> bool:
    assert finding.lease is not None
    if not ports.runs.release_lease(finding.lease):
        return False
    if ports.runs.get(finding.run_id) is not None:
        audit(ports, finding.run_id, "reconciler", f"released pool {finding.pool}", detail=finding.why)
    wake_next(ports, finding.pool)
    return True


def _send(ports: Ports, finding: Finding) -> bool:
    run = ports.runs.get(finding.run_id)
    if run is None or not run.state.is_final:
        return False
    emit_final(ports, run)
    return True

"""What events and executions missed, and what to do about it: from facts to findings, without I/O and without a clock.

Each rule leaves time for whoever should have acted: a repair must not race with an ordinary step that is under way. Where
two do meet all the same, every repair is safe to repeat and none is believed over a record that moved on meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from nightshift.core.observation import OwnedCluster
from nightshift.core.run import Run, RunState

START_GRACE = timedelta(seconds=60)
"""From a run's record to its execution: a start may be in flight."""

END_GRACE = timedelta(seconds=20)
"""From an execution's end to the finisher's work: its event usually takes a second."""

SPEC_GRACE = timedelta(hours=1)
"""As long as the request may still be repeated by itself: it stores the spec before it starts the execution."""

OVERDUE = timedelta(minutes=2)
STUCK = timedelta(minutes=15)
"""Past a look's due time: from here on it is woken, and from there on somebody has to be told too."""

WAKE_AGAIN = timedelta(minutes=4)
"""A signal that nobody has seen yet is not repeated sooner."""

LINE_GRACE = timedelta(minutes=1)
CLUSTER_GRACE = timedelta(minutes=5)
"""Age of a RayCluster, and time since its run ended, before it counts as an orphan."""

UNKNOWN_ALARM = timedelta(minutes=10)
UNKNOWN_DELETE = timedelta(hours=24)
"""Age of a RayCluster whose run has no record: somebody is told first, and has a day to take the label away."""

TELL_GRACE = timedelta(minutes=3)
"""From a run's end to its final message, for the step that sends it."""


class ExecutionState(StrEnum):
    """Step Functions' own names."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    ABORTED = "ABORTED"


@dataclass(frozen=True)
class ExecutionStatus:
    """``stopped_at`` is None while it runs; ``error`` is its bounded error and cause."""

    state: ExecutionState
    stopped_at: datetime | None = None
    error: str = ""


@dataclass(frozen=True)
class OpenRun:
    """A run that is not over, and the time by which its next look is due."""

    run: Run
    due: datetime


@dataclass(frozen=True)
class Lease:
    """Who holds a pool, since when."""

    pool: str
    run_id: str
    since: datetime


class Repair(StrEnum):
    """What the reconciler does by itself."""

    WAKE_RUN = "wake_run"
    START_EXECUTION = "start_execution"
    FINISH_RUN = "finish_run"
    DELETE_CLUSTER = "delete_cluster"
    RELEASE_LEASE = "release_lease"
    WAKE_LINE = "wake_line"
    SEND_MESSAGE = "send_message"


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be. ``repair`` is None where only a person can do something; ``alarm`` is whether
    one has to be told. ``since`` is for the order: the oldest comes first. ``status`` and ``error`` say how an execution
    ended."""

    run_id: str
    why: str
    since: datetime
    repair: Repair | None
    alarm: bool = False
    k: int = 1
    status: str = ""
    error: str = ""
    lease: Lease | None = None
    cluster: str = ""
    pool: str = ""


@dataclass(frozen=True)
class RunFact:
    """An open run as it is in its record, beside the status of its execution ``<run_id>-r<k>`` (None: there is none).
    ``previous`` is that of k - 1, ``has_spec`` whether its spec is in the bucket; both are asked for only where there is no
    execution. ``signalled_at`` is when the newest signal was counted that no look has seen yet."""

    run: Run
    due: datetime
    execution: ExecutionStatus | None
    previous: ExecutionStatus | None = None
    has_spec: bool = True
    signalled_at: datetime | None = None


@dataclass(frozen=True)
class ClusterFact:
    """A RayCluster with a run's label, and that run's record."""

    cluster: OwnedCluster
    run: Run | None


@dataclass(frozen=True)
class LeaseFact:
    """A lease, and its holder's record."""

    lease: Lease
    holder: Run | None


@dataclass(frozen=True)
class LineFact:
    """A pool that nobody holds, and the first run in its line."""

    pool: str
    first: Run
    signalled_at: datetime | None = None


Fact = RunFact | ClusterFact | LeaseFact | LineFact | Run
"""A plain run is one that is over and whose final message was not accepted yet."""


def findings(facts: Iterable[Fact], now: datetime) -> list[Finding]:
    """Every finding, oldest first."""
    found = [finding for fact in facts if (finding := _finding(fact, now)) is not None]
    return sorted(found, key=lambda f: (f.since, f.run_id, f.repair or ""))


def oldest_look_age(runs: Iterable[OpenRun], now: datetime) -> float:
    """Seconds since the most overdue look of an open run was due; 0 where none is."""
    return max((max(0.0, (now - r.due).total_seconds()) for r in runs), default=0.0)


def _finding(fact: Fact, now: datetime) -> Finding | None:
    match fact:
        case RunFact():
            return _of_run(fact, now)
        case ClusterFact():
            return _of_cluster(fact, now)
        case LeaseFact():
            return _of_lease(fact)
        case LineFact():
            return _of_line(fact, now)
        case Run():
            return _of_untold(fact, now)


def _of_run(fact: RunFact, now: datetime) -> Finding | None:
    if fact.run.state.is_final:
        return None
    if fact.execution is None:
        return _without_execution(fact, now)
    if fact.execution.state is ExecutionState.RUNNING:
        return _overdue(fact, now)
    stopped = fact.execution.stopped_at or fact.due
    if now - stopped < END_GRACE:
        return None
    run, state = fact.run, fact.execution.state
    error = "it ended before the run was over" if state is ExecutionState.SUCCEEDED else fact.execution.error
    why = f"execution r{run.k} is {state} and the run is {run.state}"
    return Finding(run.run_id, why, stopped, Repair.FINISH_RUN, k=run.k, status=state.value, error=error)


def _overdue(fact: RunFact, now: datetime) -> Finding | None:
    late = now - fact.due
    if late < OVERDUE:
        return None
    stuck = late >= STUCK
    again = fact.signalled_at is None or now - fact.signalled_at >= WAKE_AGAIN
    if not (stuck or again):
        return None
    why = f"its look was due {late.total_seconds():.0f} s ago; the run is {fact.run.state}"
    return Finding(fact.run.run_id, why, fact.due, Repair.WAKE_RUN if again else None, alarm=stuck, k=fact.run.k)


def _without_execution(fact: RunFact, now: datetime) -> Finding | None:
    """Never started, or so long ago that Step Functions has forgotten it. Only the first may be started: a name that is
    free again would run the whole run a second time."""
    run = fact.run
    never_began = run.state is RunState.ADMITTED if run.k == 1 else run.shift_seq == run.history_base
    if not never_began:
        why, gone = f"execution r{run.k} is gone and the run is {run.state}", "Step Functions does not know it any more"
        return Finding(run.run_id, why, fact.due, Repair.FINISH_RUN, True, run.k, status="NOT_FOUND", error=gone)
    since = run.created_at if run.k == 1 else fact.due
    if not fact.has_spec:
        return _without_spec(run, now)
    in_flight = now - run.created_at < START_GRACE
    if run.k > 1:  # its predecessor starts it, and repeats that if it fails
        running = fact.previous is not None and fact.previous.state is ExecutionState.RUNNING
        in_flight = running and now - fact.due < OVERDUE
    if in_flight:
        return None
    return Finding(run.run_id, f"execution r{run.k} never started", since, Repair.START_EXECUTION, k=run.k)


def _without_spec(run: Run, now: datetime) -> Finding | None:
    if now - run.created_at < SPEC_GRACE:
        return None
    why = "its spec was never stored, so it could not start; ask again under another run id"
    return Finding(run.run_id, why, run.created_at, Repair.FINISH_RUN, True, run.k, status="NEVER_STARTED", error=why)


def _of_cluster(fact: ClusterFact, now: datetime) -> Finding | None:
    cluster, run = fact.cluster, fact.run
    age = now - cluster.created_at
    if run is None:
        if age < UNKNOWN_ALARM:
            return None
        repair = Repair.DELETE_CLUSTER if age >= UNKNOWN_DELETE else None
        hours = UNKNOWN_DELETE.total_seconds() / 3_600
        why = f"RayCluster {cluster.name} carries the label of a run that was never asked for; deleted at {hours:.0f} h of age"
        return Finding(cluster.run_id, why, cluster.created_at, repair, alarm=True, cluster=cluster.name)
    if not run.state.is_final:
        return None
    if min(age, now - (run.ended_at or cluster.created_at)) < CLUSTER_GRACE:
        return None
    why = f"RayCluster {cluster.name} is still there and its run is {run.state}"
    return Finding(run.run_id, why, run.ended_at or cluster.created_at, Repair.DELETE_CLUSTER, cluster=cluster.name)


def _of_lease(fact: LeaseFact) -> Finding | None:
    """No grace: a run gets its lease, and ends, in one transaction with its record."""
    lease, holder = fact.lease, fact.holder
    if holder is not None and not holder.state.is_final:
        return None
    held = "a run without a record" if holder is None else f"a run that is {holder.state}"
    why = f"pool {lease.pool} is held by {held}"
    return Finding(lease.run_id, why, lease.since, Repair.RELEASE_LEASE, lease=lease, pool=lease.pool)


def _of_line(fact: LineFact, now: datetime) -> Finding | None:
    first = fact.first
    since = first.waiting_since or first.created_at
    if first.state is not RunState.QUEUED or now - since < LINE_GRACE:
        return None
    if fact.signalled_at is not None and now - fact.signalled_at < WAKE_AGAIN:
        return None
    why = f"pool {fact.pool} is free and nobody told the first in line"
    return Finding(first.run_id, why, since, Repair.WAKE_LINE, k=first.k, pool=fact.pool)


def _of_untold(run: Run, now: datetime) -> Finding | None:
    since = run.ended_at or run.created_at
    if not run.state.is_final or run.state is RunState.REJECTED or now - since < TELL_GRACE:
        return None
    return Finding(run.run_id, f"the run is {run.state} and nobody was told", since, Repair.SEND_MESSAGE, k=run.k)

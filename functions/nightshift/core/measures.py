"""What is counted and measured about runs, for metrics: names and units here, where it is sent in ``handlers/observability.py``.

A measure never names a run: CloudWatch would keep a metric for each, and a run's own numbers are in its record. Each is
taken right after the one guarded write that makes it true, so that a repeated step, which finds the write done, counts
nothing again; a process that dies between the two counts too little, never too much.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from nightshift.contract.rehearsal import is_rehearsal
from nightshift.core.causes import POLICIES, EndCause
from nightshift.core.run import Attempt, Run, RunState


class Metric(StrEnum):
    """Names in CloudWatch. Those that end in Seconds are seconds, the others are counts or, where they say so, dollars."""

    RUNS_STARTED = "RunsStarted"
    RUNS_ENDED = "RunsEnded"
    ATTEMPTS = "Attempts"
    RECOVERIES = "Recoveries"
    RECOVERIES_FAILED = "RecoveriesFailed"
    RECOVERY_SECONDS = "RecoverySeconds"
    STEPS_LOST = "StepsLost"
    QUEUE_WAIT_SECONDS = "QueueWaitSeconds"
    DOLLARS = "Dollars"
    RUNS_OPEN = "RunsOpen"
    RUNS_QUEUED = "RunsQueued"
    LONGEST_QUEUE_SECONDS = "LongestQueueSeconds"
    LONGEST_RECOVERY_SECONDS = "LongestRecoverySeconds"
    DOLLARS_PER_HOUR = "DollarsPerHour"


@dataclass(frozen=True)
class Measure:
    """One value of a metric. ``by``: (dimension, value), by which the metric is also kept apart; values of it are members of
    a closed enum."""

    metric: Metric
    value: float = 1.0
    by: tuple[str, str] | None = None


UNKNOWN: Final = "unknown"

OF_REHEARSALS: Final = frozenset({Metric.QUEUE_WAIT_SECONDS, Metric.DOLLARS})
"""What a rehearsal has in common with a run. Its death is wanted and its end is its report: neither counts, or wakes anybody."""


def counted(run_id: str, measures: Iterable[Measure]) -> tuple[Measure, ...]:
    """Of what was measured of a run, what is to be sent."""
    return tuple(one for one in measures if not is_rehearsal(run_id) or one.metric in OF_REHEARSALS)


def _cause(cause: EndCause | None) -> tuple[str, str]:
    return ("cause", cause.value if cause is not None else UNKNOWN)


def recovery_begins(cause: EndCause | None) -> tuple[Measure, ...]:
    """An attempt is over and another follows."""
    return (Measure(Metric.RECOVERIES, by=_cause(cause)),)


def recovery_given_up(cause: EndCause | None, to: RunState) -> tuple[Measure, ...]:
    """A run fails for what is otherwise recovered from, waited for or asked about: its recoveries were no use."""
    if to is not RunState.FAILED or cause is None or not POLICIES[cause].action.goes_on:
        return ()
    return (Measure(Metric.RECOVERIES_FAILED, by=_cause(cause)),)


def recovered(run: Run, now: datetime) -> tuple[Measure, ...]:
    """The next attempt is alive; seconds since the decision to recover."""
    if run.recovering_since is None:
        return ()
    return (
        Measure(Metric.RECOVERY_SECONDS, max(0.0, (now - run.recovering_since).total_seconds()), _cause(run.cause)),
    )


def resumed(run: Run, before: Attempt, after: Attempt) -> tuple[Measure, ...]:
    """Steps that an attempt after the first has to do again. ``run.step`` is still what the attempt before it had reached."""
    if after.n == 1 or after.resumed_step is None or before.resumed_step is not None:
        return ()
    return (Measure(Metric.STEPS_LOST, max(0, run.step - after.resumed_step)),)


def queue_left(run: Run, at: datetime) -> tuple[Measure, ...]:
    """It got its nodes for the first time since somebody asked for it, or had it go on."""
    if run.leased_at is not None:
        return ()
    return (Measure(Metric.QUEUE_WAIT_SECONDS, max(0.0, (at - (run.reopened_at or run.created_at)).total_seconds())),)


def ended(run: Run, dollars: float | None) -> tuple[Measure, ...]:
    """``dollars``: what is attributed to it, since it was last reopened where it was."""
    spent = (Measure(Metric.DOLLARS, dollars),) if dollars is not None else ()
    return (Measure(Metric.RUNS_ENDED, by=("state", run.state.value)), *spent)


def standing(runs: Iterable[Run], now: datetime) -> tuple[Measure, ...]:
    """How things are at one moment, from the runs that are not over."""
    runs = tuple(runs)
    queued = [r for r in runs if r.state is RunState.QUEUED]
    recovering = [
        r for r in runs if r.recovering_since is not None and r.state in _RECOVERS and not is_rehearsal(r.run_id)
    ]
    holding = [r for r in runs if r.leased_at is not None and not r.waiting_for]

    def longest(moments: Iterable[datetime | None]) -> float:
        return max((max(0.0, (now - m).total_seconds()) for m in moments if m is not None), default=0.0)

    return (
        Measure(Metric.RUNS_OPEN, len(runs)),
        Measure(Metric.RUNS_QUEUED, len(queued)),
        Measure(Metric.LONGEST_QUEUE_SECONDS, longest(r.reopened_at or r.created_at for r in queued)),
        Measure(Metric.LONGEST_RECOVERY_SECONDS, longest(r.recovering_since for r in recovering)),
        Measure(Metric.DOLLARS_PER_HOUR, round(sum(r.dollars_per_hour or 0.0 for r in holding), 4)),
    )


_RECOVERS: Final = frozenset({RunState.RECOVERING, RunState.PROVISIONING})

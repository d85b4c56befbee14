"""What events and executions missed, and what to do about it: from facts to findings, without I/O and without a clock.

Each rule leaves time for whoever should have acted: a repair must not race with an ordinary step that is under way. Where
two do meet all the same, every repair is safe to repeat and none is believed over a record that moved on meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from nightshift.core.run import Run

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

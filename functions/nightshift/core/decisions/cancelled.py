"""A running attempt whose run is cancelled."""

from __future__ import annotations

from datetime import datetime, timedelta

from nightshift.contract.control import ControlCommand
from nightshift.core.causes import EndCause
from nightshift.core.decision import Decision, Verb
from nightshift.core.observation import JobState, Observation
from nightshift.core.run import Run

CANCEL_GRACE = timedelta(minutes=15)
"""How long a job may take to stop by itself after a checkpoint, from the request on."""


def decide_cancelled(run: Run, seen: Observation, now: datetime) -> Decision:
    """The job is asked to stop after its next checkpoint. One that has not done so in time is stopped, as is at once one of
    which no checkpoint is wanted any more; what it leaves ends with its cluster: the teardown is the fence."""
    stop_job = seen.job.state is not JobState.UNREACHABLE
    if run.cancel_now:
        return Decision(
            Verb.CANCELLED, "cancelled at once, without a checkpoint", EndCause.CANCELLED, stop_job=stop_job
        )
    if now - (run.cancel_requested_at or now) < CANCEL_GRACE:
        return Decision(Verb.NAP, "cancelled: the job is asked to stop", control=ControlCommand.STOP_AFTER_CHECKPOINT)
    why = f"cancelled: the job did not stop by itself within {CANCEL_GRACE.total_seconds() / 60:.0f} minutes"
    return Decision(Verb.CANCELLED, why, EndCause.CANCELLED, stop_job=stop_job)

"""Watching a running attempt."""

from __future__ import annotations

from datetime import datetime, timedelta

from nightshift.contract.control import ControlCommand
from nightshift.contract.spec import RunSpec
from nightshift.core.causes import POLICIES, Action, EndCause, from_outcome
from nightshift.core.decision import Decision, Verb
from nightshift.core.decisions.common import HOLD_FOR, lost_instance, node_cause
from nightshift.core.hang import Silence, judge_silence
from nightshift.core.observation import JobState, Observation
from nightshift.core.run import Run


def decide_attempt(run: Run, spec: RunSpec, seen: Observation, now: datetime) -> Decision:
    """One look at the current attempt."""
    if seen.outcome is not None:
        return _ended(run, spec, seen, now)
    lost = lost_instance(run, seen)
    match seen.job.state:
        case JobState.SUCCEEDED | JobState.FAILED | JobState.STOPPED:
            return _ended(run, spec, seen, now)
        case JobState.MISSING:
            if seen.evidence:
                return _ended(run, spec, seen, now)
            return _ending(run, spec, EndCause.HEAD_LOST, "Ray does not know the job any more", None)
        case JobState.PENDING | JobState.RUNNING | JobState.UNREACHABLE:
            if seen.evidence and (lost is not None or not seen.cluster.exists):
                return _ended(run, spec, seen, now)  # the job had done all of its work before its cluster went
            if lost is not None:
                return _ending(run, spec, node_cause(run, seen, lost), f"instance {lost} is gone", lost)
            if not seen.cluster.exists:
                return _ending(run, spec, EndCause.HEAD_LOST, "the RayCluster is gone", None)
            return _alive(run, spec, seen, now)


def _alive(run: Run, spec: RunSpec, seen: Observation, now: datetime) -> Decision:
    spent = _spent_budget(run, spec, seen, now)
    if spent is not None:
        return Decision(Verb.FAILED, f"{spent} are spent", EndCause.BUDGET_SPENT, stop_job=True)
    if run.cancel_requested:
        return Decision(Verb.NAP, "cancelled: the job is asked to stop", control=ControlCommand.STOP_AFTER_CHECKPOINT)
    waited = now - (seen.job_since or now)
    if seen.progress is None and waited > timedelta(minutes=spec.budgets.start_minutes):
        return _ending(
            run, spec, EndCause.START_DEADLINE, f"no sign of life for {spec.budgets.start_minutes} minutes", None
        )
    quiet = judge_silence(run, spec, seen.progress, seen.witness, now)
    if quiet.silence is Silence.HUNG:
        return _ending(run, spec, EndCause.HUNG, quiet.why, None)
    if quiet.silence is Silence.PROGRESS_UNWRITABLE:
        return _ending(run, spec, EndCause.PROGRESS_UNWRITABLE, quiet.why, None)
    if seen.job.state is JobState.PENDING and waited < HOLD_FOR:
        return Decision(Verb.HOLD, "the job is pending")
    troubled = seen.cluster.unhealthy_instances & set(seen.cluster.instances)
    if troubled:
        # A job that still makes steps is never fenced on a hint alone: it is asked for a checkpoint and goes on.
        return Decision(Verb.NAP, f"{', '.join(sorted(troubled))} is unhealthy", control=ControlCommand.CHECKPOINT_NOW)
    if seen.job.state is JobState.UNREACHABLE:
        return Decision(Verb.NAP, f"the endpoint does not answer, which says nothing about the job: {seen.job.message}")
    return Decision(Verb.NAP, quiet.why or f"the job is {seen.job.state}")


def _spent_budget(run: Run, spec: RunSpec, seen: Observation, now: datetime) -> str | None:
    """Time in the queue is not spent: wall hours count from the moment when the run got its pool."""
    budgets = spec.budgets
    if now - (run.leased_at or run.created_at) > timedelta(hours=budgets.wall_hours):
        return f"{budgets.wall_hours:g} wall hours"
    if seen.gpu_hours > budgets.gpu_hours:
        return f"{budgets.gpu_hours:g} GPU-hours"
    return None


def _ended(run: Run, spec: RunSpec, seen: Observation, now: datetime) -> Decision:
    """The job is over, by its own word or by Ray's. Evidence in S3 decides before either."""
    outcome = seen.outcome
    if seen.evidence and (outcome is None or outcome.cause.is_success):
        return Decision(Verb.SUCCEEDED, "final eval and verified export are in S3", EndCause.FINISHED)
    if run.cancel_requested:
        return Decision(Verb.CANCELLED, "stopped on request", EndCause.CANCELLED)
    lost = lost_instance(run, seen)
    if outcome is not None:
        cause = EndCause.EVIDENCE_MISSING if outcome.cause.is_success else from_outcome(outcome.cause)
        message = outcome.message
    else:
        message = seen.job.message or f"Ray says {seen.job.state}"
        cause = EndCause.WORKER_FAILED if seen.job.state is JobState.FAILED else EndCause.EVIDENCE_MISSING
        cause = EndCause.STOPPED if seen.job.state is JobState.STOPPED else cause
    if lost is not None and POLICIES[cause].action is Action.RECOVER:
        cause, message = node_cause(run, seen, lost), f"instance {lost} is gone; {message}"
    return _ending(run, spec, cause, message, lost)


def _ending(run: Run, spec: RunSpec, cause: EndCause, message: str, node: str | None) -> Decision:
    if POLICIES[cause].action is Action.GIVE_UP:
        return Decision(Verb.FAILED, message, cause, node, stop_job=True)
    used, allowed = spent_recoveries(run), spec.budgets.max_recoveries_without_progress
    if used >= allowed:
        why = f"{used} recoveries without a new verified checkpoint; the last attempt ended as {cause}: {message}"
        return Decision(Verb.FAILED, why, EndCause.BUDGET_SPENT, node, stop_job=True)
    return Decision(Verb.RECOVER, message, cause, node)


def spent_recoveries(run: Run) -> int:
    """Recoveries since the last verified new checkpoint."""
    return 0 if run.verified_step > run.recovery_floor else run.recoveries_without_progress

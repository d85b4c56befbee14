"""Watching a running attempt, and what follows from its end."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import assert_never

from nightshift.contract.control import ControlCommand
from nightshift.contract.failures import cause_of_text
from nightshift.contract.job import OutcomeCause
from nightshift.contract.spec import RunSpec
from nightshift.core.blame import blamed_instance, instances_that_end, out_of_memory, taken_away
from nightshift.core.budgets import crash_loop, recoveries_spent, spent_budget, spent_recoveries
from nightshift.core.causes import POLICIES, Action, EndCause, from_outcome
from nightshift.core.decision import Decision, Verb
from nightshift.core.decisions.cancelled import decide_cancelled
from nightshift.core.decisions.common import HOLD_FOR, lost_instance, node_cause
from nightshift.core.errors import bounded
from nightshift.core.hang import Silence, judge_silence, overdue_download
from nightshift.core.observation import JobState, Observation
from nightshift.core.queueing import preempted
from nightshift.core.run import Run

VAGUE = frozenset({EndCause.WORKER_FAILED, EndCause.EVIDENCE_MISSING, EndCause.STOPPED, EndCause.HEAD_LOST})
"""What is said where nobody knows better: what the pods tell is then believed before it."""

SEEN_FROM_AFAR = frozenset({EndCause.CODE_ERROR})
"""What the job says also where it was another's node that failed: over HTTP a node that is gone is just any exception."""


def decide_attempt(run: Run, spec: RunSpec, seen: Observation, now: datetime) -> Decision:
    """One look at the current attempt."""
    if seen.outcome is not None:
        return _ended(run, spec, seen, now)
    kueue = preempted(run, seen.cluster)
    if kueue is not None:  # what the job had proven by then counts
        proven = seen.evidence or run.cancel_requested
        return _ended(run, spec, seen, now) if proven else _ending(run, spec, seen, now, EndCause.PREEMPTED, kueue)
    lost = lost_instance(run, seen)
    match seen.job.state:
        case JobState.SUCCEEDED | JobState.FAILED | JobState.STOPPED:
            return _ended(run, spec, seen, now)
        case JobState.MISSING:
            if seen.evidence:
                return _ended(run, spec, seen, now)
            missing = EndCause.HEAD_LOST, "Ray does not know the job any more"
            return _ending(run, spec, seen, now, *_by_pods(run, seen, *missing))
        case JobState.PENDING | JobState.RUNNING | JobState.UNREACHABLE:
            if seen.evidence and (lost is not None or not seen.cluster.exists):
                return _ended(run, spec, seen, now)  # the job had done all of its work before its cluster went
            if lost is not None:
                return _ending(run, spec, seen, now, *_loss(run, seen, lost))
            if not seen.cluster.exists:
                return _ending(run, spec, seen, now, EndCause.HEAD_LOST, "the RayCluster is gone")
            return _alive(run, spec, seen, now)
    assert_never(seen.job.state)


def _alive(run: Run, spec: RunSpec, seen: Observation, now: datetime) -> Decision:
    spent = spent_budget(run, spec, seen.gpu_hours, now)
    if spent is not None:
        return Decision(Verb.FAILED, f"{spent} are spent", EndCause.BUDGET_SPENT, stop_job=True)
    if run.cancel_requested:
        return decide_cancelled(run, seen, now)
    waited = now - (seen.job_since or now)
    if seen.progress is None and waited > timedelta(minutes=spec.budgets.start_minutes):
        why = f"no sign of life for {spec.budgets.start_minutes} minutes"
        return _ending(run, spec, seen, now, EndCause.START_DEADLINE, why)
    slow = overdue_download(spec, seen.progress, now)
    if slow is not None:
        return _ending(run, spec, seen, now, EndCause.START_DEADLINE, slow)
    quiet = judge_silence(run, spec, seen.progress, seen.witness, now)
    match quiet.silence:
        case Silence.HUNG:
            return _ending(run, spec, seen, now, EndCause.HUNG, quiet.why)
        case Silence.PROGRESS_UNWRITABLE:
            return _ending(run, spec, seen, now, EndCause.PROGRESS_UNWRITABLE, quiet.why)
        case Silence.NONE | Silence.WATCHED:
            pass
        case _:
            assert_never(quiet.silence)
    if seen.job.state is JobState.PENDING and waited < HOLD_FOR:
        return Decision(Verb.HOLD, "the job is pending")
    troubled = seen.cluster.unhealthy_instances & set(seen.cluster.instances)
    if troubled:
        # A job that still makes steps is never fenced on a hint alone: it is asked for a checkpoint and goes on.
        return Decision(Verb.NAP, f"{', '.join(sorted(troubled))} is unhealthy", control=ControlCommand.CHECKPOINT_NOW)
    taken = taken_away(seen)
    if taken is not None:
        why = f"pod {taken.name} is being taken away ({taken.disruption})"
        return Decision(Verb.NAP, why, control=ControlCommand.CHECKPOINT_NOW)
    if seen.job.state is JobState.UNREACHABLE:
        return Decision(Verb.NAP, f"the endpoint does not answer, which says nothing about the job: {seen.job.message}")
    return Decision(Verb.NAP, quiet.why or f"the job is {seen.job.state}")


def _ended(run: Run, spec: RunSpec, seen: Observation, now: datetime) -> Decision:
    """The job is over, by its own word or by Ray's. Evidence in S3 decides before either."""
    outcome = seen.outcome
    if seen.evidence and (outcome is None or outcome.cause.is_success):
        early = f"ended early: {bounded(outcome.message, 300)}; " if outcome and outcome.cause.is_early else ""
        return Decision(Verb.SUCCEEDED, f"{early}final eval and verified export are in S3", EndCause.FINISHED)
    if run.cancel_requested:
        return Decision(Verb.CANCELLED, "stopped on request", EndCause.CANCELLED)
    cause, message = _first_reading(seen)
    return _ending(run, spec, seen, now, *_refined(run, seen, cause, message))


def _first_reading(seen: Observation) -> tuple[EndCause, str]:
    """What the job says of itself; without a word of it what Ray says of the job."""
    outcome = seen.outcome
    if outcome is not None:
        told = outcome.message or "the job gives no reason"
        if outcome.cause.is_success:
            return EndCause.EVIDENCE_MISSING, f"{told}; but S3 lacks the final eval or a verified export of it"
        return from_outcome(outcome.cause), told
    message = seen.job.message or f"Ray says {seen.job.state}"
    if seen.job.state is JobState.STOPPED:
        return EndCause.STOPPED, message
    if seen.job.state is not JobState.FAILED:
        return EndCause.EVIDENCE_MISSING, message
    return from_outcome(cause_of_text(message) or OutcomeCause.WORKER_LOST), message


def _loss(run: Run, seen: Observation, lost: str) -> tuple[EndCause, str]:
    """An instance without a pod of the run: the instance went, or the pod was taken from it."""
    if lost in run.taken_away:
        return EndCause.PREEMPTED, f"the pod on instance {lost} was taken away"
    return node_cause(run, seen, lost), f"instance {lost} is gone"


def _refined(run: Run, seen: Observation, cause: EndCause, message: str) -> tuple[EndCause, str]:
    """What cluster and pods know better: a node that is gone, a pod that was taken away or killed for its memory. What the
    job knows for sure (its configuration, its checkpoints, a full disk) no pod can explain away."""
    if not POLICIES[cause].by_node and cause not in VAGUE | SEEN_FROM_AFAR:
        return cause, message
    lost, kueue = lost_instance(run, seen), preempted(run, seen.cluster)
    if kueue is not None:
        return EndCause.PREEMPTED, f"{kueue}; {message}"
    if lost is not None:
        gone, why = _loss(run, seen, lost)
        return gone, f"{why}; {message}"
    dying = sorted(instances_that_end(seen) | (seen.cluster.silent_instances & set(seen.cluster.instances)))
    if dying and cause in SEEN_FROM_AFAR:  # its pods are still listed
        cause, message = EndCause.WORKER_FAILED, f"instance {dying[0]} does not answer; {message}"
    return _by_pods(run, seen, cause, message)


def _by_pods(run: Run, seen: Observation, cause: EndCause, message: str) -> tuple[EndCause, str]:
    """A pod that was taken away, also one whose object is gone by now, or that was killed for its memory."""
    lost = lost_instance(run, seen)
    if lost is not None and lost in run.taken_away:
        return EndCause.PREEMPTED, f"the pod on instance {lost} was taken away; {message}"
    taken, killed = taken_away(seen), out_of_memory(seen)
    if taken is not None:
        return EndCause.PREEMPTED, f"pod {taken.name} was taken away ({taken.disruption}); {message}"
    if killed is not None:
        return EndCause.HOST_OUT_OF_MEMORY, f"pod {killed.name}: {killed.ended}; {message}"
    return cause, message


def _ending(run: Run, spec: RunSpec, seen: Observation, now: datetime, cause: EndCause, message: str) -> Decision:
    """What follows from an attempt's end: the cause's policy, within the budgets."""
    node = blamed_instance(cause, seen, lost_instance(run, seen), message)
    over = _last_end(run, spec, seen, now, cause)
    if over is not None:
        final, why = over
        return Decision(Verb.FAILED, f"{why}: {message}" if why else message, final, node, stop_job=True)
    match POLICIES[cause].action:
        case Action.ASK:
            ask = cause if run.question is None else None
            return Decision(Verb.RECOVER, message, cause, node, ask=ask)
        case Action.GIVE_UP:  # out of memory, with one retry left
            return Decision(Verb.RECOVER, f"{message}; tried again with smaller values", cause, node, smaller=True)
        case Action.RECOVER | Action.WAIT | Action.DONE:
            return Decision(Verb.RECOVER, message, cause, node)
    assert_never(POLICIES[cause].action)


def _last_end(
    run: Run, spec: RunSpec, seen: Observation, now: datetime, cause: EndCause
) -> tuple[EndCause, str] | None:
    """The cause and the reason why no attempt may follow; None where one may."""
    if POLICIES[cause].action is Action.GIVE_UP and not _may_be_smaller(run, spec, cause):
        return cause, ""
    if cause is EndCause.CODE_ERROR and not _made_steps(seen):
        return cause, "the code failed before the attempt's first new step"
    looped = crash_loop(cause, _saved_step(run, seen), seen.attempts[:-1])
    if looped is not None:
        return cause, looped
    spent = spent_budget(run, spec, seen.gpu_hours, now)
    if spent is not None:
        return EndCause.BUDGET_SPENT, f"{spent} are spent; the last attempt ended as {cause}"
    used = recoveries_spent(spent_recoveries(run), spec, cause)
    return (EndCause.BUDGET_SPENT, f"{used}; the last attempt ended as {cause}") if used is not None else None


def _may_be_smaller(run: Run, spec: RunSpec, cause: EndCause) -> bool:
    return cause is EndCause.GPU_OUT_OF_MEMORY and spec.recovery.on_out_of_memory is not None and not run.smaller


def _made_steps(seen: Observation) -> bool:
    """Whether the attempt got further than it began."""
    told = seen.outcome or seen.progress
    floor = seen.attempts[-1].floor if seen.attempts else 0
    return told is not None and told.step > (told.resumed_step if told.resumed_step is not None else floor)


def _saved_step(run: Run, seen: Observation) -> int:
    """The current attempt's last saved step, as reported now or before."""
    told = [r.saved_step for r in (seen.outcome, seen.progress) if r is not None]
    known = seen.attempts[-1].last_saved_step if seen.attempts else run.verified_step
    return max([known, *told])

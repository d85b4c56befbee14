"""``decide(run, spec, observation, now)``: the controller's judgement, without I/O and without a clock."""

from __future__ import annotations

from datetime import datetime, timedelta

from nightshift.contract.control import ControlCommand
from nightshift.contract.spec import RunSpec
from nightshift.core.causes import POLICIES, Action, EndCause, from_outcome
from nightshift.core.decision import Decision, Verb
from nightshift.core.hang import Silence, judge_silence
from nightshift.core.observation import JobState, Observation
from nightshift.core.run import Awaiting, Run, RunState

HOLD_FOR = timedelta(minutes=3)
"""How long a wait that sends no events is watched closely before it is left to signals and the interval."""

FENCE_DEADLINE = timedelta(minutes=15)
RELEASE_DEADLINE = timedelta(minutes=60)
LEASE_DEADLINE = timedelta(days=30)


def decide(run: Run, spec: RunSpec, awaiting: Awaiting, seen: Observation, now: datetime) -> Decision:
    """One look's decision. ``run.waiting_since`` must be set: it is when this wait began."""
    match awaiting:
        case Awaiting.LEASE:
            return _lease(run, seen, now)
        case Awaiting.CLUSTER:
            return _cluster(run, spec, seen, now)
        case Awaiting.FENCE:
            return _fence(run, seen, now)
        case Awaiting.ATTEMPT:
            return _attempt(run, spec, seen, now)


def _waited(run: Run, now: datetime) -> timedelta:
    return now - (run.waiting_since or now)


def _hold_or_nap(run: Run, now: datetime, why: str) -> Decision:
    return Decision(Verb.HOLD if _waited(run, now) < HOLD_FOR else Verb.NAP, why)


def _lease(run: Run, seen: Observation, now: datetime) -> Decision:
    if run.cancel_requested:
        return Decision(Verb.CANCELLED, "cancelled while queued", EndCause.CANCELLED)
    if seen.lease_holder == run.run_id:
        return Decision(Verb.READY, f"holds pool {run.pool}")
    if _waited(run, now) > LEASE_DEADLINE:
        return Decision(
            Verb.FAILED, f"pool {run.pool} was not free for {LEASE_DEADLINE.days} days", EndCause.CAPACITY_MISSING
        )
    if seen.lease_holder is None and seen.next_in_line in (None, run.run_id):
        return Decision(Verb.READY, f"pool {run.pool} is free and nobody is before this run")
    holder = f"held by {seen.lease_holder}" if seen.lease_holder else f"promised to {seen.next_in_line}"
    return Decision(Verb.NAP, f"pool {run.pool} is {holder}")


def _cluster(run: Run, spec: RunSpec, seen: Observation, now: datetime) -> Decision:
    if run.cancel_requested:
        return Decision(Verb.CANCELLED, "cancelled while waiting for its cluster", EndCause.CANCELLED)
    cluster, gpus = seen.cluster, seen.ray.gpus_of(seen.cluster)
    if cluster.bad_image is not None:
        return Decision(Verb.FAILED, f"image cannot be pulled: {cluster.bad_image}", EndCause.BAD_IMAGE)
    if cluster_is_ready(spec, seen):
        return Decision(Verb.READY, f"{cluster.ready_workers} workers ready, Ray lists {gpus} GPUs")
    limit = timedelta(minutes=spec.budgets.node_wait_minutes)
    if not cluster.exists and not cluster.pods and _waited(run, now) <= limit:
        hold = _hold_or_nap(run, now, "the RayCluster is gone: it is created again")
        return Decision(hold.verb, hold.why, create_cluster=True)
    why = (
        f"{cluster.ready_workers} of {spec.topology.workers.count} workers ready, head "
        f"{'ready' if cluster.head_ready else 'not ready'}, Ray lists {'no' if gpus is None else gpus} GPUs"
    )
    if _waited(run, now) > limit:
        return Decision(Verb.FAILED, f"{why} after {spec.budgets.node_wait_minutes} minutes", EndCause.CAPACITY_MISSING)
    return _hold_or_nap(run, now, why)


def cluster_is_ready(spec: RunSpec, seen: Observation) -> bool:
    """Every sign agrees: head ready, all workers ready, status current, and Ray itself lists the GPUs."""
    cluster = seen.cluster
    return (
        cluster.exists
        and cluster.current
        and cluster.head_ready
        and cluster.ready_workers == cluster.desired_workers == spec.topology.workers.count
        and (seen.ray.gpus_of(cluster) or 0) >= spec.topology.gpus
    )


def _fence(run: Run, seen: Observation, now: datetime) -> Decision:
    if run.state is RunState.TEARDOWN:
        if not seen.cluster.exists and not seen.cluster.pods:
            return Decision(Verb.READY, "the RayCluster and its pods are gone")
        if _waited(run, now) > RELEASE_DEADLINE:  # a pod on a dead node can be terminating for ever; others are waiting
            return Decision(Verb.READY, f"released although {len(seen.cluster.pods)} pods are still listed")
        return _hold_or_nap(run, now, f"{len(seen.cluster.pods)} pods are still there")
    if run.cancel_requested:
        return Decision(Verb.CANCELLED, "cancelled while recovering", EndCause.CANCELLED)
    if not seen.cluster.exists and not seen.cluster.pods:
        return Decision(Verb.READY, "the RayCluster is gone, and the old attempt with it")
    stopped = seen.job.state.is_terminal or seen.job.state is JobState.MISSING
    if stopped and seen.ray.live_actors == 0:
        return Decision(Verb.READY, f"the old job is {seen.job.state} and none of its actors lives")
    if _waited(run, now) > FENCE_DEADLINE:
        return Decision(
            Verb.FAILED, f"attempt {run.attempt} could not be stopped in {FENCE_DEADLINE}", EndCause.CONTROLLER_FAULT
        )
    live = seen.ray.live_actors
    why = f"the old job is {seen.job.state}, {'unknown' if live is None else live} actors live"
    hold = _hold_or_nap(run, now, why)
    # Ray may call a job FAILED whose driver lives; its supervisor still takes the request to stop.
    return Decision(hold.verb, hold.why, stop_job=seen.job.state is not JobState.MISSING)


def _attempt(run: Run, spec: RunSpec, seen: Observation, now: datetime) -> Decision:
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
                return _ending(run, spec, _node_cause(run, seen, lost), f"instance {lost} is gone", lost)
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
        cause, message = _node_cause(run, seen, lost), f"instance {lost} is gone; {message}"
    return _ending(run, spec, cause, message, lost)


def _node_cause(run: Run, seen: Observation, lost: str) -> EndCause:
    """Replaced if an event was about that very instance, in this look or in an earlier one."""
    told = {*run.announced, *(s.instance_id for s in seen.signals if s.kind.is_node_event)}
    return EndCause.NODE_REPLACED if lost in told else EndCause.NODE_LOST


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


def lost_instance(run: Run, seen: Observation) -> str | None:
    """An instance that hosted a pod of the run and hosts none now. An empty pod list proves nothing by itself."""
    if not seen.cluster.exists or not seen.cluster.pods:
        return None
    gone = sorted(set(run.instances) - set(seen.cluster.instances))
    return gone[0] if gone else None

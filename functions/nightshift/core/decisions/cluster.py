"""Waiting for a RayCluster that is whole."""

from __future__ import annotations

from datetime import datetime, timedelta

from nightshift.contract.spec import RunSpec
from nightshift.core.causes import EndCause
from nightshift.core.decision import Decision, Verb
from nightshift.core.decisions.common import hold_or_nap, unanswered, waited
from nightshift.core.observation import ClusterView, Observation
from nightshift.core.queueing import STUCK, Standing, is_overdue, is_stuck, said, since_admission, standing
from nightshift.core.run import Run


def decide_cluster(run: Run, spec: RunSpec, seen: Observation, now: datetime) -> Decision:
    """One look at the RayCluster. Nodes that do not come are asked about, and waited for until the question's end."""
    if run.cancel_requested:
        return Decision(Verb.CANCELLED, "cancelled while waiting for its cluster", EndCause.CANCELLED)
    cluster, gpus = seen.cluster, seen.ray.gpus_of(seen.cluster)
    if cluster.bad_image is not None:
        return Decision(Verb.FAILED, f"image cannot be pulled: {cluster.bad_image}", EndCause.BAD_IMAGE)
    if run.queue is not None and cluster.exists and standing(cluster) is not Standing.ADMITTED:
        return _queued(run, spec, seen, now)
    run = since_admission(run, cluster)
    left = pods_from_before(cluster)
    if cluster_is_ready(spec, seen) and not left:
        return Decision(Verb.READY, f"{cluster.ready_workers} workers ready, Ray lists {gpus} GPUs")
    over = unanswered(run, now)
    if over is not None:
        return over
    why = (
        f"{cluster.ready_workers} of {spec.topology.workers.count} workers ready, head "
        f"{'ready' if cluster.head_ready else 'not ready'}, Ray lists {'no' if gpus is None else gpus} GPUs"
    )
    if left:
        why = f"{why}; pods of the RayCluster before this one still live: {', '.join(left[:3])}"
    if cluster.pods_refused is not None:
        why = f"{why}; a pod is refused: {cluster.pods_refused}"
    if waited(run, now) > timedelta(minutes=spec.budgets.node_wait_minutes):
        why = f"{why} after {spec.budgets.node_wait_minutes} minutes"
        return Decision(Verb.NAP, why, ask=EndCause.CAPACITY_MISSING if run.question is None else None)
    if not cluster.exists and not cluster.pods:
        hold = hold_or_nap(run, now, "the RayCluster is gone: it is created again")
        return Decision(hold.verb, hold.why, create_cluster=True)
    return hold_or_nap(run, now, why)


def _queued(run: Run, spec: RunSpec, seen: Observation, now: datetime) -> Decision:
    """Not admitted by Kueue. A queue that moves is waited for, for weeks; one in which the run can never be admitted is asked
    about as soon as nodes that do not come would be. An open question counts only while what it asked about lasts."""
    minutes, why = spec.budgets.node_wait_minutes, said(run, seen.cluster)
    stuck, overdue = is_stuck(run, now, minutes), is_overdue(run, now)
    refused_by_somebody = run.question is not None and run.question.given_up_by is not None
    # A succession begins the wait anew, and with it the time until it counts as stuck; the question's own end stands.
    if stuck or overdue or refused_by_somebody or standing(seen.cluster) in STUCK:
        over = unanswered(run, now)
        if over is not None:
            return over
    if stuck or overdue:
        why = f"for {minutes} minutes {why}" if stuck else f"for {waited(run, now).days} days {why}"
        return Decision(Verb.NAP, why, ask=EndCause.QUOTA_MISSING if run.question is None else None)
    return hold_or_nap(run, now, why)


def pods_from_before(cluster: ClusterView) -> tuple[str, ...]:
    """Pods that are older than the RayCluster whose name they carry: of one that was deleted, by a teardown that nobody
    waited for to the end, and whose processes may still write checkpoints. Those on silent nodes prove nothing."""
    born = cluster.created_at
    return tuple(
        p.name
        for p in cluster.pods
        if born and p.created_at and p.created_at < born and p.instance_id not in cluster.silent_instances
    )


def cluster_is_ready(spec: RunSpec, seen: Observation) -> bool:
    """Every sign agrees: head ready, all workers ready, status current, and Ray itself lists the GPUs."""
    cluster = seen.cluster
    return (
        cluster.exists
        and not cluster.suspended
        and cluster.current
        and cluster.head_ready
        and cluster.ready_workers == cluster.desired_workers == spec.topology.workers.count
        and (seen.ray.gpus_of(cluster) or 0) >= spec.topology.gpus
    )

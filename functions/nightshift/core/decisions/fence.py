"""Making sure that the old attempt is over, and at the end that the whole cluster is.

A fence has levels, each with its own deadline: the job is stopped; what does not stop loses its pods; what survives that
loses its RayCluster. From the second level on, Ray need not be asked any more: the old attempt is over when no pod is left
that was there when the level began."""

from __future__ import annotations

from datetime import datetime, timedelta

from nightshift.core.causes import EndCause
from nightshift.core.decision import Decision, Verb
from nightshift.core.decisions.common import HOLD_FOR, hold_or_nap, unanswered, waited
from nightshift.core.observation import ClusterView, JobState, Observation, PodView
from nightshift.core.queueing import nothing_left
from nightshift.core.run import Run, RunState

STOPPED, PODS_DELETED, RECREATED = 0, 1, 2
"""Levels of a fence: the job is asked to stop; the RayCluster's pods are deleted; the RayCluster is made anew."""

LEVEL_DEADLINES = (timedelta(minutes=3), timedelta(minutes=5), timedelta(minutes=5))
"""How long each level may take; after the last one the run fails."""

RELEASE_DEADLINE = timedelta(minutes=60)


def decide_fence(run: Run, seen: Observation, now: datetime) -> Decision:
    """One look at an attempt that must end; in teardown, at the pods that must go."""
    if run.state is RunState.TEARDOWN:
        return _released(run, seen, now)
    if run.cancel_requested:
        return Decision(Verb.CANCELLED, "cancelled while recovering", EndCause.CANCELLED)
    over = unanswered(run, now)
    if over is not None:
        return over
    decision = _fenced(run, seen, now)
    if decision.verb is Verb.READY and run.question is not None:
        return Decision(
            Verb.NAP, f"{decision.why}; waiting for an answer until {run.question.until:%Y-%m-%d %H:%M} UTC"
        )
    return decision


def _released(run: Run, seen: Observation, now: datetime) -> Decision:
    if not seen.cluster.exists and not seen.cluster.pods:
        return Decision(Verb.READY, "the RayCluster and its pods are gone")
    if waited(run, now) > RELEASE_DEADLINE:  # a pod on a dead node can be terminating for ever; others are waiting
        return Decision(Verb.READY, f"released although {len(seen.cluster.pods)} pods are still listed")
    return hold_or_nap(run, now, f"{len(seen.cluster.pods)} pods are still there")


def _fenced(run: Run, seen: Observation, now: datetime) -> Decision:
    over = _nothing_left(run, seen.cluster) or nothing_left(run, seen.cluster)
    if over is not None:
        return Decision(Verb.READY, over)
    held = _held(run, seen)
    if held is None:
        return Decision(Verb.READY, f"the old job is {seen.job.state} and Ray's GPUs are free")
    since = run.fence_level_at or run.waiting_since or now
    if now - since <= LEVEL_DEADLINES[run.fence_level]:
        return _at_level(run, seen, now, held)
    if run.fence_level == RECREATED:
        why = f"attempt {run.attempt} could not be fenced, not even by a new RayCluster: {held}"
        return Decision(Verb.FAILED, why, EndCause.CONTROLLER_FAULT)
    why = f"{held} after {LEVEL_DEADLINES[run.fence_level]}"
    if run.fence_level == STOPPED:
        return Decision(Verb.HOLD, f"{why}: its pods are deleted", delete_pods=True)
    return Decision(Verb.HOLD, f"{why}: the RayCluster is made anew", recreate_cluster=True)


def _at_level(run: Run, seen: Observation, now: datetime, held: str) -> Decision:
    """Go on waiting; what the level does is done again where it was not carried out, or has not been noticed yet."""
    began = max(m for m in (run.fence_level_at, run.waiting_since, now - HOLD_FOR) if m is not None)
    verb = Verb.HOLD if now - began < HOLD_FOR else Verb.NAP
    staying = [p for p in _old_pods(run, seen.cluster) if not p.terminating]
    remade = seen.cluster.exists and not _is_old(run, seen.cluster.created_at)
    return Decision(
        verb,
        held,
        # Ray may call a job FAILED whose driver lives; its supervisor still takes the request to stop.
        stop_job=seen.job.state is not JobState.MISSING,
        delete_pods=run.fence_level == PODS_DELETED and bool(staying),
        recreate_cluster=run.fence_level == RECREATED and not remade,
    )


def _nothing_left(run: Run, cluster: ClusterView) -> str | None:
    """Why nothing of the old attempt can live any more, without asking Ray."""
    here = [p for p in cluster.pods if p.instance_id not in cluster.silent_instances]
    if not cluster.exists and not here:
        return "the RayCluster is gone, and the old attempt with it"
    if run.fence_level == STOPPED:
        return None
    if run.fence_level == RECREATED and not (cluster.exists and not _is_old(run, cluster.created_at)):
        return None
    return None if _old_pods(run, cluster) else "every pod that hosted the old attempt is gone"


def _old_pods(run: Run, cluster: ClusterView) -> list[PodView]:
    """Pods from before the fence's level. A pod on a node that is dead or frozen counts no more: nobody confirms its end,
    and what runs there lost its head."""
    return [
        p
        for p in cluster.pods
        if p.instance_id is not None and p.instance_id not in cluster.silent_instances and _is_old(run, p.created_at)
    ]


def _is_old(run: Run, created_at: datetime | None) -> bool:
    return created_at is None or run.fence_level_at is None or created_at < run.fence_level_at


def _held(run: Run, seen: Observation) -> str | None:
    """What shows that the old attempt still lives, or may; None where every sign says that it does not. That an actor is
    dead in Ray's books is not enough, and an endpoint that does not answer is no sign at all."""
    job, ray = seen.job, seen.ray
    if not (job.state.is_terminal or job.state is JobState.MISSING):
        return f"the old job is {job.state}"
    if ray.gpus_by_ip is None or ray.live_actors is None:
        return f"the old job is {job.state}, Ray cannot be asked about its actors"
    pods = [p for p in seen.cluster.pods if p.instance_id not in seen.cluster.silent_instances]
    dying = sum(ray.dying_by_ip.get(p.ip, 0) for p in pods if p.ip is not None)
    unlisted = [p for p in pods if p.ready and not p.is_head and p.ip not in ray.gpus_by_ip and _was_there(run, p)]
    leaving = [p for p in pods if p.terminating and _was_there(run, p)]
    signs = {
        "its driver lives": job.driver is not None and job.driver in ray.drivers,
        f"{ray.live_actors} actors live": ray.live_actors > 0,
        f"{ray.placement_groups} placement groups hold resources": ray.placement_groups > 0,
        f"{dying} processes of dead actors still hold their GPUs": dying > 0,
        f"Ray does not list the ready pods {', '.join(p.name for p in unlisted)}": bool(unlisted),
        f"the pods {', '.join(p.name for p in leaving)} are being deleted": bool(leaving),
    }
    said = [sign for sign, shows in signs.items() if shows]
    return f"the old job is {job.state}, but {'; '.join(said)}" if said else None


def _was_there(run: Run, pod: PodView) -> bool:
    """A pod made since the attempt's end never hosted it."""
    return pod.created_at is None or run.recovering_since is None or pod.created_at < run.recovering_since

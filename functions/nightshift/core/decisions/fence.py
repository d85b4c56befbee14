"""Making sure that the old attempt is over, and at the end that the whole cluster is."""

from __future__ import annotations

from datetime import datetime, timedelta

from nightshift.core.causes import EndCause
from nightshift.core.decision import Decision, Verb
from nightshift.core.decisions.common import hold_or_nap, unanswered, waited
from nightshift.core.observation import JobState, Observation
from nightshift.core.queueing import nothing_left
from nightshift.core.run import Run, RunState

FENCE_DEADLINE = timedelta(minutes=15)
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
    if not seen.cluster.exists and not seen.cluster.pods:
        return Decision(Verb.READY, "the RayCluster is gone, and the old attempt with it")
    nothing = nothing_left(run, seen.cluster)
    if nothing is not None:
        return Decision(Verb.READY, nothing)
    stopped = seen.job.state.is_terminal or seen.job.state is JobState.MISSING
    if stopped and seen.ray.live_actors == 0:
        return Decision(Verb.READY, f"the old job is {seen.job.state} and none of its actors lives")
    if waited(run, now) > FENCE_DEADLINE:
        return Decision(
            Verb.FAILED, f"attempt {run.attempt} could not be stopped in {FENCE_DEADLINE}", EndCause.CONTROLLER_FAULT
        )
    live = seen.ray.live_actors
    why = f"the old job is {seen.job.state}, {'unknown' if live is None else live} actors live"
    hold = hold_or_nap(run, now, why)
    # Ray may call a job FAILED whose driver lives; its supervisor still takes the request to stop.
    return Decision(hold.verb, hold.why, stop_job=seen.job.state is not JobState.MISSING)

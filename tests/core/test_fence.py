"""What shows that an old attempt is over, and what is done, level by level, about one that is not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.core.causes import EndCause
from nightshift.core.decide import decide
from nightshift.core.decision import Decision, Verb
from nightshift.core.decisions.fence import LEVEL_DEADLINES, PODS_DELETED, RECREATED
from nightshift.core.observation import ClusterView, JobState, JobView, Observation, PodView, RayView
from nightshift.core.run import Awaiting, Run, RunState
from tests.builders import NOW, cluster, ray, run, spec

LONG_AGO, SINCE = NOW - timedelta(hours=2), NOW - timedelta(minutes=1)
FREE = ray(actors=0)
STOPPED = JobView(JobState.STOPPED, driver=("ip-i-head", 77))


def fencing(**changes: Any) -> Run:
    return run(**({"state": RunState.RECOVERING, "waiting_since": SINCE, "recovering_since": SINCE} | changes))


def judge(seen: Observation, on: Run) -> Decision:
    return decide(on, spec(), Awaiting.FENCE, seen, NOW)


def pods(**changes: Any) -> ClusterView:
    """The healthy RayCluster; every pod with its birthday, and changed as given."""
    aged = cluster(created_at=LONG_AGO)
    return replace(aged, pods=tuple(replace(p, **({"created_at": LONG_AGO} | changes)) for p in aged.pods))


HELD = {
    "an actor lives": {"ray": ray(actors=1)},
    "a placement group is there, though no actor lives": {"ray": replace(FREE, placement_groups=1)},
    "a dead actor's process lives": {"ray": replace(FREE, dying_by_ip={"ip-i-w2": 1})},
    "the driver of a job that Ray calls over lives": {"ray": replace(FREE, drivers=frozenset({("ip-i-head", 77)}))},
    "a ready pod's raylet is unknown to the new head": {"ray": ray("i-w1", "i-w2", actors=0), "job": JobState.MISSING},
    "old pods are still being deleted": {"cluster": pods(terminating=True, ready=False), "job": JobState.MISSING},
    "Ray cannot be asked": {"ray": RayView()},
    "the endpoint is away": {"ray": RayView(), "job": JobState.UNREACHABLE},
}


@pytest.mark.parametrize("sign", HELD)
def test_an_old_attempt_counts_as_alive_by_any_one_sign(sign: str) -> None:
    signs = HELD[sign]
    job = JobView(signs["job"]) if "job" in signs else STOPPED
    decision = judge(Observation(signs.get("cluster", pods()), job, signs.get("ray", FREE)), fencing())
    assert decision.verb is Verb.HOLD
    assert not decision.delete_pods
    assert not decision.recreate_cluster
    free = judge(
        Observation(pods(), JobView(job.state if job.state.is_terminal else JobState.MISSING), FREE), fencing()
    )
    assert free.verb is Verb.READY


NOT_HELD = {
    "a process on a node whose pod is gone": (pods(), replace(FREE, dying_by_ip={"ip-of-a-lost-node": 3})),
    "a process on a frozen node": (
        replace(pods(), silent_instances=frozenset({"i-w2"})),
        replace(ray("i-w1", "i-w3", actors=0), dying_by_ip={"ip-i-w2": 1}),
    ),
    "somebody else's driver": (pods(), replace(FREE, drivers=frozenset({("ip-i-head", 12)}))),
    "a new pod that Ray does not list yet": (
        replace(pods(), pods=(*pods().pods, PodView("new", False, True, "i-new", "ip-new", created_at=NOW))),
        FREE,
    ),
}


@pytest.mark.parametrize("what", NOT_HELD)
def test_what_is_no_sign_of_the_old_attempt_does_not_hold_the_fence(what: str) -> None:
    seen, listed = NOT_HELD[what]
    assert judge(Observation(seen, STOPPED, listed), fencing()).verb is Verb.READY


STUCK = [
    Observation(pods(), JobView(JobState.RUNNING), ray(actors=3)),
    Observation(pods(), JobView(JobState.UNREACHABLE)),
]


@pytest.mark.parametrize("stuck", STUCK, ids=["ignores the stop", "endpoint away"])
def test_a_stop_that_does_not_work_is_followed_by_stronger_means_each_at_its_own_deadline(stuck: Observation) -> None:
    moment = timedelta(seconds=1)
    for level, then in ((0, "delete_pods"), (PODS_DELETED, "recreate_cluster"), (RECREATED, None)):
        early = fencing(waiting_since=NOW - LEVEL_DEADLINES[level] + moment, fence_level=level)
        late = fencing(waiting_since=NOW - LEVEL_DEADLINES[level] - moment, fence_level=level)
        if level:
            early = early.model_copy(update={"fence_level_at": early.waiting_since, "waiting_since": LONG_AGO})
            late = late.model_copy(update={"fence_level_at": late.waiting_since, "waiting_since": LONG_AGO})
        waiting, over = judge(stuck, early), judge(stuck, late)
        assert waiting.verb in (Verb.HOLD, Verb.NAP)
        assert waiting.cause is None
        if then is None:
            assert (over.verb, over.cause) == (Verb.FAILED, EndCause.CONTROLLER_FAULT)
        else:
            assert over.verb is Verb.HOLD
            assert getattr(over, then)
            assert not getattr(waiting, then)


@given(level=st.sampled_from([PODS_DELETED, RECREATED]), reachable=st.booleans(), frozen=st.booleans())
def test_once_every_old_pod_is_gone_the_fence_is_over_whatever_the_endpoint_says(
    level: int, reachable: bool, frozen: bool
) -> None:
    began = NOW - timedelta(minutes=1)
    on = fencing(fence_level=level, fence_level_at=began)
    born = replace(pods(created_at=began, ready=False, ip=None), created_at=began if level == RECREATED else LONG_AGO)
    if frozen:  # nobody can confirm the end of this one
        ghost = PodView("ghost", False, False, "i-frozen", "ip", created_at=LONG_AGO, terminating=True)
        born = replace(born, pods=(*born.pods, ghost), silent_instances=frozenset({"i-frozen"}))
    job = JobView(JobState.MISSING if reachable else JobState.UNREACHABLE)
    assert judge(Observation(born, job), on).verb is Verb.READY
    old = replace(born, pods=(*born.pods, PodView("old", False, True, "i-w9", "ip-9", created_at=LONG_AGO)))
    assert judge(Observation(old, job), on).verb is not Verb.READY


def test_a_level_that_was_written_down_and_not_carried_out_is_carried_out_by_the_next_look() -> None:
    at = NOW - timedelta(seconds=5)
    stuck = Observation(pods(), JobView(JobState.RUNNING), ray(actors=3))
    assert judge(stuck, fencing(fence_level=PODS_DELETED, fence_level_at=at)).delete_pods
    assert judge(stuck, fencing(fence_level=RECREATED, fence_level_at=at)).recreate_cluster
    going = Observation(pods(terminating=True), JobView(JobState.UNREACHABLE))
    assert not judge(going, fencing(fence_level=PODS_DELETED, fence_level_at=at)).delete_pods
    remade = replace(stuck, cluster=replace(pods(), created_at=at))
    assert not judge(remade, fencing(fence_level=RECREATED, fence_level_at=at)).recreate_cluster


def test_a_cluster_that_only_dead_nodes_remember_is_gone() -> None:
    ghosts = replace(pods(terminating=True), exists=False, silent_instances=frozenset(cluster().instances))
    assert judge(Observation(ghosts), fencing()).verb is Verb.READY
    heard = replace(ghosts, silent_instances=frozenset({"i-w1"}))
    assert judge(Observation(heard), fencing()).verb is Verb.HOLD

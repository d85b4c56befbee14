"""Incidents of clusters: ready means everything is there, trouble means one recovery, and the end means gone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from samtranslator.yaml_helper import yaml_parse

from nightshift.contract.events import Stage
from nightshift.core.causes import EndCause
from nightshift.core.errors import TransientError
from nightshift.core.observation import ClusterView, JobState, JobView
from nightshift.core.run import Awaiting, RunState
from nightshift.steps.ending import finish_for, teardown
from nightshift.steps.signals import receive
from nightshift.steps.transitions import admit, provision, submit
from tests.builders import cluster, progress
from tests.incidents.table import comes_out_right, must_not
from tests.steps.test_run import KEYS, REPLACED, failing
from tests.steps.test_signals import health, running
from tests.steps.world import BUCKET, TEMPLATE, World, step

PARENT: dict[str, Any] = json.loads((Path(TEMPLATE).parent / "statemachine" / "training_run.asl.json").read_text())[
    "States"
]
FOUR = {"workers": {"instance_type": "ml.g7e.12xlarge", "count": 4, "gpus": 2}}


def decided(world: World, awaiting: Awaiting, token: str = "token-2") -> str | None:
    reply = world.look(awaiting, token)
    return None if reply is None else reply.decision


def waiting_for_its_cluster(world: World, view: ClusterView, **asked: Any) -> None:
    world.ask(**asked)
    admit(world.ports, step("admit"))
    world.look(Awaiting.LEASE, "lease")
    provision(world.ports, step("provision"))
    world.clusters.current = view
    world.with_remaining(5)


def pulling(reason: str) -> ClusterView:
    """A cluster one of whose workers waits for its image."""
    healthy = cluster(ready_workers=2)
    *others, last = healthy.pods
    return replace(healthy, pods=(*others, replace(last, ready=False, waiting_reason=reason)))


@comes_out_right(9)
def test_a_cluster_with_3_of_4_workers_is_not_ready_whatever_its_state_says(world: World) -> None:
    waiting_for_its_cluster(world, cluster(desired_workers=4), topology=FOUR)
    assert decided(world, Awaiting.CLUSTER) == "look"
    world.clusters.current = cluster("i-head", "i-w1", "i-w2", "i-w3", "i-w4", desired_workers=4)
    assert decided(world, Awaiting.CLUSTER) == "look", "Ray does not list the GPUs of the fourth yet"
    assert world.jobs.submits == []


@must_not(9)
def test_counting_must_not_keep_a_complete_cluster_waiting(world: World) -> None:
    complete = cluster("i-head", "i-w1", "i-w2", "i-w3", "i-new", desired_workers=4)
    waiting_for_its_cluster(world, complete, topology=FOUR)
    slept = world.slept
    assert decided(world, Awaiting.CLUSTER) == "ready"
    assert world.slept == slept


@comes_out_right(10)
def test_an_image_that_is_not_there_ends_the_run_at_once_without_an_attempt(world: World) -> None:
    waiting_for_its_cluster(world, pulling("ImagePullBackOff: manifest for skyrl@sha256:00 not found"))
    assert decided(world, Awaiting.CLUSTER) == "failed"
    run = world.run()
    assert (run.verdict, run.cause) == (RunState.FAILED, EndCause.BAD_IMAGE)
    assert "not found" in run.sentence
    assert world.jobs.submits == [] and world.clusters.created == ["maze-1"]


@must_not(10)
def test_a_slow_pull_or_a_busy_registry_must_not_be_taken_for_a_bad_image(world: World) -> None:
    waiting_for_its_cluster(world, pulling("ContainerCreating: "))
    for reason in ("ContainerCreating: ", "ErrImagePull: 429 Too Many Requests", "ImagePullBackOff: dial: i/o timeout"):
        world.clusters.current = pulling(reason)
        assert decided(world, Awaiting.CLUSTER) == "look"
    world.clusters.current = cluster()
    assert decided(world, Awaiting.CLUSTER) == "ready"


def after(state: dict[str, Any]) -> set[str]:
    """States that may follow, errors included."""
    follows = [*state.get("Choices", []), *state.get("Catch", []), state]
    return {one[field] for one in follows for field in ("Next", "Default") if field in one}


def ends_without(avoided: set[str], start: str) -> set[str]:
    """Final states that can be reached from ``start`` around ``avoided``."""
    seen, todo = set[str](), [start]
    while todo:
        name = todo.pop()
        if name not in seen and name not in avoided:
            seen.add(name)
            todo += after(PARENT[name])
    return {name for name in seen if PARENT[name]["Type"] in ("Succeed", "Fail")}


@comes_out_right(24)
def test_every_path_from_provision_tears_down_and_a_skipped_delete_is_the_finishers(world: World) -> None:
    assert ends_without({"Teardown", "Successor"}, "Provision") == {"Stale", "TeardownFailed"}
    assert after(PARENT["Successor"]) == {"HandedOver", "Stale", "Admit"}, "another execution goes on, or this one does"
    assert PARENT["TeardownFailed"]["Type"] == "Fail"
    functions = yaml_parse(TEMPLATE.read_text())["Resources"]
    (rule,) = functions["FinisherFunction"]["Properties"]["Events"].values()
    assert set(rule["Properties"]["Pattern"]["detail"]["status"]) == {"FAILED", "TIMED_OUT", "ABORTED"}

    running(world)
    delete = world.clusters.delete
    world.clusters.delete = failing(TransientError("maze-1", "no route"))  # type: ignore[method-assign]
    with pytest.raises(TransientError):
        teardown(world.ports, step("teardown"))
    world.clusters.delete = delete  # type: ignore[method-assign]
    assert finish_for(world.ports, "maze-1", 1, "FAILED", "teardown failed")
    assert set(world.clusters.deleted) == {"maze-1"} and not world.clusters.current.exists
    assert world.runs.lease_holder("default") is None and world.run().state is RunState.FAILED


@must_not(24)
def test_tidying_up_must_not_touch_a_living_run_nor_end_a_run_twice(world: World) -> None:
    running(world)
    assert not finish_for(world.ports, "maze-1", 2, "ABORTED", "of another execution")
    assert not finish_for(world.ports, "maze-2", 1, "ABORTED", "of a run that nobody knows")
    assert world.clusters.deleted == [] and world.run().state is RunState.RUNNING
    assert finish_for(world.ports, "maze-1", 1, "ABORTED", "x")
    ended = world.run()
    assert not finish_for(world.ports, "maze-1", 1, "ABORTED", "the same event again")
    assert world.run() == ended and set(world.clusters.deleted) == {"maze-1"}


def cluster_event(instance: str, cluster_name: str = "hp") -> dict[str, Any]:
    inner = {"ClusterName": cluster_name, "InstanceId": instance, "Description": f"Instance {instance} is starting"}
    return {"detail-type": "SageMaker HyperPod Cluster Event", "detail": {"EventDetails": inner}}


def goes_on(world: World, attempt: int) -> None:
    """From a recovery to the next attempt's first progress."""
    assert decided(world, Awaiting.FENCE, "fence") == "ready"
    provision(world.ports, step("provision"))
    assert decided(world, Awaiting.CLUSTER, "cluster") == "ready"
    submit(world.ports, step("submit"), BUCKET)
    world.jobs.states[f"maze-1-a{attempt}"] = JobView(JobState.RUNNING)
    world.put(KEYS.progress(attempt), progress(attempt=attempt, step=21, resumed_step=20))
    assert decided(world, Awaiting.ATTEMPT, f"of-{attempt}") is None


@comes_out_right(25)
def test_one_replacement_is_one_recovery_however_many_events_tell_of_it_and_in_whatever_order(world: World) -> None:
    running(world)
    world.later(5)
    for event in (cluster_event("i-new"), health("i-w3"), health("i-w3"), cluster_event("i-w3")):
        receive(world.ports, event)
    world.clusters.current = REPLACED
    world.jobs.states["maze-1-a1"] = JobView(JobState.FAILED, "ActorDiedError")
    assert decided(world, Awaiting.ATTEMPT) == "recover"
    receive(world.ports, health("i-w3"))
    receive(world.ports, cluster_event("i-new"))
    goes_on(world, 2)
    for event in (health("i-w3"), cluster_event("i-w3"), health("i-new")):
        world.later(60)
        receive(world.ports, event)
        assert decided(world, Awaiting.ATTEMPT, "token-9") is None
    assert world.jobs.submits == ["maze-1-a1", "maze-1-a2"]
    assert [e.stage for e in world.stages.events].count(Stage.RECOVERING) == 1
    assert world.runs.attempts("maze-1")[0].end_cause is EndCause.NODE_REPLACED


@comes_out_right(25)
def test_strangers_wake_nobody_and_a_healthy_node_costs_nothing_but_a_look(world: World) -> None:
    running(world)
    before = world.run()
    for event in (health("i-stranger"), cluster_event("i-stranger"), cluster_event("i-w3", "another-cluster")):
        assert receive(world.ports, event) == []
    assert world.run() == before and world.executions.answered == []
    healthy = health("i-w3")
    healthy["detail"]["HealthSummary"] = {"HealthStatus": "Healthy", "HealthStatusReason": ""}
    assert receive(world.ports, healthy) == ["maze-1"]
    assert decided(world, Awaiting.ATTEMPT) is None
    assert world.run().recoveries_without_progress == 0 and world.jobs.stopped == []


@must_not(25)
def test_dropping_repeats_must_not_swallow_the_next_real_replacement(world: World) -> None:
    running(world)
    world.later(5)
    world.clusters.current = REPLACED
    world.jobs.states["maze-1-a1"] = JobView(JobState.FAILED, "ActorDiedError")
    receive(world.ports, health("i-w3"))
    assert decided(world, Awaiting.ATTEMPT) == "recover"
    goes_on(world, 2)
    world.later(5)
    world.clusters.current = cluster("i-head", "i-w1", "i-w3", "i-new")
    assert receive(world.ports, health("i-w2")) == ["maze-1"]
    assert decided(world, Awaiting.ATTEMPT, "token-8") == "recover"
    causes = [(a.end_cause, a.node) for a in world.runs.attempts("maze-1")]
    assert causes == [(EndCause.NODE_REPLACED, "i-w3"), (EndCause.NODE_REPLACED, "i-w2")]

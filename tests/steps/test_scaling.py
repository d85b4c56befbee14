"""A pool whose instance groups are scaled: up before a run is provisioned, down when nobody has needed them for long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from nightshift.contract.events import Stage
from nightshift.core.capacity import GroupCapacity, HyperPodView
from nightshift.core.causes import EndCause
from nightshift.core.errors import PermanentError, TransientError
from nightshift.core.observation import ClusterView
from nightshift.core.run import Awaiting, RunState
from nightshift.core.scaling import MAX_CALLS, read_scaling
from nightshift.steps.ending import finish_for
from nightshift.steps.plan import plan_run
from nightshift.steps.reconcile import Report, reconcile
from nightshift.steps.transitions import admit, preflight, provision
from tests.builders import cluster, spec_json
from tests.steps.world import World, step

HEAD, GPU, OTHER = "ml.r5d.16xlarge", "ml.g7e.12xlarge", "ml.g5.xlarge"
SMALL = HyperPodView(
    "hp",
    "InService",
    (GroupCapacity("head", HEAD, 1, 1), GroupCapacity("gpu", GPU, 0, 0), GroupCapacity("people", OTHER, 2, 2)),
)
BOUNDS = '{"default": {"grace_minutes": 30, "groups": {"gpu": {"max": 3}, "head": {"min": 1, "max": 2}}}}'
UP = "gpu 0 -> 3"


@pytest.fixture
def scaled(world: World) -> Iterator[World]:
    """No GPU node is there, and the pool may have three."""
    world.hyperpod.current = SMALL
    world.ports = replace(world.ports, scaling=read_scaling(BOUNDS), remaining=lambda: 240.0)
    yield world


def leased(world: World, run_id: str = "maze-1", **asked: Any) -> None:
    world.ask(run_id=run_id, **asked)
    admit(world.ports, step("admit", run_id))
    world.look(Awaiting.LEASE, f"lease-{run_id}", run_id=run_id)


def trail(world: World, run_id: str = "maze-1") -> list[tuple[str, str]]:
    return [(line.what, line.detail) for line in world.runs.audit_trail(run_id, 50) if "scal" in line.what]


def targets(world: World) -> dict[str, int]:
    return {g.name: g.target for g in world.hyperpod.current.groups}


def waiting(world: World) -> None:
    """A look at a RayCluster whose pods find no node; late enough that it is not held."""
    world.clusters.current = ClusterView(exists=True, desired_workers=3, current=True)
    world.later(600)
    world.with_remaining(5.0)
    world.look(Awaiting.CLUSTER, f"cluster-{world.time.timestamp()}")


# up -----------------------------------------------------------------------------------------------------------------


def test_a_run_gets_the_nodes_that_it_lacks_once_with_a_line_and_one_message(scaled: World) -> None:
    leased(scaled)
    assert preflight(scaled.ports, step("preflight")).decision == "ready"
    assert preflight(scaled.ports, step("preflight")).decision == "ready"
    assert scaled.hyperpod.calls == [{"gpu": 3}] and targets(scaled) == {"head": 1, "gpu": 3, "people": 2}
    assert trail(scaled) == [("instance groups scaled up", UP)]
    told = [e for e in scaled.stages.events if e.stage is Stage.QUEUED]
    assert [(e.sentence, e.key) for e in told] == [(f"Waiting for new nodes: {UP}.", f"scaled-{UP}")]
    assert scaled.run().waiting_for == "gpu has 0 of 3 nodes"


def test_while_hyperpod_is_busy_the_run_waits_says_why_and_looks_again_until_its_own_deadline(scaled: World) -> None:
    leased(scaled)
    scaled.hyperpod.refusing = "ConflictException: An update of the cluster is in progress"
    assert preflight(scaled.ports, step("preflight")).decision == "ready"
    assert "refused, ConflictException" in scaled.run().waiting_for
    provision(scaled.ports, step("provision"))
    scaled.hyperpod.refusing = ""
    waiting(scaled)
    assert targets(scaled)["gpu"] == 3 and len(scaled.hyperpod.calls) == 2
    waiting(scaled)
    assert len(scaled.hyperpod.calls) == 2, "they are meant to be there: nothing more is asked for"
    scaled.hyperpod.settle()
    scaled.clusters.current = cluster()
    scaled.look(Awaiting.CLUSTER, "cluster-ready")
    assert scaled.run().waiting_for == ""


def test_nodes_that_do_not_come_are_asked_about_by_the_waits_own_deadline_and_calls_have_a_budget(
    scaled: World,
) -> None:
    leased(scaled)
    scaled.hyperpod.refusing = "ResourceLimitExceeded: The account-level limit is 0"
    preflight(scaled.ports, step("preflight"))
    provision(scaled.ports, step("provision"))
    for _ in range(10):
        waiting(scaled)
    asked = [e for e in scaled.stages.events if e.stage is Stage.ASKING]
    assert len(asked) == 1 and asked[0].cause == EndCause.CAPACITY_MISSING
    assert "ResourceLimitExceeded" in scaled.run().waiting_for
    assert [what for what, _ in trail(scaled)] == ["scaling up was refused"], "told once, not at each look"
    scaled.runs.update(scaled.run(), scalings=MAX_CALLS)
    calls = len(scaled.hyperpod.calls)
    waiting(scaled)
    assert len(scaled.hyperpod.calls) == calls and "not scaled up any more, after 120 tries" in scaled.run().waiting_for


def test_an_api_that_does_not_answer_ends_no_run(scaled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    leased(scaled)

    def silent(targets: Any) -> str:
        raise TransientError("hp", "HyperPod does not answer: ThrottlingException")

    monkeypatch.setattr(scaled.hyperpod, "resize", silent)
    assert preflight(scaled.ports, step("preflight")).decision == "ready"
    assert "does not answer" in scaled.run().waiting_for


def test_more_than_the_maximum_is_refused_before_anything_is_created_and_by_a_plan_too(scaled: World) -> None:
    large = {
        "topology": {"workers": {"instance_type": GPU, "count": 4, "gpus": 2}},
        "training": {"policy_mini_batch_size": 8},
    }
    planned = plan_run(scaled.ports, scaled.runs, spec_json(**large), "team").plan
    assert planned is not None and "meant to have 3" in planned.capacity[0]
    assert plan_run(scaled.ports, scaled.runs, spec_json(), "team").plan.capacity == []  # type: ignore[union-attr]
    leased(scaled, **large)
    assert preflight(scaled.ports, step("preflight")).decision == "failed"
    assert scaled.run().cause is EndCause.CAPACITY_MISSING and scaled.hyperpod.calls == []


def test_the_nodes_that_another_run_holds_are_not_counted_as_this_ones(scaled: World) -> None:
    bounds = '{"default": {"groups": {"gpu": {"max": 6}, "head": {"min": 1, "max": 2}}}}'
    scaled.ports = replace(scaled.ports, scaling=read_scaling(bounds))
    leased(scaled, "maze-2", pool="other")
    leased(scaled)
    preflight(scaled.ports, step("preflight"))
    assert targets(scaled) == {"head": 2, "gpu": 6, "people": 2}


def test_without_the_parameter_and_for_a_run_that_kueue_admits_nothing_is_scaled(scaled: World) -> None:
    leased(scaled, queue="night")
    assert preflight(scaled.ports, step("preflight")).decision == "failed"
    scaled.ports = replace(scaled.ports, scaling={})
    leased(scaled, "maze-2")
    assert preflight(scaled.ports, step("preflight", "maze-2")).decision == "failed"
    assert reconcile(scaled.ports).scaled == {} and scaled.hyperpod.calls == []


# down ---------------------------------------------------------------------------------------------------------------


def large(world: World) -> None:
    """Three GPU nodes and two heads, as a run left them."""
    groups = tuple(replace(g, current=n, target=n) for g, n in zip(SMALL.groups, (2, 3, 2), strict=True))
    world.hyperpod.current = replace(SMALL, groups=groups)


def passes(world: World, *minutes: int) -> list[dict[str, int]]:
    found = []
    for one in minutes:
        world.later(60 * one)
        found.append(dict(reconcile(world.ports).scaled))
    return found


def test_groups_shrink_to_their_minimum_after_the_grace_and_nobody_elses_do(scaled: World) -> None:
    large(scaled)
    assert passes(scaled, 0, 15, 14, 2, 0) == [{}, {}, {}, {"gpu": 0, "head": 1}, {}]
    assert targets(scaled) == {"head": 1, "gpu": 0, "people": 2} and len(scaled.hyperpod.calls) == 1


def test_a_run_that_is_open_keeps_every_group_of_its_types_and_the_grace_begins_anew_after_it(scaled: World) -> None:
    large(scaled)
    assert passes(scaled, 0, 20) == [{}, {}]
    scaled.ask()  # it only waits
    admit(scaled.ports, step("admit"))
    assert passes(scaled, 20, 60) == [{}, {}]
    finish_for(scaled.ports, "maze-1", 1, "ABORTED", "by hand")
    assert scaled.run().state is RunState.FAILED
    assert passes(scaled, 1, 29, 2) == [{}, {}, {"gpu": 0, "head": 1}]


def test_a_pod_of_anybody_keeps_its_group_and_one_on_an_unknown_node_keeps_all(scaled: World) -> None:
    large(scaled)
    scaled.clusters.busy = {"gpu": ["people/notebook"]}
    assert passes(scaled, 0, 40) == [{}, {"head": 1}]
    large(scaled)
    scaled.clusters.busy = {"": ["people/notebook"]}
    assert passes(scaled, 40, 40) == [{}, {}]


def test_nothing_shrinks_while_hyperpod_changes_the_cluster_or_while_something_cannot_be_read(
    scaled: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    large(scaled)
    scaled.hyperpod.current = replace(scaled.hyperpod.current, status="Updating")
    assert passes(scaled, 0, 40) == [{}, {}]
    scaled.hyperpod.current = replace(scaled.hyperpod.current, status="InService")

    def silent() -> Any:
        raise TransientError("of every pod", "the Kubernetes API failed")

    monkeypatch.setattr(scaled.clusters, "occupied", silent)
    report: Report = reconcile(scaled.ports)
    assert report.scaled == {} and ["scaling down failed" in a.why for a in report.alarms] == [True]
    monkeypatch.undo()
    scaled.ask()
    monkeypatch.setattr(
        type(scaled.ports.artifacts), "spec", lambda *_: (_ for _ in ()).throw(PermanentError("x", "gone", ""))
    )
    assert reconcile(scaled.ports).scaled == {} and scaled.hyperpod.calls == []


def test_a_refusal_is_an_alarm_and_the_next_pass_tries_again(scaled: World) -> None:
    large(scaled)
    scaled.hyperpod.refusing = "ConflictException: busy"
    passes(scaled, 0)
    scaled.later(2_400)
    assert (
        "HyperPod refuses to scale down gpu 3 -> 0, head 2 -> 1: ConflictException"
        in reconcile(scaled.ports).alarms[0].why
    )
    scaled.hyperpod.refusing = ""
    assert passes(scaled, 5) == [{"gpu": 0, "head": 1}]

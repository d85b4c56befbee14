"""A signal is seen within one interval, and causes no more than one look a gap."""

from __future__ import annotations

from typing import Any

from nightshift.contract.layout import RunKeys
from nightshift.core.observation import JobState, JobView
from nightshift.core.run import Awaiting, RunState
from nightshift.steps.signals import receive
from nightshift.steps.transitions import admit, provision, submit
from tests.builders import progress
from tests.steps.world import World, step


def health(instance: str) -> dict[str, Any]:
    return {
        "id": "e1",
        "detail-type": "SageMaker HyperPod Cluster Node Health Event",
        "detail": {"ClusterName": "hp", "InstanceId": instance, "HealthSummary": {"HealthStatusReason": "Xid 74"}},
    }


def outcome_written(attempt: int = 1) -> dict[str, Any]:
    key = RunKeys("maze-1").outcome(attempt)
    return {"detail-type": "Object Created", "detail": {"object": {"key": key}}}


def running(world: World, **asked: Any) -> None:
    """A run whose first attempt is running and whose look naps on token-1."""
    world.ask(**asked)
    admit(world.ports, step("admit"))
    world.look(Awaiting.LEASE, "lease")
    provision(world.ports, step("provision"))
    world.look(Awaiting.CLUSTER, "cluster")
    submit(world.ports, step("submit"), "artifacts")
    world.jobs.states["maze-1-a1"] = JobView(JobState.RUNNING)
    world.put(RunKeys("maze-1").progress(1), progress())
    assert world.look(Awaiting.ATTEMPT, "token-1") is None
    world.executions.answered.clear()


def test_an_event_about_a_node_of_the_run_ends_the_nap(world: World) -> None:
    running(world)
    world.later(5)
    assert receive(world.ports, health("i-w3")) == ["maze-1"]
    assert world.executions.answered == [("token-1", {"version": 1, "decision": "look", "shift": "0", "interval": 60})]


def test_an_event_about_a_stranger_wakes_nobody_and_writes_nothing(world: World) -> None:
    running(world)
    before = world.run()
    assert receive(world.ports, health("i-stranger")) == []
    assert world.run() == before
    assert world.executions.answered == []


def test_a_signal_during_a_look_makes_that_look_look_again(world: World) -> None:
    running(world)
    world.later(60)
    view = world.jobs.view

    def overtaken(submission_id: str) -> JobView:
        if not world.executions.answered and world.run().signal_counter == 0:
            receive(world.ports, health("i-w3"))
        return view(submission_id)

    world.jobs.view = overtaken  # type: ignore[method-assign]
    reply = world.look(Awaiting.ATTEMPT, "token-2")
    assert reply is not None and reply.decision == "look"
    assert world.executions.answered == [("token-2", reply.model_dump(mode="json"))]


def test_the_look_after_a_signal_names_it_and_the_next_does_not(world: World) -> None:
    running(world)
    world.later(5)
    receive(world.ports, health("i-w3"))
    assert [s.kind.value for s in world.runs.signals_since("maze-1", world.run().seen_counter)] == [
        "hyperpod_node_health"
    ]
    assert world.look(Awaiting.ATTEMPT, "token-2") is None
    assert world.runs.signals_since("maze-1", world.run().seen_counter) == []


def test_signals_that_come_together_are_answered_no_sooner_than_a_gap_after_the_last_look(world: World) -> None:
    running(world)
    receive(world.ports, health("i-w3"))
    assert world.slept >= 1.0


def test_a_late_look_never_replaces_the_token_of_a_later_one(world: World) -> None:
    running(world)
    world.later(60)
    view = world.jobs.view

    def slow(submission_id: str) -> JobView:
        world.jobs.view = view  # type: ignore[method-assign]
        assert world.look(Awaiting.ATTEMPT, "newer") is None  # the state machine timed out and looked again
        return view(submission_id)

    world.jobs.view = slow  # type: ignore[method-assign]
    late = world.look(Awaiting.ATTEMPT, "older")
    assert late is not None and late.decision == "look"
    world.later(5)
    world.executions.answered.clear()
    receive(world.ports, health("i-w3"))
    assert [token for token, _ in world.executions.answered] == ["newer"]


def test_an_outcome_of_the_current_attempt_wakes_and_one_of_another_does_not(world: World) -> None:
    running(world)
    assert receive(world.ports, outcome_written(attempt=2)) == []
    assert receive(world.ports, outcome_written(attempt=1)) == ["maze-1"]


def test_a_token_that_nobody_waits_for_any_more_is_no_error(world: World) -> None:
    running(world)
    world.executions.stale.add("token-1")
    assert receive(world.ports, health("i-w3")) == ["maze-1"]
    assert world.executions.answered == []


def test_a_run_that_is_over_is_never_woken(world: World) -> None:
    running(world)
    world.runs.finish(world.run(), RunState.FAILED)
    assert receive(world.ports, health("i-w3")) == []
    assert receive(world.ports, outcome_written()) == []

"""A start request: once, or refused with every reason."""

from __future__ import annotations

from nightshift.contract.events import Stage
from nightshift.core.run import RunState
from nightshift.steps.view import view_run
from tests.steps.world import World


def test_a_valid_request_becomes_a_run_with_a_spec_and_one_execution(world: World) -> None:
    asked = world.ask()
    assert asked.created and asked.run is not None
    assert world.executions.started == [("maze-1-r1", {"version": 1, "run_id": "maze-1", "k": 1})]
    assert world.ports.artifacts.spec("maze-1").run_id == "maze-1"
    assert world.stages.events == []


def test_a_second_identical_request_is_the_same_run(world: World) -> None:
    world.ask()
    again = world.ask(owner="somebody else")
    assert not again.created and again.run is not None and again.run.owner == "team"
    assert len(world.executions.started) == 1


def test_an_identical_request_finishes_what_a_dead_intake_left_half_done(world: World) -> None:
    first = world.ask()
    world.executions.started.clear()
    world.s3.delete_object(Bucket="artifacts", Key="runs/maze-1/spec.json")
    again = world.ask()
    assert first.created and not again.created
    assert len(world.executions.started) == 1
    assert world.ports.artifacts.spec("maze-1").run_id == "maze-1"


def test_another_request_with_a_used_id_is_refused_and_changes_nothing(world: World) -> None:
    world.ask()
    other = world.ask(training={"max_turns": 16})
    assert other.run is None and other.conflict
    assert [e.field for e in other.errors] == ["run_id"]
    assert world.ports.artifacts.spec("maze-1").training.max_turns == 15
    assert world.run().state is RunState.ADMITTED
    assert [e.stage for e in world.stages.events] == [Stage.REJECTED]


def test_an_invalid_request_starts_nothing_is_recorded_and_said_once(world: World) -> None:
    for _ in range(2):
        refused = world.ask(surprise=1, training={"train_batch_size": 25})
        assert refused.run is None and not refused.conflict
    assert world.executions.started == []
    assert world.runs.get("maze-1") is None
    (said,) = world.stages.events
    assert {e.field for e in said.errors} == {"surprise"}
    shown = view_run(world.ports, "maze-1", "artifacts")
    assert shown is not None and shown.state == "rejected" and [e.field for e in shown.errors] == ["surprise"]


def test_a_request_without_a_usable_id_is_recorded_all_the_same(world: World) -> None:
    refused = world.ask(run_id="Not / valid")
    assert [e.field for e in refused.errors] == ["run_id"]
    assert world.stages.events[0].run_id == "Not---valid"


def test_nobody_ever_asked_is_no_view(world: World) -> None:
    assert view_run(world.ports, "unknown", "artifacts") is None

"""A run outlives its executions: past a bound of history the next one goes on, wherever the run is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.core.errors import StaleExecution
from nightshift.core.history import BOUNDS, HISTORY_LIMIT, LEAST_PARENT_EVENTS, Bounds, parent_at_most, succession_due
from nightshift.core.observation import ClusterView
from nightshift.core.run import Awaiting, RunState
from nightshift.handlers.settings import StepSettings
from nightshift.steps.ending import finish_for
from nightshift.steps.look import look
from nightshift.steps.requests import LookRequest, Reply
from nightshift.steps.transitions import admit, provision, submit, successor
from tests.builders import NOW
from tests.steps.test_run import lose_a_node
from tests.steps.test_signals import running
from tests.steps.world import BUCKET, World, step

AT_ONCE = Bounds(looks=1, parent_events=1)


def bounded_look(world: World, awaiting: Awaiting, bounds: Bounds, parent: int = 2) -> Reply | None:
    request = LookRequest(
        step="look", run_id="maze-1", k=1, awaiting=awaiting, shift_name="s", shift_started=NOW, token="token-b",
        parent=parent,
    )  # fmt: skip
    return look(world.ports, request, 60, bounds)


def decided(reply: Reply | None) -> str:
    assert reply is not None
    return reply.decision


def handed_over(world: World) -> None:
    """k+1 is in charge."""
    assert successor(world.ports, step("successor")).decision == "ready"
    assert world.executions.started[-1] == ("maze-1-r2", {"version": 1, "run_id": "maze-1", "k": 2})


@given(turns=st.integers(0, 5_000), base=st.integers(0, 10**6))
def test_no_execution_reaches_the_limit_before_its_succession_is_due_even_if_every_retry_is_used(
    turns: int, base: int
) -> None:
    if not succession_due(base + turns, base, BOUNDS):
        assert parent_at_most(turns) < BOUNDS.parent_events
    one_recovery_later = parent_at_most(turns + 5)
    assert succession_due(base + turns, base, BOUNDS) or one_recovery_later + 1_000 < HISTORY_LIMIT


def test_no_shift_reaches_the_limit_even_if_every_retry_of_every_look_is_used() -> None:
    assert BOUNDS.shift_at_most < HISTORY_LIMIT


def test_the_bounds_can_be_made_smaller_and_never_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {f.alias: "x1" for f in StepSettings.model_fields.values() if f.alias and f.annotation is str}
    assert StepSettings.model_validate(known | {"SHIFT_LOOKS": "3"}).bounds == Bounds(looks=3)
    for larger in ({"SHIFT_LOOKS": BOUNDS.looks + 1}, {"PARENT_EVENTS": BOUNDS.parent_events + 1}):
        with pytest.raises(ValueError, match="less than or equal"):
            StepSettings.model_validate(known | larger)
    with pytest.raises(ValueError, match="greater than or equal"):
        StepSettings.model_validate(known | {"PARENT_EVENTS": LEAST_PARENT_EVENTS - 1})


def test_an_execution_that_begins_while_its_run_provisions_comes_to_its_attempt_before_it_is_succeeded() -> None:
    smallest = replace(BOUNDS, parent_events=LEAST_PARENT_EVENTS)
    admitted_provisioned_cluster_submitted = 4
    assert not succession_due(admitted_provisioned_cluster_submitted + 1, 0, smallest)


def test_a_short_history_has_no_successor(world: World) -> None:
    running(world)
    assert decided(bounded_look(world, Awaiting.ATTEMPT, Bounds(looks=1))) == "again"
    assert world.run().k == 1


def test_an_execution_from_before_there_were_successors_is_never_told_of_one(world: World) -> None:
    """Its machine would take the word for the end of the run."""
    running(world)
    assert decided(bounded_look(world, Awaiting.ATTEMPT, AT_ONCE, parent=1)) == "again"


def test_a_live_attempt_is_taken_over_and_nothing_of_it_begins_anew(world: World) -> None:
    running(world)
    before = world.run()
    assert decided(bounded_look(world, Awaiting.ATTEMPT, AT_ONCE)) == "successor"
    handed_over(world)
    assert admit(world.ports, step("admit", k=2)).decision == "running"
    assert world.look(Awaiting.ATTEMPT, "token-2", k=2) is None
    after = world.run()
    kept = ("state", "attempt", "waiting_since", "leased_at", "step", "verified_step", "recoveries_without_progress")
    assert {f: getattr(after, f) for f in kept} == {f: getattr(before, f) for f in kept}
    assert (after.k, after.history_base) == (2, before.shift_seq + 1)
    assert world.jobs.submits == ["maze-1-a1"] and world.jobs.stopped == []
    assert not succession_due(after.shift_seq, after.history_base, BOUNDS)


def test_the_older_execution_is_stale_from_then_on_whatever_of_it_comes_late(world: World) -> None:
    running(world)
    bounded_look(world, Awaiting.ATTEMPT, AT_ONCE)
    handed_over(world)
    before = world.run()
    assert decided(world.look(Awaiting.ATTEMPT, "token-old")) == "stale"
    for late in (admit, provision):
        with pytest.raises(StaleExecution):
            late(world.ports, step("admit"))
    for status in ("FAILED", "ABORTED", "TIMED_OUT"):
        assert not finish_for(world.ports, "maze-1", 1, status, "an older execution")
    assert world.run() == before
    assert world.clusters.deleted == [] and world.clusters.current.exists


def test_a_succession_that_dies_before_the_start_is_completed_by_its_repeat(world: World) -> None:
    running(world)
    bounded_look(world, Awaiting.ATTEMPT, AT_ONCE)
    start = world.executions.start

    def die(*_: Any) -> None:
        raise ConnectionError("killed")

    world.executions.start = die  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        successor(world.ports, step("successor"))
    assert world.run().k == 2
    world.executions.start = start  # type: ignore[method-assign]
    for _ in range(2):
        handed_over(world)
    assert world.run().k == 2
    assert [n for n, _ in world.executions.started] == ["maze-1-r1", "maze-1-r2"]


def test_a_succession_of_an_execution_that_is_two_behind_starts_nothing(world: World) -> None:
    running(world)
    handed_over(world)
    successor(world.ports, step("successor", k=2))
    started = list(world.executions.started)
    with pytest.raises(StaleExecution):
        successor(world.ports, step("successor"))
    assert world.executions.started == started and world.run().k == 3


def test_a_run_that_was_ended_meanwhile_has_no_successor(world: World) -> None:
    running(world)
    bounded_look(world, Awaiting.ATTEMPT, AT_ONCE)
    finish_for(world.ports, "maze-1", 1, "ABORTED", "stopped from a console")
    with pytest.raises(StaleExecution):
        successor(world.ports, step("successor"))
    assert world.run().k == 1 and [n for n, _ in world.executions.started] == ["maze-1-r1"]


def test_a_succession_in_the_queue_keeps_the_place_and_the_deadline(world: World) -> None:
    world.ask(run_id="maze-0")
    admit(world.ports, step("admit", run_id="maze-0"))
    world.look(Awaiting.LEASE, "lease", run_id="maze-0")
    world.ask()
    admit(world.ports, step("admit"))
    since = world.run().waiting_since
    world.later(86_400)
    assert decided(bounded_look(world, Awaiting.LEASE, AT_ONCE)) == "successor"
    handed_over(world)
    assert admit(world.ports, step("admit", k=2)).decision == "queued"
    assert world.run().waiting_since == since
    assert world.runs.next_in_line("default") == "maze-1"


def test_a_recovery_is_handed_over_before_its_fence_and_spends_nothing_twice(world: World) -> None:
    running(world)
    lose_a_node(world)
    assert decided(bounded_look(world, Awaiting.ATTEMPT, AT_ONCE)) == "successor"
    handed_over(world)
    assert admit(world.ports, step("admit", k=2)).decision == "recovering"
    assert decided(world.look(Awaiting.FENCE, "token-2", k=2)) == "ready"
    provision(world.ports, step("provision", k=2))
    assert decided(world.look(Awaiting.CLUSTER, "token-3", k=2)) == "ready"
    submit(world.ports, step("submit", k=2), BUCKET)
    run = world.run()
    assert (run.recoveries_without_progress, run.attempt) == (1, 2)
    assert world.jobs.submits == ["maze-1-a1", "maze-1-a2"]


def test_an_attempt_that_was_claimed_and_never_submitted_is_submitted_by_the_successor(world: World) -> None:
    world.ask()
    admit(world.ports, step("admit"))
    world.look(Awaiting.LEASE)
    provision(world.ports, step("provision"))
    real = world.jobs.submit

    def die(*_: Any) -> None:
        raise ConnectionError("killed")

    world.look(Awaiting.CLUSTER)
    world.jobs.submit = die  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        submit(world.ports, step("submit"), BUCKET)
    world.jobs.submit = real  # type: ignore[method-assign]
    assert decided(bounded_look(world, Awaiting.CLUSTER, AT_ONCE)) == "successor", "submit and cluster are a circle too"
    handed_over(world)
    assert admit(world.ports, step("admit", k=2)).decision == "provisioning"
    provision(world.ports, step("provision", k=2))
    world.look(Awaiting.CLUSTER, k=2)
    submit(world.ports, step("submit", k=2), BUCKET)
    assert world.jobs.submits == ["maze-1-a1"] and len(world.runs.attempts("maze-1")) == 1


@pytest.mark.parametrize(
    ("state", "verdict", "goes_on"),
    [
        (RunState.PROVISIONING, None, "provisioning"),
        (RunState.RUNNING, None, "running"),
        (RunState.RUNNING, RunState.FAILED, "publishing"),
        (RunState.RECOVERING, None, "recovering"),
        (RunState.PUBLISHING, RunState.SUCCEEDED, "publishing"),
        (RunState.TEARDOWN, RunState.SUCCEEDED, "teardown"),
    ],
)
def test_an_execution_begins_where_its_run_is(
    world: World, state: RunState, verdict: RunState | None, goes_on: str
) -> None:
    running(world)
    world.runs.update(world.run(), state=state, verdict=verdict)
    successor(world.ports, step("successor"))
    assert admit(world.ports, step("admit", k=2)).decision == goes_on
    assert world.run().state.value == goes_on


def test_an_execution_of_a_run_that_is_over_only_tells_so(world: World) -> None:
    running(world)
    successor(world.ports, step("successor"))
    world.runs.finish(world.run(), RunState.CANCELLED)
    before = world.run()
    assert admit(world.ports, step("admit", k=2)).decision == "cancelled"
    assert world.run() == before


def test_a_shift_that_holds_to_its_bound_numbers_the_next_one(world: World) -> None:
    """Its execution would be refused under the name of the one that ends."""
    world.ask()
    admit(world.ports, step("admit"))
    world.look(Awaiting.LEASE)
    provision(world.ports, step("provision"))
    world.look(Awaiting.CLUSTER)
    number = int(submit(world.ports, step("submit"), BUCKET).shift)
    world.with_remaining(5)
    reply = bounded_look(world, Awaiting.ATTEMPT, Bounds(looks=1))
    assert decided(reply) == "again" and reply is not None and int(reply.shift) == number + 1


def test_a_cluster_that_is_there_is_kept_off_the_instances_that_failed_twice(world: World) -> None:
    running(world)
    world.runs.update(world.run(), excluded=("i-w3",), state=RunState.PROVISIONING)
    provision(world.ports, step("provision"))
    assert world.clusters.excluded == ["i-w3"] and world.clusters.created == ["maze-1"]


def test_a_cluster_that_is_created_for_a_later_attempt_is_so_from_the_start(world: World) -> None:
    running(world)
    world.clusters.current = ClusterView(exists=False)
    world.runs.update(world.run(), excluded=("i-w3",), state=RunState.PROVISIONING)
    provision(world.ports, step("provision"))
    assert world.clusters.excluded == ["i-w3"] and world.clusters.created == ["maze-1", "maze-1"]

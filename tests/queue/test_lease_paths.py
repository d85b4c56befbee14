"""The pool's lease is given back on every path, in one transaction with the run's end, and the next in line is woken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cli.view import text
from nightshift.contract.events import Stage
from nightshift.core.errors import StaleExecution
from nightshift.core.run import Awaiting, RunState, SignalKind
from nightshift.steps.ending import abandon, finish_for, release, teardown
from nightshift.steps.publish import publish, verify
from nightshift.steps.requests import Fault
from nightshift.steps.transitions import admit, preflight, provision
from nightshift.steps.view import view_run
from tests.steps.test_run import finish_attempt, recovered
from tests.steps.world import BUCKET, World, step


def second_in_line(world: World, **changes: object) -> None:
    """``maze-2`` waits behind ``maze-1``."""
    world.ask(run_id="maze-2", notify="all", **changes)
    admit(world.ports, step("admit", "maze-2"))
    assert world.look(Awaiting.LEASE, "token-of-2", run_id="maze-2") is None


def holding(world: World) -> None:
    world.ask()
    admit(world.ports, step("admit"))
    reply = world.look(Awaiting.LEASE, "token-1")
    assert reply is not None and reply.decision == "ready"
    second_in_line(world)
    assert world.runs.lease_holder("default") == "maze-1"


def end(world: World) -> None:
    teardown(world.ports, step("teardown"))
    assert (gone := world.look(Awaiting.FENCE, "token-9")) is not None and gone.decision == "ready"
    release(world.ports, step("release"))


def succeed(world: World) -> None:
    finish_attempt(world)
    assert (done := world.look(Awaiting.ATTEMPT, "token-6")) is not None and done.decision == "succeeded"
    publish(world.ports, step("publish"))
    verify(world.ports, step("verify"))
    end(world)


def fail_in_preflight(world: World) -> None:
    from dataclasses import replace

    world.hyperpod.current = replace(world.hyperpod.current, groups=())
    assert preflight(world.ports, step("preflight")).decision == "failed"
    end(world)


def be_abandoned(world: World) -> None:
    abandon(world.ports, step("abandon", error=Fault(error="Lambda.Unknown", cause="killed")))
    end(world)


def be_finished_for(world: World) -> None:
    assert finish_for(world.ports, "maze-1", 1, "ABORTED", "stopped from the console")


def be_cancelled_while_the_cluster_comes(world: World) -> None:
    provision(world.ports, step("provision"))
    world.runs.update(world.run(), cancel_requested=True)
    assert (over := world.look(Awaiting.CLUSTER, "token-3")) is not None and over.decision == "cancelled"
    end(world)


PATHS: dict[str, Callable[[World], None]] = {
    "failed before anything was created": fail_in_preflight,
    "abandoned": be_abandoned,
    "finished for": be_finished_for,
    "cancelled while its cluster came": be_cancelled_while_the_cluster_comes,
}


def next_one_has_it(world: World) -> None:
    assert world.runs.lease_holder("default") is None
    assert [s.kind for s in world.runs.signals_since("maze-2", 0)] == [SignalKind.LEASE_FREE]
    assert [token for token, _ in world.executions.answered].count("token-of-2") == 1
    reply = world.look(Awaiting.LEASE, "token-of-2b", run_id="maze-2")
    assert reply is not None and reply.decision == "ready"
    assert world.runs.lease_holder("default") == "maze-2"


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_the_lease_comes_back_and_the_next_is_woken(world: World, path: Callable[[World], None]) -> None:
    holding(world)
    path(world)
    assert world.run().state.is_final
    next_one_has_it(world)


def test_a_success_after_a_recovery_gives_the_lease_back(world: World) -> None:
    recovered(world)
    second_in_line(world)
    succeed(world)
    assert world.run().state is RunState.SUCCEEDED
    next_one_has_it(world)


def test_a_run_that_is_cancelled_while_queued_gives_nothing_back_and_holds_nobody_up(world: World) -> None:
    holding(world)
    world.ask(run_id="maze-3")
    admit(world.ports, step("admit", "maze-3"))
    world.runs.update(world.run("maze-2"), cancel_requested=True)
    reply = world.look(Awaiting.LEASE, "token-x", run_id="maze-2")
    assert reply is not None and reply.decision == "cancelled"
    world.runs.finish(world.run("maze-2"), RunState.CANCELLED)
    assert world.runs.lease_holder("default") == "maze-1"
    assert world.runs.next_in_line("default") == "maze-3"


def test_a_step_of_another_execution_gives_nothing_back(world: World) -> None:
    holding(world)
    with pytest.raises(StaleExecution):
        release(world.ports, step("release", k=2))
    assert world.runs.lease_holder("default") == "maze-1"


def test_a_lease_that_was_given_back_is_not_given_back_again_from_under_the_next(world: World) -> None:
    holding(world)
    be_finished_for(world)
    next_one_has_it(world)
    assert not finish_for(world.ports, "maze-1", 1, "ABORTED", "the same event again")
    release(world.ports, step("release"))
    assert world.runs.lease_holder("default") == "maze-2"


def test_whom_a_run_waits_for_is_in_its_message_its_view_and_its_trail(world: World) -> None:
    holding(world)
    (queued,) = [e for e in world.stages.events if e.stage is Stage.QUEUED and e.run_id == "maze-2"]
    assert queued.sentence == "Waiting for pool default, held by maze-1."
    seen = view_run(world.ports, "maze-2", BUCKET)
    assert seen is not None and seen.waiting_for == "pool default is held by maze-1"
    assert "waiting: pool default is held by maze-1" in text(seen)
    before = [line.detail for line in seen.audit if line.what == "waits in the queue"]
    assert before == ["pool default is held by maze-1"]
    world.look(Awaiting.LEASE, "token-of-2", run_id="maze-2")
    again = view_run(world.ports, "maze-2", BUCKET)
    assert again is not None and len(again.audit) == len(seen.audit), "said once"
    be_finished_for(world)
    next_one_has_it(world)
    last = view_run(world.ports, "maze-2", BUCKET)
    assert last is not None and last.waiting_for == ""


def test_an_urgent_run_is_told_that_it_waits_for_the_holder_alone(world: World) -> None:
    holding(world)
    world.ask(run_id="maze-3", priority="urgent")
    admit(world.ports, step("admit", "maze-3"))
    assert world.look(Awaiting.LEASE, "token-of-3", run_id="maze-3") is None
    assert world.runs.next_in_line("default") == "maze-3"
    be_finished_for(world)
    assert world.look(Awaiting.LEASE, "token-of-2b", run_id="maze-2") is None
    assert world.run("maze-2").waiting_for == "pool default is promised to maze-3"
    reply = world.look(Awaiting.LEASE, "token-of-3b", run_id="maze-3")
    assert reply is not None and reply.decision == "ready"

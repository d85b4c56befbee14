"""Invocations that are repeated, late or overtaken: each of these was found by chaos, and broke a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nightshift.contract.events import Stage
from nightshift.core.errors import StaleExecution
from nightshift.core.observation import ClusterView
from nightshift.core.run import Awaiting, RunState
from nightshift.steps.ending import finish_for, notify, release, teardown
from nightshift.steps.transitions import admit, provision, submit
from tests.builders import cluster
from tests.steps.test_run import lose_a_node, recovered
from tests.steps.test_signals import running
from tests.steps.world import BUCKET, World, step


def test_a_look_that_a_repeat_of_an_older_one_overtook_looks_again_and_never_ends_its_shift(world: World) -> None:
    running(world)
    lose_a_node(world)
    view, now = world.jobs.view, world.now

    def overtaken(submission_id: str) -> object:
        world.runs.begin_look("maze-1", 1, now())
        return view(submission_id)

    world.jobs.view = overtaken  # type: ignore[method-assign,assignment]
    reply = world.look(Awaiting.ATTEMPT, "token-2")
    assert reply is not None and reply.decision == "look"
    assert world.run().state is RunState.RUNNING


def test_a_look_of_a_run_that_is_over_still_ends_its_shift(world: World) -> None:
    running(world)
    world.runs.finish(world.run(), RunState.FAILED)
    reply = world.look(Awaiting.ATTEMPT, "token-2")
    assert reply is not None and reply.decision == "stale"


def test_a_repeated_submit_claims_nothing_before_the_old_attempt_is_fenced(world: World) -> None:
    running(world)
    lose_a_node(world)
    world.look(Awaiting.ATTEMPT, "token-2")
    with pytest.raises(StaleExecution):
        submit(world.ports, step("submit"), BUCKET)
    assert world.jobs.submits == ["maze-1-a1"] and len(world.runs.attempts("maze-1")) == 1
    assert world.run().state is RunState.RECOVERING


def test_a_repeated_look_at_an_attempt_that_is_over_spends_no_second_recovery_after_the_fence(world: World) -> None:
    running(world)
    lose_a_node(world)
    world.look(Awaiting.ATTEMPT, "token-2")
    world.look(Awaiting.FENCE, "token-3")
    provision(world.ports, step("provision"))
    late = world.look(Awaiting.ATTEMPT, "token-2")
    assert late is not None and late.decision == "recover"
    assert world.run().recoveries_without_progress == 1
    assert world.run().state is RunState.PROVISIONING


def test_a_release_that_its_repeat_overtook_goes_on_to_the_last_message(world: World) -> None:
    recovered(world)
    teardown(world.ports, step("teardown"))
    finish = world.runs.finish

    def slower(run: object, state: RunState, **changes: object) -> object:
        world.runs.finish = finish  # type: ignore[method-assign]
        release(world.ports, step("release"))
        return finish(run, state, **changes)  # type: ignore[arg-type]

    world.runs.finish = slower  # type: ignore[method-assign,assignment]
    assert release(world.ports, step("release")).decision == "ready"
    notify(world.ports, step("notify"))
    assert world.stages.events[-1].stage is Stage.FAILED
    assert world.runs.lease_holder("default") is None


def waiting_for_its_cluster(world: World) -> None:
    world.ask()
    admit(world.ports, step("admit"))
    world.look(Awaiting.LEASE)
    provision(world.ports, step("provision"))
    world.clusters.current = ClusterView(exists=False)


def test_a_look_creates_no_cluster_for_a_run_that_was_ended_meanwhile(world: World) -> None:
    waiting_for_its_cluster(world)
    create = world.clusters.create

    def slow(*given: object) -> bool:
        finish_for(world.ports, "maze-1", 1, "ABORTED", "stopped from a console")
        return create(*given)  # type: ignore[arg-type]

    world.clusters.create = slow  # type: ignore[method-assign,assignment]
    reply = world.look(Awaiting.CLUSTER, "token-2")
    assert reply is not None and reply.decision == "stale"
    assert not world.clusters.current.exists


def test_the_finisher_deletes_a_cluster_that_an_orphan_created_while_it_ended_the_run(world: World) -> None:
    waiting_for_its_cluster(world)
    finish = world.runs.finish

    def late(run: object, state: RunState, **changes: object) -> object:
        world.clusters.current = cluster()
        return finish(run, state, **changes)  # type: ignore[arg-type]

    world.runs.finish = late  # type: ignore[method-assign,assignment]
    world.ports = replace(world.ports, runs=world.runs)
    assert finish_for(world.ports, "maze-1", 1, "ABORTED", "stopped from a console")
    assert not world.clusters.current.exists

"""Passes over whatever state things may be in: nothing of an open run is touched, a second pass does nothing, and with time
everything that is left over is put right."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.contract.layout import RunKeys
from nightshift.core.reconcile import ExecutionState
from nightshift.core.run import RunState
from nightshift.steps.reconcile import Report, reconcile
from tests.builders import NOW, run, spec
from tests.fakeworld.cluster import RayCluster
from tests.fakeworld.machine import Execution
from tests.fakeworld.store import Item
from tests.fakeworld.world import World

HOURS = 48.0
STATES = sorted(set(RunState) - {RunState.REJECTED})


@dataclass(frozen=True)
class Thing:
    """A run and what belongs to it, hours old; ``execution`` None: there is none."""

    state: RunState
    hours: float
    overdue: float
    k: int
    begun: bool
    execution: ExecutionState | None
    stopped: float
    cluster: float | None
    recorded: bool
    stored_spec: bool
    untold: bool


things = st.builds(
    Thing,
    state=st.sampled_from(STATES),
    hours=st.floats(0, HOURS),
    overdue=st.floats(-0.1, 1),
    k=st.integers(1, 2),
    begun=st.booleans(),
    execution=st.none() | st.sampled_from(ExecutionState),
    stopped=st.floats(0, 1),
    cluster=st.none() | st.floats(0, HOURS),
    recorded=st.integers(0, 9).map(bool),
    stored_spec=st.integers(0, 9).map(bool),
    untold=st.booleans(),
)


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def made(some: list[Thing], holder: int | None) -> World:
    """A world in which only the clock moves; ``holder`` is the number of the run that has the pool's lease."""
    world = World(0)
    world.loop._heap.clear()
    world.loop.time = HOURS * 3_600
    now = world.loop.now()
    for number, thing in enumerate(some):
        run_id = f"maze-{number}"
        born = now - timedelta(hours=thing.hours)
        if thing.cluster is not None:
            of = spec(run_id=run_id)
            world.fleet.clusters[run_id] = RayCluster(of, max(NOW, now - timedelta(hours=thing.cluster)))
        if not thing.recorded:
            continue
        record = run(
            run_id=run_id,
            raycluster=run_id,
            state=thing.state,
            k=thing.k,
            created_at=born,
            waiting_since=born,
            history_base=4,
            shift_seq=5 if thing.begun else 4,
            ended_at=born if thing.state.is_final else None,
        )
        item = world.table.items[run_id] = Item(record, now - timedelta(hours=thing.overdue))
        if thing.state is RunState.QUEUED:
            item.queue_place = (1, born, run_id)
        if thing.untold and thing.state.is_final:
            item.untold_since = born
        if thing.stored_spec:
            world.bucket.store(run_id, RunKeys(run_id).spec, spec(run_id=run_id))
        if thing.execution is not None:
            name = f"{run_id}-r{thing.k}"
            there = Execution(world.machines, "training_run", name, {"run_id": run_id, "k": thing.k})
            there.status = thing.execution.value
            there.started = born.isoformat()
            if thing.execution is not ExecutionState.RUNNING:
                there.stopped = (now - timedelta(hours=thing.stopped)).isoformat()
            world.machines.executions[name] = there
    if holder is not None:
        world.table.held["default"] = f"maze-{holder}"
        world.table.held_since["default"] = now
    return world


def passed(world: World) -> Report:
    return reconcile(replace(world.ports, remaining=lambda: 240.0))


def clusters(world: World) -> set[str]:
    return {name for name, one in world.fleet.clusters.items() if one.exists}


def healthy(world: World) -> dict[str, tuple[RunState, bool, bool]]:
    """Open runs whose execution runs: state, RayCluster, lease."""
    found = {}
    for run_id, item in world.table.items.items():
        execution = world.machines.executions.get(f"{run_id}-r{item.run.k}")
        if not item.run.state.is_final and execution is not None and execution.status == "RUNNING":
            held = world.table.lease_holder("default") == run_id
            found[run_id] = (item.run.state, run_id in clusters(world), held)
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(things, min_size=1, max_size=4), st.none() | st.integers(0, 4))
def test_healthy_runs_keep_everything_and_a_second_pass_does_nothing(some: list[Thing], holder: int | None) -> None:
    world = made(some, holder)
    before, over = healthy(world), {n: i.run.state for n, i in world.table.items.items() if i.run.state.is_final}
    first = passed(world)
    after = healthy(world)
    assert {n: after.get(n) for n in before} == before
    assert {n: world.table.items[n].run.state for n in over} == over, "an end is never changed"
    faults = [a for a in first.alarms if a.error is not None]
    assert faults == [], faults
    assert passed(world).repairs == ()


@settings(max_examples=60, deadline=None)
@given(st.lists(things, min_size=1, max_size=4), st.none() | st.integers(0, 4))
def test_in_a_day_everything_that_was_left_over_is_put_right(some: list[Thing], holder: int | None) -> None:
    world = made(some, holder)
    for _ in range(27):
        passed(world)
        world.loop.time += 3_600
    open_runs = {n for n, i in world.table.items.items() if not i.run.state.is_final}
    for run_id in open_runs:
        execution = world.machines.executions.get(f"{run_id}-r{world.table.items[run_id].run.k}")
        assert execution is not None and execution.status == "RUNNING", run_id
    assert clusters(world) <= open_runs
    assert {lease.run_id for lease in world.table.leases()} <= open_runs
    assert list(world.table.untold(9)) == []

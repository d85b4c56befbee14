"""First eval, target and limits are told once each by the look, with the numbers of the evals in S3; a run waits for none."""

from __future__ import annotations

from typing import Any

import pytest

from nightshift.contract.events import Stage, StageEvent
from nightshift.contract.layout import RunKeys
from nightshift.contract.spec import NotifyLevel
from nightshift.core.run import Awaiting, RunState
from nightshift.steps.ending import emit_final
from nightshift.steps.transitions import admit
from tests.builders import NOW, progress
from tests.steps.test_run import put_results
from tests.steps.test_signals import running
from tests.steps.world import BUCKET, World, step

KEYS = RunKeys("maze-1")


def looks(world: World, success: float | None, times: int = 2) -> list[StageEvent]:
    """What these looks told, beyond what was told before."""
    before = len(world.stages.events)
    for n in range(times):
        world.later(60)
        told = progress(step=25 + n, success=success, at=world.now())
        world.put(KEYS.progress(1), told)
        world.look(Awaiting.ATTEMPT, f"token-{world.run().look_seq}")
    return world.stages.events[before:]


def test_the_first_eval_is_told_once_with_its_own_numbers(world: World) -> None:
    running(world)
    put_results(world, 1, {0: 28, 10: 40})
    (told,) = looks(world, 40 / 64)
    assert (told.stage, told.key, told.step) == (Stage.FIRST_EVAL, "first-eval", 0)
    assert told.baseline is not None and told.baseline.solved == 28
    assert world.run().noticed == ("first-eval",)


def test_an_eval_that_is_not_in_s3_yet_is_told_when_it_is(world: World) -> None:
    running(world)
    assert looks(world, 28 / 64) == []
    put_results(world, 1, {0: 28})
    assert [e.stage for e in looks(world, 28 / 64)] == [Stage.FIRST_EVAL]


@pytest.mark.parametrize(
    ("solved", "told"),
    [({0: 28, 10: 61}, []), ({0: 28, 10: 61, 20: 50}, []), ({0: 28, 10: 61, 20: 62}, ["target-reached"])],
    ids=["once", "not held", "held"],
)
def test_a_target_is_told_when_the_evals_hold_it_and_not_when_the_job_says_so(
    world: World, solved: dict[int, int], told: list[str]
) -> None:
    running(world, target={"success": 0.95, "evals": 2}, training={"max_turns": 20})
    put_results(world, 1, solved)
    events = [e for e in looks(world, 61 / 64) if e.stage is Stage.TARGET_REACHED]
    assert [e.key for e in events] == told
    for one in events:
        assert one.final is not None and (one.final.solved, one.target, one.step) == (62, 0.95, 20)
        assert one.sentence == "It trains on to its last step."


def test_a_limit_that_is_near_is_told_once_and_the_run_goes_on(world: World) -> None:
    running(world, budgets={"wall_hours": 10})
    world.later(8 * 3_600)
    (told,) = looks(world, None)
    assert told.stage is Stage.BUDGET and told.budget is not None
    assert (told.budget.name, told.budget.limit) == ("wall_hours", 10) and told.budget.used >= 8
    assert world.run().state is RunState.RUNNING


def test_what_eventbridge_does_not_take_is_told_by_a_later_look(world: World) -> None:
    running(world)
    put_results(world, 1, {0: 28})
    world.stages.refusing = True
    assert looks(world, 28 / 64, times=1) == [] and world.run().noticed == ()
    world.stages.refusing = False
    assert [e.key for e in looks(world, 28 / 64)] == ["first-eval"]


def test_every_stage_is_sent_with_the_level_that_its_owner_asked_for(world: World) -> None:
    running(world, notify="quiet")
    assert [(e.stage, e.notify) for e in world.stages.events] == [(Stage.STARTED, NotifyLevel.QUIET)]


def test_a_run_says_that_it_waits_only_where_it_waits_for_somebody(world: World) -> None:
    for run_id in ("maze-1", "maze-2"):
        world.ask(run_id=run_id)
        admit(world.ports, step("admit", run_id))
        world.later(1)
    (told,) = world.stages.events
    assert (told.run_id, told.stage, told.sentence) == (
        "maze-2", Stage.QUEUED, "Waiting for pool default, behind maze-1.",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("log", "state", "tail"),
    [
        ("one\n\ntwo\nKeyError: 'walls'\n", RunState.FAILED, "one\ntwo\nKeyError: 'walls'"),
        ("one\n", RunState.CANCELLED, ""),
        ("no driver log: the head is gone", RunState.FAILED, ""),
        ("missing: it took longer than 2 s", RunState.FAILED, ""),
    ],
)
def test_a_failure_carries_the_end_of_its_last_attempts_log(world: World, log: str, state: Any, tail: str) -> None:
    running(world)
    world.s3.put_object(Bucket=BUCKET, Key=f"{KEYS.diagnostics(1)}driver.log", Body=log.encode())
    world.runs.finish(world.run(), state, ended_at=NOW)
    emit_final(world.ports, world.run())
    assert world.stages.events[-1].log_tail == tail

"""How long a run may last before any history is full: from what the shipped state machines leave in real histories."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

import pytest

from nightshift.core.history import (
    BOUNDS,
    HISTORY_LIMIT,
    LEAST_PARENT_EVENTS,
    LOOK_EVENTS,
    NAP_EVENTS,
    PARENT_FRAME,
    SHIFT_EVENTS,
    SHIFT_FRAME,
    STEP_EVENTS,
    TURN_AT_MOST,
    Bounds,
    parent_at_most,
)
from nightshift.core.run import Awaiting, RunState
from nightshift.steps.control import cancel
from nightshift.steps.look import MIN_GAP
from tests.horizon.conftest import A_FEW
from tests.horizon.drive import Driven, Stack
from tests.horizon.histories import visits
from tests.horizon.horizon import DAY, Measured, Plan, horizon, longest_shift
from tests.horizon.measure import RECOVERIES, Found, with_pauses

YEAR = Plan(seconds=365 * DAY, recoveries=12 * 50, queued_seconds=7 * DAY)


@pytest.mark.parametrize("awaiting", Awaiting)
def test_every_look_of_every_wait_costs_what_the_bounds_count(found: Found, awaiting: Awaiting) -> None:
    seen = found.looks[awaiting]
    kinds = {kind for kind, _ in seen}
    assert kinds == {"timed out", "answered"}
    assert seen["timed out", NAP_EVENTS] >= A_FEW.timed_out / 2
    assert seen["answered", LOOK_EVENTS] >= A_FEW.woken + A_FEW.answered
    # A timeout that comes while the function is still busy finds no submitted task: one event less.
    assert set(seen) <= {("timed out", NAP_EVENTS), ("timed out", NAP_EVENTS - 1), ("answered", LOOK_EVENTS)}


def test_a_shift_has_a_frame_and_costs_its_parent_a_task_and_a_choice(found: Found) -> None:
    assert set(found.shift_frames) == {SHIFT_FRAME}
    assert found.measured.parent_shift == SHIFT_EVENTS


def test_a_recovery_costs_the_parent_five_turns_and_every_recovery_the_same(found: Found) -> None:
    shifts, steps = 3, 2
    assert found.recoveries == (shifts * SHIFT_EVENTS + steps * STEP_EVENTS,) * (1 + RECOVERIES)
    assert found.measured.recovery_turns == shifts + steps


def test_the_runs_ended_as_they_should(found: Found) -> None:
    ends = {wait: run.state for wait, run in found.ends.items()}
    assert ends == {
        "lease": RunState.CANCELLED,
        "cluster": RunState.CANCELLED,
        "fence": RunState.SUCCEEDED,
        "attempt": RunState.SUCCEEDED,
    }
    assert found.ends["fence"].attempt == 2 + RECOVERIES


def test_a_year_with_fifty_recoveries_a_month_and_a_week_in_the_queue_fills_no_history(found: Found) -> None:
    year = horizon(found.measured, BOUNDS, YEAR)
    assert year.longest_parent < HISTORY_LIMIT / 2, "more than half is left for retries"
    assert year.longest_shift < HISTORY_LIMIT / 2
    assert year.events_in_all > HISTORY_LIMIT, "one execution could not have held it"
    assert year.executions > 1


def test_without_a_successor_the_same_year_would_have_filled_it(found: Found) -> None:
    endless = replace(BOUNDS, parent_events=10**9)
    assert horizon(found.measured, endless, YEAR).longest_parent > HISTORY_LIMIT


def test_thirty_days_in_the_queue_fill_no_history_even_if_every_look_is_woken(found: Found) -> None:
    waiting = horizon(found.measured, BOUNDS, Plan(seconds=30 * DAY, recoveries=0, queued_seconds=30 * DAY))
    assert waiting.longest_shift == longest_shift(found.measured, BOUNDS) < HISTORY_LIMIT / 2
    storm = horizon(found.measured, BOUNDS, Plan(30 * DAY, 0, 30 * DAY, interval=MIN_GAP))
    assert storm.longest_parent < HISTORY_LIMIT, "a signal a second for a month"
    assert storm.executions > 1


def test_the_bounds_hold_even_if_every_retry_is_used_every_time(found: Found) -> None:
    assert BOUNDS.shift_at_most < HISTORY_LIMIT
    within = (BOUNDS.parent_events - PARENT_FRAME) // TURN_AT_MOST
    recovery_and_end = 10 * TURN_AT_MOST
    assert parent_at_most(within) + recovery_and_end < HISTORY_LIMIT
    assert found.measured.parent_begin <= PARENT_FRAME and found.measured.parent_shift < TURN_AT_MOST


def test_a_larger_bound_of_looks_would_not_hold() -> None:
    assert replace(BOUNDS, looks=650).shift_at_most > HISTORY_LIMIT
    assert Bounds(looks=1, shift=timedelta(hours=1)).shift_at_most < BOUNDS.shift_at_most


def test_the_calculation_notices_a_poll_that_costs_more() -> None:
    dear = Measured(13, 50, 6, 8, 38, 5, 17, 50)
    assert horizon(dear, BOUNDS, YEAR).longest_shift > HISTORY_LIMIT


def test_a_run_passes_through_several_executions_with_one_live_attempt_and_succeeds(stack: Stack) -> None:
    bound = LEAST_PARENT_EVENTS
    run = Driven(stack, "horizon-successors", looks=2, events=bound, interval=60)
    run.ask()
    run.attempt(1)
    first = run.run().k
    run.played.write(storm=True)  # every look is overtaken: a shift is over after two
    run.wake()
    later = run.until(lambda r: r.k >= first + 2)
    assert later.state is RunState.RUNNING and later.attempt == 1
    run.played.write(storm=False, looks=600)
    run.token()
    run.succeeds(1)
    assert run.over().state is RunState.SUCCEEDED
    assert int(run.played.read()["submits"]) == 1, "a live attempt is taken over, never submitted again"
    last = run.run().k
    parents = run.parents()
    assert [name for name, _ in parents] == [f"horizon-successors-r{k}" for k in range(1, last + 1)]
    handed = {name: [v.state for v in visits(history)][-2:] for name, history in parents[:-1]}
    assert set(map(tuple, handed.values())) == {("Successor", "HandedOver")}
    assert max(len(history) for _, history in parents) < bound
    statuses = [s for _, _, s in stack.executions("TrainingRunArn", "horizon-successors-r")]
    assert set(statuses) == {"SUCCEEDED"}


@pytest.mark.parametrize("awaiting", Awaiting)
def test_a_cancel_wakes_each_wait_within_a_gap_although_its_nap_is_a_minute(stack: Stack, awaiting: Awaiting) -> None:
    run = Driven(
        with_pauses(stack), f"cancel-{awaiting}", interval=60, comes="starting" if awaiting == "cluster" else "ready"
    )
    run.ask(held=awaiting is Awaiting.LEASE)
    if awaiting is Awaiting.CLUSTER:
        run.napping_for_its_cluster()
    if awaiting in (Awaiting.FENCE, Awaiting.ATTEMPT):
        run.attempt(1)
    if awaiting is Awaiting.FENCE:
        run.asks_in_its_fence(1)
    run.token()
    before = run.run().look_seq
    asked_at = time.monotonic()
    cancel(stack.ports, run.run_id, "team")
    run.until(lambda r: r.look_seq > before)
    assert time.monotonic() - asked_at < MIN_GAP + 2.0, "a gap, and what a loaded machine needs"
    if awaiting is Awaiting.ATTEMPT:
        run.until(lambda r: r.control_command is not None)
        run.token()
        run.played.write(job="stopped")
        run.wake()
    ended = run.over()
    assert (ended.state, ended.cause) == (RunState.CANCELLED, "cancelled")
    (waiting,) = run.shifts(awaiting) if awaiting is not Awaiting.FENCE else run.shifts(awaiting)[:1]
    assert not any("TaskTimedOut" in visit.types for visit in visits(waiting)), "no nap ran to its end"

"""Silence of one witness is watched; silence of both is a hang."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.contract.job import Download, Phase, Progress
from nightshift.core.causes import EndCause
from nightshift.core.decide import decide
from nightshift.core.decision import Decision, Verb
from nightshift.core.hang import FLOOR, WITNESS_SILENCE, Silence, allowed_silence, judge_silence, next_step_times
from nightshift.core.observation import JobState, JobView, Observation
from nightshift.core.run import Awaiting
from tests.builders import NOW, cluster, progress, run, spec

MINUTE = timedelta(minutes=1)


def silence(
    age: timedelta, log_still_for: timedelta | None, phase: Phase = Phase.GENERATE, steps: tuple[float, ...] = ()
) -> Silence:
    on = run(step_times=steps, witness="w", witness_at=None if log_still_for is None else NOW - log_still_for)
    asked = None if log_still_for is None else "w"
    return judge_silence(on, spec(), progress(phase=phase, at=NOW - age), asked, NOW).silence


@pytest.mark.parametrize(
    ("age", "still", "expected"),
    [
        (FLOOR, WITNESS_SILENCE, Silence.NONE),
        (FLOOR + MINUTE, WITNESS_SILENCE, Silence.HUNG),
        (FLOOR + MINUTE, WITNESS_SILENCE - MINUTE, Silence.WATCHED),
        (FLOOR + MINUTE, None, Silence.WATCHED),
        (timedelta(days=3), None, Silence.WATCHED),
        (3 * FLOOR, MINUTE, Silence.WATCHED),
        (3 * FLOOR + MINUTE, MINUTE, Silence.PROGRESS_UNWRITABLE),
        (3 * FLOOR + MINUTE, WITNESS_SILENCE, Silence.HUNG),
    ],
)
def test_a_hang_needs_two_silent_witnesses(age: timedelta, still: timedelta | None, expected: Silence) -> None:
    assert silence(age, still) is expected


def test_setup_has_the_start_deadline_and_not_the_floor() -> None:
    assert silence(59 * MINUTE, WITNESS_SILENCE, Phase.SETUP) is Silence.NONE
    assert silence(61 * MINUTE, WITNESS_SILENCE, Phase.SETUP) is Silence.HUNG


def test_a_slow_run_is_allowed_three_of_its_own_median_steps() -> None:
    slow = (1_200.0, 1_200.0, 60.0)
    assert silence(59 * MINUTE, WITNESS_SILENCE, steps=slow) is Silence.NONE
    assert silence(61 * MINUTE, WITNESS_SILENCE, steps=slow) is Silence.HUNG


@given(st.lists(st.floats(0.01, 10_000), max_size=40))
def test_the_floor_holds_at_any_pace_and_the_memory_is_bounded(seconds: list[float]) -> None:
    on = run(step=0)
    for step, one in enumerate(seconds, 1):
        new = progress(step=step, step_seconds=one)
        on = on.model_copy(update={"step_times": next_step_times(on, new), "step": step})
    assert len(on.step_times) <= 15
    assert allowed_silence(on, spec(), Phase.TRAIN) >= FLOOR


def test_a_step_that_was_seen_before_is_not_counted_twice() -> None:
    on = run(step=5, step_times=(1.0,))
    assert next_step_times(on, progress(step=5, step_seconds=9.0)) == (1.0,)


def downloading(minutes: int, silent_for: timedelta = timedelta()) -> Progress:
    """A job that brings its model to /shared since so many minutes, and told of bytes ``silent_for`` ago."""
    got = Download(done=3_000_000_000, total=16_000_000_000, since=NOW - minutes * MINUTE)
    return progress(phase=Phase.DOWNLOAD, at=NOW - silent_for, download=got)


def decided(told: Progress, **budgets: Any) -> Decision:
    seen = Observation(job=JobView(JobState.RUNNING), cluster=cluster(*run().instances), progress=told, witness="same")
    on = run(witness="same", witness_at=NOW - 2 * WITNESS_SILENCE)
    return decide(on, spec(budgets=budgets), Awaiting.ATTEMPT, seen, NOW)


def test_a_long_download_that_moves_must_not_be_ended_for_a_deadline_of_the_setup() -> None:
    assert decided(downloading(119), start_minutes=10).verb is Verb.NAP
    assert decided(downloading(500), start_minutes=10, download_minutes=600).verb is Verb.NAP


def test_a_download_ends_at_its_own_deadline_even_while_it_moves_and_says_how_far_it_came() -> None:
    over = decided(downloading(121))
    assert (over.verb, over.cause) == (Verb.RECOVER, EndCause.START_DEADLINE)
    assert "not done after 121 min: 3.0 of 16.0 GB are there (budgets.download_minutes)" in over.why


def test_a_download_that_stands_still_hangs_like_any_other_phase() -> None:
    assert decided(downloading(60, silent_for=9 * MINUTE)).verb is Verb.NAP
    assert decided(downloading(60, silent_for=11 * MINUTE)).cause is EndCause.HUNG

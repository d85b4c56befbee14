"""The time to the end: from the last steps, with the evals and saves that are still to come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.contract.spec import Training
from training_job.pace import Kind, Pace, times_due

INTERVALS = st.lists(st.integers(1, 12), min_size=1, max_size=3)


@given(INTERVALS, st.integers(0, 60), st.integers(1, 60))
def test_what_is_due_is_counted_as_if_each_step_was_looked_at(intervals: list[int], step: int, total: int) -> None:
    left = range(step + 1, total + 1)
    assert times_due(intervals, step, total) == sum(
        one == total or any(one % every == 0 for every in intervals) for one in left
    )


class Clock:
    """Moves only when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lap(pace: Pace, clock: Clock, step: float, **kinds: float) -> None:
    """What follows a step, and then the next one."""
    for kind, seconds in kinds.items():
        with pace.spending(kind):  # type: ignore[arg-type]
            clock.now += seconds
    clock.now += step
    pace.stepped()


def test_the_rest_is_steps_and_the_evals_and_saves_between_them() -> None:
    clock = Clock()
    pace = Pace(Training(total_steps=100, eval_interval=10, ckpt_interval=20, hf_save_interval=20), 20, clock)
    assert pace.eta(0) is None
    clock.now = 500.0  # setup and the baseline: no step
    pace.begin()
    lap(pace, clock, 10.0)
    assert pace.eta(1) == pytest.approx(99 * 10.0), "no eval and no save has been seen yet"
    lap(pace, clock, 10.0, eval=60.0, save=7.0)
    assert pace.eta(60) == pytest.approx(40 * 10.0 + 4 * 60.0 + 2 * 7.0)
    assert pace.eta(100) == 0.0


def test_one_slow_step_does_not_move_the_estimate_and_a_lasting_change_does() -> None:
    clock = Clock()
    pace = Pace(Training(total_steps=1_000, eval_interval=1_000), 1_000, clock)
    pace.begin()
    for seconds in [10.0] * 9 + [1_800.0] + [10.0] * 5:
        lap(pace, clock, seconds)
    assert pace.eta(500) == pytest.approx(500 * 10.0)
    for _ in range(30):
        lap(pace, clock, 20.0)
    assert pace.eta(500) == pytest.approx(500 * 20.0)


def test_parts_of_a_save_are_one_save_and_are_counted_also_where_they_raise() -> None:
    clock = Clock()
    pace = Pace(Training(total_steps=10, ckpt_interval=1, hf_save_interval=1, eval_interval=10), 10, clock)
    pace.begin()
    lap(pace, clock, 1.0)
    kinds: list[Kind] = ["save", "save"]
    for kind in kinds:
        with pytest.raises(OSError), pace.spending(kind):
            clock.now += 2.0
            raise OSError
    clock.now += 1.0
    pace.stepped()
    assert pace.eta(9) == pytest.approx(1.0 + 4.0)

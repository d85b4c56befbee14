"""What a run may spend before a person has to be asked: recoveries, repeats of one fault, time, GPU-hours and money."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from nightshift.contract.publication import Spend
from nightshift.contract.spec import RunSpec
from nightshift.core.causes import POLICIES, Action, EndCause
from nightshift.core.prices import is_old
from nightshift.core.run import Attempt, Run

REPEATS_DETERMINISTIC: Final = 2
REPEATS_OTHER: Final = 3
"""An attempt that ends for the same cause at the same saved step for this many times is the last one."""


def spent_recoveries(run: Run) -> int:
    """Recoveries since the last verified new checkpoint."""
    return 0 if run.verified_step > run.recovery_floor else run.recoveries_without_progress


def _is_wait(cause: EndCause) -> bool:
    return POLICIES[cause].action in (Action.WAIT, Action.ASK)


def recoveries_after(run: Run, cause: EndCause | None) -> int:
    """The count after one more recovery; waiting for nodes or for a person spends none."""
    return spent_recoveries(run) + (0 if cause is not None and _is_wait(cause) else 1)


def recoveries_spent(used: int, spec: RunSpec, cause: EndCause) -> str | None:
    """Why no recovery is left for the cause after ``used`` of them; None where one is, or none is needed."""
    if _is_wait(cause) or used < spec.budgets.max_recoveries_without_progress:
        return None
    return f"{used} recoveries without a new verified checkpoint"


def crash_loop(cause: EndCause, saved_step: int, earlier: Sequence[Attempt]) -> str | None:
    """Why going on is no use: ``earlier`` attempts ended for the same cause with the same last saved step. What waits for
    nodes or for a person is no crash."""
    if _is_wait(cause):
        return None
    times = 1 + sum(a.end_cause is cause and a.last_saved_step == saved_step for a in earlier)
    if times < (REPEATS_DETERMINISTIC if POLICIES[cause].deterministic else REPEATS_OTHER):
        return None
    return f"the same end for the {_ordinal(times)} time after saved step {saved_step}: another attempt would be no use"


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


def spent_budget(run: Run, spec: RunSpec, gpu_hours: float, now: datetime) -> str | None:
    """The first of wall hours, GPU-hours and dollars that is over its limit, in words. Time in a queue is not spent: wall
    hours and dollars count from the moment when the run got its nodes."""
    budgets = spec.budgets
    if held_for(run, now) > timedelta(hours=budgets.wall_hours):
        return f"{budgets.wall_hours:g} wall hours"
    if gpu_hours > budgets.gpu_hours:
        return f"{budgets.gpu_hours:g} GPU-hours"
    spend = spend_of(run, now)
    if budgets.dollars is not None and spend is not None and spend.dollars > budgets.dollars:
        return f"{budgets.dollars:g} attributed dollars"
    return None


def held_for(run: Run, now: datetime) -> timedelta:
    """How long the run has held its nodes, also before it was reopened; up to its end where it has one."""
    before = timedelta(seconds=run.held_before)
    if run.leased_at is None:
        return before
    return before + max(timedelta(), (run.ended_at or now) - run.leased_at)


def spend_of(run: Run, now: datetime) -> Spend | None:
    """What the run's nodes, head and workers, cost at list prices while it held them; None without a price. HyperPod bills
    nodes whether they are used or not, so this is attributed to the run and not caused by it."""
    if run.dollars_per_hour is None or run.prices_as_of is None:
        return None
    hours = held_for(run, now).total_seconds() / 3_600
    return Spend(
        dollars=round(hours * run.dollars_per_hour, 2),
        dollars_per_hour=run.dollars_per_hour,
        prices_as_of=run.prices_as_of,
        prices_old=is_old(run.prices_as_of, (run.ended_at or now).date()),
    )

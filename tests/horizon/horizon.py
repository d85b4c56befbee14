"""From measured numbers to how long a run may last. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from nightshift.core.history import Bounds, succession_due

DAY = 86_400
MONTH = 365 * DAY / 12


@dataclass(frozen=True)
class Measured:
    """Events: of a look that its timeout ended, of one that was answered or woken, of a shift's own frame; in the parent: of
    a shift, of a whole recovery and how many turns it counts, of its beginning and of its end."""

    nap: int
    look: int
    shift_frame: int
    parent_shift: int
    parent_recovery: int
    recovery_turns: int
    parent_begin: int
    parent_end: int


@dataclass(frozen=True)
class Plan:
    """A run: its length, what happens to it, and how often it is looked at."""

    seconds: float
    recoveries: int
    queued_seconds: float
    interval: float = 60.0


@dataclass(frozen=True)
class Horizon:
    """The longest histories, in events, and how many executions the run had."""

    longest_shift: int
    longest_parent: int
    executions: int
    events_in_all: int


def longest_shift(measured: Measured, bounds: Bounds) -> int:
    """Every look is woken: the last may find that the bound is reached."""
    return measured.shift_frame + (bounds.looks + 1) * measured.look


def horizon(measured: Measured, bounds: Bounds, plan: Plan) -> Horizon:
    """Walk through the run's waits in their order; recoveries at even distances."""
    shift_seconds = min(bounds.looks * plan.interval, bounds.shift.total_seconds())
    queue = ceil(plan.queued_seconds / shift_seconds)
    work = ceil((plan.seconds - plan.queued_seconds) / shift_seconds)
    recoveries_due = [round((i + 1) * work / (plan.recoveries + 1)) for i in range(plan.recoveries)]
    executions = list[int]()
    turns, events, everything = 0, measured.parent_begin, 0

    def took(more_events: int, more_turns: int) -> None:
        nonlocal turns, events, everything
        turns, events = turns + more_turns, events + more_events
        if succession_due(turns, 0, bounds):
            executions.append(events + measured.parent_end)
            everything += executions[-1]
            turns, events = 0, measured.parent_begin

    for _ in range(queue):
        took(measured.parent_shift, 1)
    for number in range(work):
        took(measured.parent_shift, 1)
        for _ in range(recoveries_due.count(number)):
            took(measured.parent_recovery, measured.recovery_turns)
    executions.append(events + measured.parent_end)
    return Horizon(
        longest_shift=longest_shift(measured, bounds),
        longest_parent=max(executions),
        executions=len(executions),
        events_in_all=everything + executions[-1],
    )

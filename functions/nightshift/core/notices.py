"""What is worth a message: which stages a level wants, and what a look has to tell of a run once. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from nightshift.contract.events import BudgetUse, Stage, StageEvent
from nightshift.contract.spec import NotifyLevel, RunSpec
from nightshift.core.budgets import held_for, spend_of
from nightshift.core.run import Run

QUIET: Final = frozenset({Stage.ASKING, Stage.FINISHED, Stage.FAILED, Stage.CANCELLED})
"""Only what a person has to answer, and the end."""

FOLDED: Final = frozenset({Stage.RECOVERING, Stage.RECOVERED})
"""What can wait for the morning: there is nothing for anybody to do."""

NEAR: Final = 0.8
"""Share of a limit from which somebody should know."""

FIRST_EVAL, TARGET = "first-eval", "target-reached"


def is_wanted(event: StageEvent) -> bool:
    """Whether the run's owner wants a message about it."""
    return event.notify is not NotifyLevel.QUIET or event.stage in QUIET


@dataclass(frozen=True)
class Night:
    """Hours of UTC, from ``begins`` up to ``ends``, possibly past midnight; equal: there is no night."""

    begins: int
    ends: int

    def holds(self, at: datetime) -> bool:
        hour = at.astimezone(UTC).hour
        if self.begins <= self.ends:
            return self.begins <= hour < self.ends
        return hour >= self.begins or hour < self.ends


def is_folded(event: StageEvent, night: Night, now: datetime) -> bool:
    """Whether its message waits for the morning's one. Judged by the time of the message, not of the event: what is folded
    is then always before the morning that tells it. A run that wants to hear all hears it at once."""
    return event.notify is NotifyLevel.NORMAL and event.stage in FOLDED and night.holds(now)


def budget_uses(run: Run, spec: RunSpec, gpu_hours: float, now: datetime) -> Iterator[BudgetUse]:
    """Each limit of the run with what is used of it; dollars only where the spec limits them and a price is known."""
    limits, spend = spec.budgets, spend_of(run, now)
    hours = held_for(run, now).total_seconds() / 3_600
    yield BudgetUse(name="wall_hours", used=round(hours, 4), limit=limits.wall_hours)
    yield BudgetUse(name="gpu_hours", used=round(gpu_hours, 4), limit=limits.gpu_hours)
    if limits.dollars is not None and spend is not None:
        yield BudgetUse(name="dollars", used=spend.dollars, limit=limits.dollars)


def last_lines(text: str, lines: int = 12, limit: int = 1_500) -> str:
    """The end of a log: whole lines, at most so many and so many characters; the end of the last one where it is longer."""
    kept: list[str] = []
    room = limit
    for line in reversed([one.rstrip() for one in text.splitlines() if one.strip()]):
        room -= len(line) + 1
        if len(kept) == lines or (room < 0 and kept):
            break
        kept.append(line[-limit:])
    return "\n".join(reversed(kept))


@dataclass(frozen=True)
class NearLimit:
    """``key`` names the limit with its size: a limit that was raised is told of again when that one is near."""

    key: str
    use: BudgetUse


def near_limits(run: Run, spec: RunSpec, gpu_hours: float, now: datetime) -> list[NearLimit]:
    """Limits of which four fifths are used and that nobody was told about."""
    near = [one for one in budget_uses(run, spec, gpu_hours, now) if one.used >= NEAR * one.limit]
    due = [NearLimit(f"budget-{one.name}-{one.limit:g}", one) for one in near]
    return [one for one in due if one.key not in run.noticed]


def is_first_eval(run: Run, success: float | None) -> bool:
    """``success`` is what the job reports of the fixed set."""
    return success is not None and FIRST_EVAL not in run.noticed


def may_hold_target(run: Run, spec: RunSpec, success: float | None) -> bool:
    """Whether the evals are worth a look: the last one is good enough, and the target was not told of yet."""
    if spec.target is None or success is None or TARGET in run.noticed:
        return False
    return success >= spec.target.success

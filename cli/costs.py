"""Costs on a terminal: sums by month, owner, project, pool or run, and what stood idle. Pure.

Idle is what HyperPod's instances cost at list prices while it had them, less what is attributed to runs in that same time. Where
nothing is known of its instances nothing is said: neither side is counted then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from cli.lists import short_owner, table
from cli.view import clean, clock
from nightshift.contract.costs import CapacitySpan, MonthCost, RunCost, Span, by_month, common

NONE: Final = "(none)"
KEYS: Final[dict[str, Callable[[RunCost, MonthCost], str]]] = {
    "run": lambda run, _: run.run_id,
    "month": lambda _, month: month.month,
    "owner": lambda run, _: run.owner,
    "project": lambda run, _: run.project or NONE,
    "pool": lambda run, _: run.pool,
}
"""What costs can be summed by."""


@dataclass(frozen=True)
class Sum:
    """``hours`` are those for which runs held their nodes, all nodes of a run together; ``unpriced`` runs are in no dollars."""

    name: str
    runs: int
    hours: float
    dollars: float
    unpriced: int = 0


@dataclass(frozen=True)
class Idle:
    """Of one month, from ``since`` to ``until`` with ``hours`` of it known."""

    month: str
    since: datetime
    until: datetime
    hours: float
    had: float
    attributed: float

    @property
    def dollars(self) -> float:
        """Not below zero: HyperPod is looked at every few minutes, and a run may begin in between."""
        return round(max(0.0, self.had - self.attributed), 2)


def sums(runs: Sequence[RunCost], by: str) -> list[Sum]:
    """The largest first; months in their order."""
    found: dict[str, list[tuple[RunCost, MonthCost]]] = {}
    for run in runs:
        for month in run.months:
            found.setdefault(KEYS[by](run, month), []).append((run, month))
    made = [_sum(name, parts) for name, parts in found.items()]
    return sorted(made, key=lambda one: one.name if by == "month" else (-one.dollars, one.name))


def _sum(name: str, parts: Iterable[tuple[RunCost, MonthCost]]) -> Sum:
    every = list(parts)
    return Sum(
        name=name,
        runs=len({run.run_id for run, _ in every}),
        hours=round(sum(month.hours for _, month in every), 2),
        dollars=round(sum(month.dollars or 0.0 for _, month in every), 2),
        unpriced=len({run.run_id for run, month in every if month.dollars is None}),
    )


def idle(runs: Sequence[RunCost], capacity: Sequence[CapacitySpan]) -> list[Idle]:
    """Month by month. ``runs`` must be all of them, whoever's they are."""
    found: dict[str, list[tuple[Span, float]]] = {}
    for one in capacity:
        for month, span in by_month(one):
            found.setdefault(month, []).append((span, one.dollars_per_hour))
    return [
        Idle(
            month=month,
            since=spans[0][0].since,
            until=spans[-1][0].until,
            hours=round(sum(span.hours for span, _ in spans), 2),
            had=round(sum(span.hours * price for span, price in spans), 2),
            attributed=round(sum(_attributed(runs, span) for span, _ in spans), 2),
        )
        for month, spans in found.items()
    ]


def _attributed(runs: Sequence[RunCost], span: Span) -> float:
    return sum(
        part.hours * (run.dollars_per_hour or 0.0)
        for run in runs
        for held in run.held
        if (part := common(held, span)) is not None
    )


def text(runs: Sequence[RunCost], capacity: Sequence[CapacitySpan] | None, by: str) -> str:
    """``capacity`` is None where only some runs were asked for: then nothing is said of what stood idle."""
    if not runs:
        lines = ["no run held nodes then"]
    else:
        whole = _sum("all", ((run, month) for run in runs for month in run.months))
        rows = [_row(one, by) for one in [*sums(runs, by), whole]]
        lines = [table((by.upper(), "RUNS", "HOURS", "DOLLARS"), rows)]
    if capacity is not None:
        lines += ["", *_idle_lines(idle(runs, capacity))]
    return "\n".join([*lines, "", *_notes(runs, capacity or ())])


def _row(one: Sum, by: str) -> tuple[str, str, str, str]:
    name = short_owner(one.name) if by == "owner" else clean(one.name, 64)
    unpriced = f" and {one.unpriced} run{'s' if one.unpriced != 1 else ''} without a price" if one.unpriced else ""
    return name, str(one.runs), f"{one.hours:,.2f}", f"${one.dollars:,.2f}{unpriced}"


def _idle_lines(found: Sequence[Idle]) -> list[str]:
    if not found:
        return ["idle: not known, for nothing is known of HyperPod's instances in that time"]
    return [
        f"idle in {one.month}: ${one.dollars:,.2f} of ${one.had:,.2f} for the instances that HyperPod had from "
        f"{clock(one.since)} to {clock(one.until)} UTC ({one.hours:,.2f} h are known); ${one.attributed:,.2f} of it is attributed"
        for one in found
    ]


def _notes(runs: Sequence[RunCost], capacity: Sequence[CapacitySpan]) -> list[str]:
    """What of it is estimated, and from which prices."""
    days = [one.prices_as_of for one in (*runs, *capacity) if one.prices_as_of is not None]
    notes = [
        "Estimated: list prices on demand, and no bill. Discounts, training plans and other regions are not in it."
    ]
    if days:
        old = ", some of them older than 90 days" if any(one.prices_old for one in (*runs, *capacity)) else ""
        one_day = days[0] if min(days) == max(days) else f"{min(days)} to {max(days)}"
        notes.append(f"Prices are of {one_day}{old}.")
    if missing := sorted({name for one in capacity for name in one.without_price}):
        notes.append(f"Without a price, and so in no sum: {', '.join(clean(name, 40) for name in missing)}.")
    if capacity and any(one.dollars_per_hour is None for one in runs):
        notes.append("What runs without a price used of instances that have one counts as idle.")
    if guessed := [one.run_id for one in runs if one.estimated]:
        shown = ", ".join(clean(one, 40) for one in guessed[:5])
        notes.append(
            f"In which month they held nodes before a retry is estimated: {shown}{' ...' if guessed[5:] else ''}."
        )
    return notes


def document(
    first: str, last: str, runs: Sequence[RunCost], capacity: Sequence[CapacitySpan] | None, by: str
) -> dict[str, Any]:
    """The same for a program: sums, idle and each run. ``idle`` is null where only some runs were asked for."""
    found = None
    if capacity is not None:
        found = [
            asdict(one) | {"since": one.since.isoformat(), "until": one.until.isoformat(), "dollars": one.dollars}
            for one in idle(runs, capacity)
        ]
    return {
        "from": first,
        "to": last,
        "by": by,
        "sums": [asdict(one) for one in sums(runs, by)],
        "idle": found,
        "notes": _notes(runs, capacity or ()),
        "runs": [one.model_dump(mode="json") for one in runs],
        "capacity": None if capacity is None else [one.model_dump(mode="json") for one in capacity],
    }

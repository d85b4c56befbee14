"""Lists and plans as text for a terminal. Pure; everything from outside is cleaned."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from cli.view import audit, clean, clock, length, lineage, words
from nightshift.contract.api import Artifact, AuditLine, Plan, PoolView, RunLine

MAX_OWNER = 40


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the last one as it comes."""
    lines = [head, *rows]
    wide = [max(len(line[n]) for line in lines) for n in range(len(head) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line[:-1], wide, strict=True)), line[-1]]).rstrip()
        for line in lines
    )


def short_owner(owner: str) -> str:
    """The part of an ARN that a person knows: a user, or role/session."""
    return clean(owner.rsplit(":", 1)[-1].removeprefix("assumed-role/").removeprefix("user/"), MAX_OWNER)


def runs(lines: Sequence[RunLine], now: datetime) -> str:
    if not lines:
        return "no such run"
    rows = [
        (
            clean(one.run_id, 40),
            words(one.state),
            f"{one.step}/{one.total_steps}",
            f"{one.success:.1%}" if one.success is not None else "-",
            clean(one.pool, 40),
            length((now - one.created_at).total_seconds()),
            f"{short_owner(one.owner)}{f' ({words(one.cause)})' if one.cause else ''}",
        )
        for one in lines
    ]
    return table(("RUN", "STATE", "STEP", "SOLVED", "POOL", "AGE", "OWNER"), rows)


def events(lines: Sequence[AuditLine]) -> str:
    return "\n".join(audit(one) for one in lines) or "nothing was recorded"


def pool(view: PoolView) -> str:
    name = clean(view.pool, 40)
    if view.holder is None:
        first = f"pool {name} is free"
    else:
        held = view.holder
        left = f", about {length(held.eta_seconds)} left" if held.eta_seconds is not None else ""
        where = (
            f"{words(held.state)}, step {held.step} of {held.total_steps}{left}" if held.state else "without a record"
        )
        first = f"pool {name} is held by {clean(held.run_id, 40)} since {clock(held.since)} UTC ({where})"
    if not view.waiting:
        return f"{first}\nnobody waits for it"
    rows = [
        (str(one.place), clean(one.run_id, 40), clean(one.priority, 20), clock(one.created_at), short_owner(one.owner))
        for one in view.waiting
    ]
    return f"{first}\n{table(('PLACE', 'RUN', 'PRIORITY', 'ASKED FOR', 'OWNER'), rows)}"


def size(count: int) -> str:
    """``1536`` -> ``1.5 kB``, by thousands."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1_000 or unit == "TB":
            break
        value /= 1_000
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def artifacts(found: Sequence[Artifact]) -> str:
    if not found:
        return "there is nothing yet"
    rows = [(size(one.size), "yes" if one.sha256 else "-", clean(one.key, 200)) for one in found]
    return table(("SIZE", "PROMISED", "OBJECT"), rows)


def plan(found: Plan) -> str:
    """What would be started, in the order in which a person asks."""
    made, costs = found.rollouts, found.forecast
    said = "was asked for before: starting it starts nothing" if found.exists else "can be started"
    lines = [
        f"{clean(found.run_id, 40)}: {said}",
        f"a step: {made.per_step} rollouts on {made.gpus} GPUs ({made.per_gpu:g} each), {made.updates_per_step} updates",
        f"in all: {made.evals} evals{f' of {made.eval_items} items' if made.eval_items else ''}, "
        f"{made.checkpoints} checkpoints, at most {made.max_rollback_steps} steps lost to a broken one",
    ]
    if costs.most_dollars is None:
        lines.append("cost: an instance type has no price in the table")
    else:
        old = ", older than 90 days" if costs.prices_old else ""
        lines.append(
            f"cost: ${costs.dollars_per_hour or 0:,.2f} an hour, at most ${costs.most_dollars:,.2f} in "
            f"{costs.wall_hours:g} h (list prices of {clean(costs.prices_as_of or '')}{old})"
        )
    if found.ceiling is not None:
        lines.append(f"ceiling: an oracle solves {found.ceiling:.1%} of the eval set")
    if found.parent is not None:
        lines.append(f"begins {lineage(found.parent)}")
    lines.append(_capacity(found))
    lines.append(_line(found))
    lines.append(_rehearsed(found))
    return "\n".join(lines)


def _rehearsed(found: Plan) -> str:
    before = found.rehearsed
    if before is None:
        return "rehearsal: none of it as it is now; `rehearse --spec FILE` tries it"
    when = f" ({clock(before.ended_at)} UTC)" if before.ended_at is not None else ""
    said = "passed" if before.passed else "did not pass" if before.ended_at is not None else f"is {words(before.state)}"
    return f"rehearsal: {clean(before.run_id, 40)} {said}{when}"


def _capacity(found: Plan) -> str:
    if not found.capacity_known:
        return "capacity: not known, the HyperPod cluster could not be asked"
    return f"capacity: NO, {'; '.join(clean(one) for one in found.capacity)}" if found.capacity else "capacity: it fits"


def _line(found: Plan) -> str:
    if found.waiting is None:
        return "queue: Kueue decides when it is admitted"
    holder = f"held by {clean(found.holder, 40)}" if found.holder else "free"
    more = " or more" if found.waiting_is_more else ""
    return f"queue: pool {clean(found.pool, 40)} is {holder}, {found.waiting}{more} before this one"

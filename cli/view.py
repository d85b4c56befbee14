"""A run as text for a terminal. Pure; text from outside is stripped of control characters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from nightshift.contract.api import AuditLine, CancelMode, CurvePoint, RunView
from nightshift.contract.lineage import Lineage
from nightshift.contract.publication import AttemptLine

AUDIT_LINES = 8
BAR = 30


def clean(text: str, limit: int = 300) -> str:
    """One line without control characters, so that nothing outside moves a terminal's cursor; bounded."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def words(name: str | None) -> str:
    return clean((name or "").replace("_", " "))


def length(seconds: float) -> str:
    """``4000`` -> ``1 h 07 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3_600} h {whole % 3_600 // 60:02d} min"


def clock(at: datetime) -> str:
    aware = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    return aware.strftime("%m-%d %H:%M:%S")


def progress(view: RunView) -> str:
    """``[######------] step 40 of 400, saved up to 40, 62.5% solved, about 2 h 10 min left``."""
    share = min(1.0, view.step / view.total_steps) if view.total_steps else 0.0
    filled = int(share * BAR)
    parts = [f"step {view.step} of {view.total_steps}", f"saved up to step {view.verified_step}"]
    if view.success is not None:
        parts.append(f"{view.success:.1%} solved")
    if view.eta_seconds and view.ended_at is None:
        parts.append(f"about {length(view.eta_seconds)} left")
    return f"[{'#' * filled}{'-' * (BAR - filled)}] {', '.join(parts)}"


def attempt(line: AttemptLine) -> str:
    begin = "from the start" if line.resumed_step == 0 else f"from step {line.resumed_step}"
    if line.resumed_step is None:
        begin = "not begun yet" if line.end_cause is None else "never begun"
    end = words(line.end_cause) or "running"
    node = f", node {clean(line.node, 60)}" if line.node else ""
    seen = f", noticed by {clean(line.signal, 60)}" if line.signal else ""
    said = f"\n     {clean(line.message)}" if line.message else ""
    cost = f"{line.gpu_hours:.2f} GPU-hours"
    if line.smaller:
        said = f", with smaller values{said}"
    if line.guard:
        said += f"\n     {clean(line.guard)}"
    return f"  {line.n}. {begin}: {end}{node}{seen}; last saved step {line.last_saved_step}, {cost}{said}"


def audit(line: AuditLine) -> str:
    signal = f" [{clean(line.signal, 60)}]" if line.signal else ""
    detail = f": {clean(line.detail, 160)}" if line.detail else ""
    return f"  {clock(line.at)}  {clean(line.actor, 20):<10} {clean(line.what, 80)}{signal}{detail}"


def lineage(parent: Lineage) -> str:
    """``from maze-1 at step 40 (maze-1@best, solved 50 of 64), which began from maze-0 at step 20``."""
    told = [parent.asked, *([f"solved {parent.solved} of {parent.of}"] if parent.of is not None else [])]
    chain = [f"from {one.run_id} at step {one.step}" for one in parent.chain]
    chain[0] += f" ({', '.join(told)})"
    return clean(", which began ".join(chain), 600)


def _until(view: RunView) -> str:
    return f" (answer before {clock(view.answer_until)} UTC)" if view.answer_until else ""


def _cancelled(view: RunView) -> str:
    at_once = view.cancel_mode is CancelMode.NOW
    return f"a cancel was asked for, {'at once' if at_once else 'after a checkpoint'}"


def curve(points: Sequence[CurvePoint]) -> str:
    """``solved 12.5% at step 0, 50.0% at step 10, ... 87.5% at step 40``, at most six of them."""
    shown = [*points[:1], *points[-5:]] if len(points) > 6 else list(points)
    told = [f"{one.success:.1%} at step {one.step}" for one in shown]
    return f"solved {', '.join([told[0], '...', *told[1:]] if len(points) > 6 else told)}"


def text(view: RunView) -> str:
    """The whole answer of ``nightshift status``."""
    cause = f" ({words(view.cause)})" if view.cause else ""
    lines = [
        f"{clean(view.run_id)}: {words(view.state)}{cause}",
        *([clean(view.sentence, 1_000)] if view.sentence else []),
        *([f"waiting: {clean(view.waiting_for, 1_000)}"] if view.waiting_for else []),
        *([f"asks: {clean(view.question, 1_000)}{_until(view)}"] if view.question else []),
        *([_cancelled(view)] if view.cancel_requested else []),
        progress(view),
        *([curve(view.curve)] if view.curve else []),
        f"owner {clean(view.owner)}, pool {clean(view.pool)}, asked for {clock(view.created_at)} UTC",
        *([f"begins {lineage(view.parent)}"] if view.parent else []),
        f"files {clean(view.prefix)}",
        *([f"retried {view.retries} time{'s' if view.retries != 1 else ''}"] if view.retries else []),
        *(f"{clean(label, 40).lower()} {clean(address)}" for label, address in view.links.items()),
    ]
    if view.spend is not None:
        old = " (prices older than 90 days)" if view.spend.prices_old else ""
        day = view.spend.prices_as_of.isoformat()
        lines.append(f"cost ${view.spend.dollars:,.2f}, attributed at list prices of {day}{old}")
    if view.errors:
        lines += ["", "To correct:", *(f"  {clean(one.field)}: {clean(one.problem)}" for one in view.errors)]
    if view.attempts:
        lines += ["", "Attempts:", *(attempt(one) for one in view.attempts)]
    if view.audit:
        lines += ["", "What happened last (UTC):", *(audit(one) for one in view.audit[-AUDIT_LINES:])]
    return "\n".join(lines)

"""A run that is over goes on: whether it may, with which spec, and what its record forgets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from nightshift.contract.api import Retry
from nightshift.contract.costs import Span
from nightshift.contract.events import FieldError
from nightshift.contract.spec import RunSpec
from nightshift.core.admission import check_spec
from nightshift.core.budgets import held_for, spent_budget
from nightshift.core.run import Run, RunState

REOPENABLE = frozenset({RunState.FAILED, RunState.CANCELLED})

FORGOTTEN = (
    "verdict", "cause", "sentence", "eta_seconds", "published", "ended_at", "leased_at", "cancel_requested",
    "cancel_requested_at", "cancel_now", "question", "recoveries_without_progress", "instances", "lost_instance",
    "announced", "taken_away", "waiting_since", "recovering_since", "fence_level", "fence_level_at", "admitted_at",
    "stuck_since", "waiting_for", "witness", "witness_at", "blamed", "excluded",
)  # fmt: skip
"""Fields of a record that are as in a new run again. Attempts go on counting, the floor stays, and so does what was spent.
Instances that were blamed are not excluded any more: whoever has the run go on has looked at them."""


def reopening(run: Run, change: Retry, now: datetime) -> dict[str, Any]:
    """Changes of the record, None for what is forgotten; k is counted by the store."""
    merged, ended = change.after(run.retry), run.ended_at or now
    held = [Span(since=run.leased_at, until=ended)] if run.leased_at is not None and run.leased_at < ended else []
    return dict.fromkeys(FORGOTTEN) | {
        "state": RunState.ADMITTED,
        "history_base": run.shift_seq,
        "shift_first_look": run.look_seq,
        "seen_counter": run.signal_counter,
        "step": run.verified_step,
        "recovery_floor": run.verified_step,
        "held_before": held_for(run, ended).total_seconds(),
        "held_earlier": (*run.held_earlier, *held),
        "reopenings": run.reopenings + 1,
        "reopened_at": now,
        "retry": merged,
        "image": merged.image or run.image,
    }


def is_repeated(run: Run, change: Retry) -> bool:
    """Was just this asked for already, and does the run go on with it? Whoever got no answer asks again, and is told the same."""
    return bool(run.reopenings) and not run.state.is_final and change.after(run.retry) == run.retry


def retry_problems(run: Run, spec: RunSpec, change: Retry, gpu_hours: float, now: datetime) -> Sequence[FieldError]:
    """Reasons by field why the run cannot go on with these changes of its spec; ``gpu_hours`` are those of all attempts."""
    lowered = ((name, _lowered(spec, name, value)) for name, value in change.budgets.named().items())
    problems = [FieldError(field=f"budgets.{name}", problem=why) for name, why in lowered if why]
    if problems:
        return problems
    wanted = change.applied_to(spec)
    checked = check_spec(wanted.model_dump(mode="json"))
    if not isinstance(checked, RunSpec):
        return checked
    held = held_for(run, run.ended_at or now).total_seconds()
    on = run.model_copy(update={"held_before": held, "leased_at": None, "ended_at": None})
    spent = spent_budget(on, wanted, gpu_hours, now)
    return [FieldError(field=_field_of(spent), problem=f"{spent} are spent: raise it")] if spent is not None else []


def _lowered(spec: RunSpec, name: str, value: float) -> str:
    """Why the limit may not become this; empty where it may."""
    before = spec.max_rollback_steps if name == "max_rollback_steps" else getattr(spec.budgets, name)
    if before is None:
        return "the run has no such limit, and a retry sets none"
    return f"a retry may only raise it: {value:g} is below {before:g}" if value < before else ""


def _field_of(spent: str) -> str:
    names = {"wall hours": "wall_hours", "GPU-hours": "gpu_hours", "dollars": "dollars"}
    return next((f"budgets.{field}" for words, field in names.items() if spent.endswith(words)), "budgets")

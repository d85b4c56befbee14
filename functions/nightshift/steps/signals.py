"""Signals: count, read the registered token in the same write, and end the nap."""

from __future__ import annotations

from typing import Any

from nightshift.core.events import node_hint, outcome_object
from nightshift.core.relevance import concerns
from nightshift.core.run import Signal, SignalKind
from nightshift.steps.look import MIN_GAP
from nightshift.steps.ports import Ports
from nightshift.steps.requests import Reply


def wake(ports: Ports, run_id: str, signal: Signal) -> None:
    """Signals that come closely together are coalesced: each is counted at once, and the nap ends no sooner than a
    minimum gap after the last look. A token that somebody else answered meanwhile belongs to a look that began after
    this signal was counted."""
    nap = ports.runs.bump(run_id, signal)
    if nap is None:
        return  # a look is under way: it will find the counter moved when it wants to nap
    if nap.last_look_at is not None:
        gap = MIN_GAP - (ports.now() - nap.last_look_at).total_seconds()
        if gap > 0:
            ports.sleep(gap)
    ports.executions.answer(nap.token, Reply(decision="look", interval=nap.interval).model_dump(mode="json"))


def receive(ports: Ports, event: dict[str, Any]) -> list[str]:
    """Handle one EventBridge event; answers the ids of the runs that it woke."""
    written = outcome_object(event)
    if written is not None:
        return _outcome(ports, *written)
    hint = node_hint(event)
    if hint is None:
        return []
    woken = [run.run_id for run in ports.runs.active_on(hint.cluster) if concerns(run, hint)]
    for run_id in woken:
        signal = Signal(kind=hint.kind, instance_id=hint.instance_id, detail=hint.detail, at=ports.now())
        wake(ports, run_id, signal)
    return woken


def _outcome(ports: Ports, run_id: str, attempt: int) -> list[str]:
    run = ports.runs.get(run_id)
    if run is None or run.state.is_final or run.attempt != attempt:
        return []  # an object of an older attempt is never believed
    wake(ports, run_id, Signal(kind=SignalKind.OUTCOME, detail=f"attempt {attempt}", at=ports.now()))
    return [run_id]

"""Keep in the record whom or what a run waits for, so that its view and its audit trail show it."""

from __future__ import annotations

from typing import Any

from nightshift.core.decision import Decision, Verb
from nightshift.core.observation import Observation
from nightshift.core.queueing import is_news, noted
from nightshift.core.run import Awaiting, Run
from nightshift.steps.common import audit
from nightshift.steps.ports import Ports


def note_wait(ports: Ports, run: Run, awaiting: Awaiting, seen: Observation, decision: Decision) -> Run:
    """Write what changed about the wait for a pool or for Kueue, and a line in the trail where it is news."""
    changes: dict[str, Any] = {}
    if awaiting is Awaiting.CLUSTER:
        changes = noted(run, seen.cluster, ports.now())
    elif awaiting is Awaiting.LEASE:
        text = decision.why if decision.verb is Verb.NAP else ""
        changes = {} if text == run.waiting_for else {"waiting_for": text}
    if not changes:
        return run
    before, run = run, ports.runs.update(run, **changes)
    if is_news(before.waiting_for, run.waiting_for):
        what = "waits in the queue" if run.waiting_for else "waits in no queue any more"
        audit(ports, run.run_id, "look", what, seen.signal, run.waiting_for or decision.why)
    if before.question is not None and run.question is None:
        audit(ports, run.run_id, "look", f"question about {before.question.cause} answered itself", seen.signal)
    return run

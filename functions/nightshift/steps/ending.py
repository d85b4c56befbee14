"""From a verdict to a final record: teardown, release, the last message, and the ways in when something broke."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from nightshift.contract.events import Stage
from nightshift.contract.layout import RunKeys
from nightshift.core.budgets import spend_of
from nightshift.core.causes import POLICIES, EndCause
from nightshift.core.errors import StaleExecution, TransientError, bounded
from nightshift.core.measures import ended
from nightshift.core.notices import last_lines
from nightshift.core.run import Attempt, Run, RunState, Signal, SignalKind
from nightshift.steps.common import (
    attempt_line,
    audit,
    emit,
    gpu_hours_of,
    measure,
    next_shift,
    results_of,
    spec_or_none,
    stage_key,
)
from nightshift.steps.diagnostics import DRIVER_LOG, MISSING, save_diagnostics
from nightshift.steps.ports import NO_LOG, Ports
from nightshift.steps.requests import Fault, Reply, StepRequest
from nightshift.steps.signals import wake

STAGES = {RunState.SUCCEEDED: Stage.FINISHED, RunState.FAILED: Stage.FAILED, RunState.CANCELLED: Stage.CANCELLED}
MAX_CURVE = 200


def abandon(ports: Ports, request: StepRequest) -> Reply:
    """A fault of the controller itself. A verdict of failure that stands already keeps its better reason, and a success
    that was published and read back stays one."""
    run = ports.runs.load(request.run_id, request.k)
    fault = request.error or Fault()
    why = bounded(f"{fault.error}: {told(fault.cause)}", 600)
    changes: dict[str, Any] = {}
    if _may_become_failed(run):
        changes = {
            "verdict": RunState.FAILED,
            "cause": EndCause.CONTROLLER_FAULT,
            "sentence": bounded(f"{POLICIES[EndCause.CONTROLLER_FAULT].sentence} ({why})", 900),
        }
    _end_open_attempt(ports, run, why)
    run = ports.runs.update(run, state=RunState.PUBLISHING, **changes, **next_shift(run))
    audit(ports, run.run_id, "step", "controller fault", detail=why)
    return Reply(decision=RunState.FAILED.value, shift=str(run.shift_seq))


def _may_become_failed(run: Run) -> bool:
    """No verdict stands yet, or one of success that nobody has read back."""
    return run.verdict is None or (run.verdict is RunState.SUCCEEDED and not run.published)


def _end_open_attempt(ports: Ports, run: Run, why: str) -> None:
    attempts = ports.runs.attempts(run.run_id)
    if attempts and attempts[-1].ended_at is None:
        save_diagnostics(ports, run, attempts[-1])
        ended = {
            "ended_at": ports.now(),
            "end_cause": EndCause.CONTROLLER_FAULT,
            "signal": "controller",
            "message": why,
        }
        ports.runs.save_attempt(run, attempts[-1].model_copy(update=ended))


def told(cause: str) -> str:
    """The message in a Lambda's error document; the cause as it is where it is none. Stack traces are in the log."""
    try:
        document = json.loads(cause)
    except (ValueError, RecursionError):
        return cause
    if not isinstance(document, dict):
        return cause
    if "Cause" in document:  # of a shift: its own error document is one level further in
        return told(str(document["Cause"]))
    return str(document.get("errorMessage", cause))


def teardown(ports: Ports, request: StepRequest) -> Reply:
    """Delete the RayCluster and everything on it. What it knew of its attempts was kept when each of them ended: nothing is
    written below a manifest."""
    run = ports.runs.load(request.run_id, request.k)
    run = ports.runs.update(run, state=RunState.TEARDOWN, waiting_since=ports.now(), **next_shift(run))
    ports.clusters.delete(run.raycluster)
    audit(ports, run.run_id, "step", "RayCluster deleted", detail=run.raycluster)
    return Reply(decision="ready", shift=str(run.shift_seq))


def release(ports: Ports, request: StepRequest) -> Reply:
    """The record becomes final and the lease is given back, in one transaction; the next run in line is woken."""
    run = ports.runs.load(request.run_id, request.k)
    if not run.state.is_final:
        run = _finished(ports, run)
        audit(ports, run.run_id, "step", f"released pool {run.pool}", detail=f"run is {run.state}")
    wake_next(ports, run.pool)
    return Reply(decision="ready")


def _finished(ports: Ports, run: Run) -> Run:
    """A repeat of this step may have been faster: what follows is due all the same."""
    try:
        return _final(ports, run)
    except StaleExecution:
        there = ports.runs.load(run.run_id, run.k)
        if not there.state.is_final:
            raise
        return there


def _final(ports: Ports, run: Run) -> Run:
    """The last write, and what is counted with it. Raises StaleExecution where the run is over already."""
    run = ports.runs.finish(run, run.verdict or RunState.FAILED, ended_at=ports.now())
    spend = spend_of(run.model_copy(update={"held_before": 0.0}), ports.now())
    measure(ports, run.run_id, ended(run, spend.dollars if spend is not None else None))
    return run


def wake_next(ports: Ports, pool: str) -> None:
    """Tell the oldest queued run of the pool that the lease is free."""
    waiting = ports.runs.next_in_line(pool)
    if waiting is not None:
        wake(ports, waiting, Signal(kind=SignalKind.LEASE_FREE, detail=f"pool {pool} was released", at=ports.now()))


def notify(ports: Ports, request: StepRequest) -> Reply:
    """The final message. Its key makes it one message, however often this step is repeated."""
    run = ports.runs.load(request.run_id, request.k)
    emit_final(ports, run)
    return Reply(decision=run.state.value)


def emit_final(ports: Ports, run: Run) -> None:
    """Everything that the last message shows, from the record and from S3. It is sent at every notification level, so a
    run without a readable spec has one too."""
    now, attempts = ports.now(), ports.runs.attempts(run.run_id)
    found = results_of(ports, run.run_id, attempts)
    thinned = found.curve[:: max(1, -(-len(found.curve) // MAX_CURVE))]
    accepted = emit(
        ports,
        run,
        spec_or_none(ports, run.run_id),
        STAGES[run.state],
        stage_key(run, "final"),
        attempt=run.attempt or None,
        cause=run.cause,
        sentence=_sentence(run),
        baseline=found.baseline,
        final=found.final,
        holdout_baseline=found.holdout_baseline,
        holdout_final=found.holdout_final,
        best=found.best,
        holdout_best=found.holdout_best,
        log_tail=_log_tail(ports, run, attempts),
        curve=[s.success for s in thinned],
        attempts=[attempt_line(a, now) for a in attempts][-20:],
        gpu_hours=round(gpu_hours_of(attempts, now), 4),
        spend=spend_of(run, now),
        links=ports.artifacts.links(run.run_id) | ({"Model package": run.model_package} if run.model_package else {}),
    )
    if not accepted:
        raise TransientError(run.run_id, "EventBridge did not accept the final message")
    ports.runs.told(run.run_id)  # until then the reconciler sends it again
    audit(ports, run.run_id, "step", "final message sent", detail=str(run.state))


def _sentence(run: Run) -> str:
    if not run.registration_problem:
        return run.sentence
    return f"{run.sentence} It is not in the model registry: {bounded(run.registration_problem, 500)}".strip()


def _log_tail(ports: Ports, run: Run, attempts: Sequence[Attempt]) -> str:
    """Of a failure: how the last attempt's driver log ends, as it was kept when the attempt ended; secrets are out of it."""
    if run.state is not RunState.FAILED or not attempts:
        return ""
    body = ports.artifacts.read_small(f"{RunKeys(run.run_id).diagnostics(attempts[-1].n)}{DRIVER_LOG}")
    text = (body or b"").decode("utf-8", "replace")
    return "" if text.startswith((NO_LOG, MISSING)) else last_lines(text)


def finish_for(ports: Ports, run_id: str, k: int, status: str, error: str) -> bool:
    """The finisher: an execution ended past every catcher. Ends the run as its steps would have; False where nothing is
    left to do. Idempotent."""
    try:
        run = ports.runs.load(run_id, k)
    except StaleExecution:
        return False
    if run.state.is_final:  # the last steps may have died after the record was written; all are safe to repeat
        ports.clusters.delete(run.raycluster)
        wake_next(ports, run.pool)
        emit_final(ports, run)
        return False
    why = bounded(f"the state machine ended as {status}: {told(error)}", 600)
    if _may_become_failed(run):
        run = ports.runs.update(
            run,
            verdict=RunState.FAILED,
            cause=EndCause.CONTROLLER_FAULT,
            sentence=bounded(f"{POLICIES[EndCause.CONTROLLER_FAULT].sentence} ({why})", 900),
        )
    audit(ports, run_id, "finisher", "takes over", detail=why)
    _end_open_attempt(ports, run, why)
    ports.clusters.delete(run.raycluster)
    _confirm_gone(ports, run)
    run = _final(ports, run)
    ports.clusters.delete(run.raycluster)  # an orphan of the execution may have created it again before the last write
    wake_next(ports, run.pool)
    emit_final(ports, run)
    return True


def _confirm_gone(ports: Ports, run: Run) -> None:
    """Wait for the pods within this invocation; what is still there then is the reconciler's to find."""
    while ports.remaining() > 15:
        view = ports.clusters.view(run.raycluster)
        if not view.exists and not view.pods:
            return
        ports.sleep(1.0)
    audit(ports, run.run_id, "finisher", "pods still there", detail=run.raycluster)

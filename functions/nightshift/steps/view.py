"""``GET /runs/{run_id}``."""

from __future__ import annotations

from collections.abc import Sequence

from nightshift.contract.api import CancelMode, CurvePoint, RunView
from nightshift.core.budgets import spend_of
from nightshift.core.evidence import results
from nightshift.core.run import Attempt, Run, RunState
from nightshift.steps.common import attempt_line, gpu_hours_of
from nightshift.steps.ports import Ports

TRAIL, MAX_CURVE = 100, 200


def view_run(ports: Ports, run_id: str, bucket: str) -> RunView | None:
    """None for a run that nobody ever asked for. A refused request shows its errors."""
    run, now = ports.runs.get(run_id), ports.now()
    if run is None:
        refused = ports.runs.rejections(run_id)
        if not refused:
            return None
        last = max(refused, key=lambda r: r.at)
        return RunView(
            run_id=run_id,
            state=RunState.REJECTED.value,
            owner=last.owner,
            pool="",
            created_at=last.at,
            attempt=0,
            step=0,
            verified_step=0,
            total_steps=0,
            sentence="Nothing was started.",
            attempts=[],
            audit=[],
            errors=last.errors,
            prefix="",
        )
    attempts = ports.runs.attempts(run_id)
    return RunView(
        run_id=run.run_id,
        state=run.state.value,
        owner=run.owner,
        pool=run.pool,
        created_at=run.created_at,
        attempt=run.attempt,
        step=run.step,
        verified_step=run.verified_step,
        total_steps=run.total_steps,
        parent=run.parent,
        success=run.success,
        eta_seconds=run.eta_seconds,
        cause=run.cause,
        sentence=run.sentence,
        waiting_for=run.waiting_for,
        spend=spend_of(run, now),
        gpu_hours=round(gpu_hours_of(attempts, now), 4),
        curve=_curve(ports, run, attempts),
        attempts=[attempt_line(a, now) for a in attempts],
        audit=list(ports.runs.audit_trail(run_id, TRAIL)),
        question=run.question.text if run.question is not None else "",
        answer_until=run.question.until if run.question is not None else None,
        cancel_requested=run.cancel_requested,
        cancel_mode=_cancel_mode(run),
        retries=run.reopenings,
        image=run.image,
        ended_at=run.ended_at,
        prefix=f"s3://{bucket}/runs/{run_id}/",
        links=ports.artifacts.links(run_id) if run.published else {},
    )


def _cancel_mode(run: Run) -> CancelMode | None:
    if not run.cancel_requested:
        return None
    return CancelMode.NOW if run.cancel_now else CancelMode.AFTER_CHECKPOINT


def _curve(ports: Ports, run: Run, attempts: Sequence[Attempt]) -> list[CurvePoint]:
    """Evals of the fixed set that count, as they are in the bucket now."""
    if not attempts:
        return []
    found = results(ports.artifacts.curve(run.run_id, MAX_CURVE), (), attempts).curve
    return [
        CurvePoint(step=s.step, attempt=s.attempt, solved=s.solved, of=s.of, success=s.success, low=s.low, high=s.high)
        for s in found
    ]

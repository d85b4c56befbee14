"""``GET /runs/{run_id}``."""

from __future__ import annotations

from nightshift.contract.api import RunView
from nightshift.core.budgets import spend_of
from nightshift.core.run import RunState
from nightshift.steps.common import attempt_line
from nightshift.steps.ports import Ports

TRAIL = 100


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
        success=run.success,
        eta_seconds=run.eta_seconds,
        cause=run.cause,
        sentence=run.sentence,
        waiting_for=run.waiting_for,
        spend=spend_of(run, now),
        attempts=[attempt_line(a, now) for a in ports.runs.attempts(run_id)],
        audit=list(ports.runs.audit_trail(run_id, TRAIL)),
        question=run.question.text if run.question is not None else "",
        answer_until=run.question.until if run.question is not None else None,
        cancel_requested=run.cancel_requested,
        prefix=f"s3://{bucket}/runs/{run_id}/",
    )

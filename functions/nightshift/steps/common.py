"""Small things that several steps do in the same way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from nightshift.contract.api import AuditLine
from nightshift.contract.events import Stage, StageEvent
from nightshift.contract.publication import AttemptLine
from nightshift.contract.spec import NotifyLevel, RunSpec
from nightshift.core.errors import PermanentError, bounded
from nightshift.core.evidence import Results, results
from nightshift.core.guard import guard_words
from nightshift.core.measures import Measure, counted
from nightshift.core.run import Attempt, Run
from nightshift.steps.ports import Ports


def execution_name(run: Run) -> str:
    """Of the only execution that may write: its run's id and k. The finisher reads both from it."""
    return f"{run.run_id}-r{run.k}"


def start_execution(ports: Ports, run: Run) -> None:
    """Start the execution that is in charge of the run. Repeated, it has the same name and the same input: it runs once."""
    ports.executions.start(execution_name(run), {"version": 1, "run_id": run.run_id, "k": run.k})


def stage_key(run: Run, key: str) -> str:
    """Of a stage that comes once in a run, and once more after each time that it was reopened."""
    return f"{key}-again{run.reopenings}" if run.reopenings else key


def next_shift(run: Run) -> dict[str, Any]:
    """Changes that number the next shift, so that its execution's name is new."""
    return {"shift_seq": run.shift_seq + 1, "shift_first_look": run.look_seq}


def audit(ports: Ports, run_id: str, actor: str, what: str, signal: str | None = None, detail: str = "") -> None:
    """One line of the trail. ``what`` is a short fixed word group, ``detail`` is free and bounded."""
    line = AuditLine(at=ports.now(), actor=actor, what=what, signal=signal, detail=bounded(detail, 500))
    ports.runs.audit(run_id, line)


def measure(ports: Ports, run_id: str, measures: Iterable[Measure]) -> None:
    """After the write that makes them true, and before anything else that may fail."""
    for one in counted(run_id, measures):
        ports.measure(one)


def emit(ports: Ports, run: Run, spec: RunSpec | None, stage: Stage, key: str, **fields: Any) -> bool:
    """A stage event; who makes messages of them leaves out what the run's level does not want. False where it was not
    accepted."""
    return ports.stages.emit(
        StageEvent(
            run_id=run.run_id,
            stage=stage,
            key=key,
            owner=run.owner,
            notify=spec.notify if spec is not None else NotifyLevel.NORMAL,
            at=ports.now(),
            step=fields.pop("step", run.step),
            total_steps=run.total_steps,
            **fields,
        )
    )


def results_of(ports: Ports, run_id: str, attempts: Sequence[Attempt]) -> Results:
    """Evals and exports that count, read afresh."""
    return results(ports.artifacts.summaries(run_id), ports.artifacts.exports(run_id), attempts)


def model_of(ports: Ports, spec: RunSpec, attempts: Sequence[Attempt]) -> str:
    """The base model's address; of one on the hub with the commit that the attempts resolved its revision to."""
    if spec.model.source.startswith("hf://"):
        for attempt in reversed(attempts):
            outcome = ports.artifacts.outcome(spec.run_id, attempt.n)
            if outcome is not None and outcome.model is not None:
                return outcome.model
    return spec.model.source


def spec_or_none(ports: Ports, run_id: str) -> RunSpec | None:
    """None where there is none that can be read, whatever the reason: repeating does not help."""
    try:
        return ports.artifacts.spec(run_id)
    except PermanentError:
        return None


def gpu_hours_of(attempts: Sequence[Attempt], now: datetime) -> float:
    """Attributed to all attempts of a run."""
    return sum(a.gpu_hours(now) for a in attempts)


def attempt_line(attempt: Attempt, now: datetime) -> AttemptLine:
    """An attempt as reports show it."""
    return AttemptLine(
        n=attempt.n,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        end_cause=attempt.end_cause,
        signal=attempt.signal,
        message=bounded(attempt.message, 500),
        node=attempt.node,
        resumed_step=attempt.resumed_step,
        last_saved_step=attempt.last_saved_step,
        gpu_hours=round(attempt.gpu_hours(now), 4),
        smaller=attempt.smaller,
        guard=guard_words(attempt.guard) if attempt.guard is not None else "",
    )

"""Take over what a job reports, and ask something of it."""

from __future__ import annotations

from typing import Any

from nightshift.contract.control import Control, ControlCommand
from nightshift.contract.events import Stage
from nightshift.contract.job import GuardReport, Outcome, Progress
from nightshift.contract.spec import RunSpec
from nightshift.core.blame import instances_taken_from
from nightshift.core.decision import Decision
from nightshift.core.errors import bounded
from nightshift.core.guard import guard_words
from nightshift.core.hang import next_step_times
from nightshift.core.measures import recovered, resumed
from nightshift.core.observation import JobState, Observation
from nightshift.core.run import Attempt, Run
from nightshift.steps.common import audit, emit, measure
from nightshift.steps.ports import Ports

MAX_ANNOUNCED = 32
MAX_KEPT = 20


def learn(ports: Ports, run: Run, spec: RunSpec, attempt: Attempt, seen: Observation) -> tuple[Run, Attempt]:
    """Take over what the job reported; only rising numbers are believed to rise."""
    progress, outcome = seen.progress, seen.outcome
    known: dict[str, Any] = {}
    if progress is not None:
        known = {"resumed_step": progress.resumed_step, "last_saved_step": progress.saved_step}
    if outcome is not None:
        known = {"resumed_step": outcome.resumed_step, "last_saved_step": outcome.saved_step}
    report = _guard_report(progress, outcome)
    if report is not None and attempt.guard is None:
        known["guard"] = report
    if attempt.heard_at is None and (progress is not None or outcome is not None):
        known["heard_at"] = ports.now()
    alive = seen.job.state is JobState.RUNNING or progress is not None or outcome is not None
    if alive and attempt.running_at is None:
        known["running_at"] = ports.now()
    learned = attempt.model_copy(update=known)
    if learned != attempt:
        saved = ports.runs.save_attempt(run, learned)
        measure(ports, run.run_id, resumed(run, attempt, learned) if saved else ())
    if learned.guard is not None and attempt.guard is None and guard_words(learned.guard):
        audit(ports, run.run_id, "job", f"guard of attempt {learned.n}", detail=guard_words(learned.guard))
    if learned.running_at is not None and attempt.running_at is None:
        _came_alive(ports, run, spec, learned, seen)
    events = {s.instance_id for s in seen.signals if s.kind.is_node_event and s.instance_id in run.instances}
    changes: dict[str, Any] = {"verified_step": max(run.verified_step, learned.last_saved_step)}
    changes["announced"] = tuple(sorted({*run.announced, *(i for i in events if i)}))[-MAX_ANNOUNCED:]
    changes["taken_away"] = tuple(sorted({*run.taken_away, *instances_taken_from(seen)}))[-MAX_ANNOUNCED:]
    if seen.witness is not None and seen.witness != run.witness:
        changes |= {"witness": seen.witness, "witness_at": ports.now()}
    if progress is not None:
        changes["step_times"] = next_step_times(run, progress)
        changes |= {"step": progress.step, "eta_seconds": progress.eta_seconds}
        changes |= {"success": progress.success if progress.success is not None else run.success}
    changes = {name: value for name, value in changes.items() if value != getattr(run, name)}
    return (ports.runs.update(run, **changes) if changes else run), learned


def _guard_report(progress: Progress | None, outcome: Outcome | None) -> GuardReport | None:
    """What the guard did, told by the outcome or by the progress; cut, since it is kept in the record."""
    told = (outcome.guard if outcome is not None else None) or (progress.guard if progress is not None else None)
    if told is None:
        return None
    kept = {
        "checked": told.checked[:MAX_KEPT],
        "quarantined": [bounded(one, 100) for one in told.quarantined[:MAX_KEPT]],
        "notes": [bounded(note, 300) for note in told.notes[:MAX_KEPT]],
    }
    return told.model_copy(update=kept)


def _came_alive(ports: Ports, run: Run, spec: RunSpec, attempt: Attempt, seen: Observation) -> None:
    now = ports.now()
    measure(ports, run.run_id, recovered(run, now) if attempt.n > 1 else ())
    audit(ports, run.run_id, "look", f"attempt {attempt.n} is running", seen.signal)
    if attempt.n == 1:
        emit(ports, run, spec, Stage.STARTED, "started", attempt=1)
        return
    seconds = (now - run.recovering_since).total_seconds() if run.recovering_since else None
    emit(
        ports,
        run,
        spec,
        Stage.RECOVERED,
        f"recovered-a{attempt.n}",
        attempt=attempt.n,
        cause=run.cause,
        node=run.lost_instance,
        seconds=seconds,
        step=attempt.floor,
    )


def ask_the_job(ports: Ports, run: Run, seen: Observation, decision: Decision) -> Run:
    """Write control.json once: a request that the job has not acknowledged yet is not repeated."""
    command, progress = decision.control, seen.progress
    acknowledged = progress.acknowledged if progress is not None else 0
    nothing_new = progress is not None and progress.step <= progress.saved_step
    waiting = acknowledged < run.control_seq and run.control_command in (command, ControlCommand.STOP_AFTER_CHECKPOINT)
    if command is None or waiting or (command is ControlCommand.CHECKPOINT_NOW and nothing_new):
        return run
    seq = run.control_seq + 1
    ports.artifacts.control(Control(run_id=run.run_id, seq=seq, command=command, reason=decision.why, at=ports.now()))
    audit(ports, run.run_id, "look", f"asked the job: {command}", seen.signal, decision.why)
    return ports.runs.update(run, control_seq=seq, control_command=command)

"""Look: one observation, one decision, one answer. The only wait of the system is between two looks.

Waits that send no events (a cluster coming up, a fence, a job that is still pending) are watched closely for their first
minutes: the look holds and observes again within its invocation, and then answers its own token. So no nap is ever shorter
than the function's own timeout (two looks of one shift never overlap), a wait of seconds costs seconds, and a history
grows by one look for each held invocation instead of each observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from nightshift.contract.control import Control, ControlCommand
from nightshift.contract.events import Stage
from nightshift.contract.spec import RunSpec
from nightshift.core.causes import POLICIES, EndCause
from nightshift.core.decide import decide, spent_recoveries
from nightshift.core.decision import Decision, Verb
from nightshift.core.errors import StaleExecution, bounded
from nightshift.core.hang import next_step_times
from nightshift.core.observation import JobState, Observation
from nightshift.core.run import Attempt, Awaiting, Run, RunState
from nightshift.steps.common import audit, emit, next_shift
from nightshift.steps.diagnostics import save_driver_log
from nightshift.steps.observe import observe
from nightshift.steps.ports import Ports
from nightshift.steps.requests import LookRequest, Reply

HOLD_SECONDS = 0.5
HOLD_RESERVE = 12.0
"""Seconds of an invocation that a held look leaves for its last observation and its writes."""

MIN_GAP = 1.0
"""Seconds between a look that a signal overtook and the next: a storm of signals costs one look a second."""

MAX_ANNOUNCED = 32
MAX_LOOKS = 1_500
MAX_SHIFT = timedelta(hours=22)
"""Bounds of a shift: 6 to 8 events a look keep it far below 25,000."""

VERDICTS = {
    Verb.SUCCEEDED: RunState.SUCCEEDED,
    Verb.FAILED: RunState.FAILED,
    Verb.CANCELLED: RunState.CANCELLED,
}


@dataclass(frozen=True)
class Judged:
    """A look's material: the run with what was learned, its current attempt, what was seen and decided.

    ``counter`` is the signal counter from before the observation. The record that a write gives back may hold a newer
    one, and a signal counted there has not been seen."""

    run: Run
    attempt: Attempt | None
    seen: Observation
    decision: Decision
    counter: int


def look(ports: Ports, request: LookRequest, interval: int) -> Reply | None:
    """Answers the token, or registers it and returns None. ``interval`` is the nap in seconds."""
    try:
        run = ports.runs.begin_look(request.run_id, request.k, ports.now())
        reply = _look(ports, request, run, interval)
    except StaleExecution:
        reply = _stale(ports, request, interval)
    if reply is not None:
        ports.executions.answer(request.token, reply.model_dump(mode="json"))
    return reply


def _stale(ports: Ports, request: LookRequest, interval: int) -> Reply:
    """Only a run that is over, or another k, ends the shift. A look that was merely overtaken, by a repeat of itself for
    example, may still be the one whose token is waited for: the shift looks again."""
    run = ports.runs.get(request.run_id)
    if run is None or run.k != request.k or run.state.is_final:
        return Reply(decision="stale", interval=interval)
    ports.sleep(MIN_GAP)
    return Reply(decision="look", shift=str(run.shift_seq), interval=interval)


def _look(ports: Ports, request: LookRequest, run: Run, interval: int) -> Reply | None:
    settled = _settled(run, request.awaiting)
    if settled is not None:  # an earlier look wrote its decision and died before it could answer
        return _handed_over(ports, run, settled, interval)
    spec, look_seq = ports.artifacts.spec(run.run_id), run.look_seq
    while True:
        judged = _judge(ports, run, spec, request.awaiting)
        if judged.decision.verb is not Verb.HOLD or ports.remaining() < HOLD_RESERVE:
            break
        ports.sleep(HOLD_SECONDS)
        run = ports.runs.load(run.run_id, run.k)
        if run.look_seq != look_seq:
            return None  # a later look is in charge, and this token is not waited for any more
    run = judged.run
    match judged.decision.verb:
        case Verb.HOLD:
            run = ports.runs.update(run, look_seq, seen_counter=judged.counter)
            return _again_or(run, request, ports.now(), "look", interval)
        case Verb.NAP:
            return _nap(ports, request, judged, look_seq, interval)
        case Verb.READY:
            return _ready(ports, request, judged, look_seq, interval)
        case Verb.RECOVER:
            return _recover(ports, spec, judged, look_seq, interval)
        case Verb.SUCCEEDED | Verb.FAILED | Verb.CANCELLED:
            return _verdict(ports, judged, VERDICTS[judged.decision.verb], look_seq, interval)


def _settled(run: Run, awaiting: Awaiting) -> str | None:
    if awaiting is Awaiting.FENCE and run.state is RunState.TEARDOWN:
        return None
    if run.verdict is not None:
        return run.verdict.value
    if awaiting is Awaiting.ATTEMPT and run.state in (RunState.RECOVERING, RunState.PROVISIONING):
        return Verb.RECOVER.value
    if awaiting is Awaiting.FENCE and run.state is not RunState.RECOVERING:
        return Verb.READY.value  # the next attempt is on its way: what this fence was for has been done
    return None


def _handed_over(ports: Ports, run: Run, decision: str, interval: int) -> Reply:
    run = ports.runs.update(run, **next_shift(run))
    return Reply(decision=decision, shift=str(run.shift_seq), interval=interval)


def _judge(ports: Ports, run: Run, spec: RunSpec, awaiting: Awaiting) -> Judged:
    counter, attempts = run.signal_counter, ports.runs.attempts(run.run_id)
    seen = observe(ports, run, spec, awaiting, attempts, run.seen_counter)
    attempt = attempts[-1] if attempts else None
    if awaiting is Awaiting.ATTEMPT and attempt is not None:
        run, attempt = _learn(ports, run, spec, attempt, seen)
    decision = decide(run, spec, awaiting, seen, ports.now())
    if decision.stop_job and attempt is not None:
        ports.jobs(run.raycluster).stop(attempt.submission_id)
    if decision.create_cluster:
        _create_again(ports, run, spec)
    if decision.control is not None:
        run = _ask(ports, run, seen, decision)
    return Judged(run, attempt, seen, decision, counter)


def _create_again(ports: Ports, run: Run, spec: RunSpec) -> None:
    """Unless the run was ended meanwhile: then it was its end that deleted the RayCluster."""
    ports.clusters.create(spec, run.owner)
    now = ports.runs.load(run.run_id, run.k)
    if now.verdict is not None or now.state.is_final:
        ports.clusters.delete(run.raycluster)
        raise StaleExecution(run.run_id, run.k, "the run was ended while its RayCluster was created again")


def _learn(ports: Ports, run: Run, spec: RunSpec, attempt: Attempt, seen: Observation) -> tuple[Run, Attempt]:
    """Take over what the job reported; only rising numbers are believed to rise."""
    progress, outcome = seen.progress, seen.outcome
    known: dict[str, Any] = {}
    if progress is not None:
        known = {"resumed_step": progress.resumed_step, "last_saved_step": progress.saved_step}
    if outcome is not None:
        known = {"resumed_step": outcome.resumed_step, "last_saved_step": outcome.saved_step}
    if attempt.heard_at is None and (progress is not None or outcome is not None):
        known["heard_at"] = ports.now()
    alive = seen.job.state is JobState.RUNNING or progress is not None or outcome is not None
    if alive and attempt.running_at is None:
        known["running_at"] = ports.now()
    learned = attempt.model_copy(update=known)
    if learned != attempt:
        ports.runs.save_attempt(run, learned)
    if learned.running_at is not None and attempt.running_at is None:
        _came_alive(ports, run, spec, learned, seen)
    events = {s.instance_id for s in seen.signals if s.kind.is_node_event and s.instance_id in run.instances}
    changes: dict[str, Any] = {"verified_step": max(run.verified_step, learned.last_saved_step)}
    changes["announced"] = tuple(sorted({*run.announced, *(i for i in events if i)}))[-MAX_ANNOUNCED:]
    if seen.witness is not None and seen.witness != run.witness:
        changes |= {"witness": seen.witness, "witness_at": ports.now()}
    if progress is not None:
        changes["step_times"] = next_step_times(run, progress)
        changes |= {"step": progress.step, "eta_seconds": progress.eta_seconds}
        changes |= {"success": progress.success if progress.success is not None else run.success}
    changes = {name: value for name, value in changes.items() if value != getattr(run, name)}
    return (ports.runs.update(run, **changes) if changes else run), learned


def _came_alive(ports: Ports, run: Run, spec: RunSpec, attempt: Attempt, seen: Observation) -> None:
    now = ports.now()
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


def _ask(ports: Ports, run: Run, seen: Observation, decision: Decision) -> Run:
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


def _again_or(run: Run, request: LookRequest, now: datetime, decision: str, interval: int) -> Reply:
    over = run.look_seq - run.shift_first_look >= MAX_LOOKS or now - request.shift_started >= MAX_SHIFT
    return Reply(decision="again" if over else decision, shift=str(run.shift_seq), interval=interval)


def _nap(ports: Ports, request: LookRequest, judged: Judged, look_seq: int, interval: int) -> Reply | None:
    run, now = judged.run, ports.now()
    if _again_or(run, request, now, "look", interval).decision == "again":
        return _handed_over(ports, run, "again", interval)
    if ports.runs.nap(run, request.token, interval, now, judged.counter, look_seq):
        return None
    # A signal came while we looked, or a later look began: what we saw may be old.
    ports.sleep(MIN_GAP)
    return Reply(decision="look", shift=str(run.shift_seq), interval=interval)


def _ready(ports: Ports, request: LookRequest, judged: Judged, look_seq: int, interval: int) -> Reply | None:
    run, now = judged.run, ports.now()
    changes: dict[str, Any] = {"seen_counter": judged.counter}
    if request.awaiting is Awaiting.LEASE and not ports.runs.take_lease(run, now):
        return _nap(ports, request, judged, look_seq, interval)
    if request.awaiting is Awaiting.CLUSTER:
        changes["instances"] = judged.seen.cluster.instances
    if request.awaiting is Awaiting.FENCE and run.state is RunState.RECOVERING:
        changes["state"] = RunState.PROVISIONING  # only from here on may another attempt be claimed
    changes |= _told_late(ports, judged)
    audit(ports, run.run_id, "look", f"{request.awaiting} ready", judged.seen.signal, judged.decision.why)
    run = ports.runs.update(run, look_seq, **changes, **next_shift(run))
    return Reply(decision=Verb.READY.value, shift=str(run.shift_seq), interval=interval)


def _told_late(ports: Ports, judged: Judged) -> dict[str, Any]:
    """An event about the lost node that came after the decision: the cause was right, but it was not a silent loss."""
    run, wrong, right = judged.run, EndCause.NODE_LOST, EndCause.NODE_REPLACED
    named = {s.instance_id for s in judged.seen.signals if s.kind.is_node_event}
    if run.cause is not wrong or run.lost_instance not in named:
        return {}
    ports.runs.correct_cause(run, run.attempt, wrong, right)
    audit(ports, run.run_id, "look", f"attempt {run.attempt} ended: {right}", judged.seen.signal, "its event came late")
    return {"cause": right}


def _end_attempt(ports: Ports, judged: Judged) -> None:
    attempt, decision = judged.attempt, judged.decision
    if attempt is None or attempt.ended_at is not None:
        return
    save_driver_log(ports, judged.run, attempt)
    ports.runs.save_attempt(
        judged.run,
        attempt.model_copy(
            update={
                "ended_at": ports.now(),
                "end_cause": decision.cause,
                "signal": judged.seen.signal,
                "message": bounded(decision.why),
                "node": decision.node,
            }
        ),
    )


def _recover(ports: Ports, spec: RunSpec, judged: Judged, look_seq: int, interval: int) -> Reply:
    run, decision, now = judged.run, judged.decision, ports.now()
    _end_attempt(ports, judged)
    run = ports.runs.update(
        run,
        look_seq,
        state=RunState.RECOVERING,
        cause=decision.cause,
        lost_instance=decision.node,
        recoveries_without_progress=spent_recoveries(run) + 1,
        recovery_floor=run.verified_step,
        recovering_since=now,
        announced=(),
        witness=None,
        witness_at=None,
        waiting_since=now,
        seen_counter=judged.counter,
        **next_shift(run),
    )
    audit(ports, run.run_id, "look", f"attempt {run.attempt} ended: {decision.cause}", judged.seen.signal, decision.why)
    emit(
        ports,
        run,
        spec,
        Stage.RECOVERING,
        f"recovering-a{run.attempt}",
        attempt=run.attempt,
        cause=decision.cause,
        node=decision.node,
        step=run.verified_step,
        sentence=POLICIES[decision.cause].sentence if decision.cause else "",
    )
    return Reply(decision=Verb.RECOVER.value, shift=str(run.shift_seq), interval=interval)


def _verdict(ports: Ports, judged: Judged, verdict: RunState, look_seq: int, interval: int) -> Reply:
    run, decision = judged.run, judged.decision
    _end_attempt(ports, judged)
    run = ports.runs.update(
        run,
        look_seq,
        state=RunState.PUBLISHING,
        verdict=verdict,
        cause=decision.cause,
        sentence=_sentence(decision),
        seen_counter=judged.counter,
        **next_shift(run),
    )
    audit(ports, run.run_id, "look", f"run {verdict}: {decision.cause}", judged.seen.signal, decision.why)
    return Reply(decision=decision.verb.value, shift=str(run.shift_seq), interval=interval)


def _sentence(decision: Decision) -> str:
    policy = POLICIES[decision.cause].sentence if decision.cause is not None else ""
    return bounded(policy if decision.verb is Verb.SUCCEEDED else f"{policy} ({decision.why})", 900)

"""Observe, learn, decide, and carry out what a decision asks for beyond ending the wait."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from nightshift.contract.events import Stage
from nightshift.contract.spec import RunSpec
from nightshift.core.causes import POLICIES, EndCause
from nightshift.core.decide import decide
from nightshift.core.decision import Decision, Verb
from nightshift.core.errors import StaleExecution, TransientError, bounded
from nightshift.core.observation import Observation
from nightshift.core.run import Attempt, Awaiting, Question, Run
from nightshift.steps.common import audit, emit
from nightshift.steps.fence import create_again, escalate, forget
from nightshift.steps.learn import ask_the_job, learn
from nightshift.steps.notices import notice
from nightshift.steps.observe import observe
from nightshift.steps.ports import Ports
from nightshift.steps.queueing import note_wait
from nightshift.steps.reports import tell_not_believed


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


def judge(ports: Ports, run: Run, spec: RunSpec, awaiting: Awaiting) -> Judged:
    """One observation and its decision; side effects of the decision are done and safe to repeat."""
    counter, look_seq, attempts = run.signal_counter, run.look_seq, ports.runs.attempts(run.run_id)
    seen = observe(ports, run, spec, awaiting, attempts, run.seen_counter)
    attempt = attempts[-1] if attempts else None
    if awaiting is Awaiting.ATTEMPT and attempt is not None:
        run, attempt = learn(ports, run, spec, attempt, seen)
    if awaiting is not Awaiting.LEASE:
        run = notice(ports, run, spec, attempts, seen)
    decision = decide(run, spec, awaiting, seen, ports.now())
    run = note_wait(ports, run, awaiting, seen, decision)
    if decision.stop_job and attempt is not None:
        ports.jobs(run.raycluster).stop(attempt.submission_id)
    if decision.delete_pods or decision.recreate_cluster:
        run = escalate(ports, run, spec, decision)
    if decision.forget:
        forget(ports, run, decision.forget)
    if decision.create_cluster:
        create_again(ports, run, spec)
    if decision.control is not None:
        run = ask_the_job(ports, run, seen, decision)
    if decision.ask is not None:
        run = ask_somebody(ports, run, spec, decision.ask, decision.why, look_seq)
    if decision.verb not in (Verb.HOLD, Verb.NAP):
        tell_not_believed(ports, run)
    return Judged(run, attempt, seen, decision, counter)


def ask_somebody(ports: Ports, run: Run, spec: RunSpec, cause: EndCause, why: str, look_seq: int) -> Run:
    """Put a question to a person. The message goes out before the record says that it was asked: a look that dies in between
    asks once more, and no run waits for an answer to what nobody was told. Only the look in charge asks. Raises
    TransientError and StaleExecution."""
    if ports.runs.load(run.run_id, run.k).look_seq != look_seq:
        raise StaleExecution(run.run_id, run.k, "a later look began, and asks if that is needed")
    now = ports.now()
    text = bounded(f"{POLICIES[cause].sentence} ({why})", 900)
    until = now + timedelta(hours=spec.budgets.ask_hours)
    key, attempt = f"asking-{cause}-a{run.attempt}-{now:%Y%m%dT%H%M%S}", run.attempt or None
    if not emit(ports, run, spec, Stage.ASKING, key, cause=cause, sentence=text, until=until, attempt=attempt):
        raise TransientError(run.run_id, f"EventBridge did not accept the question about {cause}")
    run = ports.runs.update(run, look_seq, question=Question(cause=cause, text=text, asked_at=now, until=until))
    audit(ports, run.run_id, "look", f"asked a person about {cause}", detail=why)
    return run

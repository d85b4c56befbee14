"""Look: one observation, one decision, one answer. The only wait of the system is between two looks.

Waits that send no events (a cluster coming up, a fence, a job that is still pending) are watched closely for their first
minutes: the look holds and observes again within its invocation, and then answers its own token. So no nap is ever shorter
than the function's own timeout (two looks of one shift never overlap), a wait of seconds costs seconds, and a history
grows by one look for each held invocation instead of each observation.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from nightshift.core.decision import Verb
from nightshift.core.errors import StaleExecution
from nightshift.core.history import BOUNDS, Bounds, succession_due
from nightshift.core.run import Awaiting, Run, RunState
from nightshift.steps.common import next_shift
from nightshift.steps.conclude import ready, recover, verdict
from nightshift.steps.judge import Judged, judge
from nightshift.steps.ports import Ports
from nightshift.steps.requests import LookRequest, Reply
from nightshift.steps.scaling import pool_scaling, scale_up

HOLD_SECONDS = 0.5
HOLD_RESERVE = 12.0
"""Seconds of an invocation that a held look leaves for its last observation and its writes."""

MIN_GAP = 1.0
"""Seconds between a look that a signal overtook and the next: a storm of signals costs one look a second."""

MAX_LOOKS, MAX_SHIFT = BOUNDS.looks, BOUNDS.shift

AGAIN, SUCCESSOR = "again", "successor"
"""The shift's bound is reached: another one goes on. So is the parent's: another execution does."""

KNOWS_SUCCESSORS = 2
"""The version of the parent's machine since which it may be told to start one."""

CLUSTER_READY = (Awaiting.CLUSTER, Verb.READY.value)

VERDICTS = {
    Verb.SUCCEEDED: RunState.SUCCEEDED,
    Verb.FAILED: RunState.FAILED,
    Verb.CANCELLED: RunState.CANCELLED,
}


def look(ports: Ports, request: LookRequest, interval: int, bounds: Bounds = BOUNDS) -> Reply | None:
    """Answers the token, or registers it and returns None. ``interval`` is the nap in seconds."""
    try:
        run = ports.runs.begin_look(request.run_id, request.k, ports.now(), interval, request.entry)
        reply = _handing_on(_look(ports, request, run, interval, bounds), run, request, bounds)
    except StaleExecution:
        reply = _stale(ports, request, interval)
    if reply is not None:
        ports.executions.answer(request.token, reply.model_dump(mode="json"))
    return reply


def _stale(ports: Ports, request: LookRequest, interval: int) -> Reply:
    """Only a run that is over, or another k, ends the shift. A look that was merely overtaken, by a repeat of itself for
    example, may still be the one whose token is waited for: the shift looks again. A late repeat of an older look comes
    here too, and answers a token that nobody waits for."""
    run = ports.runs.get(request.run_id)
    if run is None or run.k != request.k or run.state.is_final:
        return Reply(decision="stale", interval=interval)
    ports.sleep(MIN_GAP)
    return Reply(decision="look", shift=str(run.shift_seq), interval=interval)


def _handing_on(reply: Reply | None, run: Run, request: LookRequest, bounds: Bounds) -> Reply | None:
    """Every circle of the parent passes one of these: there it may be told to start its successor, which finds in the
    record what was decided."""
    if reply is None or request.parent < KNOWS_SUCCESSORS:
        return reply
    if reply.decision not in (AGAIN, Verb.RECOVER.value) and (request.awaiting, reply.decision) != CLUSTER_READY:
        return reply
    due = succession_due(int(reply.shift), run.history_base, bounds)
    return reply.model_copy(update={"decision": SUCCESSOR}) if due else reply


def _look(ports: Ports, request: LookRequest, run: Run, interval: int, bounds: Bounds) -> Reply | None:
    settled = _settled(run, request.awaiting)
    if settled is not None:  # an earlier look wrote its decision and died before it could answer
        return _handed_over(ports, run, run.look_seq, settled, interval)
    spec, look_seq = ports.artifacts.spec(run.run_id), run.look_seq
    while True:
        judged = judge(ports, run, spec, request.awaiting)
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
            return _look_or_again(ports, request, run, interval, bounds)
        case Verb.NAP:
            if request.awaiting is Awaiting.CLUSTER and pool_scaling(ports, run) is not None:
                judged = replace(judged, run=scale_up(ports, run, spec))
            return _nap(ports, request, judged, look_seq, interval, bounds)
        case Verb.READY:
            reply = ready(ports, request.awaiting, judged, look_seq, interval)
            return reply if reply is not None else _nap(ports, request, judged, look_seq, interval, bounds)
        case Verb.RECOVER:
            return recover(ports, spec, judged, look_seq, interval)
        case Verb.SUCCEEDED | Verb.FAILED | Verb.CANCELLED:
            return verdict(ports, judged, VERDICTS[judged.decision.verb], look_seq, interval)


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


def _handed_over(ports: Ports, run: Run, look_seq: int, decision: str, interval: int) -> Reply:
    run = ports.runs.update(run, look_seq, **next_shift(run))
    return Reply(decision=decision, shift=str(run.shift_seq), interval=interval)


def _is_over(run: Run, request: LookRequest, now: datetime, bounds: Bounds) -> bool:
    return run.look_seq - run.shift_first_look >= bounds.looks or now - request.shift_started >= bounds.shift


def _look_or_again(ports: Ports, request: LookRequest, run: Run, interval: int, bounds: Bounds) -> Reply:
    if _is_over(run, request, ports.now(), bounds):
        return _handed_over(ports, run, run.look_seq, AGAIN, interval)
    return Reply(decision="look", shift=str(run.shift_seq), interval=interval)


def _nap(
    ports: Ports, request: LookRequest, judged: Judged, look_seq: int, interval: int, bounds: Bounds
) -> Reply | None:
    run, now = judged.run, ports.now()
    if _is_over(run, request, now, bounds):
        return _handed_over(ports, run, look_seq, AGAIN, interval)
    if ports.runs.nap(run, request.token, interval, now, judged.counter, look_seq):
        return None
    # A signal came while we looked, or a later look began: what we saw may be old.
    ports.sleep(MIN_GAP)
    return Reply(decision="look", shift=str(run.shift_seq), interval=interval)

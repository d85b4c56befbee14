"""What several waits decide in the same way."""

from __future__ import annotations

from datetime import datetime, timedelta

from nightshift.core.causes import EndCause
from nightshift.core.decision import Decision, Verb
from nightshift.core.observation import Observation
from nightshift.core.run import Run

HOLD_FOR = timedelta(minutes=3)
"""How long a wait that sends no events is watched closely before it is left to signals and the interval."""


def waited(run: Run, now: datetime) -> timedelta:
    return now - (run.waiting_since or now)


def hold_or_nap(run: Run, now: datetime, why: str) -> Decision:
    return Decision(Verb.HOLD if waited(run, now) < HOLD_FOR else Verb.NAP, why)


def unanswered(run: Run, now: datetime) -> Decision | None:
    """The end of a run whose question nobody answered in time, or was answered with "give up"."""
    question = run.question
    if question is None:
        return None
    if question.given_up_by is not None:
        why = f"{question.text} {question.given_up_by} answered: give up"
        return Decision(Verb.FAILED, why, question.cause, stop_job=True)
    if now >= question.until:
        why = f"{question.text} Nobody answered until {question.until:%Y-%m-%d %H:%M} UTC"
        return Decision(Verb.FAILED, why, question.cause, stop_job=True)
    return None


def lost_instance(run: Run, seen: Observation) -> str | None:
    """An instance that hosted a pod of the run and hosts none now. An empty pod list proves nothing by itself."""
    if not seen.cluster.exists or not seen.cluster.pods:
        return None
    gone = sorted(set(run.instances) - set(seen.cluster.instances))
    return gone[0] if gone else None


def node_cause(run: Run, seen: Observation, lost: str) -> EndCause:
    """Replaced if an event was about that very instance, in this look or in an earlier one."""
    told = {*run.announced, *(s.instance_id for s in seen.signals if s.kind.is_node_event)}
    return EndCause.NODE_REPLACED if lost in told else EndCause.NODE_LOST

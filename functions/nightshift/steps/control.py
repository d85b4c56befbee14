"""What a person may ask of a run: to end it, or the answer to its question. Both are written first and then wake the run;
a look finds them in the record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nightshift.core.access import may_steer
from nightshift.core.errors import NightshiftError, StaleExecution, TransientError, bounded
from nightshift.core.run import Question, Run, Signal, SignalKind
from nightshift.steps.common import audit
from nightshift.steps.ports import Ports
from nightshift.steps.signals import wake

TRIES, GAP = 5, 0.2
"""A look or a succession may come between reading and writing the record: then it is read again, seconds later."""


class NoSuchRun(NightshiftError):
    """Nobody asked for a run of that name."""

    def __init__(self, run_id: str) -> None:
        super().__init__(bounded(run_id, 40), "there is no such run", "Look for its id in the request's answer.")


class NotPossible(NightshiftError):
    """The run is not where that could be done."""


class NotYours(NightshiftError):
    """Somebody else's run: it may be looked at, and nothing more."""

    def __init__(self, run_id: str, owner: str) -> None:
        super().__init__(
            run_id, f"it belongs to {owner}", "Ask its owner, or an operator of this deployment (OperatorArns)."
        )


def must_be_steered_by(ports: Ports, run_id: str, who: str, operators: Sequence[str]) -> None:
    """Raises NoSuchRun, and NotYours for a run that ``who`` may only look at. An owner never changes."""
    run = ports.runs.get(run_id)
    if run is None:
        raise NoSuchRun(run_id)
    if not may_steer(run.owner, who, operators):
        raise NotYours(run_id, run.owner)


def cancel(ports: Ports, run_id: str, who: str, at_once: bool = False) -> Run:
    """End the run: a job that runs is asked to stop after a checkpoint, or stopped without one (``at_once``); whatever is
    queued or waits ends at once in any case. Asking again changes nothing, but that a cancel may become one at once. Raises
    NoSuchRun, NotPossible, TransientError."""

    def wanted(run: Run) -> dict[str, Any] | None:
        if run.cancel_requested and (run.cancel_now or not at_once or run.state.is_final or run.verdict is not None):
            return None
        _must_not_be_over(run, "cancelled")
        since = run.cancel_requested_at if run.cancel_requested else ports.now()
        return {"cancel_requested": True, "cancel_requested_at": since, "cancel_now": at_once}

    run, changed = _changed(ports, run_id, wanted)
    if changed:
        what = "cancel at once requested" if at_once else "cancel requested"
        audit(ports, run_id, "person", what, SignalKind.CANCEL.value, f"by {bounded(who, 200)}")
    if not run.state.is_final:  # also of a repeat: the one before may have died before it woke the run
        wake(ports, run_id, Signal(kind=SignalKind.CANCEL, detail=f"by {bounded(who, 200)}", at=ports.now()))
    return run


def answer(ports: Ports, run_id: str, go_on: bool, who: str) -> Run:
    """Answer the run's open question. Going on clears it, and the wait's deadlines count anew; giving up ends the run for
    the question's cause. Raises NoSuchRun, NotPossible, TransientError."""

    def wanted(run: Run) -> dict[str, Any] | None:
        _must_not_be_over(run, "answered")
        question = _open_question(run)
        if question.given_up_by is not None:
            if go_on:
                raise NotPossible(run_id, f"{question.given_up_by} gave it up already", "Start the run again.")
            return None
        if go_on:
            return {"question": None, "waiting_since": ports.now()}
        return {"question": question.model_copy(update={"given_up_by": bounded(who, 200)})}

    run, changed = _changed(ports, run_id, wanted)
    said = "go on" if go_on else "give up"
    if changed:
        audit(ports, run_id, "person", f"answered: {said}", SignalKind.ANSWER.value, f"by {bounded(who, 200)}")
    wake(ports, run_id, Signal(kind=SignalKind.ANSWER, detail=f"{said}, by {bounded(who, 200)}", at=ports.now()))
    return run


def _must_not_be_over(run: Run, what: str) -> None:
    if run.state.is_final or run.verdict is not None:
        ending = run.state if run.state.is_final else f"being ended as {run.verdict}"
        raise NotPossible(run.run_id, f"it is {ending} and cannot be {what}", "Nothing was changed.")


def _open_question(run: Run) -> Question:
    if run.question is None:
        raise NotPossible(run.run_id, "it has no open question", "Its audit trail shows what was asked and answered.")
    return run.question


def _changed(ports: Ports, run_id: str, wanted: Callable[[Run], dict[str, Any] | None]) -> tuple[Run, bool]:
    """Write what is wanted of the record as it is: on the condition that no look began, and no other execution, since it
    was read."""
    for _ in range(TRIES):
        run = ports.runs.get(run_id)
        if run is None:
            raise NoSuchRun(run_id)
        changes = wanted(run)
        if changes is None:
            return run, False
        try:
            return ports.runs.update(run, run.look_seq, **changes), True
        except StaleExecution:
            ports.sleep(GAP)
    raise TransientError(run_id, f"its record changed {TRIES} times while it was read")

"""A run that is over goes on from its checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from nightshift.contract.api import Retry
from nightshift.contract.events import FieldError
from nightshift.core.errors import NightshiftError, PermanentError, StaleExecution, TransientError, bounded
from nightshift.core.reopen import REOPENABLE, is_repeated, reopening, retry_problems
from nightshift.core.run import Run, RunState
from nightshift.steps.common import audit, gpu_hours_of, start_execution
from nightshift.steps.control import GAP, TRIES, NoSuchRun, NotPossible
from nightshift.steps.ports import Ports

RETRIED, NEWEST = "retried", 20
"""Its line of the trail; how many lines are looked at for it: a run that has not begun again has hardly any after it."""


class NotValid(NightshiftError):
    """What was asked for cannot be; ``errors`` say why by field."""

    def __init__(self, run_id: str, errors: Sequence[FieldError]) -> None:
        super().__init__(run_id, "; ".join(f"{e.field}: {e.problem}" for e in errors[:5]), "Nothing was changed.")
        self.errors = list(errors)


def retry(ports: Ports, run_id: str, change: Retry, who: str) -> Run:
    """The record is reopened by one conditional write; then the trail says who asked, and its next execution is started, by the
    reconciler if this call dies. The same wish again, while the run goes on, is that retry. The owner stays. Raises NoSuchRun,
    NotPossible, NotValid, TransientError."""
    for _ in range(TRIES):
        run = ports.runs.get(run_id)
        if run is None:
            raise NoSuchRun(run_id)
        if is_repeated(run, change):
            if run.state is RunState.ADMITTED:  # the first call may have died half-way
                _go_on(ports, run, change, who)
            return run
        if run.state not in REOPENABLE:
            raise NotPossible(run_id, f"it is {run.state}: only a failed or cancelled run is retried", _instead(run))
        problems = _problems(ports, run, change)
        if problems:
            raise NotValid(run_id, problems)
        try:
            reopened = ports.runs.reopen(run, **reopening(run, change, ports.now()))
        except StaleExecution:
            ports.sleep(GAP)
            continue
        if reopened is None:
            raise NotPossible(run_id, "its last message has not been sent yet", "Ask again in a minute.")
        _go_on(ports, reopened, change, who)
        return reopened
    raise TransientError(run_id, f"its record changed {TRIES} times while it was read")


def _go_on(ports: Ports, run: Run, change: Retry, who: str) -> None:
    """The trail comes first: what is started, somebody asked for. Doing it again changes nothing."""
    since = run.reopened_at or run.created_at
    lines = ports.runs.audit_trail(run.run_id, NEWEST)
    if not any(line.what == RETRIED and line.at >= since for line in lines):
        audit(ports, run.run_id, "person", RETRIED, detail=f"by {bounded(who, 200)}{_told(change)}")
    start_execution(ports, run)


def _problems(ports: Ports, run: Run, change: Retry) -> Sequence[FieldError]:
    try:
        spec = ports.artifacts.spec(run.run_id)
    except PermanentError as error:
        raise NotPossible(run.run_id, "its spec cannot be read any more", bounded(error, 500)) from error
    gpu_hours = gpu_hours_of(ports.runs.attempts(run.run_id), ports.now())
    return retry_problems(
        run, run.retry.applied_to(spec) if run.retry is not None else spec, change, gpu_hours, ports.now()
    )


def _instead(run: Run) -> str:
    return "Start a new run." if run.state.is_final else "Cancel it first, or wait for its end."


def _told(change: Retry) -> str:
    named = [f"budgets.{name} {value:g}" for name, value in change.budgets.named().items()]
    named += [f"image {change.image}"] if change.image is not None else []
    return f"; {', '.join(named)}" if named else ""

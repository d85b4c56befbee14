"""What a job reported, where it can be believed; and what could not be, told where it matters."""

from __future__ import annotations

from nightshift.contract.job import Outcome, Progress
from nightshift.contract.layout import RunKeys
from nightshift.core.plausible import implausible
from nightshift.core.run import Run
from nightshift.steps.common import audit
from nightshift.steps.ports import Ports


def progress_of(ports: Ports, run: Run, attempt: int) -> Progress | None:
    """progress.json of an attempt; None where there is none to believe."""
    found = ports.artifacts.progress(run.run_id, attempt)
    why = implausible(run, found, ports.now()) if found is not None else None
    if why is not None:
        ports.artifacts.doubt(RunKeys(run.run_id).progress(attempt), why)
    return found if why is None else None


def outcome_of(ports: Ports, run: Run, attempt: int) -> Outcome | None:
    """outcome.json of an attempt; None where there is none to believe."""
    found = ports.artifacts.outcome(run.run_id, attempt)
    why = implausible(run, found, ports.now()) if found is not None else None
    if why is not None:
        ports.artifacts.doubt(RunKeys(run.run_id).outcome(attempt), why)
    return found if why is None else None


def tell_not_believed(ports: Ports, run: Run) -> None:
    """A line in the trail for each object that a decision had to do without."""
    prefix = RunKeys(run.run_id).prefix
    for one in ports.artifacts.not_believed():
        if one.key.startswith(prefix):
            audit(ports, run.run_id, "reader", f"not believed: {one.key.removeprefix(prefix)[:120]}", detail=one.why)

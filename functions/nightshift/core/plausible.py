"""What a readable report of a job cannot be: it would set the run's floor, its last step, or its age."""

from __future__ import annotations

from datetime import datetime, timedelta

from nightshift.contract.job import Outcome, Progress
from nightshift.core.run import Run

CLOCKS_DIFFER = timedelta(hours=1)
"""A report further in the future than this would never grow old: its job could not be seen to hang."""


def implausible(run: Run, report: Progress | Outcome, now: datetime) -> str | None:
    """Why the report is not this run's, whatever it says; None where it may be."""
    steps = {"step": report.step, "saved_step": report.saved_step, "resumed_step": report.resumed_step or 0}
    beyond = [f"{name} {value}" for name, value in steps.items() if value > run.total_steps]
    if beyond:
        return f"{', '.join(beyond)} of a run of {run.total_steps} steps"
    if report.at - now > CLOCKS_DIFFER:
        return f"it was written at {report.at:%Y-%m-%d %H:%M} UTC, which is still to come"
    return None

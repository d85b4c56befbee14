"""What is kept of an attempt that ended, while it can still be had."""

from __future__ import annotations

from nightshift.contract.layout import RunKeys
from nightshift.core.errors import TransientError
from nightshift.core.run import Attempt, Run
from nightshift.steps.ports import NO_LOG, Ports


def save_diagnostics(ports: Ports, run: Run, attempt: Attempt) -> None:
    """The driver log's tail under the attempt's diagnostics/. Where there is none, a sentence says why: diagnostics
    never decide anything."""
    try:
        text = ports.jobs(run.raycluster).logs(attempt.submission_id)
    except TransientError as error:
        text = f"{NO_LOG}{error}"
    key = f"{RunKeys(run.run_id).diagnostics(attempt.n)}driver.log"
    ports.artifacts.put(run.run_id, key, text.encode(), "text/plain; charset=utf-8")

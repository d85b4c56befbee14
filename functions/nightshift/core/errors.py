"""Errors of the controller. Each names the run, the cause, and what a person can do; the class name is what the state
machine's Retry and Catch see."""

from __future__ import annotations

from nightshift.contract.base import MAX_EXTERNAL_TEXT


def bounded(text: object, limit: int = MAX_EXTERNAL_TEXT) -> str:
    """Text from outside, cut in the middle to at most ``limit`` characters."""
    whole = str(text)
    if len(whole) <= limit:
        return whole
    half = (limit - 7) // 2
    return f"{whole[:half]} [...] {whole[-half:]}"


class NightshiftError(Exception):
    """Base of all. ``remedy`` says what a person can do, or that nothing needs to be done."""

    def __init__(self, run_id: str, problem: str, remedy: str) -> None:
        super().__init__(f"run {run_id}: {bounded(problem)}. {remedy}")
        self.run_id = run_id


class StaleExecution(NightshiftError):
    """This execution's k is not the run's any more, or the run is over: it must write nothing."""

    def __init__(self, run_id: str, k: int, reason: str) -> None:
        super().__init__(run_id, f"execution r{k} is stale: {reason}", "Nothing needs to be done.")


class TransientError(NightshiftError):
    """Worth repeating: the state machine retries it with backoff, within a budget."""

    def __init__(self, run_id: str, problem: str) -> None:
        super().__init__(run_id, problem, "It is retried; if it persists, look at the service it names.")


class PermanentError(NightshiftError):
    """Repeating cannot help."""


class PublicationError(NightshiftError):
    """What was published does not read back as it was written."""

    def __init__(self, run_id: str, problem: str) -> None:
        super().__init__(
            run_id, problem, "The objects in S3 are as they were; compare them with the exports on /shared."
        )

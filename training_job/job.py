"""What every trainer gets: the spec, the places to write to, and the record that becomes outcome.json."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nightshift.contract import (
    EvalSummary,
    ExportRecord,
    GuardReport,
    Outcome,
    OutcomeCause,
    Phase,
    Progress,
    RunSpec,
    SharedPaths,
)
from training_job.clock import Stopwatch, now
from training_job.errors import EXIT_CODES
from training_job.progress import ProgressReporter
from training_job.store import ObjectStore, Uploader


@dataclass(frozen=True)
class Ended:
    """How a trainer came to its end without an error."""

    cause: OutcomeCause
    message: str


@dataclass
class Record:
    """What an attempt has done so far; filled as it goes on, so that a failure still tells it."""

    guard: GuardReport | None = None
    evals: list[EvalSummary] = field(default_factory=list)
    final_export: ExportRecord | None = None


@dataclass(frozen=True)
class Job:
    """One attempt of one run."""

    spec: RunSpec
    attempt: int
    floor: int
    paths: SharedPaths
    store: ObjectStore
    open_store: Callable[[str], ObjectStore]
    uploader: Uploader
    reporter: ProgressReporter
    record: Record
    watch: Stopwatch
    say: Callable[[str], None] = print

    def enter(self, phase: Phase) -> None:
        """Report a phase change."""
        self.reporter.phase(phase)


def first_progress(run_id: str, attempt: int, total_steps: int, floor: int) -> Progress:
    """An attempt's first sign of life; what was saved before is its floor."""
    return Progress(
        run_id=run_id, attempt=attempt, phase=Phase.SETUP, step=0, total_steps=total_steps, saved_step=floor, at=now()
    )


def outcome_of(progress: Progress, record: Record, cause: OutcomeCause, message: str) -> Outcome:
    """outcome.json of an attempt that ended for ``cause``."""
    return Outcome(
        run_id=progress.run_id,
        attempt=progress.attempt,
        cause=cause,
        message=message,
        step=progress.step,
        total_steps=progress.total_steps,
        resumed_step=progress.resumed_step,
        saved_step=progress.saved_step,
        exit_code=int(EXIT_CODES[cause]),
        guard=record.guard,
        evals=record.evals,
        final_export=record.final_export,
        at=now(),
    )

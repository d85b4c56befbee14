"""What every trainer gets: the spec, the places to write to, and the record that becomes outcome.json."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

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
from nightshift.contract.spec import SmallerValues
from training_job.clock import Stopwatch, now
from training_job.errors import EXIT_CODES
from training_job.guard import hold_floor, hold_world_size
from training_job.progress import ProgressReporter
from training_job.secrets import Secrets
from training_job.store import ObjectStore, Uploader
from training_job.trackers import Tracked, silent

TOLD_NOTES: Final = 10
"""Notes of the guard in the progress, which is small; the outcome has them all."""


@dataclass(frozen=True)
class Ended:
    """How a trainer came to its end without an error."""

    cause: OutcomeCause
    message: str


@dataclass
class Record:
    """What an attempt has done so far; filled as it goes on, so that a failure still tells it."""

    guard: GuardReport | None = None
    smaller: SmallerValues | None = None
    evals: list[EvalSummary] = field(default_factory=list)
    final_export: ExportRecord | None = None
    model: str | None = None


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
    secrets: Secrets = field(default_factory=Secrets)
    tracker: Tracked = field(default_factory=silent)

    def begin(self, report: GuardReport, world_size: int) -> int:
        """Tell what the guard found, hold what must hold before a start, and answer the step to begin at.

        Raises BadConfiguration where other than ``world_size`` ranks saved the checkpoint, and CheckpointUnusable below the
        floor; the record and the progress have the report by then.
        """
        step = report.resumed_step
        self.record.guard = report
        told = report.model_copy(update={"notes": report.notes[:TOLD_NOTES]})
        self.reporter.report(step=step, resumed_step=step, saved_step=step, guard=told)
        for note in report.notes:
            self.say(f"guard: {note}")
        hold_world_size(self.paths, report, world_size)
        hold_floor(self.paths, report, self.spec.max_rollback_steps)
        return step

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
        smaller=record.smaller,
        model=record.model,
        evals=record.evals,
        final_export=record.final_export,
        at=now(),
    )

"""When silence means that a job hangs. SkyRL can stall half an hour without a word; this must not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import median

from nightshift.contract.job import Phase, Progress
from nightshift.contract.spec import RunSpec
from nightshift.core.run import Run

FLOOR = timedelta(minutes=10)
FACTOR = 3
"""Silence is allowed for this many of the run's own median steps, and never for less than the floor."""

WITNESS_SILENCE = timedelta(minutes=5)
"""How long the driver's log must have stood still as well, from the first time that it was asked."""

SAVING = frozenset({Phase.CHECKPOINT, Phase.EXPORT})
"""Phases that write files and are silent about it: the workers' lines in the log prove nothing about the save."""

KEPT_STEPS = 15


class Silence(StrEnum):
    """What an old progress means."""

    NONE = "none"
    WATCHED = "watched"
    HUNG = "hung"
    PROGRESS_UNWRITABLE = "progress_unwritable"


@dataclass(frozen=True)
class Quiet:
    """A judgement of silence; ``why`` is one sentence."""

    silence: Silence
    why: str = ""


def allowed_silence(run: Run, spec: RunSpec, phase: Phase) -> timedelta:
    """How old a progress may be in its phase: the start deadline in setup, else by the run's own pace."""
    if phase is Phase.SETUP:
        return timedelta(minutes=spec.budgets.start_minutes)
    pace = timedelta(seconds=median(run.step_times)) if run.step_times else timedelta()
    return max(FLOOR, FACTOR * pace)


def overdue_download(spec: RunSpec, progress: Progress | None, now: datetime) -> str | None:
    """Why a download is given up although it may still be moving; None where it is not. One that stands still is silent, and
    silence is judged as in any other phase."""
    if progress is None or progress.phase is not Phase.DOWNLOAD or progress.download is None:
        return None
    got, limit = progress.download, timedelta(minutes=spec.budgets.download_minutes)
    if now - got.since <= limit:
        return None
    share = f"{got.done / 1e9:.1f} of {got.total / 1e9:.1f} GB"
    return f"the download is not done after {_minutes(now - got.since)}: {share} are there (budgets.download_minutes)"


def is_overdue(run: Run, spec: RunSpec, progress: Progress | None, now: datetime) -> bool:
    """Whether a second witness has to be asked. Without any progress yet the start deadline speaks instead."""
    return progress is not None and now - progress.at > allowed_silence(run, spec, progress.phase)


def judge_silence(run: Run, spec: RunSpec, progress: Progress | None, witness: str | None, now: datetime) -> Quiet:
    """Two witnesses: the progress, and the driver's log. Both silent is a hang. A log that goes on while the progress
    stands still is a progress that cannot be written; within a save it is a save that stalls. A log that cannot be had
    proves nothing.

    ``run.witness_at`` is when the log was last seen to change, or first asked for.
    """
    if progress is None:
        return _without_progress(run, spec, witness, now)
    if not is_overdue(run, spec, progress, now):
        return Quiet(Silence.NONE)
    limit, age = allowed_silence(run, spec, progress.phase), now - progress.at
    told = f"no progress for {_minutes(age)} in phase {progress.phase}, where {_minutes(limit)} are allowed"
    if witness is None or run.witness_at is None:
        return Quiet(Silence.WATCHED, f"{told}; the driver's log cannot be asked")
    if now - run.witness_at >= WITNESS_SILENCE:
        return Quiet(Silence.HUNG, f"{told}, and the driver's log stands still for {_minutes(now - run.witness_at)}")
    if age > FACTOR * limit and progress.phase in SAVING:
        return Quiet(Silence.HUNG, f"{told}: the save does not end, although the driver's log goes on")
    if age > FACTOR * limit:
        return Quiet(Silence.PROGRESS_UNWRITABLE, f"{told}, but the driver's log goes on")
    return Quiet(Silence.WATCHED, f"{told}; the driver's log is watched")


def _without_progress(run: Run, spec: RunSpec, witness: str | None, now: datetime) -> Quiet:
    """A job that was heard of and whose progress cannot be read any more has one witness left: its log may be silent for as
    long as its progress might. ``witness`` is None for a job that was never heard of; the start deadline speaks for that."""
    if witness is None or run.witness_at is None:
        return Quiet(Silence.NONE)
    silent, limit = now - run.witness_at, max(WITNESS_SILENCE, allowed_silence(run, spec, Phase.TRAIN))
    told = "the job's progress cannot be read"
    if silent >= limit:
        return Quiet(Silence.HUNG, f"{told}, and the driver's log stands still for {_minutes(silent)}")
    return Quiet(Silence.WATCHED, f"{told}; the driver's log is watched")


def next_step_times(run: Run, progress: Progress) -> tuple[float, ...]:
    """The run's last step times with the one of a new step."""
    if progress.step <= run.step or progress.step_seconds is None:
        return run.step_times
    return (*run.step_times, progress.step_seconds)[-KEPT_STEPS:]


def _minutes(span: timedelta) -> str:
    return f"{span.total_seconds() / 60:.0f} min"

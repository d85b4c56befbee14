"""The guard: checks and repairs checkpoints before the trainer starts, so that ``resume_mode=latest`` does right.

SkyRL restarts silently at step 0 without a pointer, and fails for ever on an empty pointer or a broken folder. The
guard looks at every file of the newest checkpoints, moves broken ones aside (it deletes nothing), makes the pointer name
the newest whole one, and refuses to start below what was saved before unless that is proven to be broken. Files that are
as they were recorded when they were last read whole are not read again (``records``), unless there is reason to doubt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nightshift.contract import GuardReport, Outcome, OutcomeCause, Phase, Progress, RunKeys, SharedPaths
from nightshift.contract.reading import Unreadable
from training_job.checkpoints import (
    Pointer,
    problems_of_files,
    read_pointer,
    steps_on_disk,
    world_size_of,
    write_pointer,
)
from training_job.errors import BadConfiguration, CheckpointUnusable, StorageUnreachable
from training_job.records import problems_by_record, renew_record
from training_job.store import ObjectStore, read

Check = Callable[[Path, int], list[str]]
"""(folder, step) -> what is wrong with a checkpoint."""

_QUARANTINED = re.compile(r"^global_step_(\d+)\.")


@dataclass
class _Findings:
    checked: list[int] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def files_only(folder: Path, step: int) -> list[str]:
    """The check that needs no trainer: every file is there and whole; what is as it was recorded is not read again."""
    return problems_by_record(folder)


def every_byte(folder: Path, step: int) -> list[str]:
    """The same without believing any record; what is whole is recorded anew."""
    problems = problems_of_files(folder)
    if not problems:
        renew_record(folder)
    return problems


def check_for(store: ObjectStore, keys: RunKeys, attempt: int) -> Check:
    """Every byte is read where the attempt before ended for its checkpoint, or came no further than from its guard to its
    first phase: it may have failed at what a comparison with a record cannot see."""
    if attempt == 1:
        return files_only
    try:
        ended, before = (
            read(store, Outcome, keys.outcome(attempt - 1)),
            read(store, Progress, keys.progress(attempt - 1)),
        )
    except Unreadable:
        return every_byte
    unusable = ended is not None and ended.cause is OutcomeCause.CHECKPOINT_UNUSABLE
    not_begun = before is not None and before.guard is not None and before.phase is Phase.SETUP
    return every_byte if unusable or not_begun else files_only


def guard(
    paths: SharedPaths,
    floor: int,
    max_rollback_steps: int,
    attempt: int,
    check: Check = files_only,
    world_size: int | None = None,
) -> GuardReport:
    """Check, quarantine and repair, and hold the floor; then ``resume_mode=latest`` resumes at ``resumed_step``.

    Raises CheckpointUnusable where the run may not start from what is there, BadConfiguration where it was saved by another
    number of ranks than ``world_size``, and StorageUnreachable where the shared mount cannot be read: that proves nothing,
    so nothing is moved for it.
    """
    report = repair(paths, floor, attempt, check)
    if world_size is not None:
        hold_world_size(paths, report, world_size)
    hold_floor(paths, report, max_rollback_steps)
    return report


def repair(paths: SharedPaths, floor: int, attempt: int, check: Check = files_only) -> GuardReport:
    """Check, quarantine and repair: the pointer names ``resumed_step``, or there is no pointer and it is 0.

    Raises StorageUnreachable, and has then changed nothing.
    """
    _require_mount(paths, floor)
    pointer = read_pointer(paths.pointer)
    # All verdicts come first: a mount that breaks off in between must not leave half of them carried out.
    verdicts = list(_verdicts(paths, check))
    findings = _Findings(checked=[step for step, _ in verdicts], notes=[pointer.note] if pointer.note else [])
    resumed = next((step for step, problems in verdicts if not problems), 0)
    for step, problems in verdicts:
        if problems:
            findings.notes.append(f"global_step_{step} is broken: {'; '.join(problems[:5])}")
            findings.quarantined.append(_move_aside(paths, paths.checkpoint(step), attempt))
    for leftover in _unfinished_saves(paths):
        findings.quarantined.append(_move_aside(paths, leftover, attempt))
    repaired = _repair_pointer(paths, pointer, resumed, attempt, findings)
    if resumed < floor:
        findings.notes.append(f"the newest whole checkpoint, {resumed}, is below the floor {floor}")
    return GuardReport(
        floor=floor,
        pointer_before=pointer.step,
        resumed_step=resumed,
        checked=findings.checked,
        quarantined=findings.quarantined,
        repaired_pointer=repaired,
        notes=findings.notes[:50],
    )


def hold_world_size(paths: SharedPaths, report: GuardReport, world_size: int) -> None:
    """Raises BadConfiguration for a whole checkpoint that so many ranks cannot load: its files are one a rank, and SkyRL
    would fail on the first that is missing, after the engines are up. Nothing is wrong with the checkpoint: it stays."""
    step = report.resumed_step
    saved_by = world_size_of(paths.checkpoint(step)) if step else world_size
    if saved_by != world_size:
        raise BadConfiguration(
            "topology.workers",
            f"the checkpoint of step {step} was saved by {saved_by} GPUs and can only be loaded by as many, but count x gpus "
            f"is {world_size}: ask for {saved_by} GPUs in all, or start a new run",
        )


def hold_floor(paths: SharedPaths, report: GuardReport, max_rollback_steps: int) -> None:
    """Raises CheckpointUnusable for a start below the floor, unless what was saved there is proven to be broken and the
    way back is short enough."""
    floor, resumed = report.floor, report.resumed_step
    if resumed >= floor:
        return
    broken = {int(match[1]) for match in map(_QUARANTINED.match, _quarantined_names(paths)) if match}
    notes = "; ".join(report.notes)
    if floor not in broken and max(floor, report.pointer_before or 0) not in broken:
        raise CheckpointUnusable(
            f"step {floor} was saved, but the newest whole checkpoint is {resumed} and nothing proves that {floor} is "
            f"broken: restore {paths.checkpoint(floor)}, or start a new run. {notes}"
        )
    if floor - resumed > max_rollback_steps:
        raise CheckpointUnusable(
            f"step {floor} was saved and is broken; the newest whole checkpoint is {resumed}, which is more than "
            f"{max_rollback_steps} steps below: allow it by budgets.max_rollback_steps, or start a new run. {notes}"
        )


def _require_mount(paths: SharedPaths, floor: int) -> None:
    try:
        there = paths.mount.is_dir()
        used = (paths.mount / "runs").is_dir()
        if there:
            next(paths.mount.iterdir(), None)
    except OSError as error:
        raise StorageUnreachable(f"the shared mount {paths.mount} cannot be read: {error}") from error
    if not there:
        raise StorageUnreachable(f"the shared mount {paths.mount} is not there")
    if floor > 0 and not used:
        raise StorageUnreachable(f"{paths.mount} is empty, although step {floor} was saved: is the filesystem mounted?")


def _verdicts(paths: SharedPaths, check: Check) -> Iterator[tuple[int, list[str]]]:
    """(step, problems) from the newest checkpoint down to the first whole one; older ones are not read."""
    for step in reversed(steps_on_disk(paths.ckpts)):
        try:
            problems = check(paths.checkpoint(step), step)
        except OSError as error:
            raise StorageUnreachable(f"{paths.checkpoint(step)} cannot be read: {error}") from error
        yield step, problems
        if not problems:
            return


def _unfinished_saves(paths: SharedPaths) -> list[Path]:
    return sorted(paths.ckpts.glob(".global_step_*")) if paths.ckpts.is_dir() else []


def _move_aside(paths: SharedPaths, path: Path, attempt: int) -> str:
    """Into quarantine, under a name that is free; returns the name."""
    paths.quarantine.mkdir(parents=True, exist_ok=True)
    stem = f"{path.name.removeprefix('.')}.a{attempt}"
    name, number = stem, 2
    while (paths.quarantine / name).exists():
        name, number = f"{stem}-{number}", number + 1
    path.rename(paths.quarantine / name)
    return name


def _repair_pointer(paths: SharedPaths, before: Pointer, resumed: int, attempt: int, findings: _Findings) -> bool:
    if before.step == resumed and resumed > 0:
        return False
    if resumed > 0:
        write_pointer(paths, resumed)
        findings.notes.append(f"the pointer now names {resumed}")
        return True
    if paths.pointer.exists():
        findings.quarantined.append(_move_aside(paths, paths.pointer, attempt))
        findings.notes.append("there is no whole checkpoint: the pointer was moved aside")
        return True
    return False


def _quarantined_names(paths: SharedPaths) -> list[str]:
    return [entry.name for entry in paths.quarantine.iterdir()] if paths.quarantine.is_dir() else []

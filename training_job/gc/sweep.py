"""One pass: look, judge, carry out. Each thing is judged once more by its run's record right before it is moved, and after."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from training_job.gc.rule import Fate, Periods, RunFacts, Survey, Trashed, Verdict, judge, judge_trash
from training_job.gc.survey import survey, used_at
from training_job.gc.trash import NotBelow, Trash


class Knowledge(Protocol):
    """What is known of runs, read afresh at each call. May raise anything that S3 and DynamoDB answer."""

    def everyone(self) -> set[str]:
        """Every run of which something is in the bucket."""

    def records(self, run_ids: Iterable[str]) -> dict[str, RunFacts]:
        """Without what their specs say."""

    def with_spec(self, facts: RunFacts) -> RunFacts: ...


@dataclass
class Pass:
    """What one pass did, or with ``dry_run`` would do. ``failed`` are sentences about what could not be done."""

    dry_run: bool
    moved: list[Verdict] = field(default_factory=list)
    kept: list[Verdict] = field(default_factory=list)
    trash: list[tuple[Trashed, Fate, str]] = field(default_factory=list)
    put_back: list[tuple[str, str]] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def known(runs: Knowledge, found: Survey, trash: Iterable[Trashed]) -> dict[str, RunFacts]:
    """Every run that is not over, wherever it is, and every one of which something lies here. Of others nothing is needed."""
    here = {one.run_id for one in found.folders} | {one.run_id for one in trash if one.run_id}
    here |= {run_id for model in found.models for run_id in model.pinned_by}
    here |= {one.run_id for one in found.leftovers if one.run_id}
    records = runs.records(here | runs.everyone())
    return {run_id: runs.with_spec(facts) for run_id, facts in records.items() if not facts.over or run_id in here}


def sweep(mount: Path, runs: Knowledge, periods: Periods, clock: Callable[[], datetime], dry_run: bool) -> Pass:
    """Raises what ``runs`` raises, and OSError where the mount cannot be read; everything else is told in ``failed``."""
    done, trash, now = Pass(dry_run), Trash(mount), clock()
    found = survey(mount)
    lying, done.odd = trash.entries(now, end=not dry_run)
    facts = known(runs, found, lying)
    verdicts = judge(found, facts, periods, now)
    done.kept = [one for one in verdicts if not one.goes]
    going = [one for one in verdicts if one.goes]
    judged = judge_trash(lying, facts, periods, now)
    if dry_run:
        done.moved, done.trash = going, judged
        return done
    done.trash = [(entry, _carried_out(done, trash, runs, entry, fate, why), why) for entry, fate, why in judged]
    moved = [entry for one in going if (entry := _move(done, mount, trash, runs, one, clock())) is not None]
    _put_back_for_new_children(done, trash, runs, set(facts), moved)
    return done


def _carried_out(done: Pass, trash: Trash, runs: Knowledge, entry: Trashed, fate: Fate, why: str) -> Fate:
    """What became of it."""
    try:
        if fate is Fate.PUT_BACK:
            return _put_back(done, trash, entry, why)
        if fate is Fate.DELETED:
            if entry.run_id is not None and not runs.records([entry.run_id])[entry.run_id].over:
                return _put_back(done, trash, entry, "its run went on meanwhile")
            trash.delete(entry)
        return fate
    except (OSError, NotBelow) as error:
        done.failed.append(f"{entry.path}: {error}")
        return Fate.STAYS


def _put_back(done: Pass, trash: Trash, entry: Trashed, why: str) -> Fate:
    if trash.put_back(entry):
        done.put_back.append((entry.path, why))
        return Fate.PUT_BACK
    done.failed.append(
        f"{entry.path} ought to be back ({why}), but something else is there now: see {trash.where(entry)}"
    )
    return Fate.STAYS


def _move(done: Pass, mount: Path, trash: Trash, runs: Knowledge, one: Verdict, now: datetime) -> Trashed | None:
    """A retry may come at any moment: the record is read right before and right after, and what went in between comes back."""
    try:
        if not _still(mount / one.path, runs, one):
            done.kept.append(replace(one, goes=False, why="it is used again, or its run goes on"))
            return None
        entry = trash.move(one.path, one.size, one.why, one.run_id, now)
        if entry is None:
            return None
        if not _still(trash.where(entry), runs, one):
            _put_back(done, trash, entry, "it is used again, or its run went on meanwhile")
            return None
    except (OSError, NotBelow) as error:
        done.failed.append(f"{one.path}: {error}")
        return None
    done.moved.append(one)
    return entry


def _still(path: Path, runs: Knowledge, one: Verdict) -> bool:
    """Whether what the verdict was made by is still so."""
    if one.used_at is not None and used_at(path) != one.used_at:
        return False
    return one.run_id is None or runs.records([one.run_id])[one.run_id].over


def _put_back_for_new_children(
    done: Pass, trash: Trash, runs: Knowledge, before: set[str], moved: list[Trashed]
) -> None:
    """A run that was asked for since the specs were read may name one of these as its parent."""
    news = runs.records(runs.everyone() - before) if moved else {}
    parents = {runs.with_spec(one).parent: one.run_id for one in news.values() if not one.over}
    for entry in moved:
        if entry.run_id is None or entry.run_id not in parents:
            continue
        try:
            _put_back(done, trash, entry, f"run {parents[entry.run_id]} names it as its parent")
        except (OSError, NotBelow) as error:
            done.failed.append(f"{entry.path}: {error}")

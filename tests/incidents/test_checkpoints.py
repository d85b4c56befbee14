"""Incidents of checkpoints: the real guard over files that the trainer wrote."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from nightshift.contract import GuardReport, SharedPaths
from nightshift.contract.job import OutcomeCause, Phase
from nightshift.contract.layout import RunKeys
from nightshift.core.causes import EndCause
from nightshift.core.run import Awaiting
from tests.builders import outcome, progress
from tests.incidents.conftest import Shared
from tests.incidents.table import comes_out_right, must_not
from tests.steps.test_signals import running
from tests.steps.world import World
from training_job.checkpoints import PARTS, part_file
from training_job.errors import CheckpointUnusable, StorageUnreachable
from training_job.guard import guard
from training_job.records import RECORD
from training_job.trainers.local.snapshots import problems_of_snapshot


def guarded(paths: SharedPaths, floor: int, rollback: int = 10) -> GuardReport:
    return guard(paths, floor, rollback, 2, problems_of_snapshot)


def of_two_ranks(folder: Path) -> None:
    """Make a checkpoint of one rank one of two."""
    policy = folder / "policy"
    for part in PARTS:
        (policy / part_file(part)).rename(policy / part_file(part, 2, 0))
        shutil.copy(policy / part_file(part, 2, 0), policy / part_file(part, 2, 1))


@comes_out_right(12)
def test_the_newest_checkpoint_lacks_a_shard_and_the_newest_complete_one_is_taken(shared: Shared) -> None:
    for part in PARTS:
        paths = shared.holding(10, 110, 120, pointer="120")
        for step in (10, 110, 120):
            of_two_ranks(paths.checkpoint(step))
        (paths.checkpoint(120) / "policy" / part_file(part, 2, 1)).unlink()

        report = guard(paths, 120, 10, 2)

        assert (report.resumed_step, report.checked) == (110, [120, 110])
        assert paths.pointer.read_text() == "110"


@must_not(12)
def test_a_lacking_shard_must_not_cost_a_complete_checkpoint_nor_delete_anything(shared: Shared) -> None:
    paths = shared.holding(10, 110, 120, pointer="120")
    for step in (10, 110, 120):
        of_two_ranks(paths.checkpoint(step))
    assert guard(paths, 120, 10, 2).resumed_step == 120, "all shards are there"
    (paths.checkpoint(120) / "policy" / part_file("model", 2, 1)).unlink()
    kept = sum(p.is_file() and p.name != RECORD for p in paths.root.rglob("*"))

    report = guard(paths, 120, 10, 2)

    assert report.quarantined == ["global_step_120.a2"]
    assert paths.checkpoint(110).is_dir() and paths.checkpoint(10).is_dir()
    assert sum(p.is_file() and p.name != RECORD for p in paths.root.rglob("*")) == kept


@comes_out_right(13)
def test_an_empty_pointer_is_repaired_and_a_far_ahead_folder_is_judged_by_its_files(shared: Shared) -> None:
    empty = shared.holding(10, 40, pointer="")
    ahead = shared.holding(10, 40, pointer="10")
    half = shared.holding(10, 40, pointer="10")
    (half.checkpoint(40) / "trainer_state.pt").unlink()

    assert guarded(empty, floor=40).resumed_step == guarded(ahead, floor=10).resumed_step == 40
    assert empty.pointer.read_text() == ahead.pointer.read_text() == "40"
    report = guarded(half, floor=10)
    assert (report.resumed_step, report.quarantined, half.pointer.read_text()) == (10, ["global_step_40.a2"], "10")


@must_not(13)
def test_a_right_pointer_must_not_be_repaired_nor_a_whole_folder_quarantined(shared: Shared) -> None:
    right = shared.holding(10, 40, pointer="40")
    report = guarded(right, floor=40)
    assert not report.repaired_pointer and report.quarantined == [] and not right.quarantine.exists()
    assert guarded(shared.holding(10, 40, pointer="10"), floor=10).quarantined == []


def saving(world: World, log_goes_on: bool) -> None:
    """A save of step 40 has begun; nothing is heard of it. The workers may go on to write into the driver's log."""
    running(world)
    world.put(RunKeys("maze-1").progress(1), progress(phase=Phase.CHECKPOINT, step=40, saved_step=20, at=world.now()))
    if log_goes_on:
        world.jobs.logs = lambda _: f"a worker lives at {world.now()}"  # type: ignore[method-assign]


def minutes_until(world: World, decision: str, at_most: int) -> int | None:
    """Looks once a minute; how many minutes until a look decides so."""
    for minute in range(1, at_most + 1):
        world.later(60)
        reply = world.look(Awaiting.ATTEMPT, f"minute-{minute}")
        if reply is not None and reply.decision == decision:
            return minute
    return None


@comes_out_right(15)
@pytest.mark.parametrize(("log_goes_on", "minutes"), [(False, 16), (True, 31)], ids=["silent", "workers are heard"])
def test_a_save_that_stalls_ends_by_the_deadline_of_its_phase_also_while_the_workers_live(
    world: World, log_goes_on: bool, minutes: int
) -> None:
    saving(world, log_goes_on)
    assert minutes_until(world, "recover", 60) == minutes
    run, (ended,) = world.run(), world.runs.attempts("maze-1")
    assert (run.cause, ended.end_cause) == (EndCause.HUNG, EndCause.HUNG)
    assert "in phase checkpoint" in ended.message
    assert run.verified_step == 20, "the next attempt begins at what was verified, not at what was being saved"


@must_not(15)
def test_a_slow_save_must_not_be_ended_while_its_log_goes_on_nor_one_that_has_ended_nor_other_phases_be_called_so(
    world: World,
) -> None:
    saving(world, log_goes_on=True)
    assert minutes_until(world, "recover", 29) is None, "slow is not stalled"
    world.put(RunKeys("maze-1").progress(1), progress(phase=Phase.GENERATE, step=40, saved_step=40, at=world.now()))
    assert minutes_until(world, "recover", 29) is None, "the save has ended"
    assert minutes_until(world, "recover", 9) is not None
    assert world.run().cause is EndCause.PROGRESS_UNWRITABLE


@comes_out_right(14)
def test_without_a_pointer_the_best_complete_checkpoint_is_restored_or_the_run_stops_and_says_so(
    shared: Shared, world: World
) -> None:
    assert guarded(shared.holding(10, 110, 120, pointer=None), floor=120).resumed_step == 120
    broken = shared.holding(110, 120, pointer=None)
    (broken.checkpoint(120) / "data.pt").unlink()
    assert guarded(broken, floor=120, rollback=10).resumed_step == 110
    for lost in (shared.holding(pointer=None), shared.holding(10, pointer=None)):
        with pytest.raises(CheckpointUnusable, match="step 120 was saved"):
            guarded(lost, floor=120, rollback=120)

    running(world)
    world.put(RunKeys("maze-1").outcome(1), outcome(OutcomeCause.CHECKPOINT_UNUSABLE, message="step 120 was saved"))
    told = world.look(Awaiting.ATTEMPT, "token-2")
    assert told is not None and told.decision == "failed"
    assert world.run().cause is EndCause.CHECKPOINT_UNUSABLE and "step 120 was saved" in world.run().sentence
    assert world.jobs.submits == ["maze-1-a1"]


@must_not(14)
def test_a_run_that_never_saved_must_not_be_stopped_and_an_unreadable_mount_must_not_count_as_lost(
    shared: Shared,
) -> None:
    fresh = guarded(shared.holding(pointer=None), floor=0)
    assert (fresh.resumed_step, fresh.quarantined) == (0, [])

    whole = shared.holding(110, 120, pointer=None)

    def unreadable(folder: Path, step: int) -> list[str]:
        raise OSError(errno.ESTALE, "stale file handle")

    with pytest.raises(StorageUnreachable):
        guard(whole, 120, 120, 2, unreadable)
    assert whole.checkpoint(120).is_dir() and not whole.quarantine.exists()

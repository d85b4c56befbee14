"""A checkpoint that its record vouches for and that SkyRL cannot load all the same: nothing is trained on it, and the next
attempt begins at the one before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nightshift.contract import OutcomeCause, Phase, RunKeys
from tests.skyrl.rig import MemoryStore, Rig, tiny
from training_job.checkpoints import part_file
from training_job.errors import StorageUnreachable, classify
from training_job.guard import check_for, every_byte, repair
from training_job.records import RECORD


@pytest.fixture(autouse=True)
def on_this_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """SkyRL prunes old checkpoints by a Ray task on every node; here there is one, and no Ray."""
    monkeypatch.setattr("skyrl.train.trainer.run_on_each_node", lambda nodes, call, *given: call(*given))


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    """What a first attempt left in the bucket; it saved steps 2, 4 and 6, and a record of each."""
    store = MemoryStore()
    Rig(tiny(max_ckpts_to_keep=10), tmp_path, store).train()
    return store


def spoil(shard: Path) -> None:
    """Other bytes in a file that keeps its size, its time and whatever else a record compares."""
    kept, content = shard.stat(), bytearray(shard.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 8] = bytes(8)
    shard.write_bytes(content)
    os.utime(shard, ns=(kept.st_atime_ns, kept.st_mtime_ns))


def test_every_save_is_recorded_and_skyrls_pruning_takes_the_record_along(tmp_path: Path) -> None:
    rig = Rig(tiny(), tmp_path, MemoryStore())
    rig.train()
    ckpts = rig.job.paths.ckpts
    assert sorted(p.parent.name for p in ckpts.rglob(RECORD)) == ["global_step_4", "global_step_6"]
    assert sorted(p.name for p in ckpts.iterdir() if p.is_dir()) == ["global_step_4", "global_step_6"]


def test_a_checkpoint_that_cannot_be_loaded_is_read_whole_moved_aside_and_the_attempt_ends_to_be_tried_again(
    tmp_path: Path, store: MemoryStore
) -> None:
    second = Rig(tiny(max_ckpts_to_keep=10), tmp_path, store, attempt=2, floor=6)
    shard = second.job.paths.checkpoint(6) / "policy" / part_file("model", 2, 1)
    spoil(shard)

    def fails(model: str, folder: str, **_: object) -> None:
        raise RuntimeError("PytorchStreamReader failed reading file data/0")

    second.actors.load_checkpoint = fails  # type: ignore[method-assign]
    with pytest.raises(StorageUnreachable, match="step 6 was whole after its save and is not any more") as ended:
        second.train(resumed=6)
    assert classify(ended.value).outcome is OutcomeCause.STORAGE_UNREACHABLE
    assert [p.name for p in second.job.paths.quarantine.iterdir()] == ["global_step_6.a2"]
    third = Rig(tiny(max_ckpts_to_keep=10), tmp_path, store, attempt=3, floor=6)
    assert repair(third.job.paths, 6, 3).resumed_step == 4


def test_a_failure_to_load_that_no_file_explains_stays_what_it_was_and_nothing_is_moved(
    tmp_path: Path, store: MemoryStore
) -> None:
    second = Rig(tiny(max_ckpts_to_keep=10), tmp_path, store, attempt=2, floor=6)

    def fails(model: str, folder: str, **_: object) -> None:
        raise RuntimeError("size mismatch for model.embed_tokens.weight")

    second.actors.load_checkpoint = fails  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="size mismatch"):
        second.train(resumed=6)
    assert not second.job.paths.quarantine.exists()


def test_an_attempt_after_one_that_died_while_it_loaded_believes_no_record(tmp_path: Path, store: MemoryStore) -> None:
    second = Rig(tiny(max_ckpts_to_keep=10), tmp_path, store, attempt=2, floor=6)
    second.job.begin(repair(second.job.paths, 6, 2), world_size=2)
    assert second.job.reporter.current.phase is Phase.SETUP
    second.job.reporter.flush(10)
    spoil(second.job.paths.checkpoint(6) / "policy" / part_file("model", 2, 1))
    third = Rig(tiny(max_ckpts_to_keep=10), tmp_path, store, attempt=3, floor=6)
    check = check_for(store, RunKeys("tiny"), 3)
    assert check is every_byte
    assert repair(third.job.paths, 6, 3, check).resumed_step == 4

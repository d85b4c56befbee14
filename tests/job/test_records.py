"""A start must not read what it need not: checkpoints that are as they were when they were last read whole."""

from __future__ import annotations

import os
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nightshift.contract import Document, GuardReport, OutcomeCause, Phase, Progress, RunKeys, RunSpec, SharedPaths
from tests.builders import outcome, progress, spec_json
from tests.job.memory import MemoryStore
from training_job.checkpoints import PARTS, part_file, problems_of_files
from training_job.clock import Stopwatch
from training_job.guard import check_for, every_byte, files_only, guard
from training_job.job import Job, Record, first_progress
from training_job.progress import ProgressReporter
from training_job.records import RECORD, drop_record, keep_record, problems_by_record
from training_job.store import Uploader
from training_job.trainers.skyrl.results import Results

GIB = 1024**3
KEYS = RunKeys("maze-1")


def written(folder: Path, ranks: int = 1, size: int = 4_000_000) -> Path:
    """A whole checkpoint in SkyRL's layout; the model's files hold ``size`` bytes."""
    policy = folder / "policy"
    (policy / "huggingface").mkdir(parents=True)
    (policy / "lora_adapter").mkdir()
    for path in (policy / "fsdp_config.json", policy / "huggingface" / "config.json"):
        path.write_text("{}")
    (policy / "lora_adapter" / "adapter_config.json").write_text("{}")
    header = b'{"a":{"data_offsets":[0,8]}}'
    (policy / "lora_adapter" / "adapter_model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + bytes(8)
    )
    shards = [policy / part_file(part, ranks, rank) for part in PARTS for rank in range(ranks)]
    for path in (folder / "trainer_state.pt", folder / "data.pt", *shards):
        content = random.Random(path.name).randbytes(size if path.name.startswith("model") else 500)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data/0", content)
    return folder


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A checkpoint that was read whole, and recorded."""
    folder = written(tmp_path / "global_step_4")
    assert problems_of_files(folder) == []
    keep_record(folder)
    return folder


def bytes_read(what: Callable[[], object]) -> int:
    """By this process, of whatever files, while it does something; as the kernel counts them."""

    def count() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = count()
    what()
    return count() - before


def keeping_times(path: Path, change: Callable[[Path], object]) -> None:
    """Change a file's content as a lost page or a flipped bit does: its time stays."""
    kept = path.stat()
    change(path)
    os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))


def with_hole(path: Path) -> None:
    """Of pages between the compared blocks, as a host leaves it that dies before it has written them back."""
    content = path.read_bytes()
    os.truncate(path, 102_400)
    with path.open("r+b") as file:
        file.seek(196_608)
        file.write(content[196_608:])


def flipped(at: int) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))

    return change


# Counts


@pytest.fixture
def twenty(tmp_path: Path) -> SharedPaths:
    """20 recorded checkpoints of 18 shards, each shard of 2 GiB: 720 GiB to whoever reads them, and nothing on this disk."""
    paths = SharedPaths("run", tmp_path / "shared")
    first = written(paths.checkpoint(1), ranks=6, size=10)
    for shard in first.glob("policy/*.pt"):
        os.truncate(shard, 0)
        os.truncate(shard, 2 * GIB)
    keep_record(first)
    for step in range(2, 21):
        for path in [p for p in first.rglob("*") if p.is_file()]:
            copy = paths.checkpoint(step) / path.relative_to(first)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.stat().st_size < GIB:
                shutil.copy(path, copy)
            else:
                copy.touch()
                os.truncate(copy, path.stat().st_size)
            os.utime(copy, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    paths.pointer.write_text("20")
    return paths


def test_a_start_from_20_checkpoints_of_18_shards_reads_at_most_a_mebibyte_a_file_of_the_newest(
    twenty: SharedPaths,
) -> None:
    found: list[GuardReport] = []
    read = bytes_read(lambda: found.append(guard(twenty, 20, 4, 2)))
    assert (found[0].resumed_step, found[0].checked) == (20, [20])
    assert read < 24 * 2**20, f"{read} bytes"


def test_of_broken_checkpoints_no_shard_is_read_to_find_the_last_whole_one(twenty: SharedPaths) -> None:
    for step in range(2, 21):
        shard = twenty.checkpoint(step) / "policy" / part_file("optim", 6, step % 6)
        shard.unlink() if step % 2 else os.truncate(shard, GIB)
    found: list[GuardReport] = []
    read = bytes_read(lambda: found.append(guard(twenty, 0, 4, 2)))
    assert (found[0].resumed_step, len(found[0].quarantined)) == (1, 19)
    assert read < (24 + 20) * 2**20, (
        f"{read} bytes: the blocks of the last one, and the tails of those that are cut off"
    )


def test_without_a_record_every_byte_is_read_and_with_one_a_part_of_it(whole: Path) -> None:
    size = sum(p.stat().st_size for p in whole.rglob("*.pt"))
    assert bytes_read(lambda: problems_by_record(whole)) < size / 2
    drop_record(whole)
    assert bytes_read(lambda: problems_by_record(whole)) >= size


def touched(folder: Path) -> None:
    for path in folder.rglob("*.pt"):
        os.utime(path, (1_000_000_000, 1_000_000_000))


@pytest.mark.parametrize("check", [files_only, every_byte])
@pytest.mark.parametrize(
    "happened",
    [drop_record, touched, lambda folder: (folder / RECORD).write_bytes(b"{")],
    ids=["none", "other", "torn"],
)
def test_what_a_start_had_to_read_whole_the_next_one_need_not(
    whole: Path, happened: Callable[[Path], object], check: Callable[[Path, int], list[str]]
) -> None:
    happened(whole)
    size = sum(p.stat().st_size for p in whole.rglob("*.pt"))
    assert bytes_read(lambda: check(whole, 4)) >= size
    assert bytes_read(lambda: files_only(whole, 4)) < size / 2


@pytest.mark.parametrize("check", [files_only, every_byte])
def test_what_a_start_found_broken_must_not_be_recorded(whole: Path, check: Callable[[Path, int], list[str]]) -> None:
    drop_record(whole)
    flipped(100_000)(whole / "policy" / part_file("model"))
    assert check(whole, 4)
    assert not (whole / RECORD).exists()


@pytest.mark.parametrize("check", [files_only, every_byte])
def test_a_record_that_cannot_be_written_must_not_stop_a_start(
    whole: Path, check: Callable[[Path, int], list[str]]
) -> None:
    drop_record(whole)
    (whole / RECORD).mkdir()
    assert check(whole, 4) == []


# What is seen


@pytest.mark.parametrize(
    ("name", "change"),
    {
        "cut off": (part_file("model"), lambda path: os.truncate(path, path.stat().st_size - 100)),
        "a hole of lost pages": (part_file("model"), with_hole),
        "its head": (part_file("model"), flipped(40)),
        "a small file's middle": (part_file("optim"), flipped(300)),
    }.values(),
    ids=["cut off", "a hole of lost pages", "its head", "a small file's middle"],
)
def test_what_changed_since_the_record_is_read_and_found_even_where_its_time_did_not(
    whole: Path, name: str, change: Callable[[Path], object]
) -> None:
    keeping_times(whole / "policy" / name, change)
    assert any(name in problem for problem in problems_by_record(whole))


def test_a_shard_that_is_gone_is_missed_also_where_no_name_tells_of_it_any_more(whole: Path) -> None:
    for path in (whole / "policy").glob("*.pt"):
        path.unlink()
    assert len(problems_by_record(whole)) == 3


def test_a_file_that_was_written_anew_and_is_whole_must_not_be_refused(whole: Path) -> None:
    with zipfile.ZipFile(whole / "data.pt", "w") as archive:
        archive.writestr("data/0", b"other content")
    assert problems_by_record(whole) == []


def test_a_bit_between_the_compared_blocks_is_not_seen_by_the_record_but_by_whoever_reads_every_byte(
    whole: Path,
) -> None:
    """What the comparison cannot see, and why ``check_for`` exists."""
    keeping_times(whole / "policy" / part_file("model"), flipped(100_000))
    assert files_only(whole, 4) == []
    assert any(part_file("model") in problem for problem in every_byte(whole, 4))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"files": {"data.pt": 3}}', b'{"files": {}}', bytes(100)])
def test_a_record_that_is_none_is_not_believed(whole: Path, content: bytes) -> None:
    (whole / RECORD).write_bytes(content)
    keeping_times(whole / "policy" / part_file("model"), flipped(100_000))
    assert any(part_file("model") in problem for problem in problems_by_record(whole))


# Told


class Flushed(ProgressReporter):
    """Each report reaches the store before the next one."""

    def report(self, **fields: Any) -> None:
        super().report(**fields)
        assert self.flush(10)


class Telling(MemoryStore):
    """Remembers every progress."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Progress] = []

    def put(self, key: str, content: bytes) -> None:
        super().put(key, content)
        if key == KEYS.progress(1):
            self.told.append(Progress.from_json(content))


def test_a_save_tells_that_it_goes_on_once_it_is_written_and_after_each_part_that_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training_job.progress.MIN_GAP", 0.0)
    monkeypatch.setattr("training_job.checkpoints.READERS", 1)
    store, spec = Telling(), RunSpec.model_validate(spec_json(run_id="maze-1"))
    reporter = Flushed(store, first_progress("maze-1", 1, spec.training.total_steps, 0))
    job = Job(
        spec, 1, 0, SharedPaths("maze-1", tmp_path), store, lambda _: store, Uploader(store), reporter,
        Record(), Stopwatch(), print,
    )  # fmt: skip
    results = Results(job, tmp_path, 0)
    results.enter(Phase.CHECKPOINT)
    shard = written(job.paths.checkpoint(4), ranks=2) / "policy" / part_file("model", 2, 1)
    with zipfile.ZipFile(shard, "a") as archive:
        for number in range(1, 5):
            archive.writestr(f"data/{number}", b"one more tensor")
    silent = len(store.told)
    results.saved(4)
    assert reporter.close(10)
    assert {one.phase for one in store.told[silent:]} == {Phase.CHECKPOINT}
    parts = 8 + 4  # eight archives of one part, of which one got four more
    assert [one.saved_step for one in store.told[silent:]] == [0] * (1 + parts) + [4]


# Doubt


@pytest.mark.parametrize(
    ("left", "doubted"),
    {
        "nothing": ([], False),
        "an end in the middle of training": (
            [
                outcome(OutcomeCause.WORKER_LOST),
                progress(phase=Phase.TRAIN, guard=GuardReport(floor=0, resumed_step=0)),
            ],
            False,
        ),
        "an end before its guard": ([progress(phase=Phase.SETUP)], False),
        "an end between its guard and its first phase": (
            [progress(phase=Phase.SETUP, guard=GuardReport(floor=4, resumed_step=4))],
            True,
        ),
        "an end for its checkpoint": ([outcome(OutcomeCause.CHECKPOINT_UNUSABLE)], True),
    }.values(),
    ids=str,
)
def test_every_byte_is_read_where_the_attempt_before_may_have_failed_at_its_checkpoint(
    left: list[Document], doubted: bool
) -> None:
    store = MemoryStore()
    for one in left:
        key = KEYS.outcome(1) if hasattr(one, "exit_code") else KEYS.progress(1)
        store.objects[key] = one.to_json().encode()
    assert check_for(store, KEYS, 2) is (every_byte if doubted else files_only)
    assert check_for(store, KEYS, 1) is files_only

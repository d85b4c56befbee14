"""What an attempt finds out before its first step: whether it may write where it will, and whether there is room."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from nightshift.contract import OutcomeCause, SharedPaths
from tests.builders import spec
from tests.job.memory import MemoryStore
from tests.job.support import BUCKET
from training_job.clock import Stopwatch
from training_job.errors import BadConfiguration, JobError, StorageFull, StorageUnreachable, classify
from training_job.job import Job, Record, first_progress
from training_job.probe import checkpoint_bytes, hold_space, probe
from training_job.progress import ProgressReporter
from training_job.store import ObjectStore, S3Store, Uploader


def probed(store: ObjectStore, paths: SharedPaths, bucket: str = BUCKET) -> list[str]:
    said: list[str] = []
    probe(store, bucket, paths.run_id, 2, paths, said.append)
    return said


def test_a_probe_that_passes_leaves_nothing_and_clears_what_dead_attempts_left(s3: Any, tmp_path: Path) -> None:
    paths = SharedPaths("probed", tmp_path)
    key = "runs/probed/exports/a1/step-4/weights"
    s3.create_multipart_upload(Bucket=BUCKET, Key=key)
    assert probed(S3Store(BUCKET), paths) == ["1 unfinished uploads of earlier attempts were dropped"]
    assert probed(S3Store(BUCKET), paths) == []
    assert not [path for path in paths.root.rglob("*") if path.is_file()]
    assert S3Store(BUCKET).listing("runs/probed/") == {}
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=BUCKET)


class Forbids(MemoryStore):
    """A role that may write everything but what lies below one folder."""

    def __init__(self, folder: str, code: str = "AccessDenied") -> None:
        super().__init__()
        self.folder, self.code = folder, code

    def may_write(self, key: str) -> None:
        if self.folder in key:
            raise ClientError({"Error": {"Code": self.code}}, "CreateMultipartUpload")


@pytest.mark.parametrize("folder", ["attempts/2/", "exports/a2/", "eval/a2/"])
def test_a_folder_that_may_not_be_written_is_named_with_what_to_allow(tmp_path: Path, folder: str) -> None:
    with pytest.raises(BadConfiguration) as refused:
        probed(Forbids(folder), SharedPaths("probed", tmp_path))
    assert (refused.value.outcome, refused.value.exit_code) == (OutcomeCause.BAD_CONFIGURATION, 65)
    assert f"s3://{BUCKET}/runs/probed/{folder}" in str(refused.value) and "s3:PutObject" in str(refused.value)


def test_a_bucket_that_does_not_exist_is_named(s3: Any, tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match=r"bucket: s3://no-such-bucket/runs/probed/attempts/2/ does not exist"):
        probed(S3Store("no-such-bucket"), SharedPaths("probed", tmp_path), "no-such-bucket")


def test_a_slow_or_broken_s3_must_not_be_called_a_missing_right(tmp_path: Path) -> None:
    with pytest.raises(ClientError) as raised:
        probed(Forbids("exports/", "SlowDown"), SharedPaths("probed", tmp_path))
    assert classify(raised.value).outcome is not OutcomeCause.BAD_CONFIGURATION


def test_a_role_that_may_not_look_for_unfinished_uploads_must_not_end_the_attempt(tmp_path: Path) -> None:
    class Blind(MemoryStore):
        def abort_unfinished(self, prefix: str) -> int:
            raise ClientError({"Error": {"Code": "AccessDenied"}}, "ListMultipartUploads")

    [line] = probed(Blind(), SharedPaths("probed", tmp_path))
    assert "cannot be looked for" in line


def test_a_mount_that_is_not_there_is_unreachable_and_is_not_made(tmp_path: Path) -> None:
    paths = SharedPaths("probed", tmp_path / "shared")
    with pytest.raises(StorageUnreachable, match=r"the shared mount .* is not there: mount the filesystem") as refused:
        probed(MemoryStore(), paths)
    assert refused.value.exit_code == 75 and not paths.mount.exists()


@pytest.mark.parametrize(
    ("code", "cause", "exit_code"),
    [
        (errno.EACCES, OutcomeCause.BAD_CONFIGURATION, 65),
        (errno.EROFS, OutcomeCause.STORAGE_UNREACHABLE, 75),
        (errno.EIO, OutcomeCause.STORAGE_UNREACHABLE, 75),
        (errno.ENOSPC, OutcomeCause.STORAGE_FULL, 75),
    ],
)
def test_a_mount_that_takes_no_file_has_the_cause_that_its_error_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, cause: OutcomeCause, exit_code: int
) -> None:
    def fails(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fails)  # root may write everywhere, and a filesystem fails late
    with pytest.raises((JobError, OSError)) as raised:
        probed(MemoryStore(), SharedPaths("probed", tmp_path))
    known = classify(raised.value)
    assert (known.outcome, known.exit_code) == (cause, exit_code)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


# Room


def model(folder: Path, parameters: int) -> Path:
    """A base model of so many parameters, by its header; the file itself is short."""
    header = json.dumps({"w": {"dtype": "BF16", "shape": [parameters // 2, 2], "data_offsets": [0, 2 * parameters]}})
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode())
    return folder


def job(paths: SharedPaths, **training: Any) -> Job:
    store, asked = MemoryStore(), spec(training=training)
    reporter = ProgressReporter(store, first_progress("maze-1", 1, 10, 0))
    return Job(
        asked, 1, 0, paths, store, lambda bucket: store, Uploader(store), reporter, Record(), Stopwatch(), lambda line: None
    )  # fmt: skip


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Sizes of the shared filesystem, in GB."""
    sizes = {"total": 1200.0, "free": 1200.0}

    def usage(path: object) -> Any:
        return shutil._ntuple_diskusage(*(int(sizes[name] * 1e9) for name in ("total", "total", "free")))  # type: ignore[attr-defined]

    monkeypatch.setattr(shutil, "disk_usage", usage)
    return sizes


def test_a_checkpoint_holds_every_parameter_in_fp32(tmp_path: Path) -> None:
    assert checkpoint_bytes(model(tmp_path / "8b", 8_770_000_000)) == 35_080_000_000
    assert checkpoint_bytes(tmp_path) == 0


def test_checkpoints_that_do_not_fit_now_are_refused_with_numbers_and_those_that_are_there_need_no_room(
    tmp_path: Path, disk: dict[str, float]
) -> None:
    base, paths = model(tmp_path / "8b", 8_770_000_000), SharedPaths("maze-1", tmp_path)
    hold_space(job(paths), base)
    disk["free"] = 100
    with pytest.raises(StorageFull, match=r"3 checkpoints of 35\.1 GB .* need 105\.2 GB .* 100\.0 GB are free"):
        hold_space(job(paths), base)
    for step in (20, 40):
        paths.checkpoint(step).mkdir(parents=True)
        with (paths.checkpoint(step) / "data.pt").open("wb") as file:
            os.truncate(file.fileno(), 35_080_000_000)
    disk["free"] = 36
    hold_space(job(paths), base)


def test_a_filesystem_on_which_they_could_never_fit_is_the_specs_error(tmp_path: Path, disk: dict[str, float]) -> None:
    base = model(tmp_path / "8b", 8_770_000_000)
    disk |= {"total": 700.0, "free": 700.0}
    with pytest.raises(BadConfiguration, match=r"training\.max_ckpts_to_keep: 21 checkpoints .* 700\.0 GB in all"):
        hold_space(job(SharedPaths("maze-1", tmp_path), max_ckpts_to_keep=20), base)

"""Large files to S3: from the disk, in parts, and after a dead process once more without a trace of the first time."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nightshift.contract import FileDigest
from tests.job.support import BUCKET, REPOSITORY
from training_job.errors import StorageUnreachable
from training_job.store import S3Store, Uploader, digest_of_file

PART = 5 * 1024 * 1024
"""The smallest part that S3 takes."""

DIES = """
import os, sys
from pathlib import Path
from training_job.store import S3Store, digest_of_file
store, path = S3Store(sys.argv[1], part_bytes=int(sys.argv[4])), Path(sys.argv[2])
store._client.meta.events.register("after-call.s3.UploadPart", lambda **_: os._exit(9))
store.put_file(sys.argv[3], path.open("rb"), digest_of_file(path), lambda amount: None)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two whole parts and a bit."""
    path = tmp_path_factory.mktemp("large") / "adapter_model.safetensors"
    path.write_bytes(os.urandom(1024) * (2 * PART // 1024 + 1))
    return path


@pytest.fixture
def store(s3: Any) -> Iterator[S3Store]:
    yield S3Store(BUCKET, part_bytes=PART)


def unfinished(s3: Any, prefix: str) -> list[str]:
    return [one["Key"] for one in s3.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix).get("Uploads", [])]


def uploaded(store: S3Store, key: str, path: Path, digest: FileDigest | None = None) -> int:
    """How many bytes of the file were read to upload it."""
    read: list[int] = []
    with path.open("rb") as file:
        store.put_file(key, file, digest or digest_of_file(path), read.append)
    return sum(read)


def test_a_large_file_goes_in_parts_with_checksums_that_s3_keeps_and_is_not_sent_twice(
    s3: Any, store: S3Store, large: Path
) -> None:
    assert uploaded(store, "runs/r/exports/a1/step-4/weights", large) == large.stat().st_size
    found = s3.get_object(Bucket=BUCKET, Key="runs/r/exports/a1/step-4/weights", ChecksumMode="ENABLED")
    assert found["ETag"].endswith('-3"'), "three parts"
    assert found["Metadata"]["sha256"] == hashlib.sha256(large.read_bytes()).hexdigest()
    assert found["Body"].read() == large.read_bytes()
    assert uploaded(store, "runs/r/exports/a1/step-4/weights", large) == 0


def test_a_file_of_other_bytes_under_the_same_key_must_be_sent(s3: Any, store: S3Store, tmp_path: Path) -> None:
    path, key = tmp_path / "f", "runs/r/exports/a1/step-4/other"
    path.write_bytes(b"one")
    uploaded(store, key, path)
    path.write_bytes(b"two")
    assert uploaded(store, key, path) == 3
    assert s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == b"two"


def test_an_upload_that_died_midway_is_done_again_and_leaves_no_parts(s3: Any, store: S3Store, large: Path) -> None:
    prefix, key = "runs/dies/exports/", "runs/dies/exports/a1/step-4/weights"
    died = subprocess.run(
        [sys.executable, "-c", DIES, BUCKET, str(large), key, str(PART)],
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY / 'functions'}:{REPOSITORY}"},
        check=False,
    )
    assert died.returncode == 9
    assert unfinished(s3, prefix) == [key]
    assert store.listing(prefix) == {}, "an upload that is not finished is no object"

    assert store.abort_unfinished("runs/other/") == 0
    assert store.abort_unfinished(prefix) == 1
    assert uploaded(store, key, large) == large.stat().st_size
    assert unfinished(s3, prefix) == []
    assert s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == large.read_bytes()


@pytest.mark.parametrize("size", [10, PART, 2 * PART + 7])
def test_a_file_that_changed_after_its_digest_was_taken_never_becomes_an_object(
    s3: Any, store: S3Store, tmp_path: Path, size: int
) -> None:
    path, key = tmp_path / "f", f"runs/changed/exports/{size}"
    path.write_bytes(bytes(size))
    digest = digest_of_file(path)
    path.write_bytes(bytes(size - 1) + b"1")
    with pytest.raises(StorageUnreachable, match="other bytes than when its digest was taken"):
        uploaded(store, key, path, digest)
    assert store.listing(key) == {} and unfinished(s3, key) == []


def test_a_queued_file_that_is_replaced_before_its_turn_is_uploaded_as_it_was(
    s3: Any, store: S3Store, tmp_path: Path
) -> None:
    """A folder of an export is written anew when its step is exported once more."""
    path, first = tmp_path / "f", threading.Event()

    class Waits(S3Store):
        def put(self, key: str, content: bytes) -> None:
            first.wait(10)

    uploader = Uploader(Waits(BUCKET))
    uploader.put("runs/queued/first", b"")
    path.write_bytes(b"as it was")
    uploader.put_file("runs/queued/f", path, digest_of_file(path))
    path.unlink()
    path.write_bytes(b"replaced")
    first.set()
    uploader.flush(20)
    assert s3.get_object(Bucket=BUCKET, Key="runs/queued/f")["Body"].read() == b"as it was"


def test_the_right_to_write_is_tried_without_leaving_anything(s3: Any, store: S3Store) -> None:
    store.may_write("runs/tried/exports/probe")
    assert store.listing("runs/tried/") == {} and unfinished(s3, "runs/tried/") == []

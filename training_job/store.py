"""The run's bucket: small objects read and written, and a queue that uploads while training goes on."""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, TypeVar

from nightshift.contract import FileDigest, Model
from nightshift.contract.reading import MAX_DOCUMENT, Unreadable, read_document
from training_job.errors import BadConfiguration, StorageUnreachable, classify

M = TypeVar("M", bound=Model)
PART_BYTES: Final = 64 * 1024 * 1024
_CHUNK: Final = 1024 * 1024
_CONTENT_TYPES: Final = {".json": "application/json", ".jsonl": "application/x-ndjson", ".png": "image/png"}


def digest_of(content: bytes) -> FileDigest:
    """Size and SHA-256 of what is about to be written."""
    return FileDigest(sha256=hashlib.sha256(content).hexdigest(), size=len(content))


def digest_of_file(path: Path) -> FileDigest:
    """The same of a file, which is read once and never as a whole into memory."""
    with path.open("rb") as file:
        return FileDigest(sha256=hashlib.file_digest(file, "sha256").hexdigest(), size=file.tell())


@dataclass(frozen=True)
class Stored:
    """An object as a listing tells it. ``tag`` is S3's entity tag: it changes with the content."""

    size: int
    tag: str


class ObjectStore(Protocol):
    """One bucket. Missing objects are None; every other failure raises."""

    def get(self, key: str) -> bytes | None: ...

    def get_small(self, key: str, limit: int) -> bytes | None:
        """Raises Unreadable for an object of more than ``limit`` bytes, of which nothing is read then."""

    def put(self, key: str, content: bytes) -> None: ...

    def put_file(self, key: str, file: BinaryIO, digest: FileDigest, moved: Callable[[int], object]) -> None:
        """Upload a file of any size from where it is open; what is there already with this digest is not sent again.

        ``moved`` is told of bytes as they are read. Raises StorageUnreachable, and no object appears, where the file's bytes
        are others than ``digest`` says."""

    def listing(self, prefix: str) -> dict[str, str]: ...

    def stored(self, prefix: str) -> dict[str, Stored]: ...

    def download(self, key: str, path: Path, tag: str) -> None:
        """Into a file, as it is read; only the content of this entity tag, with all checksums that S3 keeps of it."""

    def may_write(self, key: str) -> None:
        """Raises what S3 answers where this key may not be written. Nothing is."""

    def abort_unfinished(self, prefix: str) -> int:
        """Drop the parts that uploads of dead processes have left below a prefix; how many uploads it were."""


class S3Store:
    """``ObjectStore`` over boto3; credentials and endpoint come from the environment. Safe for several threads.

    A file of more than ``part_bytes`` is sent in parts of this size, several at a time."""

    def __init__(self, bucket: str, part_bytes: int = PART_BYTES) -> None:
        import boto3
        from botocore.config import Config

        retries: Any = {"mode": "standard", "total_max_attempts": 5}
        self.bucket, self._part_bytes = bucket, part_bytes
        self._client: Any = boto3.client("s3", config=Config(connect_timeout=5, read_timeout=20, retries=retries))

    def get(self, key: str) -> bytes | None:
        found = self._open(key)
        return None if found is None else self._content(found)

    def get_small(self, key: str, limit: int) -> bytes | None:
        found = self._open(key)
        if found is not None and int(found["ContentLength"]) > limit:
            found["Body"].close()
            raise Unreadable(f"its {found['ContentLength']} bytes are more than {limit}")
        return None if found is None else self._content(found)

    def _open(self, key: str) -> Any:
        from botocore.exceptions import ClientError

        try:
            return self._client.get_object(Bucket=self.bucket, Key=key)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in ("NoSuchKey", "404"):
                return None
            raise

    @staticmethod
    def _content(found: Any) -> bytes:
        content: bytes = found["Body"].read()
        return content

    def put(self, key: str, content: bytes) -> None:
        self._client.put_object(Bucket=self.bucket, Key=key, Body=content, ContentType=_content_type(key))

    def put_file(self, key: str, file: BinaryIO, digest: FileDigest, moved: Callable[[int], object]) -> None:
        from boto3.s3.transfer import TransferConfig

        if self._has(key, digest):
            return
        sent = HashedReader(file, digest, moved)
        # A stream that cannot seek is read once, in order, by s3transfer, which sends its parts in parallel.
        more = {
            "ContentType": _content_type(key),
            "Metadata": {"sha256": digest.sha256},
            "ChecksumAlgorithm": "SHA256",
        }
        parts = TransferConfig(
            multipart_threshold=self._part_bytes, multipart_chunksize=self._part_bytes, max_concurrency=4
        )
        self._client.upload_fileobj(sent, self.bucket, key, ExtraArgs=more, Config=parts)

    def _has(self, key: str, digest: FileDigest) -> bool:
        from botocore.exceptions import ClientError

        try:
            found = self._client.head_object(Bucket=self.bucket, Key=key)
        except ClientError as error:
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in (403, 404):
                return False  # without the right to look S3 answers 403 also for what does not exist
            raise
        return (found["ContentLength"], found["Metadata"].get("sha256")) == (digest.size, digest.sha256)

    def listing(self, prefix: str) -> dict[str, str]:
        """Key -> entity tag of every object below a prefix."""
        return {key: one.tag for key, one in self.stored(prefix).items()}

    def stored(self, prefix: str) -> dict[str, Stored]:
        """Key -> size and entity tag of every object below a prefix."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return {
            entry["Key"]: Stored(entry["Size"], entry["ETag"]) for page in pages for entry in page.get("Contents", [])
        }

    def download(self, key: str, path: Path, tag: str) -> None:
        found = self._client.get_object(Bucket=self.bucket, Key=key, IfMatch=tag, ChecksumMode="ENABLED")
        with path.open("wb") as file, closing(found["Body"]) as body:
            shutil.copyfileobj(body, file, _CHUNK)
            file.flush()
            os.fsync(file.fileno())
        if (written := path.stat().st_size) != found["ContentLength"]:
            raise StorageUnreachable(f"s3://{self.bucket}/{key}: {written} of {found['ContentLength']} bytes arrived")

    def may_write(self, key: str) -> None:
        begun = self._client.create_multipart_upload(Bucket=self.bucket, Key=key)
        self._client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=begun["UploadId"])

    def abort_unfinished(self, prefix: str) -> int:
        pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=prefix)
        begun = [(one["Key"], one["UploadId"]) for page in pages for one in page.get("Uploads", [])]
        for key, upload in begun:
            self._client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload)
        return len(begun)


def _content_type(key: str) -> str:
    return _CONTENT_TYPES.get(key[key.rfind(".") :], "application/octet-stream")


class HashedReader:
    """A file that can only be read on, and whose last read fails where its bytes were others than promised."""

    def __init__(self, file: BinaryIO, digest: FileDigest, moved: Callable[[int], object]) -> None:
        self._file, self._promised, self._moved = file, digest, moved
        self._sha, self._size = hashlib.sha256(), 0

    def read(self, amount: int = -1) -> bytes:
        content = self._file.read(amount)
        self._sha.update(content)
        self._size += len(content)
        self._moved(len(content))
        if amount < 0 or len(content) < amount:
            self._hold()
        return content

    def _hold(self) -> None:
        if (self._size, self._sha.hexdigest()) != (self._promised.size, self._promised.sha256):
            name = getattr(self._file, "name", "the file")
            raise StorageUnreachable(f"{name} has other bytes than when its digest was taken: it is not uploaded")


def read(store: ObjectStore, kind: type[M], key: str) -> M | None:
    """The document at a key; None where there is none. Raises Unreadable where the object is no such document."""
    content = store.get_small(key, MAX_DOCUMENT)
    return None if content is None else read_document(kind, content).document


def split_uri(uri: str) -> tuple[str, str]:
    """(bucket, key or prefix) of an ``s3://`` address."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


@contextmanager
def reading_s3(field: str, address: str) -> Iterator[None]:
    """S3's refusals, of what the spec names: BadConfiguration with its ``field``."""
    try:
        yield
    except Exception as error:
        code = getattr(error, "response", {}).get("Error", {}).get("Code")
        if code in ("NoSuchBucket", "AccessDenied", "403", "AllAccessDisabled", "PermanentRedirect"):
            raise BadConfiguration(
                field, f"{address} cannot be read ({code}): name another, or let the job's role read it"
            ) from error
        raise


class Uploader:
    """Uploads in order on a thread of its own, so that no step waits for S3.

    A failed upload ends the queue: later objects may say that earlier ones are complete. The failure is raised by the
    next ``put`` or ``flush``.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._failure: BaseException | None = None
        self._moved_at = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="uploads", daemon=True)
        self._thread.start()

    def put(self, key: str, content: bytes) -> None:
        """Queue one object. Raises the cause of an earlier upload's failure."""
        self._check()
        self._queue.put(lambda: self._store.put(key, content))

    def put_file(self, key: str, path: Path, digest: FileDigest) -> None:
        """Queue a file, which is read when its turn comes: also where it has been replaced or deleted meanwhile, for it is
        opened now."""
        self._check()
        file = path.open("rb")

        def upload() -> None:
            with file:
                self._store.put_file(key, file, digest, self._moved)

        self._queue.put(upload)

    def flush(self, seconds: float) -> None:
        """Wait until everything is in S3. Raises StorageUnreachable after ``seconds`` in which nothing moved."""
        began = time.monotonic()
        with self._queue.all_tasks_done:
            while self._queue.unfinished_tasks and self._failure is None:
                left = max(began, self._moved_at) + seconds - time.monotonic()
                if left <= 0:
                    raise StorageUnreachable(f"uploads did not finish within {seconds:.0f} s")
                self._queue.all_tasks_done.wait(min(left, 0.5))
        self._check()

    def close(self) -> None:
        """End the thread once it is idle; what is queued and not yet begun stays behind after a failure."""
        self._queue.put(None)

    def _moved(self, amount: int) -> None:
        if amount:
            self._moved_at = time.monotonic()

    def _check(self) -> None:
        if self._failure is not None:
            raise classify(self._failure) from self._failure

    def _work(self) -> None:
        while (upload := self._queue.get()) is not None:
            try:
                if self._failure is None:
                    upload()
                    self._moved_at = time.monotonic()
            except Exception as error:  # noqa: BLE001 - raised again by the next put or flush
                self._failure = error
            finally:
                self._queue.task_done()

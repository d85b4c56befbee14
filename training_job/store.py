"""The run's bucket: small objects read and written, and a queue that uploads while training goes on."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, Protocol, TypeVar

from nightshift.contract import FileDigest, Model
from nightshift.contract.reading import MAX_DOCUMENT, Unreadable, read_document
from training_job.errors import StorageUnreachable, classify

M = TypeVar("M", bound=Model)
_CONTENT_TYPES: Final = {".json": "application/json", ".jsonl": "application/x-ndjson", ".png": "image/png"}


def digest_of(content: bytes) -> FileDigest:
    """Size and SHA-256 of what is about to be written."""
    return FileDigest(sha256=hashlib.sha256(content).hexdigest(), size=len(content))


class ObjectStore(Protocol):
    """One bucket. Missing objects are None; every other failure raises."""

    def get(self, key: str) -> bytes | None: ...

    def get_small(self, key: str, limit: int) -> bytes | None:
        """Raises Unreadable for an object of more than ``limit`` bytes, of which nothing is read then."""

    def put(self, key: str, content: bytes) -> None: ...

    def listing(self, prefix: str) -> dict[str, str]: ...


class S3Store:
    """``ObjectStore`` over boto3; credentials and endpoint come from the environment. Safe for several threads."""

    def __init__(self, bucket: str) -> None:
        import boto3
        from botocore.config import Config

        retries: Any = {"mode": "standard", "total_max_attempts": 5}
        self.bucket = bucket
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
        kind = _CONTENT_TYPES.get(key[key.rfind(".") :], "application/octet-stream")
        self._client.put_object(Bucket=self.bucket, Key=key, Body=content, ContentType=kind)

    def listing(self, prefix: str) -> dict[str, str]:
        """Key -> entity tag of every object below a prefix."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return {entry["Key"]: entry["ETag"] for page in pages for entry in page.get("Contents", [])}


def read(store: ObjectStore, kind: type[M], key: str) -> M | None:
    """The document at a key; None where there is none. Raises Unreadable where the object is no such document."""
    content = store.get_small(key, MAX_DOCUMENT)
    return None if content is None else read_document(kind, content).document


def split_uri(uri: str) -> tuple[str, str]:
    """(bucket, key or prefix) of an ``s3://`` address."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


class Uploader:
    """Uploads in order on a thread of its own, so that no step waits for S3.

    A failed upload ends the queue: later objects may say that earlier ones are complete. The failure is raised by the
    next ``put`` or ``flush``.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._queue: queue.Queue[tuple[str, bytes] | None] = queue.Queue()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="uploads", daemon=True)
        self._thread.start()

    def put(self, key: str, content: bytes) -> None:
        """Queue one object. Raises the cause of an earlier upload's failure."""
        self._check()
        self._queue.put((key, content))

    def flush(self, seconds: float) -> None:
        """Wait until everything is in S3. Raises StorageUnreachable after ``seconds``."""
        deadline = time.monotonic() + seconds
        with self._queue.all_tasks_done:
            while self._queue.unfinished_tasks and self._failure is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise StorageUnreachable(f"uploads did not finish within {seconds:.0f} s")
                self._queue.all_tasks_done.wait(min(left, 0.5))
        self._check()

    def close(self) -> None:
        """End the thread once it is idle; what is queued and not yet begun stays behind after a failure."""
        self._queue.put(None)

    def _check(self) -> None:
        if self._failure is not None:
            raise classify(self._failure) from self._failure

    def _work(self) -> None:
        for key, content in self._jobs():
            try:
                if self._failure is None:
                    self._store.put(key, content)
            except Exception as error:  # noqa: BLE001 - raised again by the next put or flush
                self._failure = error
            finally:
                self._queue.task_done()

    def _jobs(self) -> Iterator[tuple[str, bytes]]:
        while (job := self._queue.get()) is not None:
            yield job

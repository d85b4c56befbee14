"""A bucket in memory, for tests that are about something else than S3."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import BinaryIO

from nightshift.contract import FileDigest


class MemoryStore:
    """Implements ``training_job.store.ObjectStore``."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def get_small(self, key: str, limit: int) -> bytes | None:
        return self.objects.get(key)

    def put(self, key: str, content: bytes) -> None:
        self.objects[key] = content

    def put_file(self, key: str, file: BinaryIO, digest: FileDigest, moved: Callable[[int], object]) -> None:
        content = file.read()
        assert hashlib.sha256(content).hexdigest() == digest.sha256
        self.objects[key] = content

    def listing(self, prefix: str) -> dict[str, str]:
        return {key: "" for key in self.objects if key.startswith(prefix)}

    def may_write(self, key: str) -> None:
        """Yes."""

    def abort_unfinished(self, prefix: str) -> int:
        return 0

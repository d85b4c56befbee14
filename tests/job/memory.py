"""A bucket in memory, for tests that are about something else than S3."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from nightshift.contract import FileDigest
from training_job.store import Stored


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
        return {key: one.tag for key, one in self.stored(prefix).items()}

    def stored(self, prefix: str) -> dict[str, Stored]:
        found = {key: content for key, content in sorted(self.objects.items()) if key.startswith(prefix)}
        return {key: Stored(len(content), hashlib.sha256(content).hexdigest()) for key, content in found.items()}

    def download(self, key: str, path: Path, tag: str) -> None:
        assert self.stored(key)[key].tag == tag
        path.write_bytes(self.objects[key])

    def may_write(self, key: str) -> None:
        """Yes."""

    def abort_unfinished(self, prefix: str) -> int:
        return 0

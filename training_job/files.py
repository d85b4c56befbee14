"""Files on the shared mount: written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file; a reader sees the old or the new content, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def keeps(path: Path, content: bytes) -> bool:
    """Does the storage give back what it is given? Writes a file, forces it to the storage, reads it back, and removes it.

    Raises OSError where one of that fails."""
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return path.read_bytes() == content
    finally:
        path.unlink(missing_ok=True)


def sync_tree(folder: Path) -> None:
    """Force the content of every file below ``folder`` to the storage."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def files_below(folder: Path) -> list[Path]:
    """All files, sorted by their path."""
    return sorted(path for path in folder.rglob("*") if path.is_file())

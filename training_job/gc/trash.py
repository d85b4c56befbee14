"""The trash of the shared mount: ``.nightshift-trash/<entry>/``, with what was moved and a journal of where it was.

Everything is one rename: into the trash (``content``), back from it, and, before it is deleted, to another name (``going``), from
which nothing is ever put back. The journal is there before the content is. So whatever is killed when, an entry says by itself
what is left to do. All names are opened from the mount down, a folder at a time, and no symbolic link is passed.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Final

from pydantic import AwareDatetime, Field, ValidationError

from nightshift.contract.base import Document
from training_job.gc.rule import Trashed
from training_job.gc.survey import is_run_id

TRASH: Final = ".nightshift-trash"
JOURNAL, CONTENT, GOING = "journal.json", "content", "going"
_NAME: Final = re.compile(r"\d{8}T\d{6}-[0-9a-f]{8}")
_DIR: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_JOURNAL: Final = 100_000
_STAMP: Final = "%Y%m%dT%H%M%S"
_A_MOVE: Final = timedelta(hours=1)
"""Somebody may be between the journal and the rename for so long; it takes milliseconds."""


class NotBelow(ValueError):
    """A path that is none of ours."""


class Journal(Document):
    """Of one entry: what was where, and why it went."""

    path: str
    size: int = Field(ge=0)
    why: str
    run_id: str | None = None
    moved_at: AwareDatetime


def parts_of(path: str) -> tuple[str, ...]:
    """Of a path below the mount that may be moved: in a run's folder, or a folder of models. Raises NotBelow."""
    parts = PurePosixPath(path).parts
    plain = all(part not in ("..", ".", "/") and "\0" not in part for part in parts)
    if path != "/".join(parts) or not plain or len(parts) < 2 or parts[0] not in ("runs", "models"):
        raise NotBelow(f"{path[:200]!r} is no path of a run or a model")
    if parts[0] == "runs" and not is_run_id(parts[1]):
        raise NotBelow(f"{path[:200]!r} is in no run's folder")
    return parts


class Trash:
    """Of one mount. Several may work on it at the same time: of two that rename the same thing one finds it gone."""

    def __init__(self, mount: Path) -> None:
        self._mount = mount

    def move(self, path: str, size: int, why: str, run_id: str | None, now: datetime) -> Trashed | None:
        """Into the trash; None where it is not there any more. Raises OSError, and NotBelow."""
        *above, name = parts_of(path)
        entry = f"{now.astimezone(UTC).strftime(_STAMP)}-{secrets.token_hex(4)}"
        journal = Journal(path=path, size=size, why=why[:1_000], run_id=run_id, moved_at=now)
        with self._folder(*above) as source, self._entry(entry, make=True) as target:
            try:
                os.stat(name, dir_fd=source, follow_symlinks=False)
                _write(target, journal.to_json().encode())
                os.rename(name, CONTENT, src_dir_fd=source, dst_dir_fd=target)
            except FileNotFoundError:
                self._forget(entry, target)
                return None
            os.fsync(target)
        return Trashed(entry, path, size, now, run_id)

    def put_back(self, one: Trashed) -> bool:
        """To where it was; False where something else is there now. Raises OSError, and NotBelow."""
        *above, name = parts_of(one.path)
        with self._folder(*above, make=True) as target, self._entry(one.name) as source:
            with suppress(FileNotFoundError):
                os.stat(name, dir_fd=target, follow_symlinks=False)
                return False
            os.rename(CONTENT, name, src_dir_fd=source, dst_dir_fd=target)
            self._forget(one.name, source)
        return True

    def delete(self, one: Trashed) -> None:
        """For good. Raises OSError."""
        with self._entry(one.name) as folder:
            with suppress(FileNotFoundError):
                os.rename(CONTENT, GOING, src_dir_fd=folder, dst_dir_fd=folder)
            self._finish(one.name, folder)

    def entries(self, now: datetime, end: bool = True) -> tuple[list[Trashed], list[str]]:
        """What lies in it, oldest first, and the names of entries of which nobody knows where they belong. With ``end``,
        deletions that were broken off, and moves that never took place, are ended. Raises OSError."""
        found: list[Trashed] = []
        odd: list[str] = []
        for name in self._names():
            with suppress(FileNotFoundError), self._entry(name) as folder:  # or somebody else has ended it
                there = _names_in(folder)
                kept = _read(folder) if CONTENT in there else None
                if kept is not None:
                    found.append(Trashed(name, kept.path, kept.size, kept.moved_at, kept.run_id))
                elif CONTENT in there or there - {JOURNAL, GOING, f".{JOURNAL}"}:
                    odd.append(name)
                elif end and (GOING in there or _age(name, now) > _A_MOVE):
                    self._finish(name, folder)
        return found, odd

    def where(self, one: Trashed) -> Path:
        """The moved thing."""
        return self._mount / TRASH / one.name / CONTENT

    def _names(self) -> list[str]:
        try:
            with self._folder(TRASH) as folder:
                return sorted(name for name in _names_in(folder) if _NAME.fullmatch(name))
        except FileNotFoundError:
            return []

    def _finish(self, name: str, folder: int) -> None:
        with suppress(FileNotFoundError):
            found = os.stat(GOING, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode):
                shutil.rmtree(GOING, dir_fd=folder)
            else:
                os.unlink(GOING, dir_fd=folder)
        self._forget(name, folder)

    def _forget(self, name: str, folder: int) -> None:
        for left in (f".{JOURNAL}", JOURNAL):
            with suppress(FileNotFoundError):
                os.unlink(left, dir_fd=folder)
        with self._folder(TRASH) as trash, suppress(FileNotFoundError):
            os.rmdir(name, dir_fd=trash)

    @contextmanager
    def _entry(self, name: str, make: bool = False) -> Iterator[int]:
        with self._folder(TRASH, name, make=make) as folder:
            yield folder

    @contextmanager
    def _folder(self, *names: str, make: bool = False) -> Iterator[int]:
        """A folder below the mount, opened without passing a link. Raises OSError."""
        here = os.open(self._mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in names:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(name, 0o755, dir_fd=here)
                below = os.open(name, _DIR, dir_fd=here)
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)


def _names_in(folder: int) -> set[str]:
    with os.scandir(folder) as found:
        return {one.name for one in found}


def _age(name: str, now: datetime) -> timedelta:
    try:
        return now - datetime.strptime(name.partition("-")[0], _STAMP).replace(tzinfo=UTC)
    except ValueError:
        return timedelta()


def _write(folder: int, content: bytes) -> None:
    """The journal, whole or not at all."""
    fresh = f".{JOURNAL}"
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644, dir_fd=folder)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(fresh, JOURNAL, src_dir_fd=folder, dst_dir_fd=folder)


def _read(folder: int) -> Journal | None:
    try:
        handle = os.open(JOURNAL, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
        with os.fdopen(handle, "rb") as file:
            found = Journal.from_json(file.read(_MAX_JOURNAL))
        parts_of(found.path)
    except (FileNotFoundError, ValidationError, NotBelow):
        return None
    return found

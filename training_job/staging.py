"""Files of elsewhere on the shared mount, brought there once for all runs: whole or not at all, and never by two at a time.

A folder is named by the digest of what it is to hold, so that its name says whether it is the right one. It is filled under
another name that says who fills it, file by file, and renamed when all are there. Whoever comes next takes over what a dead
one has left, by a rename: only one can succeed, and files that were complete are not fetched again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from nightshift.contract import OutcomeCause
from training_job.errors import StorageFull, StorageUnreachable, classify
from training_job.files import write_atomically

STAGED: Final = ".nightshift.json"
"""In a staged folder: where it came from, and the size of each of its files."""

BEAT: Final = ".beat"
"""In a folder that is being filled: its time says when its owner was last alive."""
_FETCHERS: Final = 4
_BEAT_SECONDS: Final = 2.0
_DEAD_SECONDS: Final = 120.0
"""A fill that has not moved for so long is of a dead process, unless it is of an older attempt of the same run, which is dead
for sure: the controller fences it."""
_TRIES: Final = 3
_TRY_AGAIN_SECONDS: Final = 2.0
_SPARE: Final = 1024**3
"""Bytes that must be left on the shared mount after a download."""

Tell = Callable[[int, int], object]
"""(bytes there, bytes in all), now and then while it goes on."""


@dataclass(frozen=True)
class Wanted:
    """A file to fetch. ``content`` names its content: an entity tag, a commit's blob or a SHA-256."""

    name: str
    size: int
    content: str


class Origin(Protocol):
    """Where files come from. ``address`` names it for good: a revision is a commit."""

    @property
    def address(self) -> str: ...

    @property
    def files(self) -> Sequence[Wanted]: ...

    def fetch(self, file: Wanted, folder: Path) -> None:
        """Write one file below ``folder``, whole or not under its name."""


@dataclass(frozen=True)
class Owner:
    """Who fills a folder."""

    run_id: str
    attempt: int

    @property
    def name(self) -> str:
        return f"{self.run_id}.a{self.attempt}"


def digest_of_origin(origin: Origin) -> str:
    """Of the address and all contents: the name of the staged folder."""
    files = sorted((one.name, one.size, one.content) for one in origin.files)
    return hashlib.sha256(repr((origin.address, files)).encode()).hexdigest()


def stage(origin: Origin, root: Path, owner: Owner, tell: Tell = lambda done, total: None) -> Path:
    """The folder below ``root`` with all files of the origin, fetched where it is not there or not whole.

    Raises StorageFull, with numbers, before anything is fetched that would not fit, and StorageUnreachable where a file does
    not arrive as the origin has it.
    """
    folder = root / digest_of_origin(origin)
    if take_staged(folder):
        return folder
    if folder.exists():  # somebody has changed it: others may be reading it now, so nothing in it is touched
        folder.rename(root / f".broken-{folder.name[:12]}-{uuid.uuid4().hex[:8]}")
    root.mkdir(parents=True, exist_ok=True)
    fill = _take_over(root, folder.name, owner)
    total = sum(one.size for one in origin.files)
    _require_space(fill, origin, total)
    with _beating(fill, total, tell), ThreadPoolExecutor(_FETCHERS) as pool:
        todo = [one for one in origin.files if not _is_there(fill, one)]
        try:
            for _ in pool.map(lambda one: _fetch(origin, one, fill), todo):
                pass
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if lost := [one.name for one in origin.files if not _is_there(fill, one)]:  # taken over by one that thought us dead
        raise StorageUnreachable(f"{fill} lost {', '.join(lost[:3])} while it was filled: is another run filling it?")
    shutil.rmtree(fill / ".cache", ignore_errors=True)
    record = {"address": origin.address, "files": {one.name: one.size for one in origin.files}}
    write_atomically(fill / STAGED, json.dumps(record, indent=1).encode())
    (fill / BEAT).unlink(missing_ok=True)
    try:
        fill.rename(folder)
    except OSError:
        if not is_staged(folder):
            raise
        shutil.rmtree(fill, ignore_errors=True)  # another run was faster
    return folder


def take_staged(folder: Path) -> bool:
    """Whether it is staged; if so it counts as used now, and is not removed as unused. The time comes first: whatever is being
    removed just then is not there any more when it is looked at."""
    with suppress(OSError):  # of another user, or not there
        os.utime(folder / STAGED)
    return is_staged(folder)


def is_staged(folder: Path) -> bool:
    """Whether a folder holds what its own record says, by the sizes of its files."""
    return all(
        (folder / name).is_file() and (folder / name).stat().st_size == size for name, size in _staged_files(folder)
    ) and bool(_staged_files(folder))


def _staged_files(folder: Path) -> list[tuple[str, int]]:
    """By its record; empty where there is none or it says nothing. Raises StorageUnreachable where that cannot be known: a
    folder must not be called broken, which other runs may be reading, because the mount is."""
    try:
        record: Any = json.loads((folder / STAGED).read_bytes())
        files: Mapping[str, int] = record["files"]
        return [(str(name), int(size)) for name, size in files.items()]
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
        return []
    except OSError as error:
        raise StorageUnreachable(f"{folder / STAGED} cannot be read: {error}") from error


def _take_over(root: Path, digest: str, owner: Owner) -> Path:
    """This owner's folder to fill, with what a dead one has left in it."""
    fill = root / f".{digest[:16]}-{owner.name}"
    if not fill.exists():
        for left in sorted(root.glob(f".{digest[:16]}-*")):
            if _is_dead(left, owner):
                with suppress(OSError):  # of two that try only one can
                    left.rename(fill)
                    break
    fill.mkdir(exist_ok=True)
    (fill / BEAT).touch()
    return fill


def _is_dead(left: Path, owner: Owner) -> bool:
    run_id, _, attempt = left.name.split("-", 1)[1].rpartition(".a")
    if run_id == owner.run_id:
        return attempt.isdecimal() and int(attempt) < owner.attempt
    try:
        here = left.parent / f".clock-{owner.name}"  # by the filesystem's own clock
        here.touch()
        age = here.stat().st_mtime - (left / BEAT).stat().st_mtime
        here.unlink()
    except FileNotFoundError:
        return False
    return age > _DEAD_SECONDS


def _require_space(fill: Path, origin: Origin, total: int) -> None:
    there = sum(one.size for one in origin.files if _is_there(fill, one))
    free = shutil.disk_usage(fill).free
    if total - there + _SPARE > free:
        raise StorageFull(
            f"{origin.address} needs {_gb(total - there)} more on {fill.parent}, where {_gb(free)} are free and {_gb(_SPARE)} "
            "must stay so: make room, or use a model that is there already"
        )


def _gb(amount: int) -> str:
    return f"{amount / 1e9:.1f} GB"


def _is_there(fill: Path, file: Wanted) -> bool:
    """A file has its name only once it is complete."""
    path = fill / file.name
    return path.is_file() and path.stat().st_size == file.size


def _fetch(origin: Origin, file: Wanted, fill: Path) -> None:
    """Tried again where the network is to blame."""
    (fill / file.name).parent.mkdir(parents=True, exist_ok=True)
    for tries_left in reversed(range(_TRIES)):
        try:
            origin.fetch(file, fill)
            break
        except Exception as error:
            if tries_left == 0 or classify(error).outcome is not OutcomeCause.STORAGE_UNREACHABLE:
                raise
            time.sleep(_TRY_AGAIN_SECONDS)
    if not _is_there(fill, file):
        raise StorageUnreachable(f"{origin.address}: {file.name} did not arrive with its {file.size} bytes")


@contextmanager
def _beating(fill: Path, total: int, tell: Tell) -> Iterator[None]:
    """While this lasts, the folder shows that its owner lives, and that bytes arrive is told soon; silence means that none do."""
    over = threading.Event()

    def beat() -> None:
        told = -1
        while True:
            with suppress(OSError):
                os.utime(fill / BEAT)
            done = min(total, _bytes_below(fill))
            if done > told:
                told = done
                tell(done, total)
            if over.wait(_BEAT_SECONDS):
                return

    thread = threading.Thread(target=beat, name="download", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _bytes_below(folder: Path) -> int:
    found = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # it has just been renamed
                found += (Path(where) / name).stat().st_size
    return found

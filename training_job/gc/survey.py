"""What lies on /shared: runs' folders, staged base models, and what downloads left behind. Looks, and changes nothing.

No symbolic link is followed, at any depth: what it names is not ours, and may be anywhere.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from nightshift.contract import SharedPaths
from nightshift.contract.base import DnsLabel
from training_job.gc.rule import Leftover, Part, RunFolder, StagedModel, Survey
from training_job.pins import Pins
from training_job.staging import BEAT, STAGED

_RUN_ID: Final = TypeAdapter(DnsLabel)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_FILL: Final = re.compile(r"\.[0-9a-f]{16}-(?P<run>[a-z][-a-z0-9]*)\.a\d+")
_BROKEN: Final = re.compile(r"\.broken-[0-9a-f]{12}-[0-9a-f]{8}")
_STEP: Final = re.compile(r"global_step_(\d{1,12})")
_MAX_RECORD: Final = 4_000_000


def survey(mount: Path) -> Survey:
    """Raises OSError where the mount cannot be read: then nothing may be decided."""
    folders = tuple(_run_folders(mount))
    pinned: dict[str, set[str]] = {}
    for folder in folders:
        for pin in Pins(SharedPaths(folder.run_id, mount)).every() if not folder.odd else ():
            pinned.setdefault(pin.content, set()).add(folder.run_id)
    models: list[StagedModel] = []
    leftovers: list[Leftover] = []
    for entry in _entries(mount / "models"):
        if not entry.is_dir(follow_symlinks=False):
            continue
        path = f"models/{entry.name}"
        if _DIGEST.fullmatch(entry.name):
            found = _staged(mount, path, frozenset(pinned.get(entry.name, ())))
            models += [found] if found is not None else []
        elif (fill := _FILL.fullmatch(entry.name)) or _BROKEN.fullmatch(entry.name):
            run_id = fill["run"] if fill and is_run_id(fill["run"]) else None
            leftovers.append(Leftover(path, size_of(mount / path), _changed(mount / path), run_id))
    return Survey(folders, tuple(models), tuple(leftovers))


def is_run_id(name: str) -> bool:
    try:
        _RUN_ID.validate_python(name)
    except ValidationError:
        return False
    return True


def _run_folders(mount: Path) -> Iterator[RunFolder]:
    for entry in _entries(mount / "runs"):
        if not is_run_id(entry.name):
            continue
        path = f"runs/{entry.name}"
        if entry.is_symlink() or not entry.is_dir(follow_symlinks=False):
            yield RunFolder(entry.name, path, odd="it is a symbolic link or no folder: it is left alone")
        elif (mount / path / "ckpts").is_symlink():
            yield RunFolder(entry.name, path, odd="its ckpts is a symbolic link: it is left alone")
        else:
            yield RunFolder(entry.name, path, tuple(_parts(mount, path)))


def _parts(mount: Path, path: str) -> Iterator[Part]:
    for entry in _entries(mount / path):
        below = f"{path}/{entry.name}"
        if entry.name == "ckpts" and entry.is_dir(follow_symlinks=False):
            for one in _entries(mount / below):
                step = _STEP.fullmatch(one.name)
                yield Part(f"{below}/{one.name}", size_of(Path(one.path)), int(step[1]) if step else None)
        else:
            yield Part(below, size_of(Path(entry.path)))


def _staged(mount: Path, path: str, pinned_by: frozenset[str]) -> StagedModel | None:
    """None for a folder without a record of ours: somebody else has put it there."""
    record = mount / path / STAGED
    try:
        if not stat.S_ISREG(record.lstat().st_mode):
            return None
        with record.open("rb") as file:
            raw: Any = json.loads(file.read(_MAX_RECORD))
        address = str(raw["address"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return StagedModel(path, size_of(mount / path), address, used_at(mount / path), pinned_by)


def used_at(folder: Path) -> datetime:
    """When an attempt last began with a staged folder: it then sets the time of its record. Raises OSError."""
    return datetime.fromtimestamp((folder / STAGED).lstat().st_mtime, UTC)


def _changed(folder: Path) -> datetime:
    """When it was last written to, renamed, or alive."""
    found = folder.lstat()
    times = [found.st_mtime, found.st_ctime]
    with suppress(FileNotFoundError):
        times.append((folder / BEAT).lstat().st_mtime)
    return datetime.fromtimestamp(max(times), UTC)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Sorted; none where the folder is not there, or is a link that leads elsewhere."""
    if folder.is_symlink():
        return []
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda one: one.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def size_of(path: Path) -> int:
    """Bytes of all files below it, or of the file; what a link names is not counted."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return 0
    if not stat.S_ISDIR(found.st_mode):
        return found.st_size
    return sum(size_of(Path(one.path)) for one in _entries(path))

"""What a checkpoint's files were when they were last read to their last byte, so that a start need not read them again.

``nightshift.json`` lies in the checkpoint's own folder: it is pruned and moved aside together with it, and SkyRL, which
opens its files by their names, does not see it. It is written only after every file was forced to the storage and read
whole. What a comparison with it cannot see is told in docs/design.md, "Checkpoints".
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from nightshift.contract.base import Document, Model, Sha256
from training_job.checkpoints import READERS, expected_files, problems_in
from training_job.errors import StorageUnreachable
from training_job.files import sync_tree, write_atomically

RECORD: Final = "nightshift.json"
_MAX_RECORD: Final = 4_000_000
_BLOCK: Final = 64 * 1024
_BLOCKS: Final = 16
"""Blocks of a file that are compared: its head, its tail (of an archive the central directory, with all CRCs), and as many
in between at equal distances. A smaller file is compared whole."""


class FileRecord(Model):
    """``modified``: in whole seconds, for not every filesystem keeps more. ``allocated``: blocks of 512 bytes, of which a
    file with holes has fewer."""

    size: int = Field(ge=0)
    modified: int
    allocated: int
    sample: Sha256


class SaveRecord(Document):
    """``files``: path below the checkpoint -> what it was."""

    files: dict[str, FileRecord]


def keep_record(folder: Path) -> None:
    """Write down what the files of a checkpoint are. Only for one that was just read to its last byte and found whole."""
    sync_tree(folder)
    files = expected_files(folder)
    with ThreadPoolExecutor(READERS) as pool:
        records = list(pool.map(_record_of, files))
    kept = {path.relative_to(folder).as_posix(): one for path, one in zip(files, records, strict=True)}
    write_atomically(folder / RECORD, SaveRecord(files=kept).to_json().encode())


def renew_record(folder: Path) -> None:
    """The same for a start that had to read more than a record, so that the next one need not. Where it cannot be written
    the next start is slow once more, and nothing else."""
    with suppress(OSError):
        keep_record(folder)


def drop_record(folder: Path) -> None:
    """Before a checkpoint is written anew: SkyRL writes a step's files in place, and may die in between."""
    (folder / RECORD).unlink(missing_ok=True)


def problems_by_record(folder: Path) -> list[str]:
    """What is wrong with a checkpoint's files, read as little as possible: one that is as it was recorded counts as whole;
    one that is not, or was never recorded, is read to its last byte, and recorded as it is now where all is whole. Raises
    StorageUnreachable."""
    kept = _read_record(folder)
    expected = expected_files(folder)
    expected += sorted({folder / name for name in kept} - set(expected))
    known = {path: kept.get(path.relative_to(folder).as_posix()) for path in expected}
    try:
        missing = [path for path in expected if not path.is_file()]
        if missing:
            return [f"{path.relative_to(folder)}: missing" for path in missing]
        changed = [path for path, one in known.items() if one is None or not _looks_as(one, path)]
        problems = problems_in(folder, changed)
        if problems:
            return problems
        with ThreadPoolExecutor(READERS) as pool:
            rest = [(path, one) for path, one in known.items() if one is not None and path not in set(changed)]
            same = list(pool.map(lambda pair: _sample(pair[0], pair[1].size) == pair[1].sample, rest))
    except OSError as error:
        raise StorageUnreachable(f"{folder} cannot be read: {error}") from error
    other = [path for (path, _), one in zip(rest, same, strict=True) if not one]
    problems = problems_in(folder, other)
    if not problems and (changed or other):
        renew_record(folder)
    return problems


def _read_record(folder: Path) -> dict[str, FileRecord]:
    """Empty where there is none that can be used: then everything is read."""
    try:
        with (folder / RECORD).open("rb") as file:
            return dict(SaveRecord.from_json(file.read(_MAX_RECORD)).files)
    except (OSError, ValidationError):
        return {}


def _looks_as(kept: FileRecord, path: Path) -> bool:
    """By what can be known without opening it."""
    now = path.stat()
    return (now.st_size, int(now.st_mtime)) == (kept.size, kept.modified) and now.st_blocks >= kept.allocated


def _record_of(path: Path) -> FileRecord:
    now = path.stat()
    return FileRecord(
        size=now.st_size,
        modified=int(now.st_mtime),
        allocated=now.st_blocks,
        sample=_sample(path, now.st_size),
    )


def _sample(path: Path, size: int) -> str:
    digest = hashlib.sha256()
    handle = os.open(path, os.O_RDONLY)
    try:
        if size <= _BLOCK * _BLOCKS:
            digest.update(os.pread(handle, _BLOCK * _BLOCKS, 0))
        else:
            for number in range(_BLOCKS):
                digest.update(os.pread(handle, _BLOCK, number * (size - _BLOCK) // (_BLOCKS - 1)))
    finally:
        os.close(handle)
    return digest.hexdigest()

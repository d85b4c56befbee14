"""Checkpoints in SkyRL's layout: what is on disk, whether it is whole, and the pointer. Imports no torch.

``global_step_N/`` holds ``trainer_state.pt``, ``data.pt`` and ``policy/`` with one model, optim and extra_state file a
rank, ``fsdp_config.json``, ``huggingface/`` and ``lora_adapter/``; ``latest_ckpt_global_step.txt`` names the newest.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
import struct
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from nightshift.contract import SharedPaths
from training_job.errors import StorageUnreachable
from training_job.files import write_atomically

PARTS: Final = ("model", "optim", "extra_state")
ADAPTER_FILES: Final = ("adapter_config.json", "adapter_model.safetensors")
_STEP_FOLDER: Final = re.compile(r"^global_step_(\d+)$")
_RANK_FILE: Final = re.compile(r"^model_world_size_(\d+)_rank_(\d+)\.pt$")
_MAX_JSON: Final = 10_000_000
"""Bytes of the largest configuration or safetensors header that is read."""
_MAX_POINTER: Final = 100
READERS: Final = 8
"""Files that are read at once."""
_CHUNK: Final = 2**20

Told = Callable[[], object]
"""Called after each part of a file that was read, from several threads; it must not raise."""


def part_file(part: str, world_size: int = 1, rank: int = 0) -> str:
    """File name of one rank's part."""
    return f"{part}_world_size_{world_size}_rank_{rank}.pt"


def steps_on_disk(ckpts: Path) -> list[int]:
    """Steps that have a folder, rising. Raises StorageUnreachable where the folder cannot be read."""
    try:
        names = [entry.name for entry in ckpts.iterdir()] if ckpts.exists() else []
    except OSError as error:
        raise StorageUnreachable(f"{ckpts} cannot be listed: {error}") from error
    return sorted(int(match[1]) for match in map(_STEP_FOLDER.match, names) if match)


@dataclass(frozen=True)
class Pointer:
    """``step`` is None where the pointer is missing or holds no step; ``note`` says which."""

    step: int | None
    note: str = ""


def read_pointer(path: Path) -> Pointer:
    """Raises StorageUnreachable where the file is there but cannot be read."""
    try:
        with path.open("rb") as file:  # whatever lies there: no more than a step needs is read
            text = file.read(_MAX_POINTER).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return Pointer(None, "the pointer is missing")
    except OSError as error:
        raise StorageUnreachable(f"{path} cannot be read: {error}") from error
    if not text:
        return Pointer(None, "the pointer is empty")
    if not re.fullmatch(r"[0-9]{1,12}", text):
        return Pointer(None, f"the pointer holds {text[:40]!r}, which is no step")
    return Pointer(int(text))


def write_pointer(paths: SharedPaths, step: int) -> None:
    """Name the newest checkpoint; whole or not at all."""
    write_atomically(paths.pointer, str(step).encode())


def _untold() -> None: ...


def problems_of_files(folder: Path, told: Told = _untold) -> list[str]:
    """What is wrong with a checkpoint's files, each read to its last byte; empty where nothing is.

    Archives are checked against their own CRCs, so that nothing is loaded into memory. Raises StorageUnreachable where
    the storage, not the file, is at fault.
    """
    return problems_in(folder, expected_files(folder), told)


def expected_files(folder: Path) -> list[Path]:
    """What a whole checkpoint of as many ranks as its files' names say consists of."""
    policy = folder / "policy"
    expected = [folder / "trainer_state.pt", folder / "data.pt", policy / "fsdp_config.json"]
    expected += [policy / "huggingface" / "config.json", *(policy / "lora_adapter" / name for name in ADAPTER_FILES)]
    world = world_size_of(folder)
    return expected + [policy / part_file(part, world, rank) for part in PARTS for rank in range(world)]


def problems_in(folder: Path, files: Sequence[Path], told: Told = _untold) -> list[str]:
    """The same of some of its files. What a file's size, header or central directory tells comes first: where that is wrong
    with one, none is read to its last byte. Several are read at once: one alone does not fill a parallel filesystem."""
    archives = [path for path in files if path.suffix == ".pt"]
    with ThreadPoolExecutor(READERS) as pool:
        for paths, problem_of in ((files, _problem_of), (archives, partial(_problem_of_content, told=told))):
            found = [
                f"{path.relative_to(folder)}: {problem}"
                for path, problem in zip(paths, pool.map(problem_of, paths), strict=True)
                if problem
            ]
            if found:
                return found
    return []


def world_size_of(folder: Path) -> int:
    """How many ranks saved a checkpoint, by the names of its files; 1 where none has one."""
    policy = folder / "policy"
    try:
        names = [entry.name for entry in policy.iterdir()] if policy.is_dir() else []
    except OSError as error:
        raise StorageUnreachable(f"{policy} cannot be listed: {error}") from error
    return max((int(match[1]) for match in map(_RANK_FILE.match, names) if match), default=1)


def _problem_of(path: Path) -> str | None:
    """Read no further than to what says how much there must be. Whatever the bytes are, the answer is a problem or none; only
    a storage that does not give them raises."""
    checks = {".pt": _problem_of_directory, ".safetensors": _problem_of_safetensors}
    return _answer(path, checks.get(path.suffix, _problem_of_json))


def _problem_of_content(path: Path, told: Told) -> str | None:
    """An archive against its own CRCs."""
    return _answer(path, partial(_problem_of_crcs, told=told))


def _answer(path: Path, check: Callable[[Path], str | None]) -> str | None:
    try:
        return check(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return "missing"
    except OSError as error:
        if error.errno == errno.EINVAL:  # an offset inside the file leads before its beginning
            return f"not a whole file ({error})"
        raise StorageUnreachable(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        return f"not JSON ({str(error)[:200]})"


def _problem_of_json(path: Path) -> str | None:
    if path.stat().st_size > _MAX_JSON:
        return f"more than {_MAX_JSON} bytes, which no configuration has"
    return None if isinstance(json.loads(path.read_bytes()), dict) else "not a JSON object"


def _problem_of_directory(path: Path) -> str | None:
    return _problem_of_archive(path, lambda archive: None)


def _problem_of_crcs(path: Path, told: Told) -> str | None:
    return _problem_of_archive(path, partial(_first_broken, told=told))


def _first_broken(archive: zipfile.ZipFile, told: Told) -> str | None:
    """As ``ZipFile.testzip``, which says nothing before its end: all shards of a save are read at once, and end together."""
    for entry in archive.infolist():
        try:
            with archive.open(entry) as content:
                while content.read(_CHUNK):
                    pass
        except zipfile.BadZipFile:
            return entry.filename
        told()
    return None


def _problem_of_archive(path: Path, test: Callable[[zipfile.ZipFile], str | None]) -> str | None:
    """``test`` answers the name of an entry that is broken."""
    try:
        with zipfile.ZipFile(path) as archive:
            broken = test(archive)
        return f"{broken} has another checksum than was written" if broken else None
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - zipfile raises a dozen kinds for bytes that only look like an archive
        return f"not a whole archive ({type(error).__name__}: {str(error)[:200]})"


def _problem_of_safetensors(path: Path) -> str | None:
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else _MAX_JSON
        if length >= min(size, _MAX_JSON):
            return "not a whole safetensors file"
        header = json.loads(file.read(length))
    try:
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except (AttributeError, TypeError, KeyError, IndexError, OverflowError) as error:
        return f"its header is none of a safetensors file ({type(error).__name__})"
    return None if ends and 8 + length + max(ends) == size else f"{size} bytes are not what its header says"


def adapter_of(paths: SharedPaths, step: int) -> Path:
    """The folder of a checkpoint's adapter."""
    return paths.checkpoint(step) / "policy" / "lora_adapter"


def room_needed(there: Sequence[int], one: int, keep: int) -> int:
    """Bytes that a run's checkpoints of ``one`` byte each still need beside those that are there: one more than are kept, for
    the new one is written before the oldest goes."""
    return max(0, one * (keep + 1) - sum(there))


def sizes_on_disk(paths: SharedPaths) -> list[int]:
    """Bytes of each checkpoint that a run has."""
    folders = [paths.checkpoint(step) for step in steps_on_disk(paths.ckpts)]
    return [sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) for folder in folders]


def prune(paths: SharedPaths, keep: int) -> list[int]:
    """Delete the oldest checkpoints beyond ``keep``, as SkyRL's max_ckpts_to_keep; returns their steps."""
    old = steps_on_disk(paths.ckpts)[:-keep]
    for step in old:
        shutil.rmtree(paths.checkpoint(step))
    return old

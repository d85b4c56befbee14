"""The task as a plug: its code is found or fetched, its environment and items are made. Nothing here knows a task."""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import sys
import tempfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from nightshift.contract import RunSpec, SeedData, SharedPaths
from nightshift.contract.spec import Code, Data, ParquetData, WheelCode
from training_job.errors import BadConfiguration, is_storage_gone
from training_job.pins import Pin, Pins
from training_job.store import ObjectStore, reading_s3, split_uri

OpenStore = Callable[[str], ObjectStore]
"""Bucket name -> its store."""

_MAX_WHEEL_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True)
class TaskPlan:
    """What a process needs to play episodes of the task. Small, and sent to every worker."""

    environment: str
    config: dict[str, Any]
    max_turns: int
    sys_path: tuple[str, ...] = ()

    def activate(self) -> None:
        """Make the task's code importable in this process."""
        for folder in self.sys_path:
            if folder not in sys.path:
                sys.path.insert(0, folder)

    def environment_class(self) -> Callable[..., Any]:
        """The environment: called with ``env_config`` and ``extras``, as skyrl_gym does."""
        return load_object(self.environment, "task.environment")


def load_object(path: str, field: str) -> Callable[..., Any]:
    """What ``module:Name`` names. Raises BadConfiguration with the spec's ``field``."""
    module, _, name = path.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise BadConfiguration(field, f"{path} cannot be imported: {error}") from error
    if not callable(found):
        raise BadConfiguration(field, f"{path} is a {type(found).__name__} and cannot be called")
    return found


def plan_task(spec: RunSpec, paths: SharedPaths, open_store: OpenStore) -> TaskPlan:
    """Fetch the task's code where it is not in the image, and make it importable here."""
    folders = stage_code(spec.task.code, paths, open_store)
    plan = TaskPlan(spec.task.environment, dict(spec.task.config), spec.training.max_turns, folders)
    plan.activate()
    return plan


def hold_environment(plan: TaskPlan, items: Items) -> None:
    """Begin one episode and end it. What an environment cannot do at all must not be found out when the engines are up; it
    raises whatever the environment does."""
    row = items.row(0)
    env = plan.environment_class()(env_config=dict(plan.config), extras={**row, "max_turns": plan.max_turns})
    env.init(list(row.get("prompt", [])))
    env.close()


def stage_code(code: Code, paths: SharedPaths, open_store: OpenStore) -> tuple[str, ...]:
    """Folders for sys.path: none for code of the image; for a wheel its unpacked content on the shared mount.

    Raises BadConfiguration for a wheel that is missing, has other bytes than the spec says, or is not pure Python.
    """
    if not isinstance(code, WheelCode):
        return ()
    folder = paths.root / "task" / code.sha256
    if not folder.is_dir():
        bucket, key = split_uri(code.uri)
        content = open_store(bucket).get(key)
        if content is None:
            raise BadConfiguration("task.code.uri", f"{code.uri} does not exist")
        if (digest := hashlib.sha256(content).hexdigest()) != code.sha256:
            raise BadConfiguration("task.code.sha256", f"{code.uri} has SHA-256 {digest}, the spec says {code.sha256}")
        _unpack(content, folder)
    return (str(folder),)


def _unpack(content: bytes, folder: Path) -> None:
    """Unpack a wheel; the folder appears whole or not at all."""
    try:
        archive = zipfile.ZipFile(BytesIO(content))
    except zipfile.BadZipFile as error:
        raise BadConfiguration("task.code.uri", f"the wheel is not a zip file: {error}") from error
    entries = archive.infolist()
    if sum(entry.file_size for entry in entries) > _MAX_WHEEL_BYTES:
        raise BadConfiguration("task.code.uri", f"the wheel unpacks to more than {_MAX_WHEEL_BYTES} bytes")
    for entry in entries:
        name = Path(entry.filename)
        if name.is_absolute() or ".." in name.parts:
            raise BadConfiguration("task.code.uri", f"the wheel has an entry outside of itself: {entry.filename}")
        if name.suffix in (".so", ".pyd"):
            raise BadConfiguration("task.code.uri", f"the wheel is not pure Python: {entry.filename}")
    put_in_place(folder, lambda fresh: archive.extractall(fresh))


def put_in_place(folder: Path, fill: Callable[[Path], object]) -> None:
    """Make a folder by filling a temporary one and renaming it; another process may win, and then its work is used."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name[:12]}-", dir=folder.parent))
    try:
        fresh.chmod(0o755)
        fill(fresh)
        try:
            fresh.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


class Items(ABC):
    """The items of a data set, by number."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def name(self, number: int) -> str:
        """How rows name the item, for example ``seed:17``."""

    @abstractmethod
    def row(self, number: int) -> dict[str, Any]:
        """The data set's row: what the environment gets as ``extras``, less ``max_turns``."""


@dataclass(frozen=True)
class SeedItems(Items):
    data: SeedData

    def __len__(self) -> int:
        return len(self.data)

    def name(self, number: int) -> str:
        return f"seed:{self.data.start + number}"

    def row(self, number: int) -> dict[str, Any]:
        return {"seed": self.data.start + number}


@dataclass(frozen=True)
class RowItems(Items):
    rows: Sequence[Mapping[str, Any]]

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, number: int) -> str:
        return f"row:{number}"

    def row(self, number: int) -> dict[str, Any]:
        return dict(self.rows[number])


def open_items(data: Data, field: str, paths: SharedPaths, open_store: OpenStore) -> Items:
    """The items of one of the spec's data sets. Raises BadConfiguration with its ``field``."""
    if isinstance(data, SeedData):
        return SeedItems(data)
    return _parquet_items(data, field, paths, open_store)


def _parquet_items(data: ParquetData, field: str, paths: SharedPaths, open_store: OpenStore) -> Items:
    """Of the file that the run's first attempt found: items that change between two attempts would make a curve of two
    halves. Raises BadConfiguration where it is missing, is another one now, or holds no rows that can be used."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise BadConfiguration(field, "parquet data needs pyarrow, which this image does not have") from error
    path = _parquet_file(data.uri, field, paths, open_store)
    try:
        rows = parquet.read_table(path).to_pylist()
    except (ValueError, OSError) as error:  # pyarrow's errors are of these kinds
        if is_storage_gone(error):
            raise
        raise BadConfiguration(field, f"{data.uri} is no parquet file: {str(error)[:300]}") from error
    if not rows:
        raise BadConfiguration(field, f"{data.uri} has no rows")
    rows = rows[: data.first]
    for number, row in enumerate(rows):
        problem = problem_of_row(row)
        if problem is not None:
            raise BadConfiguration(field, f"{data.uri}, row {number}: {problem}")
    return RowItems(rows)


def _parquet_file(uri: str, field: str, paths: SharedPaths, open_store: OpenStore) -> Path:
    """Where it lies on the shared mount; from S3 it is brought there once, under the digest of what it is."""
    pins = Pins(paths)
    pin = pins.read(field, uri)
    if uri.startswith("s3://"):
        bucket, key = split_uri(uri)
        store = open_store(bucket)
        with reading_s3(field, uri):
            found = store.stored(key).get(key)
        if found is None and pin is None:
            raise BadConfiguration(field, f"{uri} does not exist")
        content = hashlib.sha256(f"{uri} {found.tag}".encode()).hexdigest() if found is not None else ""
        path = paths.data / f"{pin.content if pin is not None else content}.parquet"
        if not path.is_file():
            if found is None or (pin is not None and pin.content != content):
                raise BadConfiguration(field, f"{uri} is another file than when the run began: start a new run")
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(".part")
            store.download(key, fresh, found.tag)
            fresh.rename(path)
    else:
        path = shared_path(uri, paths)
        if not path.is_file():
            raise BadConfiguration(field, f"{uri} does not exist")
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        if pin is not None and pin.content != content:
            raise BadConfiguration(field, f"{uri} is another file than when the run began: start a new run")
    if pin is None:
        pins.write(Pin(field=field, source=uri, address=uri, content=content))
    return path


def problem_of_row(row: Mapping[str, Any]) -> str | None:
    """What SkyRL would choke on, after the engines are up. A file without a column of prompts is fine: the environment then
    makes its first message itself."""
    try:
        json.dumps(row, allow_nan=False)
    except (TypeError, ValueError) as error:
        column = next((name for name, value in row.items() if not _is_json(value)), "?")
        return f"column {column} cannot be written as JSON: {error}"
    if "prompt" not in row:
        return None
    prompt = row["prompt"]
    if not isinstance(prompt, list) or not prompt:
        return f"prompt is {'empty' if prompt == [] else f'a {type(prompt).__name__}'}, not a list of messages"
    for number, message in enumerate(prompt):
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            return f"message {number} of prompt has no role and content"
        if not isinstance(message["role"], str) or not isinstance(message["content"], str | list):
            return f"message {number} of prompt: role must be a text, and content a text or a list of parts"
    return None


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def shared_path(address: str, paths: SharedPaths) -> Path:
    """``/shared/...`` of a spec on this machine's shared mount."""
    return paths.mount / address.removeprefix("/shared/")


def ceiling(spec: RunSpec, items: Items) -> float | None:
    """Share of the eval items that can be solved at all, by the task's oracle; None without one."""
    if spec.task.oracle is None:
        return None
    oracle = load_object(spec.task.oracle, "task.oracle")
    turns, config = spec.training.max_turns, spec.task.config
    return sum(bool(oracle(items.row(i), turns, config)) for i in range(len(items))) / len(items)


def refuse_impossible_target(spec: RunSpec, items: Items) -> None:
    """Raises BadConfiguration for a target above what the oracle says is possible."""
    if spec.target is None:
        return
    share = ceiling(spec, items)
    if share is not None and spec.target.success > share:
        solvable = round(share * len(items))
        raise BadConfiguration(
            "target.success",
            f"{spec.target.success:.4g} is above the ceiling {share:.4g}: only {solvable} of {len(items)} eval items "
            f"can be solved within {spec.training.max_turns} turns",
        )

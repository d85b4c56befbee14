"""Base models and data are brought to the shared mount once, whole or not at all, and stay what they were for a run."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import threading
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nightshift.contract import OutcomeCause, SharedPaths
from nightshift.contract.spec import BaseModelSettings, ParquetData
from tests.job.memory import MemoryStore
from tests.job.support import BUCKET
from training_job.errors import BadConfiguration, StorageFull, StorageUnreachable, classify
from training_job.plug import open_items, problem_of_row
from training_job.sources import HubOrigin, base_model
from training_job.staging import STAGED, Owner, Wanted, digest_of_origin, is_staged, stage
from training_job.store import S3Store

FIRST, SECOND = Owner("run", 1), Owner("run", 2)


@dataclass
class Shelf:
    """An origin whose files are texts; it breaks off before ``breaks_at``."""

    texts: dict[str, str]
    address: str = "shelf://one"
    breaks_at: str = ""
    fetched: list[str] = field(default_factory=list)
    gate: threading.Event | None = None

    @property
    def files(self) -> Sequence[Wanted]:
        return [Wanted(n, len(t), hashlib.sha256(t.encode()).hexdigest()) for n, t in sorted(self.texts.items())]

    def fetch(self, file: Wanted, folder: Path) -> None:
        if self.gate is not None:
            self.gate.wait(10)
        if file.name == self.breaks_at:
            raise ValueError("the process dies here")
        self.fetched.append(file.name)
        (folder / file.name).write_text(self.texts[file.name])


TEXTS = {"config.json": "{}", "part-1": "one", "inner/part-2": "two!"}


def contents(folder: Path) -> dict[str, str]:
    found = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in found}


def names_in(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


# Staging


def test_files_are_staged_once_under_the_digest_of_what_they_are(tmp_path: Path) -> None:
    shelf = Shelf(TEXTS)
    folder = stage(shelf, tmp_path, FIRST)
    assert folder == tmp_path / digest_of_origin(shelf) and contents(folder) == TEXTS
    assert stage(shelf, tmp_path, Owner("another", 1)) == folder
    assert sorted(shelf.fetched) == sorted(TEXTS), "no file may be fetched a second time"
    assert names_in(tmp_path) == [folder.name], "nothing else may be left"
    assert stage(Shelf(TEXTS | {"part-1": "ONE"}), tmp_path, FIRST) != folder


def test_what_a_dead_attempt_left_is_gone_on_with_and_complete_files_are_not_fetched_again(tmp_path: Path) -> None:
    broken = Shelf(TEXTS, breaks_at="part-1")
    with pytest.raises(ValueError, match="dies here"):
        stage(broken, tmp_path, FIRST)
    assert not is_staged(tmp_path / digest_of_origin(broken))
    again = Shelf(TEXTS)
    folder = stage(again, tmp_path, SECOND)
    assert contents(folder) == TEXTS
    assert "part-1" in again.fetched and not set(again.fetched) & set(broken.fetched)
    assert names_in(tmp_path) == [folder.name]


@pytest.mark.parametrize(("silent_for", "taken"), [(60, False), (600, True)])
def test_another_runs_half_filled_folder_is_taken_over_only_once_its_owner_is_silent(
    tmp_path: Path, silent_for: int, taken: bool
) -> None:
    broken = Shelf(TEXTS, breaks_at="part-1")
    with pytest.raises(ValueError, match="dies here"):
        stage(broken, tmp_path, Owner("other", 1))
    [left] = tmp_path.iterdir()
    then = (left / ".beat").stat().st_mtime - silent_for
    os.utime(left / ".beat", (then, then))
    again = Shelf(TEXTS)
    assert contents(stage(again, tmp_path, FIRST)) == TEXTS
    assert left.exists() is not taken
    assert bool(set(again.fetched) & set(broken.fetched)) is not taken


def test_two_runs_at_the_same_time_both_get_the_whole_folder(tmp_path: Path) -> None:
    gate, found = threading.Event(), list[Path]()
    shelves = [Shelf(TEXTS, gate=gate), Shelf(TEXTS, gate=gate)]
    threads = [
        threading.Thread(target=lambda i=i: found.append(stage(shelves[i], tmp_path, Owner(f"run-{i}", 1))))
        for i in range(2)
    ]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(20)
    assert len(found) == 2 and found[0] == found[1] and contents(found[0]) == TEXTS
    assert names_in(tmp_path) == [found[0].name]


def unreadable(path: Path) -> None:
    """A file there whose reads fail with EIO, by the kernel itself: this process's memory at address 0."""
    path.unlink(missing_ok=True)
    path.symlink_to("/proc/self/mem")


def test_a_folder_that_cannot_be_read_for_the_mounts_sake_must_not_be_renamed_under_its_readers(tmp_path: Path) -> None:
    folder = stage(Shelf(TEXTS), tmp_path, FIRST)
    record = (folder / STAGED).read_bytes()
    unreadable(folder / STAGED)
    with pytest.raises(StorageUnreachable, match=r"\.nightshift\.json cannot be read"):
        stage(Shelf(TEXTS), tmp_path, Owner("another", 1))
    assert names_in(tmp_path) == [folder.name] and contents(folder) == TEXTS
    (folder / STAGED).unlink()
    (folder / STAGED).write_bytes(record)
    later = Shelf(TEXTS)
    assert stage(later, tmp_path, Owner("another", 2)) == folder and later.fetched == []


def test_a_staged_folder_that_somebody_damaged_is_staged_anew_and_the_old_one_stays_for_its_readers(
    tmp_path: Path,
) -> None:
    folder = stage(Shelf(TEXTS), tmp_path, FIRST)
    (folder / "part-1").write_text("")
    assert contents(stage(Shelf(TEXTS), tmp_path, FIRST)) == TEXTS
    assert [name.startswith(".broken-") for name in names_in(tmp_path)] == [True, False]


def test_a_file_that_arrives_short_is_refused_and_the_folder_never_appears(tmp_path: Path) -> None:
    class Short(Shelf):
        def fetch(self, file: Wanted, folder: Path) -> None:
            (folder / file.name).write_text("")

    shelf = Short(TEXTS)
    with pytest.raises(StorageUnreachable, match="did not arrive with its"):
        stage(shelf, tmp_path, FIRST)
    assert not (tmp_path / digest_of_origin(shelf)).exists()


def test_what_cannot_fit_is_refused_with_numbers_before_anything_is_fetched(tmp_path: Path) -> None:
    class Huge(Shelf):
        @property
        def files(self) -> Sequence[Wanted]:
            return [Wanted("config.json", 10**16, "x")]

    shelf = Huge(TEXTS)
    with pytest.raises(StorageFull, match=r"shelf://one needs 10000000\.0 GB more on .* GB are free") as refused:
        stage(shelf, tmp_path, FIRST)
    assert (refused.value.outcome, refused.value.exit_code) == (OutcomeCause.STORAGE_FULL, 75)
    assert shelf.fetched == []


def test_progress_is_told_in_bytes_and_ends_with_all_of_them(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    stage(Shelf(TEXTS), tmp_path, FIRST, lambda done, total: told.append((done, total)))
    assert told == sorted(told) and {total for _, total in told} == {9}


# S3


@pytest.fixture
def model(s3: Any, request: pytest.FixtureRequest) -> str:
    """Address of a model of two files in S3."""
    prefix = f"bases/{request.node.name}"
    for name, body in (("config.json", b"{}"), ("model.safetensors", bytes(3_000_000))):
        s3.put_object(Bucket=BUCKET, Key=f"{prefix}/{name}", Body=body, ChecksumAlgorithm="SHA256")
    return f"s3://{BUCKET}/{prefix}"


class Breaks(S3Store):
    """Dies in the middle of its second file."""

    def download(self, key: str, path: Path, tag: str) -> None:
        if not key.endswith("config.json"):
            path.write_bytes(b"half")
            raise ValueError("the process dies here")
        super().download(key, path, tag)


def test_an_interrupted_download_from_s3_is_done_by_the_next_attempt(s3: Any, tmp_path: Path, model: str) -> None:
    paths = SharedPaths("run", tmp_path)
    with pytest.raises(ValueError, match="dies here"):
        base_model(model, paths, Breaks, FIRST)
    found = base_model(model, paths, S3Store, SECOND)
    assert found.address == model
    assert {p.name: p.stat().st_size for p in found.folder.iterdir() if p.name[0] != "."} == {
        "config.json": 2,
        "model.safetensors": 3_000_000,
    }


def test_a_run_keeps_the_model_that_it_began_with_and_says_so_where_it_cannot(
    s3: Any, tmp_path: Path, model: str
) -> None:
    paths = SharedPaths("run", tmp_path)
    first = base_model(model, paths, S3Store, FIRST).folder
    s3.put_object(Bucket=BUCKET, Key=f"{model.partition(f'{BUCKET}/')[2]}/config.json", Body=b'{"new": 1}')
    assert base_model(model, paths, S3Store, SECOND).folder == first
    assert base_model(model, SharedPaths("other", tmp_path), S3Store, Owner("other", 1)).folder != first
    shutil.rmtree(first)
    with pytest.raises(BadConfiguration, match=r"model\.source: .* other files than when the run began"):
        base_model(model, paths, S3Store, Owner("run", 3))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (f"s3://{BUCKET}/bases/nowhere", "there is nothing below"),
        (f"s3://{BUCKET}/bases/no-config", r"has no config\.json: it is no model"),
        ("s3://no-such-bucket-at-all/bases", r"cannot be read \(NoSuchBucket\)"),
    ],
)
def test_an_address_that_is_no_model_is_the_specs_error_and_nothing_is_fetched(
    s3: Any, tmp_path: Path, source: str, why: str
) -> None:
    s3.put_object(Bucket=BUCKET, Key="bases/no-config/model.safetensors", Body=b"x")
    with pytest.raises(BadConfiguration, match=why) as refused:
        base_model(source, SharedPaths("run", tmp_path), S3Store, FIRST)
    assert refused.value.field == "model.source" and not (tmp_path / "models").exists()


# The hub, at its boundary: no network here


class Hub:
    """``huggingface_hub`` as far as it is used: a repository whose branch can move."""

    def __init__(self) -> None:
        self.commit, self.asked = "a" * 40, list[str]()
        self.files = {"config.json": b"{}", "model.safetensors": b"weights", "pytorch_model.bin": b"the same again"}
        self.gives = dict(self.files)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Hub:
        errors = types.ModuleType("huggingface_hub.errors")
        for name, kind in {
            "HfHubHTTPError": OSError,
            "RepositoryNotFoundError": ValueError,
            "RevisionNotFoundError": ValueError,
            "EntryNotFoundError": Exception,
            "HFValidationError": ValueError,
        }.items():
            setattr(errors, name, type(name, (kind,), {}))
        both = (FileNotFoundError, errors.EntryNotFoundError)
        errors.LocalEntryNotFoundError = type("LocalEntryNotFoundError", both, {})  # type: ignore[attr-defined]
        hub = types.ModuleType("huggingface_hub")
        hub.HfApi = lambda: self  # type: ignore[attr-defined]
        hub.hf_hub_download = self.download  # type: ignore[attr-defined]
        hub.errors = self.errors = errors  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
        monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
        return self

    def model_info(self, name: str, *, revision: str, files_metadata: bool, timeout: float) -> Any:
        self.asked.append(f"{name}@{revision}")
        if name == "owner/nothing":
            raise self.errors.RepositoryNotFoundError("404")
        if revision == "gone":
            raise self.errors.HfHubHTTPError("503 Service Unavailable")

        def sibling(path: str, body: bytes) -> Any:
            lfs = types.SimpleNamespace(sha256=hashlib.sha256(body).hexdigest()) if path != "config.json" else None
            return types.SimpleNamespace(rfilename=path, size=len(body), lfs=lfs, blob_id="b" * 40)

        siblings = [sibling(path, body) for path, body in self.files.items()]
        return types.SimpleNamespace(sha=revision if len(revision) == 40 else self.commit, siblings=siblings)

    def download(self, repository: str, filename: str, *, revision: str, local_dir: Path) -> str:
        path = Path(local_dir) / filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.gives[filename])
        return str(path)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub().install(monkeypatch)


def test_a_branch_of_the_hub_is_resolved_once_and_every_attempt_trains_with_that_commit(
    hub: Hub, tmp_path: Path
) -> None:
    paths = SharedPaths("run", tmp_path)
    first = base_model("hf://owner/name@main", paths, MemoryStore, FIRST)  # type: ignore[arg-type]
    assert first.address == f"hf://owner/name@{'a' * 40}"
    assert sorted(contents(first.folder)) == ["config.json", "model.safetensors"], "no weights twice"
    hub.commit = "c" * 40
    again = base_model("hf://owner/name@main", paths, MemoryStore, SECOND)  # type: ignore[arg-type]
    assert again == first and hub.asked == ["owner/name@main"]
    shutil.rmtree(first.folder)
    once_more = base_model("hf://owner/name@main", paths, MemoryStore, Owner("run", 3))  # type: ignore[arg-type]
    assert once_more == first and hub.asked[-1] == f"owner/name@{'a' * 40}"


def test_a_folder_of_a_repository_is_a_model_of_its_own(hub: Hub, tmp_path: Path) -> None:
    BaseModelSettings(source="hf://owner/name@main/mixed/one")
    hub.files = {"README.md": b"r"} | {f"mixed/one/{n}": b for n, b in hub.files.items()}
    hub.gives = dict(hub.files)
    found = base_model("hf://owner/name@main/mixed/one", SharedPaths("run", tmp_path), MemoryStore, FIRST)  # type: ignore[arg-type]
    assert sorted(contents(found.folder)) == ["config.json", "model.safetensors"]
    assert found.address == f"hf://owner/name@{'a' * 40}/mixed/one"


def test_other_bytes_than_the_hub_promises_are_refused(hub: Hub, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("training_job.staging._TRY_AGAIN_SECONDS", 0.0)
    hub.gives["model.safetensors"] = b"WEIGHTS"
    with pytest.raises(StorageUnreachable, match=r"model\.safetensors arrived with SHA-256"):
        base_model("hf://owner/name@main", SharedPaths("run", tmp_path), MemoryStore, FIRST)  # type: ignore[arg-type]
    assert [p for p in (tmp_path / "models").iterdir() if not p.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("source", "kind", "why"),
    [
        ("hf://owner/nothing@main", BadConfiguration, "does not exist on the hub, or needs a token"),
        ("hf://owner/name@gone", StorageUnreachable, "503 Service Unavailable"),
    ],
)
def test_what_the_hub_refuses_is_the_specs_error_and_a_hub_that_is_away_is_not(
    hub: Hub, tmp_path: Path, source: str, kind: type[Exception], why: str
) -> None:
    with pytest.raises(kind, match=why):
        base_model(source, SharedPaths("run", tmp_path), MemoryStore, FIRST)  # type: ignore[arg-type]


class _HubOfStatus(BaseHTTPRequestHandler):
    """Answers everything with the status that its address begins with."""

    def do_HEAD(self) -> None:
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.mark.parametrize(
    ("answers", "kind", "why"),
    [
        (None, StorageUnreachable, "LocalEntryNotFoundError"),
        (503, StorageUnreachable, "LocalEntryNotFoundError"),
        (403, BadConfiguration, "needs a token"),
        (404, BadConfiguration, "does not exist on the hub"),
    ],
)
def test_a_hub_that_is_not_reached_is_no_missing_file_as_the_real_library_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: int | None, kind: type[Exception], why: str
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _HubOfStatus)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    if answers is None:  # nobody listens there any more
        server.shutdown()
        server.server_close()
    address = f"http://127.0.0.1:{server.server_address[1]}/{answers}/{{repo_id}}/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", address)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    commit, config = "a" * 40, Wanted("config.json", 2, "b" * 40)
    origin = HubOrigin(f"hf://owner/name@{commit}", "owner/name", commit, [config])
    try:
        with pytest.raises(kind, match=why):
            origin.fetch(config, tmp_path)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


# Data


GOOD = {"prompt": [{"role": "user", "content": "Say red."}], "word": "red"}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": None}, "prompt is a NoneType, not a list of messages"),
        ({"prompt": "Say red."}, "prompt is a str, not a list of messages"),
        ({"prompt": []}, "prompt is empty"),
        ({"prompt": [{"role": "user"}]}, "message 0 of prompt has no role and content"),
        ({"prompt": ["Say red."]}, "message 0 of prompt has no role and content"),
        ({"prompt": [*GOOD["prompt"], {"role": "user", "content": 3}]}, "message 1 of prompt: role must be a text"),
        (GOOD | {"picture": b"png"}, "column picture cannot be written as JSON"),
        (GOOD | {"weight": float("nan")}, "column weight cannot be written as JSON"),
    ],
)
def test_a_row_that_skyrl_would_choke_on_is_named_by_what_is_wrong_with_it(row: dict[str, Any], why: str) -> None:
    assert why in str(problem_of_row(row))


@pytest.mark.parametrize("row", [GOOD, {"seed": 3}, {"prompt": [{"role": "user", "content": [{"type": "text"}]}]}])
def test_a_row_that_skyrl_takes_must_not_be_refused(row: dict[str, Any]) -> None:
    assert problem_of_row(row) is None


def test_without_pyarrow_parquet_data_are_refused_by_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    data = ParquetData(kind="parquet", uri="/shared/rows.parquet")
    with pytest.raises(BadConfiguration, match=r"task\.eval: parquet data needs pyarrow"):
        open_items(data, "task.eval", SharedPaths("run", tmp_path), S3Store)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EIO, "Input/output error"), StorageUnreachable),
        (OSError(errno.ESTALE, "Stale file handle"), StorageUnreachable),
        (OSError("Couldn't deserialize thrift: TProtocolException: Invalid data"), BadConfiguration),
        (ValueError("Parquet magic bytes not found in footer"), BadConfiguration),
    ],
)
def test_a_mount_that_fails_under_a_parquet_file_is_no_bad_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception]
) -> None:
    """At the boundary of pyarrow, which this environment lacks; ``tests/skyrl`` has the real one's error."""

    def read_table(path: Path) -> Any:
        raise error

    monkeypatch.setitem(sys.modules, "pyarrow.parquet", types.SimpleNamespace(read_table=read_table))
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(Exception) as raised:
        open_items(
            ParquetData(kind="parquet", uri="/shared/rows.parquet"), "task.eval", SharedPaths("run", tmp_path), S3Store
        )
    assert type(classify(raised.value)) is kind


def test_pins_that_cannot_be_read_are_as_none(s3: Any, tmp_path: Path, model: str) -> None:
    paths = SharedPaths("run", tmp_path)
    base_model(model, paths, S3Store, FIRST)
    pins = paths.root / "pins.json"
    assert json.loads(pins.read_text())["pins"][0]["source"] == model
    pins.write_text("{")
    assert base_model(model, paths, S3Store, SECOND).address == model

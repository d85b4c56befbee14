"""Data sets in parquet files: read as the run's first attempt found them, and every row fit for SkyRL.

Here and not beside the other tests of data, because pyarrow comes with SkyRL's environment.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from skyrl.train.dataset import PromptDataset

from nightshift.contract import OutcomeCause, SharedPaths
from nightshift.contract.spec import ParquetData
from tests.skyrl.rig import Letters, MemoryStore
from training_job.errors import BadConfiguration, StorageUnreachable, classify
from training_job.plug import Items, open_items
from training_job.trainers.skyrl.datasets import write_rows

GOOD = {"prompt": [{"role": "user", "content": "Say red."}], "word": "red"}


@dataclass
class Place:
    """A file of rows, in S3 or on the shared mount."""

    where: str
    mount: Path
    store: MemoryStore = field(default_factory=MemoryStore)

    @property
    def paths(self) -> SharedPaths:
        return SharedPaths("run", self.mount)

    @property
    def uri(self) -> str:
        return "s3://bucket/rows.parquet" if self.where == "s3" else "/shared/rows.parquet"

    def put(self, content: bytes) -> None:
        self.mount.mkdir(exist_ok=True)
        if self.where == "s3":
            self.store.objects["rows.parquet"] = content
        else:
            (self.mount / "rows.parquet").write_bytes(content)

    def write(self, *rows: dict[str, Any]) -> None:
        sink = pyarrow.BufferOutputStream()
        parquet.write_table(pyarrow.Table.from_pylist(list(rows)), sink)
        self.put(sink.getvalue().to_pybytes())

    def read(self, first: int | None = None) -> Items:
        return open_items(
            ParquetData(kind="parquet", uri=self.uri, first=first), "task.eval", self.paths, lambda _: self.store
        )


@pytest.fixture(params=["s3", "shared"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path / "mount")


def test_rows_reach_skyrl_with_their_columns_and_the_name_of_their_item(place: Place) -> None:
    place.write(GOOD, GOOD | {"word": "blue"})
    items = place.read()
    file = write_rows(place.paths, items, "fixed")
    dataset = PromptDataset([str(file)], Letters(), 10_000, num_workers=1)
    assert [json.loads(line)["nightshift_item"] for line in file.read_text().splitlines()] == ["row:0", "row:1"]
    assert [dataset[i][2]["word"] for i in range(2)] == ["red", "blue"]


def test_only_the_first_rows_are_used_where_so_many_are_asked_for(place: Place) -> None:
    place.write(*(GOOD | {"word": word} for word in ("red", "blue", "green")))
    assert [place.read(2).row(i)["word"] for i in range(2)] == ["red", "blue"] and len(place.read(2)) == 2
    assert len(place.read(9)) == len(place.read()) == 3


def test_a_file_that_changes_under_a_run_does_not_change_its_items(place: Place) -> None:
    place.write(GOOD)
    assert len(place.read()) == 1
    place.write(GOOD, GOOD)
    if place.where == "s3":
        assert len(place.read()) == 1, "the file that the run began with is on the shared mount"
        shutil.rmtree(place.paths.data)
    with pytest.raises(BadConfiguration, match=r"task\.eval: .* is another file than when the run began") as refused:
        place.read()
    assert (refused.value.outcome, refused.value.exit_code) == (OutcomeCause.BAD_CONFIGURATION, 65)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"prompt": None, "word": "red"}, "row 1: prompt is a NoneType, not a list of messages"),
        (GOOD | {"prompt": []}, "row 1: prompt is empty"),
        (GOOD | {"word": None, "weight": float("inf")}, "row 1: column weight cannot be written as JSON"),
    ],
)
def test_a_corrupt_row_is_named_by_field_file_and_number(place: Place, row: dict[str, Any], told: str) -> None:
    place.write(GOOD | {"weight": 1.0}, {"weight": 1.0} | row)
    with pytest.raises(BadConfiguration) as refused:
        place.read()
    assert str(refused.value).startswith(f"task.eval: {place.uri}, {told}")


@pytest.mark.parametrize(("content", "told"), [(b"no parquet", "is no parquet file"), (None, "does not exist")])
def test_a_file_that_is_none_is_named(place: Place, content: bytes | None, told: str) -> None:
    if content is not None:
        place.put(content)
    with pytest.raises(BadConfiguration, match=f"task.eval: {place.uri} {told}"):
        place.read()


def test_a_mount_that_fails_while_pyarrow_reads_is_no_bad_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow's own error of the kernel's EIO: that of a read of this process's memory at address 0."""
    place = Place("shared", tmp_path)
    place.write(GOOD)
    monkeypatch.setattr(parquet, "read_table", lambda path: pyarrow.OSFile("/proc/self/mem").read_at(8, 0))
    with pytest.raises(OSError, match="Input/output error") as raised:
        place.read()
    assert isinstance(classify(raised.value), StorageUnreachable)

"""Where a base model may come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nightshift.contract import SharedPaths
from tests.job.support import BUCKET, REPOSITORY
from training_job.errors import BadConfiguration
from training_job.sources import find_model
from training_job.staging import STAGED
from training_job.store import ObjectStore, S3Store

TEXT = REPOSITORY / "tests" / "fixtures" / "text_task" / "echo_task" / "model"


def _no_store(bucket: str) -> ObjectStore:
    raise AssertionError(f"nothing may be asked of {bucket}")


def test_a_model_of_an_importable_package_is_found_where_it_is(tmp_path: Path) -> None:
    found = find_model("package://training_job/models/maze_sft", SharedPaths("r", tmp_path), _no_store)
    assert found == REPOSITORY / "training_job" / "models" / "maze_sft"


def test_a_model_on_the_shared_mount_is_found_below_this_computers_mount(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert find_model("/shared/models/mine", SharedPaths("r", tmp_path), _no_store) == folder


def test_a_model_in_s3_is_staged_once_and_again_when_it_changes(s3: Any, tmp_path: Path) -> None:
    paths, source = SharedPaths("r", tmp_path), f"s3://{BUCKET}/bases/text"
    for name in ("config.json", "model.safetensors"):
        s3.put_object(Bucket=BUCKET, Key=f"bases/text/{name}", Body=(TEXT / name).read_bytes())
    first = find_model(source, paths, S3Store)
    assert first.parent == paths.models
    staged = {p.name: p.read_bytes() for p in first.iterdir() if p.name != STAGED}
    assert staged == {p.name: p.read_bytes() for p in TEXT.iterdir()}
    (first / "mark").touch()
    assert find_model(source + "/", paths, S3Store).parent == paths.models
    assert find_model(source, paths, S3Store) == first and (first / "mark").exists(), "staged a second time"
    s3.put_object(Bucket=BUCKET, Key="bases/text/config.json", Body=b"{}")
    assert find_model(source, paths, S3Store) != first


@pytest.mark.parametrize(
    "source",
    [
        "package://training_job/models/nothing",
        "package://no_such_package/models",
        "/shared/models/nothing",
        f"s3://{BUCKET}/bases/nothing",
    ],
)
def test_a_model_that_does_not_exist_is_the_specs_error(s3: Any, tmp_path: Path, source: str) -> None:
    with pytest.raises(BadConfiguration) as refused:
        find_model(source, SharedPaths("r", tmp_path), S3Store)
    assert refused.value.field == "model.source" and source.rpartition("://")[2].split("/")[0] in str(refused.value)

"""A base model's licence is what its own files name, and nothing is made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from peft import PeftConfig

from nightshift.contract import SharedPaths
from tests.deploy.repository import ROOT
from tests.job.memory import MemoryStore
from tests.job.test_exports import BASE, GOOD, export, spec
from training_job.exports import adopt_export, publish_export
from training_job.licence import model_licence
from training_job.store import Uploader


@pytest.mark.parametrize(
    ("readme", "told"),
    [
        ("---\nlicense: apache-2.0\ntags: [x]\n---\n# A model\n", "apache-2.0"),
        ("---\nlicense:\n- mit\n---\n", "mit"),
        ("---\nlicense: other\nlicense_name: qwen-research\n---\n", "qwen-research"),
        ("---\nlicense: other\n---\n", "other"),
        ("# A model\nlicense: mit\n", None),
        ("text before\n---\nlicense: mit\n---\n", None),
        ("---\nlicense: [\n---\n", None),
        ("---\nlicense: {a: b}\n---\n", None),
        ("---\n- license\n---\n", None),
        ("", None),
    ],
)
def test_the_front_matter_names_it_or_nothing_does(tmp_path: Path, readme: str, told: str | None) -> None:
    (tmp_path / "README.md").write_text(readme)

    assert model_licence(tmp_path) == told


def test_a_licence_file_is_known_by_its_words(tmp_path: Path) -> None:
    (tmp_path / "LICENSE.txt").write_bytes((ROOT / "LICENSE").read_bytes())
    assert model_licence(tmp_path) == "apache-2.0"

    (tmp_path / "LICENSE.txt").write_text("You may look at this model on Tuesdays.")
    assert model_licence(tmp_path) == "other"


def test_a_folder_without_either_and_one_that_is_not_there_name_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    assert model_licence(tmp_path) is None
    assert model_licence(tmp_path / "none") is None


def test_the_base_models_licence_goes_with_the_export_to_its_record_and_to_the_card(tmp_path: Path) -> None:
    base, paths, store = tmp_path / "base", SharedPaths("maze-1", tmp_path), MemoryStore()
    base.mkdir()
    (base / "config.json").write_text(json.dumps(BASE))
    (base / "LICENSE").write_bytes((ROOT / "LICENSE").read_bytes())
    export(paths.export(20), GOOD)

    uploader = Uploader(store)
    record = publish_export(uploader, spec(), 1, 20, adopt_export(paths, spec(), 20, base))
    uploader.flush(10)

    assert record.base_licence == "apache-2.0"
    assert model_licence(paths.export(20)) == "apache-2.0", "the adapter says it itself"


def test_an_adapter_of_a_model_of_the_hub_names_it_as_peft_looks_for_it(tmp_path: Path) -> None:
    base, paths = tmp_path / "base", SharedPaths("maze-1", tmp_path)
    base.mkdir()
    (base / "config.json").write_text(json.dumps(BASE))
    export(paths.export(20), GOOD)
    wanted = spec().model_copy(update={"model": spec().model.model_copy(update={"source": "hf://owner/Model@4f4f"})})

    folder = adopt_export(paths, wanted, 20, base)

    named = PeftConfig.from_pretrained(str(folder))
    assert (named.base_model_name_or_path, named.revision) == ("owner/Model", "4f4f")

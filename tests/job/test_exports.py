"""An adapter is published only if it is what was asked for, fits its base model, and can be loaded by those who serve it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from nightshift.contract import ExportRecord, OutcomeCause, RunKeys, RunSpec, SharedPaths
from tests.builders import spec_json
from tests.job.memory import MemoryStore
from training_job.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS, check_export, hold_adapter
from training_job.errors import BadConfiguration, CheckpointUnusable
from training_job.exports import adopt_export, publish_export
from training_job.store import Uploader, digest_of

HIDDEN = 16
BASE = {"hidden_size": HIDDEN, "num_hidden_layers": 2, "vision_config": {"hidden_size": 8}}
LAYER = "model.language_model.layers.0.self_attn"


def spec(**lora: Any) -> RunSpec:
    raw = spec_json()
    raw["model"] |= {"lora": {"rank": 4, "alpha": 8} | lora}
    return RunSpec.model_validate(raw)


def pair(module: str, inputs: int = HIDDEN, outputs: int = HIDDEN, rank: int = 4, **more: Any) -> dict[str, Any]:
    kind = more.get("dtype", torch.float32)
    stem = f"base_model.model.{module}"
    return {
        f"{stem}.lora_A.weight": torch.ones(rank, inputs, dtype=kind),
        f"{stem}.lora_B.weight": torch.ones(outputs, rank, dtype=kind),
    }


def export(folder: Path, tensors: dict[str, Any], **config: Any) -> Path:
    """An adapter as SkyRL leaves it, of two layers' attention."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / ADAPTER_WEIGHTS)
    said = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "o_proj", "qkv"]}
    (folder / ADAPTER_CONFIG).write_text(json.dumps(said | config))
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(json.dumps(BASE))
    return tmp_path / "base"


GOOD = pair(f"{LAYER}.q_proj", outputs=32) | pair(f"{LAYER}.o_proj", inputs=32)


def held(folder: Path, base: Path, of: RunSpec) -> None:
    check_export(folder)
    hold_adapter(folder, of.model, base)


def test_an_adapter_that_is_what_the_spec_asks_for_is_published_file_by_file_and_its_record_last(
    tmp_path: Path, base: Path
) -> None:
    paths, store = SharedPaths("maze-1", tmp_path), MemoryStore()
    export(paths.export(20), GOOD, base_model_name_or_path="/shared/models/local")
    folder, uploader = adopt_export(paths, spec(), 20, base), Uploader(store)
    record = publish_export(uploader, spec(), 1, 20, folder)
    uploader.flush(10)
    keys = RunKeys("maze-1")
    assert list(store.objects)[-1] == keys.export_record(1, 20)
    assert ExportRecord.from_json(store.objects[keys.export_record(1, 20)]) == record
    assert record.files == {
        path.name: digest_of(store.objects[keys.export(1, 20) + path.name]) for path in folder.iterdir()
    }
    assert (record.lora_b_nonzero, record.lora_b_total) == (2, 2)
    config = json.loads(store.objects[keys.export(1, 20) + ADAPTER_CONFIG])
    assert config["base_model_name_or_path"] == "package://training_job/models/maze_sft"


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "halves of two ranks": (
        {
            f"base_model.model.{LAYER}.q_proj.lora_A.weight": torch.ones(4, HIDDEN),
            f"base_model.model.{LAYER}.q_proj.lora_B.weight": torch.ones(32, 2),
        },
        {},
        "do not fit each other",
    ),
    "another rank than its configuration says": (
        GOOD | pair(f"{LAYER}.qkv", rank=2),
        {},
        "has rank 2, adapter_config.json says 4",
    ),
    "another rank than the spec says": (
        pair(f"{LAYER}.q_proj", rank=16),
        {"r": 16},
        "says rank 16 and alpha 8, the spec 4 and 8",
    ),
    "another alpha than the spec says": (GOOD, {"lora_alpha": 16}, "says rank 4 and alpha 16, the spec 4 and 8"),
    "two types": (GOOD | pair(f"{LAYER}.qkv", dtype=torch.bfloat16), {}, "more than one type: torch.bfloat16"),
    "integers": (pair(f"{LAYER}.q_proj", dtype=torch.int64), {}, "is torch.int64"),
    "a module that its configuration does not name": (
        GOOD | pair(f"{LAYER}.k_proj"),
        {},
        "k_proj is no module that adapter_config.json allows",
    ),
    "a module that the spec excludes": (
        GOOD | pair("model.visual.blocks.0.attn.qkv"),
        {},
        "visual.blocks.0.attn.qkv is no module that model.lora of the spec allows",
    ),
    "a vision tower of another name": (
        GOOD | pair("vision_tower.layers.0.qkv"),
        {},
        "is of the vision tower, whose adapters vLLM ignores",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_adapter_that_is_not_what_it_says_or_what_was_asked_for_is_refused(
    tmp_path: Path, base: Path, case: str
) -> None:
    tensors, config, why = REFUSED[case]
    with pytest.raises(CheckpointUnusable, match="cannot be published") as refused:
        held(export(tmp_path / "export", tensors, **config), base, spec())
    assert why in str(refused.value)


def test_a_vision_tower_that_the_spec_asks_for_must_not_be_refused(tmp_path: Path, base: Path) -> None:
    tensors = GOOD | pair("model.visual.blocks.0.attn.qkv", inputs=8, outputs=24)
    held(export(tmp_path / "export", tensors), base, spec(exclude_modules=None))


def test_ranks_by_module_and_patterns_of_names_must_not_be_refused(tmp_path: Path, base: Path) -> None:
    folder = export(
        tmp_path / "export",
        GOOD | pair(f"{LAYER}.qkv", rank=2),
        rank_pattern={"qkv": 2},
        target_modules=r".*self_attn\.(q_proj|o_proj|qkv)",
    )
    held(folder, base, spec())


@pytest.mark.parametrize(
    ("architecture", "why"),
    [
        ({"hidden_size": 64}, "q_proj is made for a hidden_size of 16, and its config.json says 64"),
        ({"text_config": {"hidden_size": 64}}, "o_proj is made for a hidden_size of 16, and its config.json says 64"),
        ({"hidden_size": HIDDEN, "num_hidden_layers": 0}, "is of layer 0, and its config.json says 0 layers"),
    ],
)
def test_a_base_model_that_does_not_fit_is_the_specs_error_in_one_line(
    tmp_path: Path, base: Path, architecture: dict[str, Any], why: str
) -> None:
    (base / "config.json").write_text(json.dumps(architecture))
    paths = SharedPaths("maze-1", tmp_path)
    export(paths.export(20), GOOD, base_model_name_or_path="/shared/models/local")
    with pytest.raises(BadConfiguration) as refused:
        adopt_export(paths, spec(), 20, base)
    assert (refused.value.outcome, refused.value.exit_code) == (OutcomeCause.BAD_CONFIGURATION, 65)
    assert str(refused.value).startswith("model.source: package://training_job/models/maze_sft is not the base model")
    assert why in str(refused.value) and "\n" not in str(refused.value)


def test_a_published_adapter_lies_where_ray_serves_dynamic_loading_looks_for_it() -> None:
    """Ray Serve (ray.llm, ``get_lora_model_metadata``) reads ``<dynamic_lora_loading_path>/<lora id>/adapter_config.json``
    and copies what lies beside it, where the lora id is what follows the model's name: ``base:best``. Its own loader was run
    once over such a folder in moto; it needs pyarrow, which this environment does not have."""
    keys = RunKeys("maze-1")
    path = f"{keys.prefix}adapters"
    for model_id in ("base:best", "base:final"):
        lora_id = model_id.partition(":")[2]
        assert f"{path}/{lora_id}/{ADAPTER_CONFIG}" == f"{keys.adapter(lora_id)}{ADAPTER_CONFIG}"

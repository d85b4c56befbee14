"""What two ranks of SkyRL's FSDP strategy save and export, as the guard and the export checker see it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from peft import PeftModel
from safetensors.torch import load_file
from transformers import Qwen3VLForConditionalGeneration

from nightshift.contract import GuardReport, SharedPaths
from tests.skyrl.rig import tiny
from training_job.checkpoints import problems_of_files, world_size_of
from training_job.errors import BadConfiguration
from training_job.exports import adopt_export, check_export
from training_job.guard import hold_world_size

DRIVERS = ["data.pt: missing", "trainer_state.pt: missing"]
"""What the driver writes, not the ranks."""

SPARE = {
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json", "generation_config.json",
}  # fmt: skip
"""What is not needed to go on."""

LAYERS = 2 * 7
"""Adapted layers of the language model: q, k, v, o, gate, up and down of two."""


def test_the_guard_knows_every_file_of_the_ranks_and_misses_none(two_ranks: Path, tmp_path: Path) -> None:
    folder = tmp_path / "global_step_2"
    shutil.copytree(two_ranks / "checkpoint", folder)
    assert sorted(problems_of_files(folder)) == DRIVERS
    assert world_size_of(folder) == 2
    spare = {
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "chat_template.jinja",
        "special_tokens_map.json",
    }
    written = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in spare)
    assert len(written) >= 3 * 2 + 2 + 2, "shards, configurations, adapter"
    for path in written:
        name, whole = path.relative_to(folder).as_posix(), path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        assert [one for one in problems_of_files(folder) if one.startswith(name)], f"{name} may be torn unseen"
        path.write_bytes(whole)


def test_a_checkpoint_of_two_ranks_is_refused_to_any_other_number_before_engines_start(
    two_ranks: Path, tmp_path: Path
) -> None:
    paths = SharedPaths("tiny", tmp_path)
    shutil.copytree(two_ranks / "checkpoint", paths.checkpoint(2))
    report = GuardReport(floor=2, resumed_step=2)
    hold_world_size(paths, report, 2)
    with pytest.raises(BadConfiguration, match="saved by 2 GPUs"):
        hold_world_size(paths, report, 3)


def test_the_export_and_the_checkpoints_adapter_are_what_peft_loads(two_ranks: Path) -> None:
    assert check_export(two_ranks / "export") == (LAYERS, LAYERS)
    assert check_export(two_ranks / "checkpoint/policy/lora_adapter") == (LAYERS, LAYERS)
    exported = load_file(two_ranks / "export/adapter_model.safetensors")
    saved = load_file(two_ranks / "checkpoint/policy/lora_adapter/adapter_model.safetensors")
    assert exported.keys() == saved.keys()
    assert all(exported[name].equal(saved[name]) for name in exported)
    assert not [name for name in exported if "visual" in name]
    model = Qwen3VLForConditionalGeneration.from_pretrained(two_ranks / "base")
    loaded = dict(PeftModel.from_pretrained(model, two_ranks / "export").named_parameters())
    for name, value in exported.items():
        assert loaded[name.replace(".weight", ".default.weight")].equal(value), name


def test_an_adopted_export_names_the_base_model_as_the_spec_does_and_no_path_of_the_cluster(
    two_ranks: Path, tmp_path: Path
) -> None:
    spec, paths = tiny(), SharedPaths("tiny", tmp_path)
    shutil.copytree(two_ranks / "export", paths.export(2))
    folder = adopt_export(paths, spec, 2, two_ranks / "base")
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == spec.model.source
    assert (config["r"], config["peft_type"]) == (8, "LORA")
    assert config["target_modules"] == sorted(config["target_modules"])
    assert (folder / "config.json").is_file()
    told = [path.name for path in folder.iterdir() if path.suffix in (".json", ".md", ".jinja")]
    assert [name for name in told if str(two_ranks) in (folder / name).read_text()] == []

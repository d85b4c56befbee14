"""Which layers get adapters, by PEFT itself, and that our rule about the vision tower says the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from skyrl.train.config import SkyRLTrainConfig
from transformers import (
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PretrainedConfig,
    Qwen2Config,
    Qwen3VLForConditionalGeneration,
)

from nightshift.contract import RunSpec
from nightshift.contract.skyrl import TOWER_OVERRIDE, VISION_MODULES, adapts
from nightshift.contract.spec import LoraSettings
from nightshift.core.admission import check_spec
from tests.builders import spec_json
from tests.skyrl.fsdp import vision_language_config
from training_job.errors import BadConfiguration, StorageUnreachable, classify
from training_job.trainers.skyrl.targets import refuse_adapted_tower, tower_layers

DEFAULT = LoraSettings()
LANGUAGE = r".*language_model.*\.(q|v)_proj"

PATTERNS: dict[str, tuple[str, str | None]] = {
    "default": (DEFAULT.target_modules, DEFAULT.exclude_modules),
    "nothing excluded": ("all-linear", None),
    "an empty pattern": ("all-linear", ""),
    "another part excluded": ("all-linear", r".*language_model.*"),
    "a part of the tower excluded": ("all-linear", r".*visual\.blocks.*"),
    "a pattern that matches no whole name": ("all-linear", "visual"),
    "the language model's layers": (LANGUAGE, None),
    "layers by their last name": (r".*\.(qkv|q_proj)", None),
    "the same without the tower": (r".*\.(qkv|q_proj)", r".*visual.*"),
    "the merger alone": (r".*visual\.merger\..*fc\d", None),
}


def linear_layers() -> tuple[torch.nn.Module, list[str]]:
    """A Qwen3-VL without weights, and the names of its linear layers less the head, which PEFT leaves out."""
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(vision_language_config())
    names = [name for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)]
    return model, [name for name in names if name != "lm_head"]


def adapted_by_peft(target: str, exclude: str | None) -> set[str]:
    model, names = linear_layers()
    wrapped = get_peft_model(
        model, LoraConfig(r=8, target_modules=target, exclude_modules=exclude, task_type="CAUSAL_LM")
    )
    found = {name for name, layer in wrapped.named_modules() if isinstance(layer, LoraLayer)}
    return {name.removeprefix("base_model.model.") for name in found} & set(names)


def verdict(target: str, exclude: str | None, **overrides: object) -> list[str]:
    """Fields that are refused."""
    raw = spec_json(training={"trainer": "skyrl", "skyrl": {"overrides": overrides}})
    raw["model"] |= {"lora": {"target_modules": target, "exclude_modules": exclude}}
    checked = check_spec(raw)
    return [] if isinstance(checked, RunSpec) else [error.field for error in checked]


@pytest.mark.parametrize(("target", "exclude"), PATTERNS.values(), ids=PATTERNS)
def test_our_rule_names_the_same_layers_as_peft_and_refuses_an_adapted_tower(target: str, exclude: str | None) -> None:
    _, names = linear_layers()
    adapted = adapted_by_peft(target, exclude)
    assert {name for name in names if adapts(name, target, exclude)} == adapted
    tower = {name for name in adapted if ".visual." in name}
    assert bool(verdict(target, exclude)) == bool(tower), tower


def test_the_default_adapts_all_of_the_language_model_and_nothing_of_the_tower() -> None:
    _, names = linear_layers()
    assert adapted_by_peft(DEFAULT.target_modules, DEFAULT.exclude_modules) == {
        name for name in names if "language_model" in name
    }


def test_the_names_that_the_rule_looks_at_are_layers_of_the_tower() -> None:
    _, names = linear_layers()
    assert set(VISION_MODULES) <= set(names)


def test_a_spec_whose_engines_do_adapt_the_tower_is_not_refused() -> None:
    assert verdict("all-linear", None) == ["model.lora.exclude_modules"]
    assert verdict("all-linear", None, **{TOWER_OVERRIDE: True}) == []


def llava() -> LlavaConfig:
    """A model whose tower is not called visual."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = Qwen2Config(vocab_size=64, num_key_value_heads=1, **sizes)
    return LlavaConfig(vision_config=CLIPVisionConfig(image_size=32, patch_size=8, **sizes), text_config=text)


def skyrl_cfg(folder: Path, config: PretrainedConfig, **lora: object) -> SkyRLTrainConfig:
    config.save_pretrained(folder)
    keys = {f"trainer.policy.model.lora.{name}": value for name, value in {"rank": 8, **lora}.items()}
    more = {"trainer.policy.model.path": str(folder), "generator.vision_language_generator": True}
    return SkyRLTrainConfig.from_cli_overrides({**more, **keys})


def test_a_tower_of_another_name_is_found_in_the_model_itself_before_engines_start(tmp_path: Path) -> None:
    cfg = skyrl_cfg(tmp_path, llava(), exclude_modules=DEFAULT.exclude_modules)
    with pytest.raises(BadConfiguration, match=r"model.lora.exclude_modules") as told:
        refuse_adapted_tower(cfg)
    cfg.trainer.policy.model.lora.exclude_modules = str(told.value).rpartition(": ")[2]
    refuse_adapted_tower(cfg)  # what the message proposes is what helps
    with torch.device("meta"):
        model = LlavaForConditionalGeneration(llava())
    lora = LoraConfig(r=8, target_modules="all-linear", exclude_modules=cfg.trainer.policy.model.lora.exclude_modules)
    layers = [name for name, layer in get_peft_model(model, lora).named_modules() if isinstance(layer, LoraLayer)]
    assert len(layers) == 7
    assert all("language_model" in name for name in layers)


def test_the_tower_of_a_qwen_is_left_alone_by_default_and_a_text_model_has_none(tmp_path: Path) -> None:
    refuse_adapted_tower(skyrl_cfg(tmp_path / "vl", vision_language_config(), exclude_modules=DEFAULT.exclude_modules))
    assert set(VISION_MODULES) <= set(tower_layers(tmp_path / "vl"))
    with pytest.raises(BadConfiguration, match=r"model.visual"):
        refuse_adapted_tower(skyrl_cfg(tmp_path / "vl", vision_language_config()))
    refuse_adapted_tower(
        skyrl_cfg(tmp_path / "text", Qwen2Config(vocab_size=64, hidden_size=16, num_attention_heads=2))
    )


def test_a_model_that_transformers_does_not_know_is_one_clear_line(tmp_path: Path) -> None:
    cfg = skyrl_cfg(tmp_path, Qwen2Config())
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(BadConfiguration, match=r"model.source: transformers cannot make this model") as told:
        refuse_adapted_tower(cfg)
    assert len(str(told.value).splitlines()) == 1


def test_a_mount_that_fails_under_a_models_configuration_is_no_bad_model(tmp_path: Path) -> None:
    """A read of this process's memory at address 0 fails with EIO, by the kernel itself."""
    (tmp_path / "config.json").symlink_to("/proc/self/mem")
    with pytest.raises(OSError, match="Input/output error") as raised:
        tower_layers(tmp_path)
    assert isinstance(classify(raised.value), StorageUnreachable)

"""What a run spec may say about SkyRL beyond the numbers that every trainer has, and what must hold before it starts.

SkyRL 0.3.0 checks no types, and accepts values that only fail after the engines are up: what it lets through is refused
here. Source: its ``skyrl/train/config/config.py`` and ``skyrl/train/utils/utils.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pydantic import Field

from nightshift.contract.base import Model
from nightshift.contract.skyrl_overrides import OverrideKey, OverrideValue, override_problems

if TYPE_CHECKING:
    from nightshift.contract.spec import RunSpec

Problem = tuple[str, str]
"""(dotted field of the spec, what is wrong and what would be right)."""

ENGINE_LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as max_lora_rank, which SkyRL sets to the adapter's own rank. Source: ``vllm/config/lora.py``."""

TOWER_OVERRIDE: Final = "generator.inference_engine.engine_init_kwargs.enable_tower_connector_lora"

VISION_MODULES: Final = (
    "model.visual.blocks.0.attn.qkv",
    "model.visual.blocks.0.mlp.linear_fc1",
    "model.visual.merger.linear_fc2",
)
"""Some layers of the vision tower of a Qwen-VL model, by the names that PEFT compares."""


class SkyRLSettings(Model):
    """Used by ``training.trainer: skyrl`` only. Lengths are tokens; defaults are upstream's VisGym recipe."""

    vision: bool = Field(True, description="a vision-language policy: observations carry pictures")
    max_prompt_length: int = Field(2_048, ge=1)
    max_generate_length: int = Field(1_024, ge=1, description="a turn")
    max_input_length: int = Field(8_192, ge=1, description="the whole conversation before a turn")
    max_model_len: int = Field(60_000, ge=1, description="the engines' context")
    tensor_parallel_size: int = Field(1, ge=1, le=16, description="GPUs an inference engine")
    flash_attn: bool = True
    update_epochs_per_batch: int = Field(1, ge=1, le=100)
    overrides: dict[OverrideKey, OverrideValue] = Field(
        default_factory=dict, max_length=100, description="further keys of SkyRL's configuration, as they are"
    )


def skyrl_problems(spec: RunSpec) -> Sequence[Problem]:
    """Everything that would make SkyRL refuse the spec, or accept it and fail later; empty where nothing would."""
    return [*_lengths(spec), *_engines(spec), *_lora(spec), *_overrides(spec), *_saves(spec), *_target(spec)]


def max_input_length(spec: RunSpec) -> int:
    """Tokens before a turn: with one turn only the prompt, and SkyRL then wants both limits to be equal."""
    more = spec.training.skyrl
    return more.max_prompt_length if spec.training.max_turns == 1 else more.max_input_length


def _lengths(spec: RunSpec) -> Iterator[Problem]:
    s, inputs = spec.training.skyrl, max_input_length(spec)
    if inputs < s.max_prompt_length:
        yield "training.skyrl.max_input_length", f"{inputs} is less than max_prompt_length {s.max_prompt_length}"
    if s.max_model_len < inputs + s.max_generate_length:
        longest = inputs + s.max_generate_length
        yield "training.skyrl.max_model_len", f"{s.max_model_len} is less than the longest input and reply, {longest}"


def _engines(spec: RunSpec) -> Iterator[Problem]:
    parallel, workers = spec.training.skyrl.tensor_parallel_size, spec.topology.workers
    if workers.gpus % parallel:
        yield (
            "training.skyrl.tensor_parallel_size",
            f"{workers.gpus} GPUs a node cannot be shared out to engines of {parallel}",
        )


def adapts(module: str, target_modules: str, exclude_modules: str | None) -> bool:
    """Does PEFT adapt a linear layer of this name? ``target_modules`` is ``all-linear`` or a regular expression over whole
    names, and so is ``exclude_modules``. Raises re.error for what is no regular expression."""
    if exclude_modules and re.fullmatch(exclude_modules, module):
        return False
    return target_modules == "all-linear" or re.fullmatch(target_modules, module) is not None


def _lora(spec: RunSpec) -> Iterator[Problem]:
    lora, more = spec.model.lora, spec.training.skyrl
    if lora.rank not in ENGINE_LORA_RANKS:
        ranks = ", ".join(map(str, ENGINE_LORA_RANKS))
        yield "model.lora.rank", f"{lora.rank} is none of the ranks that the engines take: {ranks}"
    for field in ("target_modules", "exclude_modules"):
        try:
            re.compile(getattr(lora, field) or "")
        except re.error as error:
            yield f"model.lora.{field}", f"no regular expression over the names of modules: {error}"
            return
        if "${" in (getattr(lora, field) or ""):
            yield f"model.lora.{field}", "SkyRL would put something else in place of ${...}"
    adapted = [one for one in VISION_MODULES if adapts(one, lora.target_modules, lora.exclude_modules)]
    if more.vision and adapted and more.overrides.get(TOWER_OVERRIDE) is not True:
        yield (
            "model.lora.exclude_modules",
            f"the vision tower would get adapters ({adapted[0]}), which the engines leave out: rollouts and training would "
            f"differ. Exclude .*visual.*, or override {TOWER_OVERRIDE}: true",
        )


def _overrides(spec: RunSpec) -> Iterator[Problem]:
    more = spec.training.skyrl
    for key, problem in override_problems(more.overrides, more.vision):
        yield f"training.skyrl.overrides.{key}", problem


def _saves(spec: RunSpec) -> Iterator[Problem]:
    if spec.training.max_ckpts_to_keep < 2:
        # It prunes right after a save, before anybody has looked whether that one is whole.
        yield (
            "training.max_ckpts_to_keep",
            "SkyRL would delete the only good checkpoint after each save: keep 2 at least",
        )


def _target(spec: RunSpec) -> Iterator[Problem]:
    if spec.training.eval_interval > spec.training.total_steps and spec.target is not None:
        yield "training.eval_interval", "no eval comes before the last step, so the target can only be met there"

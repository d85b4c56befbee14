"""What a run spec may say about SkyRL beyond the numbers that every trainer has, and what must hold before it starts.

SkyRL 0.3.0 checks no types, and accepts values that only fail after the engines are up: what it lets through is refused
here. Source: its ``skyrl/train/config/config.py`` and ``skyrl/train/utils/utils.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, StringConstraints

from nightshift.contract.base import Model

if TYPE_CHECKING:
    from nightshift.contract.spec import RunSpec

Problem = tuple[str, str]
"""(dotted field of the spec, what is wrong and what would be right)."""

OverrideKey = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*(\.[a-zA-Z0-9_]+)+$", max_length=200)]
OverrideValue = bool | int | float | str

SECTIONS = frozenset({"data", "trainer", "generator", "environment"})

OWNED: dict[str, str] = {
    r"data\.(train_data|val_data)": "the data come from task.train, task.eval and task.holdout",
    r"environment\.env_class": "the environment comes from task.environment",
    r"trainer\.(ckpt_path|export_path|log_path|resume_path)": "paths follow from the run's id",
    r"trainer\.resume_mode": "a run always resumes at its latest verified checkpoint",
    r"trainer\.placement\..*": "placement follows from topology",
    r"trainer\.policy\.model\.path": "the model comes from model.source",
    r"trainer\.policy\.model\.lora\.(rank|alpha|lora_sync_path|target_modules|exclude_modules)": "set model.lora",
    r"trainer\.(strategy|override_entrypoint|fully_async\..*|mtp\..*)": "other ways to train are not supported",
    r"trainer\.(ckpt_interval|hf_save_interval|eval_interval|max_ckpts_to_keep|seed)": "set it under training",
    r"trainer\.(epochs|max_training_steps)": "set training.total_steps",
    r"trainer\.(train_batch_size|policy_mini_batch_size)": "set it under training",
    r"trainer\.micro_(train|forward)_batch_size_per_gpu": "set it under training",
    r"trainer\.(logger|project_name|run_name)": "set training.skyrl.tracker and training.skyrl.project",
    r"trainer\.dump_eval_results": "evals are read from the dumps",
    r"generator\.inference_engine\.(num_engines|run_engines_locally|external_.*|data_parallel_size)": (
        "engines follow from topology and training.skyrl.tensor_parallel_size"
    ),
    r"generator\.inference_engine\.(tensor|pipeline|expert)_parallel_size": "set training.skyrl.tensor_parallel_size",
    r"generator\.inference_engine\.gpu_memory_utilization": "set training.gpu_memory_utilization",
    r"generator\.(n_samples_per_prompt|max_turns)": "set it under training",
    r"generator\.(step_wise_trajectories|merge_stepwise_output)": "success is read from whole trajectories",
    r"generator\.(max_input_length|vision_language_generator)": "set it under training.skyrl",
    r"generator\.eval_n_samples_per_prompt": "an eval is one greedy episode an item",
}
"""Keys of SkyRL (regular expressions) that follow from the rest of the spec, and why they may not be overridden."""


class Tracker(StrEnum):
    """Where SkyRL sends its metrics, beside the run's own curve. Others that SkyRL knows are not supported."""

    CONSOLE = "console"
    WANDB = "wandb"
    MLFLOW = "mlflow"
    TENSORBOARD = "tensorboard"


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
    tracker: Tracker = Tracker.CONSOLE
    project: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")] = "nightshift"
    overrides: dict[OverrideKey, OverrideValue] = Field(
        default_factory=dict, max_length=100, description="further keys of SkyRL's configuration, as they are"
    )


def skyrl_problems(spec: RunSpec) -> Sequence[Problem]:
    """Everything that would make SkyRL refuse the spec, or accept it and fail later; empty where nothing would."""
    return [*_lengths(spec), *_engines(spec), *_overrides(spec.training.skyrl), *_target(spec)]


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


def _overrides(settings: SkyRLSettings) -> Iterator[Problem]:
    for key, value in settings.overrides.items():
        where = f"training.skyrl.overrides.{key}"
        if key.split(".", 1)[0] not in SECTIONS:
            yield where, f"SkyRL's configuration has no section of that name; it has {', '.join(sorted(SECTIONS))}"
        for pattern, why in OWNED.items():
            if re.fullmatch(pattern, key):
                yield where, f"this key is not to be overridden: {why}"
        if isinstance(value, str) and (len(value) > 1_000 or any(ord(c) < 32 for c in value)):
            yield where, "a text of at most 1,000 printable characters"


def _target(spec: RunSpec) -> Iterator[Problem]:
    if spec.training.eval_interval > spec.training.total_steps and spec.target is not None:
        yield "training.eval_interval", "no eval comes before the last step, so the target can only be met there"

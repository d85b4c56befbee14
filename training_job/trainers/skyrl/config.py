"""From a run spec to SkyRL's configuration, as the overrides of its command line. Imports nothing of SkyRL."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nightshift.contract import RunSpec, SharedPaths
from nightshift.contract.skyrl import max_input_length, skyrl_problems
from nightshift.contract.spec import batch_size_problems
from training_job.errors import BadConfiguration

ENVIRONMENT_ID: Final = "nightshift"
"""Under this name the task's environment is registered with skyrl_gym: SkyRL never sees the task's own."""

Value = bool | int | float | str | None | list[str]


@dataclass(frozen=True)
class Derived:
    """Numbers that follow from the spec and the size of the training set."""

    gpus: int
    engines: int
    steps_per_epoch: int
    epochs: int
    """For people; what SkyRL is told is ``enough_epochs``."""
    rollouts_per_step: int
    mini_batches_per_step: int
    rollouts_per_gpu_and_update: int
    dropped_prompts: int
    """Prompts of each batch that SkyRL drops, so that what is left divides among the GPUs."""


def derive(spec: RunSpec, train_rows: int) -> Derived:
    """Raises BadConfiguration where the training set has less than one batch."""
    training, gpus = spec.training, spec.topology.gpus
    steps = train_rows // training.train_batch_size
    if steps < 1:
        raise BadConfiguration(
            "task.train", f"{train_rows} items are less than one batch of {training.train_batch_size}"
        )
    even = next(n for n in range(1, gpus + 1) if n * training.n_samples_per_prompt % gpus == 0)
    return Derived(
        gpus=gpus,
        engines=gpus // training.skyrl.tensor_parallel_size,
        steps_per_epoch=steps,
        epochs=-(-training.total_steps // steps),
        rollouts_per_step=training.train_batch_size * training.n_samples_per_prompt,
        mini_batches_per_step=training.train_batch_size // training.policy_mini_batch_size,
        rollouts_per_gpu_and_update=training.policy_mini_batch_size * training.n_samples_per_prompt // gpus,
        dropped_prompts=training.train_batch_size % even,
    )


def enough_epochs(total_steps: int) -> int:
    """So many that ``max_training_steps`` alone ends SkyRL's loop, and bounds the total that its learning rates follow. An
    epoch has at least one step, and may have fewer than derived: SkyRL leaves out prompts that are too long. The one more is
    for a resume from a checkpoint of an epoch's end: its data loader is saved before it knows that it is through, and the
    first epoch after it is empty."""
    return total_steps + 1


@dataclass(frozen=True)
class Inputs:
    """What is only known where the job runs: staged files."""

    model: Path
    train: Path
    evals: Sequence[Path]


def require_valid(spec: RunSpec) -> None:
    """Raises BadConfiguration with the first field that SkyRL would refuse, at once or too late."""
    for field, problem in (*batch_size_problems(spec.training, spec.topology.gpus), *skyrl_problems(spec)):
        raise BadConfiguration(field, problem)


def settings(spec: RunSpec, paths: SharedPaths, inputs: Inputs, derived: Derived) -> dict[str, Value]:
    """Every key that is set, with its value. The spec's own overrides come last, and name no key that is set here for
    a reason (``skyrl_problems``)."""
    wanted = {**_data(spec, inputs), **_trainer(spec, paths, inputs, derived), **_generator(spec, derived)}
    return wanted | dict(spec.training.skyrl.overrides)


def _data(spec: RunSpec, inputs: Inputs) -> dict[str, Value]:
    return {
        "data.train_data": [str(inputs.train)],
        "data.val_data": [str(path) for path in inputs.evals],
        "data.dataloader.num_workers": 0,  # spawned loaders cost 8 to 10 s an eval, for rows that are in memory
        "data.dataloader.persistent_workers": False,
        "environment.env_class": ENVIRONMENT_ID,
    }


def _trainer(spec: RunSpec, paths: SharedPaths, inputs: Inputs, derived: Derived) -> dict[str, Value]:
    training, lora, more = spec.training, spec.model.lora, spec.training.skyrl
    nodes, per_node = spec.topology.workers.count, spec.topology.workers.gpus
    placement = {f"{role}_num_nodes": nodes for role in ("policy", "ref", "critic")}
    placement |= {f"{role}_num_gpus_per_node": per_node for role in ("policy", "ref", "critic")}
    wanted: dict[str, Value] = {
        **{f"placement.{name}": value for name, value in placement.items()},
        "placement.colocate_all": True,
        "strategy": "fsdp",
        "algorithm.advantage_estimator": "grpo",
        "algorithm.use_kl_loss": False,
        "algorithm.use_kl_in_reward": False,
        "algorithm.loss_reduction": "token_mean_legacy",
        "algorithm.eps_clip_low": training.clip,
        "algorithm.eps_clip_high": training.clip,
        "policy.model.path": str(inputs.model),
        "policy.model.lora.rank": lora.rank,
        "policy.model.lora.alpha": lora.alpha,
        "policy.model.lora.target_modules": lora.target_modules,
        "policy.model.lora.exclude_modules": lora.exclude_modules,
        # On storage that all nodes share: from a local folder the engines would silently read stale weights.
        "policy.model.lora.lora_sync_path": str(paths.lora_sync),
        "policy.optimizer_config.lr": training.learning_rate,
        "policy.optimizer_config.num_warmup_steps": training.warmup_steps,
        "policy.language_model_only": not more.vision,
        "train_batch_size": training.train_batch_size,
        "policy_mini_batch_size": training.policy_mini_batch_size,
        "micro_train_batch_size_per_gpu": training.micro_train_batch_size_per_gpu,
        "micro_forward_batch_size_per_gpu": training.micro_forward_batch_size_per_gpu,
        "update_epochs_per_batch": more.update_epochs_per_batch,
        "eval_batch_size": 1_024,
        "max_prompt_length": more.max_prompt_length,
        "flash_attn": more.flash_attn,
        "remove_microbatch_padding": False,  # refused by SkyRL's worker for vision-language models
        "seed": training.seed,
        "epochs": enough_epochs(training.total_steps),
        "max_training_steps": training.total_steps,
        "eval_before_train": True,
        "eval_interval": training.eval_interval,
        "ckpt_interval": training.ckpt_interval,
        "hf_save_interval": training.hf_save_interval,
        "max_ckpts_to_keep": training.max_ckpts_to_keep,
        "ckpt_path": str(paths.ckpts),
        "export_path": str(paths.exports),
        "log_path": str(paths.logs),
        "resume_mode": "latest",
        "dump_eval_results": True,
        "print_example_interval": 0,  # whole conversations in the driver's log would drown everything else
        "logger": "console",  # trackers are the job's own: SkyRL would make a new tracker run for each attempt
        "project_name": spec.tracking.project,
        "run_name": spec.run_id,
    }
    return {f"trainer.{name}": value for name, value in wanted.items()}


def _generator(spec: RunSpec, derived: Derived) -> dict[str, Value]:
    training, more = spec.training, spec.training.skyrl
    wanted: dict[str, Value] = {
        "n_samples_per_prompt": training.n_samples_per_prompt,
        "max_turns": training.max_turns,
        "max_input_length": max_input_length(spec),
        "batched": False,
        "vision_language_generator": more.vision,
        "sampling_params.max_generate_length": more.max_generate_length,
        "sampling_params.temperature": training.temperature,
        "eval_sampling_params.max_generate_length": more.max_generate_length,
        "eval_sampling_params.temperature": 0.0,
        "eval_n_samples_per_prompt": 1,
        "inference_engine.num_engines": derived.engines,
        "inference_engine.tensor_parallel_size": more.tensor_parallel_size,
        "inference_engine.gpu_memory_utilization": training.gpu_memory_utilization,
        "inference_engine.language_model_only": not more.vision,
        "inference_engine.engine_init_kwargs.max_model_len": more.max_model_len,
    }
    return {f"generator.{name}": value for name, value in wanted.items()}


def command_line(values: Mapping[str, Value]) -> list[str]:
    """``key=value`` as SkyRL's OmegaConf parser reads them back to the same values."""
    return [f"{key}={_written(value)}" for key, value in values.items()]


def _written(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return json.dumps(value)  # a double-quoted YAML scalar: a text stays a text, whatever is in it
    if isinstance(value, float):
        return _float(value)
    return json.dumps(value)


def _float(value: float) -> str:
    """YAML 1.1 reads ``3e-05`` as a text: its exponents need a point before them."""
    text = repr(value)
    return text if "e" not in text or "." in text.split("e")[0] else text.replace("e", ".0e")

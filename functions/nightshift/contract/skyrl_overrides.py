"""Which further keys of SkyRL's configuration a spec may set, and to what.

SkyRL 0.3.0 names an unknown key when it starts, which is after the cluster is up; it takes a value of any type, and a value that
contradicts another one may only fail hours later. So all of it is refused here, by name. Source: ``validate_cfg`` in its
``skyrl/train/utils/utils.py``, and the places named below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Final

from pydantic import StringConstraints

from nightshift.contract.skyrl_keys import KEYS, SKYRL_VERSION

OverrideKey = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*(\.[a-zA-Z0-9_]+)+$", max_length=200)]
OverrideValue = bool | int | float | str

_OWN_FIELD: Final = "it is set by a field of its own, under training or training.skyrl"

OWNED: Final[dict[str, str]] = {
    r"data\.(train_data|val_data)": "the data come from task.train, task.eval and task.holdout",
    r"environment\.env_class": "the environment comes from task.environment",
    r"trainer\.(ckpt_path|export_path|log_path|resume_path)": "paths follow from the run's id",
    r"trainer\.resume_mode": "a run always resumes at its latest verified checkpoint",
    r"trainer\.placement\..*": "placement follows from topology",
    r"trainer\.(policy|ref)\.model\.path": "the model comes from model.source",
    r"trainer\.policy\.model\.lora\.(rank|alpha|lora_sync_path|target_modules|exclude_modules)": "set model.lora",
    r"trainer\.(policy|ref)\.(inference_only_init|model\.fake_int4_qat\..*|megatron_config\..*)|trainer\.fused_lm_head.*": (
        "other ways to train are not supported"
    ),
    r"trainer\.policy\.torch_profiler_config\..*": "SkyRL cannot profile a policy that shares its GPUs with the engines",
    r"trainer\.(policy|ref|critic)\.sequence_parallel_size": "batch sizes are reckoned with one GPU a sequence",
    r"trainer\.(policy|ref)\.language_model_only|generator\.inference_engine\.language_model_only": (
        "set training.skyrl.vision"
    ),
    r"trainer\.critic\..*|trainer\.critic_mini_batch_size": "GRPO has no critic",
    r"trainer\.(strategy|override_entrypoint|fully_async\..*|mtp\..*)": "other ways to train are not supported",
    r"trainer\.update_ref_every_epoch": "SkyRL would delete the epoch's export",
    r"trainer\.algorithm\.dynamic_sampling\.type": "a step would use up several batches, and the run end too early",
    r"trainer\.algorithm\.temperature": "it follows from training.temperature",
    r"trainer\.algorithm\.(use_tis|tis_imp_ratio_cap)|trainer\.(use_sample_packing|log_example_interval)": (
        "SkyRL has a new name for this key"
    ),
    r"trainer\.(ckpt_interval|hf_save_interval|eval_interval|max_ckpts_to_keep|seed|flash_attn)": _OWN_FIELD,
    r"trainer\.eval_before_train": "the first eval of a run is its baseline",
    r"trainer\.(epochs|max_training_steps)": "set training.total_steps",
    r"trainer\.(train_batch_size|policy_mini_batch_size|update_epochs_per_batch|max_prompt_length)": _OWN_FIELD,
    r"trainer\.micro_(train|forward)_batch_size_per_gpu": _OWN_FIELD,
    r"trainer\.policy\.optimizer_config\.(lr|num_warmup_steps)": _OWN_FIELD,
    r"trainer\.(logger|project_name|run_name)": "set tracking",
    r"trainer\.dump_eval_results": "evals are read from the dumps",
    r"generator\.inference_engine\.(num_engines|run_engines_locally|external_.*|data_parallel_size)": (
        "engines follow from topology and training.skyrl.tensor_parallel_size"
    ),
    r"generator\.inference_engine\.(tensor|pipeline|expert)_parallel_size": "set training.skyrl.tensor_parallel_size",
    r"generator\.inference_engine\.gpu_memory_utilization": _OWN_FIELD,
    r"generator\.inference_engine\.(backend|enable_pd|num_prefill|enable_return_routed_experts)": (
        "other engines are not supported"
    ),
    r"generator\.inference_engine\.engine_init_kwargs\."
    r"(model|.*_parallel_size|gpu_memory_utilization|max_model_len|enable_lora|max_lora.*|seed|enable_sleep_mode)": (
        "it would contradict what SkyRL tells the engines: set it under training, training.skyrl or model.lora"
    ),
    r"generator\.(n_samples_per_prompt|max_turns)": _OWN_FIELD,
    r"generator\.(step_wise_trajectories|merge_stepwise_output)": "success is read from whole trajectories",
    r"generator\.(max_input_length|vision_language_generator)": _OWN_FIELD,
    r"generator\.(eval_)?sampling_params\.max_generate_length|generator\.sampling_params\.temperature": _OWN_FIELD,
    r"generator\.batched": "SkyRL cannot play several turns in one batch",
    r"generator\.eval_n_samples_per_prompt": "an eval is one greedy episode an item",
}
"""Keys of SkyRL (regular expressions) that follow from the rest of the spec, and why they may not be overridden."""

CHOICES: Final[dict[str, tuple[OverrideValue, ...]]] = {
    "generator.inference_engine.distributed_executor_backend": ("ray", "mp"),
    "generator.inference_engine.weight_sync_backend": ("nccl", "gloo"),
    "generator.sampling_params.logprobs": (0, 1),
    "trainer.algorithm.advantage_estimator": ("grpo", "rloo", "reinforce++", "maxrl"),
    "trainer.algorithm.dppo.dppo_type": ("binary_tv", "binary_kl"),
    "trainer.algorithm.kl_ctrl.type": ("fixed", "adaptive"),
    "trainer.algorithm.kl_estimator_type": ("k1", "k2", "k3", "abs"),
    "trainer.algorithm.loss_reduction": (
        "token_mean", "token_mean_legacy", "sequence_mean", "seq_mean_token_sum_norm", "prompt_mean",
    ),
    "trainer.algorithm.off_policy_correction.sequence_mask_metric": ("product", "geometric"),
    "trainer.algorithm.off_policy_correction.tis_ratio_type": ("token", "sequence"),
    "trainer.algorithm.policy_loss_type": (
        "regular", "dual_clip", "gspo", "cispo", "rollout_is", "clip_cov", "kl_cov", "sapo", "dppo",
    ),
    "trainer.sequence_parallel_backend": ("ulysses",),
}  # fmt: skip
"""Keys that take one of a few values."""

_OFF_POLICY: Final = (
    "trainer.algorithm.off_policy_correction.tis_ratio_type",
    "trainer.algorithm.off_policy_correction.sequence_mask_metric",
)

Overrides = Mapping[str, OverrideValue]

CONTRADICTIONS: Final[dict[str, tuple[Callable[[Overrides], bool], str]]] = {
    "trainer.algorithm.use_kl_in_reward": (
        lambda o: o.get("trainer.algorithm.use_kl_loss") is True and o["trainer.algorithm.use_kl_in_reward"] is True,
        "the KL penalty belongs to the reward or to the loss, not to both",
    ),
    "trainer.algorithm.loss_reduction": (
        lambda o: (
            o["trainer.algorithm.loss_reduction"] == "seq_mean_token_sum_norm"
            and "trainer.algorithm.max_seq_len" not in o
        ),
        "this one needs trainer.algorithm.max_seq_len beside it",
    ),
    "trainer.algorithm.policy_loss_type": (
        lambda o: (
            o["trainer.algorithm.policy_loss_type"] in ("clip_cov", "kl_cov") and any(key in o for key in _OFF_POLICY)
        ),
        "SkyRL has no off-policy correction for this loss",
    ),
    "trainer.logprobs_chunk_size": (lambda o: o["trainer.logprobs_chunk_size"] < 1, "it must be at least 1"),  # type: ignore[operator]  # a number by then
    "data.dataloader.num_workers": (lambda o: o["data.dataloader.num_workers"] < 0, "it must be at least 0"),  # type: ignore[operator]  # a number by then
    "data.dataloader.persistent_workers": (
        lambda o: o["data.dataloader.persistent_workers"] is True and not o.get("data.dataloader.num_workers"),
        "there are no workers to keep: set data.dataloader.num_workers beside it",
    ),
}
"""Key -> (is it wrong beside the others, why). Asked only where the values have the types that SkyRL takes."""


def override_problems(overrides: Overrides, vision: bool) -> Iterator[tuple[str, str]]:
    """(key, what is wrong with it) of everything that SkyRL would refuse, or accept and fail with later. ``vision``: the
    policy sees pictures."""
    wrong = {key: problem for key, value in overrides.items() if (problem := _problem_alone(key, value, vision))}
    yield from wrong.items()
    for key, (contradicts, why) in CONTRADICTIONS.items():
        if key in overrides and not wrong and contradicts(overrides):
            yield key, why


def _problem_alone(key: str, value: OverrideValue, vision: bool) -> str | None:
    owned = next((why for pattern, why in OWNED.items() if re.fullmatch(pattern, key)), None)
    if owned is not None:
        return f"this key is not to be overridden: {owned}"
    kind = _kind_of(key)
    if kind is None:
        close = get_close_matches(key, KEYS, 1)
        return f"SkyRL {SKYRL_VERSION} has no such key{f'; perhaps {close[0]}' if close else ''}"
    if kind in ("list", "dict"):
        return f"this key takes a {kind}, which an override cannot be"
    said = type(value).__name__
    if kind not in ("any", said) and (kind, said) != ("float", "int"):
        return f"{_shown(value)} is of type {said}, SkyRL takes {kind}"
    if isinstance(value, str) and (len(value) > 1_000 or any(ord(c) < 32 for c in value)):
        return "a text of at most 1,000 printable characters"
    if isinstance(value, str) and "${" in value:
        return "SkyRL would put something else, a variable of the job's environment for one, in place of ${...}"
    if key in CHOICES and value not in CHOICES[key]:
        return f"{_shown(value)} is none of {', '.join(map(str, CHOICES[key]))}"
    if key == "trainer.remove_microbatch_padding" and value is True and vision:
        return "SkyRL cannot pack the batches of a vision-language policy"
    if key == "generator.inference_engine.enforce_eager" and value is True:
        return "SkyRL sets it back to false where the policy has adapters"
    return None


def _shown(value: OverrideValue) -> str:
    """A text is not repeated: it may be a secret that somebody put into the wrong place, in no form that can be recognized."""
    return "this" if isinstance(value, str) else repr(value)


def _kind_of(key: str) -> str | None:
    """The type of a key's value by name; ``any`` below a free dictionary; None for a key that does not exist."""
    if key in KEYS:
        return KEYS[key]
    parts = key.split(".")
    above = (".".join(parts[:n]) for n in range(1, len(parts)))
    return "any" if any(KEYS.get(one) == "dict" for one in above) else None

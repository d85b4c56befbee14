"""Our rules and SkyRL's, over the same specs: what ours accepts SkyRL accepts, and arrives there as it was meant; what SkyRL
refuses, at once or only when engines are up, ours refuses by field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as budget
from hypothesis import strategies as st
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.generators.skyrl_vlm_generator import SkyRLVLMGymGenerator
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils import validate_cfg
from skyrl.train.utils.tracking import Tracking
from skyrl.train.utils.trainer_utils import ResumeMode

from bench.gpu.spec import asked
from bench.gpu.spec import spec as gpu_spec
from nightshift.contract import RunSpec, SharedPaths
from nightshift.contract.skyrl_keys import KEYS
from nightshift.contract.skyrl_overrides import CHOICES
from nightshift.core.admission import check_spec
from tests.builders import spec_json
from tests.skyrl.keys import TABLE, table_text
from tests.skyrl.rig import tiny
from training_job.trainers.skyrl.config import Inputs, Value, command_line, derive, settings

ROOT = Path(__file__).resolve().parents[2]
PATHS = SharedPaths("maze-1")
INPUTS = Inputs(Path("/shared/models/base"), Path("/shared/d/train.jsonl"), [Path("/shared/d/fixed.jsonl")])

EXAMPLES: dict[str, Any] = {
    **{path.name: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "examples").glob("*.yaml"))},
    "events/start-request.json": json.loads((ROOT / "events/start-request.json").read_text())["detail"]["spec"],
    "tests/builders.py": spec_json(),
    "tests/skyrl/rig.py": tiny().model_dump(mode="json"),
    "bench/gpu": gpu_spec(asked(["out", "gpu", "--model", "/shared/models/tiny"])),
}
"""Every whole spec of this repository, meant for SkyRL or not."""

Refused = (AssertionError, ValueError, NotImplementedError, TypeError, StopIteration)


def values_of(spec: RunSpec) -> dict[str, Value]:
    return settings(spec, PATHS, INPUTS, derive(spec, 1_000_000))


def accepted_by_skyrl(values: Mapping[str, Value]) -> SkyRLTrainConfig:
    """Raises what SkyRL raises: at once, or where it asserts only when the engines are up."""
    cfg = SkyRLTrainConfig.from_cli_overrides(command_line(values))
    validate_cfg(cfg)
    return cfg


class Built(Exception):
    """SkyRL got as far as making its models."""


class Group:
    """In place of a group of Ray actors: the configuration was accepted once something is asked of one."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        raise Built


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What SkyRL asserts after its check: when it makes models, generator and tracker, and before it resumes."""
    monkeypatch.setattr("skyrl.train.trainer.PPORayActorGroup", Group)

    def check(cfg: SkyRLTrainConfig) -> None:
        with pytest.raises(Built):
            RayPPOTrainer.build_models(
                SimpleNamespace(cfg=cfg, colocate_pg=None, total_training_steps=1), None, None, None
            )
        if cfg.generator.vision_language_generator:
            SkyRLVLMGymGenerator._validate_cfg(None, cfg.generator)
        assert cfg.trainer.logger in Tracking.supported_backends
        assert ResumeMode(cfg.trainer.resume_mode) is ResumeMode.LATEST  # the only one that needs no resume_path

    return check


def at(cfg: Any, key: str) -> Any:
    for part in key.split("."):
        cfg = cfg[part] if isinstance(cfg, dict) else getattr(cfg, part)
    return cfg


def skyrl_spec(**training: Any) -> RunSpec | list[Any]:
    return check_spec(spec_json(training={"trainer": "skyrl", **training}))


def with_overrides(**overrides: Any) -> RunSpec | list[Any]:
    return skyrl_spec(skyrl={"overrides": overrides})


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_spec_of_the_repository_is_accepted_by_both_at_once_and_later(name: str, later: Any) -> None:
    raw = EXAMPLES[name]
    spec = check_spec({**raw, "training": {**raw.get("training", {}), "trainer": "skyrl"}})
    assert isinstance(spec, RunSpec), spec
    later(accepted_by_skyrl(values_of(spec)))


def test_a_policy_with_a_penalty_has_its_reference_on_as_many_gpus(later: Any) -> None:
    spec = with_overrides(**{"trainer.algorithm.use_kl_loss": True})
    assert isinstance(spec, RunSpec)
    cfg = accepted_by_skyrl(values_of(spec))
    later(cfg)
    cfg.trainer.placement.ref_num_nodes += 1
    validate_cfg(cfg)  # SkyRL itself says nothing yet
    with pytest.raises(AssertionError, match="num_ref_gpus"):
        later(cfg)


def test_every_value_arrives_as_it_was_meant_and_with_the_type_that_skyrl_takes() -> None:
    spec = with_overrides(**{"generator.sampling_params.top_p": 0.9, "trainer.algorithm.value_head_prefix": "1e3"})
    assert isinstance(spec, RunSpec)
    values = values_of(spec)
    cfg = accepted_by_skyrl(values)
    for key, value in values.items():
        assert (at(cfg, key), type(at(cfg, key))) == (value, type(value)), key
        kind = KEYS.get(key, "any")
        assert value is None or kind in ("any", type(value).__name__), key


def test_the_contracts_table_of_keys_is_the_packages() -> None:
    assert TABLE.read_text() == table_text(version("skyrl"), SkyRLTrainConfig), "run `python -m tests.skyrl.keys`"


NUMBERS = st.fixed_dictionaries(
    {
        "train_batch_size": st.integers(1, 64),
        "policy_mini_batch_size": st.integers(1, 64),
        "micro_train_batch_size_per_gpu": st.sampled_from([1, 2, 4, 8]),
        "n_samples_per_prompt": st.integers(2, 16),
        "max_turns": st.integers(1, 20),
        "learning_rate": st.floats(1e-7, 1e-2),
        "max_ckpts_to_keep": st.integers(1, 5),
    }
)
TOPOLOGY = st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 4, 8]))
LENGTHS = st.fixed_dictionaries(
    {
        "max_prompt_length": st.sampled_from([256, 2_048]),
        "max_input_length": st.sampled_from([128, 256, 2_048, 8_192]),
        "max_generate_length": st.sampled_from([16, 1_024]),
        "tensor_parallel_size": st.sampled_from([1, 2, 3]),
        "vision": st.booleans(),
    }
)
ONLY_OURS = {
    "training.skyrl.max_model_len",
    "training.skyrl.tensor_parallel_size",
    "model.lora.rank",
    "training.max_ckpts_to_keep",
}
"""Known traps: the engines would refuse these and SkyRL does not look, or a single checkpoint would be all there is."""


@budget(max_examples=150, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(NUMBERS, TOPOLOGY, LENGTHS, st.integers(1, 40))
def test_ours_and_skyrls_verdict_agree_on_batch_sizes_lengths_and_engines(
    numbers: dict[str, Any], topology: tuple[int, int], lengths: dict[str, Any], rank: int
) -> None:
    count, gpus = topology
    raw = spec_json(training={"trainer": "skyrl", **numbers, "skyrl": lengths})
    raw["topology"] = {"workers": {"instance_type": "ml.p5.48xlarge", "count": count, "gpus": gpus}}
    raw["model"] |= {"lora": {"rank": rank}}
    ours = check_spec(raw)
    theirs: Exception | None = None
    try:
        accepted_by_skyrl(values_of(RunSpec.model_validate(raw)))
    except Refused as refused:
        theirs = refused
    if isinstance(ours, RunSpec):
        assert theirs is None, f"ours accepts what SkyRL refuses: {theirs}"
    elif theirs is None:
        assert {error.field for error in ours} <= ONLY_OURS, ours


SCALARS = {
    "bool": st.booleans(),
    "int": st.integers(-2, 5),
    "float": st.sampled_from([-1.0, 0.0, 0.5, 2.0]),
    "str": st.sampled_from(["", "none", "1e3", "${oc.env:HOME}", "s3://bucket/x"]),
    "any": st.booleans(),
    "list": st.just("[a]"),
    "dict": st.just("{}"),
}


@st.composite
def one_override(draw: st.DrawFn) -> tuple[str, Any]:
    """Any key of SkyRL with a value of its type, one of its choices, or sometimes a value of another type."""
    key = draw(st.sampled_from(sorted(KEYS)))
    kind = draw(st.sampled_from([KEYS[key]] * 4 + sorted(SCALARS)))
    return key, draw(st.sampled_from(CHOICES[key]) if key in CHOICES and draw(st.booleans()) else SCALARS[kind])


@budget(max_examples=150, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(one_override(), min_size=1, max_size=4).map(dict))
def test_no_override_that_ours_accepts_is_refused_or_changed_by_skyrl(overrides: dict[str, Any]) -> None:
    # Most keys are refused by ours: what is left of a draw once these are taken away is what SkyRL gets to see.
    checked = with_overrides(**overrides)
    if not isinstance(checked, RunSpec):
        refused = {error.field.removeprefix("training.skyrl.overrides.") for error in checked}
        checked = with_overrides(**{key: value for key, value in overrides.items() if key not in refused})
    if isinstance(checked, RunSpec):
        cfg = accepted_by_skyrl(values_of(checked))
        for key, value in checked.training.skyrl.overrides.items():
            assert at(cfg, key) == value, f"{key} does not arrive"


SILENT: dict[str, Any] = {
    "trainer.resume_mode": "bogus",
    "trainer.ckpt_interval": "abc",
    "trainer.logger": "bogus",
    "trainer.resume_path": "/elsewhere",
    "trainer.ckpt_path": "s3://bucket/ckpts",
    "trainer.export_path": "s3://bucket/exports",
    "trainer.policy.model.lora.lora_sync_path": "/tmp/local",
    "trainer.policy.model.lora.exclude_modules": "lm_head",
    "trainer.placement.ref_num_nodes": 7,
    "trainer.max_training_steps": 1,
    "trainer.dump_eval_results": False,
    "trainer.eval_before_train": False,
    "trainer.update_ref_every_epoch": True,
    "trainer.remove_microbatch_padding": True,
    "trainer.algorithm.dynamic_sampling.type": "filter",
    "trainer.gradient_checkpointing": "yes",
    "trainer.algorithm.value_head_prefix": "${oc.env:HOME}",
    "trainer.policy.optimizer_config.max_grad_norm": "high",
    "generator.sampling_params.top_k": 1.5,
    "generator.eval_n_samples_per_prompt": 4,
    "generator.batched": True,
    "generator.inference_engine.enforce_eager": True,
    "generator.inference_engine.engine_init_kwargs.max_lora_rank": 8,
}
"""SkyRL's parser and its check say nothing about these, and fail later or do harm."""


@pytest.mark.parametrize("key", SILENT)
def test_what_skyrl_accepts_and_only_fails_with_later_is_refused_by_name(key: str) -> None:
    spec = skyrl_spec()
    assert isinstance(spec, RunSpec)
    accepted_by_skyrl(values_of(spec) | {key: SILENT[key]})
    refused = with_overrides(**{key: SILENT[key]})
    assert isinstance(refused, list)
    assert [error.field for error in refused] == [f"training.skyrl.overrides.{key}"]


LOUD: dict[str, dict[str, Any]] = {
    "an unknown key": {"trainer.no_such_key": 1},
    "an unknown section": {"nope.key": 1},
    "no checkpoint kept": {"trainer.max_ckpts_to_keep": 0},
    "engines that are not the GPUs": {"generator.inference_engine.num_engines": 7},
    "one tracker without a key": {"trainer.logger": "wandb"},
    "two penalties": {"trainer.algorithm.use_kl_loss": True, "trainer.algorithm.use_kl_in_reward": True},
    "a loss that nobody knows": {"trainer.algorithm.policy_loss_type": "bogus"},
    "an estimator with a critic": {"trainer.algorithm.advantage_estimator": "gae"},
    "a mean without its length": {"trainer.algorithm.loss_reduction": "seq_mean_token_sum_norm"},
    "workers below none": {"data.dataloader.num_workers": -1},
    "workers kept where there are none": {"data.dataloader.persistent_workers": True},
}


@pytest.mark.parametrize("name", LOUD)
def test_what_skyrl_refuses_is_refused_by_name_before_a_cluster_is_there(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    spec = skyrl_spec()
    assert isinstance(spec, RunSpec)
    with pytest.raises(Refused):
        accepted_by_skyrl(values_of(spec) | LOUD[name])
    refused = with_overrides(**LOUD[name])
    assert isinstance(refused, list)
    assert {error.field.removeprefix("training.skyrl.overrides.") for error in refused} <= set(LOUD[name])


def test_a_key_that_skyrl_lacks_is_named_with_one_that_it_has() -> None:
    [refused] = with_overrides(**{"trainer.gradient_checkpoint": False})
    assert "perhaps trainer.gradient_checkpointing" in refused.problem


def test_harmless_overrides_are_passed_on() -> None:
    harmless = {"trainer.gradient_checkpointing": False, "generator.inference_engine.engine_init_kwargs.swap_space": 4}
    spec = with_overrides(**harmless)
    assert isinstance(spec, RunSpec)
    cfg = accepted_by_skyrl(values_of(spec))
    assert {key: at(cfg, key) for key in harmless} == harmless


def test_a_key_that_follows_from_a_field_of_the_spec_cannot_be_overridden_beside_it() -> None:
    """Whatever two specs, differing in every field, set differently, belongs to a field."""
    spec = skyrl_spec()
    other = check_spec(
        spec_json(
            run_id="other",
            training={
                "trainer": "skyrl", "seed": 1, "total_steps": 7, "train_batch_size": 8, "policy_mini_batch_size": 4,
                "micro_train_batch_size_per_gpu": 1, "micro_forward_batch_size_per_gpu": 1, "n_samples_per_prompt": 4,
                "max_turns": 3, "learning_rate": 1e-4, "warmup_steps": 3, "temperature": 1.0, "eval_interval": 3,
                "ckpt_interval": 3, "hf_save_interval": 3, "max_ckpts_to_keep": 3, "gpu_memory_utilization": 0.3,
                "skyrl": {
                    "vision": False, "max_prompt_length": 100, "max_generate_length": 10, "max_input_length": 200,
                    "max_model_len": 300, "tensor_parallel_size": 2, "flash_attn": False, "update_epochs_per_batch": 2,
                },
            },
            model={"source": "/shared/other", "lora": {"rank": 8, "alpha": 8, "target_modules": ".*q_proj"}},
            topology={"workers": {"instance_type": "ml.p5.48xlarge", "count": 2, "gpus": 2}},
            tracking={"tracker": "mlflow", "project": "other", "mlflow_uri": "https://mlflow.example.com"},
        )
    )  # fmt: skip
    assert isinstance(spec, RunSpec)
    assert isinstance(other, RunSpec), other
    one, two = values_of(spec), settings(other, SharedPaths("other"), INPUTS, derive(other, 1_000))
    follows = {key for key in one if one[key] != two[key]}
    assert len(follows) > 30
    for key in sorted(follows):
        refused = with_overrides(**{key: one[key]}) if isinstance(one[key], bool | int | float | str) else None
        assert isinstance(refused, list), f"{key} may be overridden beside the field that sets it"

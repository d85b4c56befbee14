"""Our rules and SkyRL's, over the same specs: what ours accepts SkyRL accepts, and arrives there as it was meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as budget
from hypothesis import strategies as st
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.utils import validate_cfg

from nightshift.contract import RunSpec, SharedPaths
from nightshift.core.admission import check_spec
from tests.builders import spec_json
from training_job.trainers.skyrl.config import Inputs, Value, command_line, derive, settings

ROOT = Path(__file__).resolve().parents[2]
PATHS = SharedPaths("maze-1")
INPUTS = Inputs(Path("/shared/models/base"), Path("/shared/d/train.jsonl"), [Path("/shared/d/fixed.jsonl")])
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def values_of(spec: RunSpec) -> dict[str, Value]:
    return settings(spec, PATHS, INPUTS, derive(spec, 1_000_000))


def accepted_by_skyrl(spec: RunSpec) -> SkyRLTrainConfig:
    cfg = SkyRLTrainConfig.from_cli_overrides(command_line(values_of(spec)))
    validate_cfg(cfg)
    return cfg


def at(cfg: Any, key: str) -> Any:
    for part in key.split("."):
        cfg = cfg[part] if isinstance(cfg, dict) else getattr(cfg, part)
    return cfg


def skyrl_spec(**training: Any) -> RunSpec | list[Any]:
    return check_spec(spec_json(training={"trainer": "skyrl", **training}))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_accepted_by_both(path: Path) -> None:
    raw = yaml.safe_load(path.read_text())
    raw["training"]["trainer"] = "skyrl"
    spec = check_spec(raw)
    assert isinstance(spec, RunSpec), spec
    accepted_by_skyrl(spec)


def test_every_value_arrives_with_its_type() -> None:
    spec = skyrl_spec(skyrl={"overrides": {"generator.sampling_params.top_p": 0.9, "trainer.tags": "1e3"}})
    assert isinstance(spec, RunSpec)
    cfg = SkyRLTrainConfig.from_cli_overrides(command_line(values_of(spec)))
    for key, value in values_of(spec).items():
        assert (at(cfg, key), type(at(cfg, key))) == (value, type(value)), key


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


@budget(max_examples=250, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(NUMBERS, TOPOLOGY, LENGTHS)
def test_ours_and_skyrls_verdict_agree_on_batch_sizes_lengths_and_engines(
    numbers: dict[str, Any], topology: tuple[int, int], lengths: dict[str, Any]
) -> None:
    count, gpus = topology
    raw = spec_json(training={"trainer": "skyrl", **numbers, "skyrl": lengths})
    raw["topology"] = {"workers": {"instance_type": "ml.p5.48xlarge", "count": count, "gpus": gpus}}
    ours = check_spec(raw)
    theirs: Exception | None = None
    try:
        accepted_by_skyrl(RunSpec.model_validate(raw))
    except (AssertionError, ValueError, StopIteration) as refused:
        theirs = refused
    if isinstance(ours, RunSpec):
        assert theirs is None, f"ours accepts what SkyRL refuses: {theirs}"
    elif theirs is None:
        # What only ours refuses must be a known trap, by its field.
        fields = {error.field for error in ours}
        assert fields <= {"training.skyrl.max_model_len", "training.skyrl.tensor_parallel_size"}, ours


ACCEPTED_BUT_WRONG = {
    "trainer.resume_mode": "bogus",
    "trainer.ckpt_interval": "abc",
    "trainer.logger": "bogus",
    "trainer.resume_path": "/elsewhere",
    "trainer.ckpt_path": "s3://bucket/ckpts",
    "trainer.policy.model.lora.lora_sync_path": "/tmp/local",
    "trainer.placement.policy_num_nodes": 7,
    "trainer.max_training_steps": 1,
    "generator.eval_n_samples_per_prompt": 4,
}


@pytest.mark.parametrize(("key", "value"), ACCEPTED_BUT_WRONG.items(), ids=ACCEPTED_BUT_WRONG)
def test_what_skyrl_would_accept_and_only_fail_with_later_is_refused_by_name(key: str, value: Any) -> None:
    if key in ("trainer.resume_mode", "trainer.ckpt_interval", "trainer.logger"):
        spec = skyrl_spec()
        assert isinstance(spec, RunSpec)
        line = command_line(values_of(spec) | {key: value})
        validate_cfg(SkyRLTrainConfig.from_cli_overrides(line))  # SkyRL itself says nothing
    refused = skyrl_spec(skyrl={"overrides": {key: value}})
    assert isinstance(refused, list)
    assert [error.field for error in refused] == [f"training.skyrl.overrides.{key}"]


def test_a_harmless_override_is_passed_on_and_a_key_that_skyrl_lacks_is_named() -> None:
    spec = skyrl_spec(skyrl={"overrides": {"trainer.gradient_checkpointing": False}})
    assert isinstance(spec, RunSpec)
    assert accepted_by_skyrl(spec).trainer.gradient_checkpointing is False
    unknown = skyrl_spec(skyrl={"overrides": {"trainer.no_such_key": 1}})
    assert isinstance(unknown, RunSpec), "only SkyRL knows its keys"
    with pytest.raises(ValueError, match="no_such_key"):
        accepted_by_skyrl(unknown)

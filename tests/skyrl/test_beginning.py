"""A policy that begins with another run's adapter: SkyRL's own worker class, model wrapper and shards, on one rank and on two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from skyrl.train.trainer import RayPPOTrainer

from tests.skyrl.rig import MemoryStore, Rig, tiny
from training_job.trainers.skyrl.beginning import beginning_with, load_adapter
from training_job.trainers.skyrl.hooks import HookedTrainer


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(folder / "adapter_model.safetensors"))


def test_two_ranks_that_begin_with_an_export_hold_it_and_train_on_from_there(two_ranks: Path) -> None:
    exported, begun, stepped = (weights(two_ranks / name) for name in ("export", "begun", "stepped"))
    assert exported.keys() == begun.keys() == stepped.keys()
    assert all(exported[name].equal(begun[name]) for name in exported), "not a bit is another one"
    moved = [name for name in exported if not stepped[name].equal(begun[name])]
    assert moved == list(exported), "the optimizer trains these very tensors"
    far = max(float((stepped[name] - begun[name]).abs().max()) for name in moved)
    assert far < 1e-3, "one step from the parent's weights, and not one from fresh ones"


@pytest.fixture
def worker() -> Any:
    """What SkyRL would make actors of."""
    import tests.skyrl.fsdp  # noqa: F401  (SkyRL's strategy needs a stand-in for flash-attn at its import)

    return beginning_with


def test_the_policy_worker_is_skyrls_and_loads_the_adapter_once_its_model_is_there(
    worker: Any, base: Path, two_ranks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft import LoraConfig, get_peft_model
    from ray import cloudpickle
    from ray.actor import ActorClass
    from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import FSDPPolicyWorkerBase
    from transformers import Qwen3VLForConditionalGeneration

    class Wrapped:
        model: Any = None

    def made(self: Any, model_path: str, num_training_steps: int | None = None) -> None:
        form = LoraConfig(r=8, lora_alpha=32, target_modules="all-linear", exclude_modules=".*visual.*")
        self.model = Wrapped()
        self.model.model = get_peft_model(Qwen3VLForConditionalGeneration.from_pretrained(model_path), form)

    monkeypatch.setattr(FSDPPolicyWorkerBase, "init_model", made)
    actor = worker(two_ranks / "export")
    assert isinstance(actor, ActorClass)
    kind = cloudpickle.loads(cloudpickle.dumps(actor.__ray_metadata__.modified_class))  # as it reaches a node
    assert issubclass(kind, FSDPPolicyWorkerBase)
    one = kind.__new__(kind)
    one.init_model(str(base), num_training_steps=10)
    held = dict(one.model.model.named_parameters())
    for name, value in weights(two_ranks / "export").items():
        assert held[name.replace(".weight", ".default.weight")].equal(value)


def test_only_a_run_that_begins_with_an_adapter_has_another_worker_than_skyrls(
    tmp_path: Path, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Any] = []
    monkeypatch.setattr(RayPPOTrainer, "build_models", lambda self, *workers: built.append(workers))
    rig = Rig(tiny(), tmp_path, MemoryStore())
    trainer: HookedTrainer = rig.trainer(0)
    trainer.build_models("policy", "critic", "ref")
    trainer._begin = tmp_path
    trainer.build_models("policy", "critic", "ref")
    assert built[0] == ("policy", "critic", "ref")
    assert built[1][1:] == ("critic", "ref") and built[1][0] != "policy"


def test_an_adapter_of_other_layers_or_shapes_is_refused_and_nothing_is_written(
    base: Path, two_ranks: Path, tmp_path: Path
) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3VLForConditionalGeneration

    form = LoraConfig(r=8, lora_alpha=32, target_modules="all-linear", exclude_modules=".*visual.*")
    model = get_peft_model(Qwen3VLForConditionalGeneration.from_pretrained(base), form)
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    saved = weights(two_ranks / "export")
    first = next(iter(saved))
    for spoiled in (
        {**saved, first: saved[first][:4].clone()},
        {n: v for n, v in saved.items() if n != first},
        {"x": saved[first]},
    ):
        save_file(spoiled, tmp_path / "adapter_model.safetensors")
        with pytest.raises(ValueError, match="other layers than the model"):
            load_adapter(model, tmp_path)
    assert all(one.equal(before[name]) for name, one in model.named_parameters())

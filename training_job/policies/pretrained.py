"""The small policies as transformers models, and LoRA through PEFT. Slow to import: only training and loading do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from training_job.policies import WEIGHTS_PREFIX, lora_of_state, read_config
from training_job.policies.nets import Net, new_net


class MazePolicyConfig(PretrainedConfig):  # type: ignore[no-untyped-call]  # untyped there
    model_type = "maze_policy"

    def __init__(
        self,
        channels: int = 48,
        iterations: int = 10,
        grid: int = 9,
        patch: int = 3,
        replies: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        self.channels, self.iterations, self.grid, self.patch = channels, iterations, grid, patch
        self.replies = list(replies)
        super().__init__(**kwargs)


class TextPolicyConfig(PretrainedConfig):  # type: ignore[no-untyped-call]  # untyped there
    model_type = "text_policy"

    def __init__(self, buckets: int = 64, channels: int = 16, replies: Sequence[str] = (), **kwargs: Any) -> None:
        self.buckets, self.channels = buckets, channels
        self.replies = list(replies)
        super().__init__(**kwargs)


class _Policy(PreTrainedModel):  # type: ignore[no-untyped-call]  # untyped there
    """A ``Net`` that transformers can save and load and PEFT can adapt."""

    main_input_name = "inputs"
    base_model_prefix = ""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.net: Net = new_net(config.to_dict())
        self.post_init()  # type: ignore[no-untyped-call]  # untyped there

    def _init_weights(self, module: nn.Module) -> None:
        """The net has initialised itself."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (batch, replies)."""
        logits: Tensor = self.net(inputs)
        return logits


class MazePolicy(_Policy):  # type: ignore[no-untyped-call]  # untyped there
    config_class = MazePolicyConfig


class TextPolicy(_Policy):  # type: ignore[no-untyped-call]  # untyped there
    config_class = TextPolicyConfig


_CONFIGS: dict[str, type[PretrainedConfig]] = {"maze_policy": MazePolicyConfig, "text_policy": TextPolicyConfig}
_POLICIES: dict[str, type[_Policy]] = {"maze_policy": MazePolicy, "text_policy": TextPolicy}


def load_policy(folder: Path) -> _Policy:
    """The base model of a folder. Raises UnknownModel for a kind that the local trainer does not know."""
    return _POLICIES[read_config(folder)["model_type"]].from_pretrained(folder)


def save_policy(net: Net, config: dict[str, Any], folder: Path) -> None:
    """Write a plain module as a transformers model: config.json and model.safetensors."""
    kind = _POLICIES[config["model_type"]]
    policy = kind(_CONFIGS[config["model_type"]](**config))
    policy.net.load_state_dict(net.state_dict())
    policy.save_pretrained(folder)


def attach_lora(base: _Policy, rank: int, alpha: int, seed: int) -> PeftModel:
    """Freeze the base and add fresh adapters, initialised from ``seed``."""
    torch.manual_seed(seed)
    targets = [WEIGHTS_PREFIX + name for name in base.net.lora_targets]
    return cast(
        PeftModel, get_peft_model(base, LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=targets))
    )


def lora_weights(policy: PeftModel) -> dict[str, tuple[Tensor, Tensor]]:
    """Copies of the adapter's tensors (A: rank x in, B: out x rank) by the name of the layer in the torch module."""
    found = lora_of_state(policy.state_dict())
    return {layer: (a.detach().clone(), b.detach().clone()) for layer, (a, b) in found.items()}

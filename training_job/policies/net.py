"""What every small policy offers, and LoRA weights as plain tensors."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

_LORA_KEY = re.compile(r"^base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.(?:default\.)?weight$")

LoraWeights = Mapping[str, tuple[Tensor, Tensor]]
"""Module name -> (A: rank x in, B: out x rank), float32."""


class Net(nn.Module, ABC):
    """Chooses among a closed list of replies, by the newest observation.

    ``lora_targets`` names the linear layers that LoRA adapts.
    """

    lora_targets: ClassVar[tuple[str, ...]]

    @abstractmethod
    def read(self, messages: Sequence[Mapping[str, Any]]) -> bytes:
        """What the policy sees of an observation (chat messages); equal observations give equal bytes."""

    @abstractmethod
    def batch(self, seen: Sequence[bytes]) -> Tensor:
        """Results of ``read`` as one input of ``forward``."""

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (batch, replies), float32."""


def base_weights(net: Net) -> dict[str, Tensor]:
    """Copies of the weights that LoRA adapts: module name -> (out, in)."""
    return {name: net.get_submodule(name).weight.detach().clone() for name in net.lora_targets}  # type: ignore[operator]


@torch.no_grad()
def merge_lora(net: Net, base: Mapping[str, Tensor], lora: LoraWeights, scale: float) -> None:
    """Set each adapted layer's weight to base + scale * B A; an empty ``lora`` gives the base back.

    The only place where weights are merged: the same tensors give the same bits in every process.
    """
    for name, weight in base.items():
        target = net.get_submodule(name).weight
        if name in lora:
            a, b = lora[name]
            target.copy_(weight + scale * (b @ a))  # type: ignore[operator]
        else:
            target.copy_(weight)  # type: ignore[operator]


def lora_of_state(state: Mapping[str, Tensor], prefix: str = "net.") -> dict[str, tuple[Tensor, Tensor]]:
    """The adapter within a PEFT model's state, by module name; reads the keys of saved adapters as well."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in state.items():
        match = _LORA_KEY.match(key)
        if match:
            found.setdefault(match["module"].removeprefix(prefix), {})[match["side"]] = value
    return {module: (sides["A"], sides["B"]) for module, sides in found.items()}

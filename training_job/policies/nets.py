"""The small policies as torch modules: what training changes. Slow to import.

Their parameters have the names and shapes that the players of this package read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Net(nn.Module, ABC):
    """Logits over a closed list of replies. ``lora_targets`` names the linear layers that LoRA adapts."""

    lora_targets: ClassVar[tuple[str, ...]]

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (batch, replies), float32, of what the player's ``batch`` gives."""


class MazeNet(Net):
    """Patches of the picture are embedded and gathered into 4x4 rooms; a message-passing block with shared weights is
    applied ``iterations`` times (it can learn to carry the distance to the target from room to room); attention pooling
    reads the action. 38,742 parameters at 48 channels.

    ``config``: channels, iterations, grid (cells a side), patch (pixels a cell's side), replies.
    """

    lora_targets = ("patch_embed", "room_embed", "message", "pool", "action_head")

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.grid, self.patch = int(config["grid"]), int(config["patch"])
        self.rooms = (self.grid - 1) // 2
        self.iterations = int(config["iterations"])
        width = int(config["channels"])
        self.patch_embed = nn.Linear(3 * self.patch * self.patch, width)
        self.room_embed = nn.Linear(9 * width, width)
        self.message = nn.Linear(6 * width, width)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 1)
        self.pool = nn.Linear(width, width)
        self.action_head = nn.Linear(width, len(config["replies"]))
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, replies) of pictures uint8 (B, side, side, 3)."""
        seen = self._see_rooms(self._see_patches(inputs))
        state = torch.relu(seen)
        for _ in range(self.iterations):
            state = self.norm(state + torch.relu(self.message(self._gather(state, seen))))
        rooms = state.flatten(1, 2)
        weights = self.attention(rooms).softmax(dim=1)
        pooled = (weights * torch.relu(self.pool(rooms))).sum(dim=1)
        logits: Tensor = self.action_head(pooled)
        return logits

    def _see_patches(self, pixels: Tensor) -> Tensor:
        """Embed every patch: (B, grid, grid, C)."""
        count, grid, patch = pixels.shape[0], self.grid, self.patch
        values = pixels.to(torch.float32) / 127.5 - 1.0
        squares = values.view(count, grid, patch, grid, patch, 3).permute(0, 1, 3, 2, 4, 5)
        return torch.relu(self.patch_embed(squares.reshape(count, grid, grid, -1)))

    def _see_rooms(self, patches: Tensor) -> Tensor:
        """Embed the 3x3 patches round every room: (B, rooms, rooms, C)."""
        windows = patches.unfold(1, 3, 2).unfold(2, 3, 2)
        embedded: Tensor = self.room_embed(windows.reshape(*windows.shape[:3], -1))
        return embedded

    def _gather(self, state: Tensor, seen: Tensor) -> Tensor:
        """Each room's state, its four neighbours' states, and what was seen there."""
        around = nn.functional.pad(state, (0, 0, 1, 1, 1, 1))
        inner = slice(1, self.rooms + 1)
        right, up = around[:, inner, 2:], around[:, : self.rooms, inner]
        left, down = around[:, inner, : self.rooms], around[:, 2:, inner]
        return torch.cat((state, right, up, left, down, seen), dim=-1)


class TextNet(Net):
    """Two hidden layers over counts of hashed words. ``config``: buckets (of the hash), channels, replies."""

    lora_targets = ("embed", "hidden", "reply_head")

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width = int(config["channels"])
        self.embed = nn.Linear(int(config["buckets"]), width)
        self.hidden = nn.Linear(width, width)
        self.reply_head = nn.Linear(width, len(config["replies"]))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, replies) of counts float32 (B, buckets)."""
        logits: Tensor = self.reply_head(torch.relu(self.hidden(torch.relu(self.embed(inputs)))))
        return logits


_NETS: Mapping[str, type[Net]] = {"maze_policy": MazeNet, "text_policy": TextNet}


def new_net(config: Mapping[str, Any]) -> Net:
    """The module of a configuration, with fresh weights."""
    return _NETS[config["model_type"]](config)

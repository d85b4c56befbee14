"""A small vision policy: a picture of a maze in, logits over five replies out. It sees only pixels.

Patches of the picture are embedded and gathered into 4x4 rooms; a message-passing block with shared weights is applied
``iterations`` times (it can learn to carry the distance to the target from room to room); attention pooling reads the
action. 38,742 parameters at 48 channels.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor, nn

from training_job.policies.net import Net

_DATA_URL: Final = "data:image/png;base64,"


class MazeNet(Net):
    """``config``: channels, iterations, grid (cells a side), patch (pixels a cell's side), replies."""

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

    @property
    def side(self) -> int:
        """Pixels a side of the pictures that this policy reads."""
        return self.grid * self.patch

    def read(self, messages: Sequence[Mapping[str, Any]]) -> bytes:
        """The pixels of the newest picture. Raises ValueError for messages without one of the right size."""
        for message in reversed(messages):
            for part in message["content"] if isinstance(message["content"], list) else ():
                if part.get("type") == "image_url":
                    return _pixels(part["image_url"]["url"], self.side)
        raise ValueError("the maze policy needs a picture in its messages and found none")

    def batch(self, seen: Sequence[bytes]) -> Tensor:
        """uint8 (B, side, side, 3)."""
        pixels = np.frombuffer(b"".join(seen), dtype=np.uint8)
        return torch.from_numpy(pixels.reshape(len(seen), self.side, self.side, 3).copy())

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


@lru_cache(maxsize=20_000)
def _pixels(url: str, side: int) -> bytes:
    """RGB bytes of a PNG data URL; cached, as the samples of a group see the same pictures."""
    if not url.startswith(_DATA_URL):
        raise ValueError("the maze policy reads PNG pictures in data URLs only")
    try:
        image = Image.open(io.BytesIO(base64.b64decode(url[len(_DATA_URL) :], validate=True)))
        if image.size != (side, side):
            raise ValueError(f"the maze policy reads pictures of {side}x{side} pixels, not {image.size}")
        return image.convert("RGB").tobytes()
    except (UnidentifiedImageError, binascii.Error) as error:
        raise ValueError(f"the picture cannot be read: {error}") from error

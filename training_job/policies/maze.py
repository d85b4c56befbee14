"""The maze policy for rollouts: a picture of a maze in, logits over its replies out. It sees only pixels."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from PIL.PngImagePlugin import PngImageFile

from training_job.policies.player import Floats, Player, layer_norm, relu, softmax

_DATA_URL: Final = "data:image/png;base64,"


class MazePlayer(Player):
    """``MazeNet`` in numpy. ``config``: iterations, grid (cells a side), patch (pixels a cell's side)."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Floats]) -> None:
        super().__init__(config, weights)
        self.grid, self.patch = int(config["grid"]), int(config["patch"])
        self.iterations = int(config["iterations"])

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

    def batch(self, seen: Sequence[bytes]) -> NDArray[np.uint8]:
        """uint8 (B, side, side, 3)."""
        pixels = np.frombuffer(bytearray(b"".join(seen)), dtype=np.uint8)
        return pixels.reshape(len(seen), self.side, self.side, 3)

    def logits(self, inputs: NDArray[np.uint8]) -> Floats:
        """(B, replies) of pictures uint8 (B, side, side, 3)."""
        seen = self._see_rooms(self._see_patches(inputs))
        norm = self._weights["norm.weight"], self._weights["norm.bias"]
        state = relu(seen)
        for _ in range(self.iterations):
            state = layer_norm(state + relu(self.linear("message", self._gather(state, seen))), *norm)
        rooms = state.reshape(len(inputs), -1, state.shape[-1])
        weights = softmax(self.linear("attention", rooms), axis=1)
        pooled: Floats = (weights * relu(self.linear("pool", rooms))).sum(axis=1)
        return self.linear("action_head", pooled)

    def _see_patches(self, pixels: NDArray[np.uint8]) -> Floats:
        """Embed every patch: (B, grid, grid, C)."""
        count, grid, patch = len(pixels), self.grid, self.patch
        values = pixels.astype(np.float32) / np.float32(127.5) - np.float32(1)
        squares = values.reshape(count, grid, patch, grid, patch, 3).transpose(0, 1, 3, 2, 4, 5)
        return relu(self.linear("patch_embed", squares.reshape(count, grid, grid, -1)))

    def _see_rooms(self, patches: Floats) -> Floats:
        """Embed the 3x3 patches round every room: (B, rooms, rooms, C)."""
        windows = sliding_window_view(patches, (3, 3), axis=(1, 2))[:, ::2, ::2]
        return self.linear("room_embed", windows.reshape(*windows.shape[:3], -1))

    @staticmethod
    def _gather(state: Floats, seen: Floats) -> Floats:
        """Each room's state, its four neighbours' states, and what was seen there."""
        count, rooms, _, width = state.shape
        around = np.zeros((count, rooms + 2, rooms + 2, width), dtype=np.float32)
        inner = slice(1, rooms + 1)
        around[:, inner, inner] = state
        right, up = around[:, inner, 2:], around[:, :rooms, inner]
        left, down = around[:, inner, :rooms], around[:, 2:, inner]
        return np.concatenate((state, right, up, left, down, seen), axis=-1)


@lru_cache(maxsize=20_000)
def _pixels(url: str, side: int) -> bytes:
    """RGB bytes of a PNG data URL; cached, as the samples of a group see the same pictures."""
    if not url.startswith(_DATA_URL):
        raise ValueError("the maze policy reads PNG pictures in data URLs only")
    try:
        image = PngImageFile(io.BytesIO(base64.b64decode(url[len(_DATA_URL) :], validate=True)))
        if image.size != (side, side):
            raise ValueError(f"the maze policy reads pictures of {side}x{side} pixels, not {image.size}")
        return image.convert("RGB").tobytes()
    except (OSError, SyntaxError, binascii.Error) as error:  # pillow raises SyntaxError for what is no PNG
        raise ValueError(f"the picture cannot be read: {error}") from error

"""A tiny text policy: hashed words of the newest message in, logits over a closed list of replies out."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from training_job.policies.net import Net

_WORD: Final = re.compile(r"\w+|[^\w\s]")


class TextNet(Net):
    """``config``: buckets (of the hashed words), channels, replies."""

    lora_targets = ("embed", "hidden", "reply_head")

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.buckets = int(config["buckets"])
        width = int(config["channels"])
        self.embed = nn.Linear(self.buckets, width)
        self.hidden = nn.Linear(width, width)
        self.reply_head = nn.Linear(width, len(config["replies"]))

    def read(self, messages: Sequence[Mapping[str, Any]]) -> bytes:
        """How often each bucket's words occur in the newest message, float32."""
        return _word_counts(_text_of(messages[-1]["content"]), self.buckets)

    def batch(self, seen: Sequence[bytes]) -> Tensor:
        """float32 (B, buckets)."""
        counts = np.frombuffer(b"".join(seen), dtype=np.float32)
        return torch.from_numpy(counts.reshape(len(seen), self.buckets).copy())

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, replies)."""
        logits: Tensor = self.reply_head(torch.relu(self.hidden(torch.relu(self.embed(inputs)))))
        return logits


def _text_of(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content if part.get("type") == "text")


@lru_cache(maxsize=20_000)
def _word_counts(text: str, buckets: int) -> bytes:
    counts = np.zeros(buckets, dtype=np.float32)
    for word in _WORD.findall(text.lower()):
        counts[zlib.crc32(word.encode()) % buckets] += 1.0
    return counts.tobytes()

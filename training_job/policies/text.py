"""A tiny text policy for rollouts: hashed words of the newest message in, logits over its replies out."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from training_job.policies.player import Floats, Player, relu

_WORD: Final = re.compile(r"\w+|[^\w\s]")


class TextPlayer(Player):
    """``TextNet`` in numpy. ``config``: buckets (of the hashed words)."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Floats]) -> None:
        super().__init__(config, weights)
        self.buckets = int(config["buckets"])

    def read(self, messages: Sequence[Mapping[str, Any]]) -> bytes:
        """How often each bucket's words occur in the newest message, float32."""
        return _word_counts(_text_of(messages[-1]["content"]), self.buckets)

    def batch(self, seen: Sequence[bytes]) -> NDArray[np.float32]:
        """float32 (B, buckets)."""
        return np.frombuffer(bytearray(b"".join(seen)), dtype=np.float32).reshape(len(seen), self.buckets)

    def logits(self, inputs: NDArray[np.float32]) -> Floats:
        """(B, replies)"""
        return self.linear("reply_head", relu(self.linear("hidden", relu(self.linear("embed", inputs)))))


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

"""Episodes to play and episodes played. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Episode:
    """One episode to play. ``dice`` seeds its random choices; None plays the most likely replies."""

    row: dict[str, Any]
    dice: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Played:
    """Episodes in the order asked for; N episodes, T turns at most, F different observations.

    Only what is exact is in here: replies, rewards and observations. Log-probabilities are left out: logits move in
    their last bits with the size of a batch, and the trainer computes its own.
    """

    replies: NDArray[np.int16]
    """(N, T): number of the reply; -1 after the end."""
    seen: NDArray[np.int32]
    """(N, T): which observation the reply answers; -1 after the end."""
    rewards: NDArray[np.float64]
    """(N, T)"""
    observations: tuple[bytes, ...]
    """(F): as ``Net.read`` gives them."""
    stops: tuple[str, ...]
    """(N): ``stop`` where the environment ended the episode, ``length`` where the turns ran out."""
    prompts: tuple[str, ...]
    """(N): the first messages as text, pictures left out."""

    @property
    def turns(self) -> NDArray[np.int64]:
        """(N): replies given."""
        counts: NDArray[np.int64] = (self.replies >= 0).sum(axis=1)
        return counts

    @property
    def scores(self) -> NDArray[np.float64]:
        """(N): sums of the rewards."""
        sums: NDArray[np.float64] = self.rewards.sum(axis=1)
        return sums


def join(parts: Sequence[Played]) -> Played:
    """The parts one after the other."""
    offsets = np.cumsum([0, *(len(part.observations) for part in parts)])
    seen = [np.where(part.seen >= 0, part.seen + shift, -1) for part, shift in zip(parts, offsets, strict=False)]
    return Played(
        np.concatenate([part.replies for part in parts]),
        np.concatenate(seen).astype(np.int32),
        np.concatenate([part.rewards for part in parts]),
        tuple(one for part in parts for one in part.observations),
        tuple(one for part in parts for one in part.stops),
        tuple(one for part in parts for one in part.prompts),
    )

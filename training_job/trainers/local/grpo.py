"""The arithmetic of GRPO on arrays: advantages, log-probabilities, the clipped surrogate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training_job.trainers.local.episodes import Played

_TINY = 1e-6


def group_advantages(scores: NDArray[np.float64], group: int) -> NDArray[np.float32]:
    """Scores (prompts * group) less their group's mean, over the group's standard deviation; 0 where all are equal."""
    grouped = scores.reshape(-1, group)
    centred = grouped - grouped.mean(axis=1, keepdims=True)
    even = np.ptp(grouped, axis=1, keepdims=True) < _TINY
    spread = np.where(even, 1.0, grouped.std(axis=1, keepdims=True) + _TINY)
    return np.where(even, 0.0, centred / spread).reshape(-1).astype(np.float32)


@dataclass(frozen=True)
class Choices:
    """What updates are made of, one row a reply that teaches: from groups whose scores differ."""

    prompt: NDArray[np.int64]
    """(R): number of the prompt within the batch."""
    seen: NDArray[np.int64]
    """(R): number of the observation."""
    reply: Tensor
    """(R) int64"""
    advantage: Tensor
    """(R) float32"""

    def __len__(self) -> int:
        return len(self.seen)


def teaching_choices(played: Played, advantages: NDArray[np.float32], group: int) -> Choices:
    """The replies of all trajectories with an advantage."""
    useful = np.flatnonzero(advantages)
    row, turn = np.nonzero(played.replies[useful] >= 0)
    trajectory = useful[row]
    return Choices(
        trajectory // group,
        played.seen[trajectory, turn].astype(np.int64),
        torch.from_numpy(played.replies[trajectory, turn].astype(np.int64)),
        torch.from_numpy(advantages[trajectory]),
    )


Batch = Callable[[Sequence[bytes]], NDArray[Any]]
"""Observations as one input of the policy."""


def reply_log_probs(
    policy: torch.nn.Module, batch: Batch, played: Played, choices: Choices, rows: NDArray[np.int64], temperature: float
) -> Tensor:
    """(len(rows)): log-probabilities of the replies; each different observation is worth one forward pass."""
    different, place = np.unique(choices.seen[rows], return_inverse=True)
    logits = policy(torch.from_numpy(batch([played.observations[i] for i in different])))
    log_probs: Tensor = (logits / temperature).log_softmax(dim=1)
    return log_probs[torch.from_numpy(place), choices.reply[torch.from_numpy(rows)]]


def clipped_loss(new: Tensor, old: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """The PPO surrogate to minimise, summed over replies."""
    ratio = (new - old).exp()
    return -torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages).sum()

"""Playing episodes: environments, a policy, and what comes of them. Knows no task.

Everything random in an episode comes from its own seed, so that an episode is the same wherever it is played.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from training_job.plug import TaskPlan
from training_job.policies.net import Net


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


class _Book:
    """Numbers different observations, and asks the policy about each only once: its weights do not change meanwhile."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self.numbers: dict[bytes, int] = {}
        self._logits: list[NDArray[np.float32]] = []

    def look(self, seen: Sequence[bytes]) -> tuple[list[int], NDArray[np.float32]]:
        """Numbers of observations, and their logits (len(seen), replies)."""
        fresh = [one for one in dict.fromkeys(seen) if one not in self.numbers]
        if fresh:
            self._logits.extend(self._net(self._net.batch(fresh)).numpy())
            self.numbers.update(zip(fresh, range(len(self.numbers), len(self._logits)), strict=True))
        numbers = [self.numbers[one] for one in seen]
        return numbers, np.stack([self._logits[number] for number in numbers])


def _noise(dice: tuple[int, ...] | None, turns: int, replies: int) -> NDArray[np.float32]:
    """(turns, replies): Gumbel noise, whose argmax with the logits is a sample of the softmax."""
    if dice is None:
        return np.zeros((turns, replies), dtype=np.float32)
    return np.random.default_rng(dice).gumbel(size=(turns, replies)).astype(np.float32)


def _as_text(messages: Sequence[dict[str, Any]]) -> str:
    lines = []
    for message in messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        words = [part["text"] if part.get("type") == "text" else "<image>" for part in parts]
        lines.append(f"{message['role']}: {' '.join(words)}")
    return "\n".join(lines)


@torch.no_grad()
def play(net: Net, replies: Sequence[str], task: TaskPlan, episodes: Sequence[Episode], temperature: float) -> Played:
    """Play all episodes side by side, one forward pass a turn over the observations that are new in that turn."""
    count, turns = len(episodes), task.max_turns
    make = task.environment_class()
    envs = [make(env_config=task.config, extras={**e.row, "max_turns": turns}) for e in episodes]
    opened = [env.init(list(e.row.get("prompt", [])))[0] for env, e in zip(envs, episodes, strict=True)]
    noise = np.stack([_noise(e.dice, turns, len(replies)) for e in episodes])
    chosen = np.full((count, turns), -1, dtype=np.int16)
    seen = np.full((count, turns), -1, dtype=np.int32)
    rewards = np.zeros((count, turns), dtype=np.float64)
    stops = ["length"] * count
    book = _Book(net)
    newest = {i: net.read(messages) for i, messages in enumerate(opened)}
    for turn in range(turns):
        if not newest:
            break
        live = list(newest)
        seen[live, turn], logits = book.look(list(newest.values()))
        chosen[live, turn] = (logits / temperature + noise[live, turn]).argmax(axis=1)
        newest = {}
        for i in live:
            result = envs[i].step(replies[chosen[i, turn]])
            rewards[i, turn] = result["reward"]
            if not result["done"]:
                newest[i] = net.read(result["observations"])
            elif result["metadata"].get("terminated", turn + 1 < turns):
                stops[i] = "stop"
    for env in envs:
        env.close()
    prompts = tuple(map(_as_text, opened))
    return Played(chosen, seen, rewards, tuple(book.numbers), tuple(stops), prompts)

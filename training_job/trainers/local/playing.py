"""Playing episodes: environments and a policy. Knows no task.

Everything random in an episode comes from its own dice, so that an episode is the same wherever it is played.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training_job.plug import TaskPlan
from training_job.policies.player import Player
from training_job.trainers.local.episodes import Episode, Played


class _Book:
    """Numbers different observations, and asks the policy about each only once: its weights do not change meanwhile."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self.numbers: dict[bytes, int] = {}
        self._logits: list[NDArray[np.float32]] = []

    def look(self, seen: Sequence[bytes]) -> tuple[list[int], NDArray[np.float32]]:
        """Numbers of observations, and their logits (len(seen), replies)."""
        fresh = [one for one in dict.fromkeys(seen) if one not in self.numbers]
        if fresh:
            self._logits.extend(self._player.logits(self._player.batch(fresh)))
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


def play(
    player: Player, replies: Sequence[str], task: TaskPlan, episodes: Sequence[Episode], temperature: float
) -> Played:
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
    book = _Book(player)
    newest = {i: player.read(messages) for i, messages in enumerate(opened)}
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
                newest[i] = player.read(result["observations"])
            elif result["metadata"].get("terminated", turn + 1 < turns):
                stops[i] = "stop"
    for env in envs:
        env.close()
    prompts = tuple(map(_as_text, opened))
    return Played(chosen, seen, rewards, tuple(book.numbers), tuple(stops), prompts)

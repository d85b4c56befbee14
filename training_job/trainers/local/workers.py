"""Rollout workers: one Ray actor on each worker node, and the pool that spreads episodes over them.

Shards depend on the number of workers alone, never on timing. A worker has no restarts: its death ends the attempt, and
a new attempt resumes from the last checkpoint.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from training_job.errors import WorkerLost
from training_job.plug import TaskPlan

if TYPE_CHECKING:
    from training_job.policies.player import LoraArrays
    from training_job.trainers.local.episodes import Episode, Played

START_SECONDS: Final = 180.0
"""Deadline for all workers to have started: nodes may still be joining."""

ROLLOUT_SECONDS: Final = 600.0
"""Deadline for one batch of episodes: a vanished node is noticed long before."""


@dataclass(frozen=True)
class WorkerPlan:
    """What a worker needs to know for its whole life."""

    task: TaskPlan
    model: str
    lora_scale: float


class RolloutWorker:
    """Holds a player and plays the episodes that it is given. One thread, and no torch: it must start fast."""

    def __init__(self, plan: WorkerPlan) -> None:
        # Nothing here can fail: Ray hides the kind of an exception that a constructor raises.
        os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        self._plan = plan

    def load(self) -> str:
        """Load the model and the task; returns the name of the computer."""
        from training_job.policies import closed_replies, load_player, read_config

        self._plan.task.activate()
        self._plan.task.environment_class()
        folder = Path(self._plan.model)
        self._replies = closed_replies(read_config(folder))
        self._player = load_player(folder)
        return platform.node()

    def play(self, lora: LoraArrays, episodes: Sequence[Episode], temperature: float) -> Played:
        """Play with the adapter's newest weights."""
        from training_job.trainers.local.playing import play

        self._player.use_lora(lora, self._plan.lora_scale)
        return play(self._player, self._replies, self._plan.task, episodes, temperature)


def split(episodes: Sequence[Episode], count: int) -> list[Sequence[Episode]]:
    """At most ``count`` shards of neighbouring episodes, none empty; the same for the same numbers."""
    bounds = [len(episodes) * i // count for i in range(count + 1)]
    return [episodes[a:b] for a, b in pairwise(bounds) if a < b]


class LocalPool:
    """Plays in this process, shard by shard: the same numbers as ``Pool`` with ``count`` workers, without Ray."""

    def __init__(self, plan: WorkerPlan, count: int) -> None:
        self._worker, self._count = RolloutWorker(plan), count
        self._worker.load()

    def play(self, lora: LoraArrays, episodes: Sequence[Episode], temperature: float) -> Played:
        """Play all episodes."""
        from training_job.trainers.local.episodes import join

        return join([self._worker.play(lora, shard, temperature) for shard in split(episodes, self._count)])


class Pool:
    """All rollout workers of an attempt."""

    def __init__(self, workers: Sequence[Any], loading: Sequence[Any]) -> None:
        self._workers, self._loading = workers, loading

    @classmethod
    def start(cls, plan: WorkerPlan, count: int, gpus: int) -> Pool:
        """Ask for one worker a node (each takes all GPUs of its node); returns before they are up."""
        import ray

        remote = ray.remote(RolloutWorker).options(
            num_cpus=0, num_gpus=gpus, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        workers: list[Any] = [remote.remote(plan) for _ in range(count)]
        return cls(workers, [worker.load.remote() for worker in workers])

    def wait(self, seconds: float = START_SECONDS) -> list[str]:
        """Names of all workers' computers. Raises WorkerLost where they are not up in time, or what loading raised."""
        import ray
        from ray.exceptions import GetTimeoutError

        try:
            nodes: list[str] = ray.get(self._loading, timeout=seconds)
        except GetTimeoutError as error:
            raise WorkerLost(
                f"{len(self._workers)} rollout workers did not start within {seconds:.0f} s: "
                "are all worker nodes up, with free GPUs?"
            ) from error
        return nodes

    def start_playing(self, lora: LoraArrays, episodes: Sequence[Episode], temperature: float) -> Callable[[], Played]:
        """Hand out all episodes, each worker a fixed share, and return at once; calling the result waits for them.

        That raises Ray's actor errors where a worker has died.
        """
        import ray

        from training_job.trainers.local.episodes import join

        weights = ray.put(dict(lora))
        shards = split(episodes, len(self._workers))
        calls = [w.play.remote(weights, part, temperature) for w, part in zip(self._workers, shards, strict=False)]
        return lambda: join(ray.get(calls, timeout=ROLLOUT_SECONDS))

    def play(self, lora: LoraArrays, episodes: Sequence[Episode], temperature: float) -> Played:
        """Play all episodes and wait for them."""
        return self.start_playing(lora, episodes, temperature)()

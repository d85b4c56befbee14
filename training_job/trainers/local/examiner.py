"""Evals of the local trainer: played greedily by the rollout workers, then published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nightshift.contract import EvalRow, EvalSet, EvalSummary
from training_job.evals import Episode, dump_eval, rows_of, summarise
from training_job.job import Job
from training_job.plug import Items
from training_job.standing import Standing, take_in
from training_job.trainers.local.batches import eval_episodes
from training_job.trainers.local.episodes import Played


class StartPlaying(Protocol):
    """``Pool.start_playing``."""

    def __call__(self, lora: Any, episodes: Sequence[Any], temperature: float) -> Callable[[], Played]: ...


def finished_episodes(played: Played, items: Items, replies: Sequence[str]) -> list[Episode]:
    """What was played, as eval episodes."""
    return [
        Episode(
            item=items.name(i),
            row=items.row(i),
            prompt=played.prompts[i],
            replies=[replies[choice] for choice in played.replies[i, :turns]],
            rewards=[float(reward) for reward in played.rewards[i, :turns]],
            stop_reason=played.stops[i],
        )
        for i, turns in enumerate(played.turns)
    ]


@dataclass(frozen=True)
class Examined:
    """One finished eval."""

    summary: EvalSummary
    rows: Sequence[EvalRow]
    episodes: Sequence[Episode]


class Examiner:
    """Evaluates weights on the fixed set and on the hold-out, and publishes what it finds."""

    def __init__(self, job: Job, standing: Standing, sets: dict[EvalSet, Items], replies: Sequence[str]) -> None:
        self._job, self._standing, self._sets, self._replies = job, standing, sets, replies

    @property
    def sets(self) -> Sequence[EvalSet]:
        """The fixed set, and the hold-out where the task has one."""
        return list(self._sets)

    def start(
        self, playing: StartPlaying, lora: Any, step: int, which: Sequence[EvalSet]
    ) -> Callable[[], list[Examined]]:
        """Begin to play the given sets; calling the result waits, publishes and returns the evals."""
        waiting = [(one, playing(lora, eval_episodes(self._sets[one]), 1.0)) for one in which if one in self._sets]
        return lambda: [self._finish(one, step, played()) for one, played in waiting]

    def _finish(self, which: EvalSet, step: int, played: Played) -> Examined:
        job = self._job
        episodes = finished_episodes(played, self._sets[which], self._replies)
        rows = rows_of(episodes, job.spec.task.success.min_score)
        summary = summarise(job.spec.run_id, job.attempt, step, which, episodes, rows)
        dump_eval(job.paths, job.spec, summary, episodes)
        job.say(f"Dumped aggregated eval metrics to {job.paths.eval_dump(step) / 'aggregated_results.jsonl'}")
        return Examined(take_in(job, self._standing, summary, rows), rows, episodes)

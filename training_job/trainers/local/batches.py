"""Which prompts a step trains on: a pure function of the run's seed and the step, as after any number of resumes."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nightshift.contract.spec import Training
from training_job.errors import BadConfiguration
from training_job.plug import Items
from training_job.trainers.local.episodes import Episode

_ORDER_DICE = 0
_SAMPLE_DICE = 2


@lru_cache(maxsize=2)
def _epoch_order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch, _ORDER_DICE]).permutation(count)


def steps_per_epoch(items: Items, training: Training) -> int:
    """The last, incomplete batch of an epoch is dropped, as SkyRL does. Raises BadConfiguration for too few items."""
    steps = len(items) // training.train_batch_size
    if steps < 1:
        problem = f"{training.train_batch_size} prompts a step, but only {len(items)} train items"
        raise BadConfiguration("training.train_batch_size", problem)
    return steps


def prompts_of(step: int, items: Items, training: Training) -> list[int]:
    """Numbers of the items of step ``step`` (from 1)."""
    epoch, within = divmod(step - 1, steps_per_epoch(items, training))
    order = _epoch_order(training.seed, epoch, len(items))
    size = training.train_batch_size
    return [int(number) for number in order[within * size : (within + 1) * size]]


def train_episodes(step: int, items: Items, training: Training) -> list[Episode]:
    """``n_samples_per_prompt`` episodes of each prompt, next to each other, each with dice of its own."""
    return [
        Episode(items.row(number), (training.seed, step, number, sample, _SAMPLE_DICE))
        for number in prompts_of(step, items, training)
        for sample in range(training.n_samples_per_prompt)
    ]


def eval_episodes(items: Items) -> list[Episode]:
    """Each item once, played greedily."""
    return [Episode(items.row(number)) for number in range(len(items))]

"""What is possible at all: an eval set has a ceiling, and a target above it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training_job.tasks.mazes.maze import make_maze, shortest_plan


def turns_needed(seed: int) -> int:
    """Turns of the shortest solution of a seed's maze, its final stop included."""
    return len(shortest_plan(make_maze(seed)))


def solvable(item: Mapping[str, Any], max_turns: int, config: Mapping[str, Any]) -> bool:
    """Can this item be solved within ``max_turns``? The spec's oracle for mazes."""
    return turns_needed(int(item["seed"])) <= max_turns

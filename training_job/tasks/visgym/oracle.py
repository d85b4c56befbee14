"""What is possible at all on VisGym's mazes. Needs no VisGym: its easy mazes are those of our own maze task, seed by seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training_job.errors import BadConfiguration
from training_job.tasks.mazes.oracle import turns_needed
from training_job.tasks.visgym.env import DEFAULT_ID


def solvable(item: Mapping[str, Any], max_turns: int, config: Mapping[str, Any]) -> bool:
    """Can this item be solved within ``max_turns``, by breadth-first search? The spec's oracle for ``maze_2d/easy``.

    Raises BadConfiguration for any other environment of VisGym."""
    env_id = config.get("env_id", DEFAULT_ID)
    if env_id != DEFAULT_ID:
        raise BadConfiguration("task.oracle", f"this oracle knows {DEFAULT_ID} only, not {env_id}: name none")
    return turns_needed(int(item["seed"])) <= max_turns

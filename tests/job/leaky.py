"""A task that would tell secrets wherever it can: mazes, and a renderer that prints and raises what it finds."""

from __future__ import annotations

import os
import sys
from typing import Any

from training_job.tasks.mazes.env import MazeTextEnv

NAMES = ("HF_TOKEN", "MY_API_KEY")


class LeakyEnv(MazeTextEnv):
    """Played by Ray's workers, which have no secrets."""

    def __init__(self, env_config: Any = None, extras: Any = None) -> None:
        there = [name for name in NAMES if name in os.environ]
        if there:
            raise RuntimeError(f"a rollout worker has {there}")
        super().__init__(env_config=env_config, extras=extras)


def render(trace: dict[str, Any]) -> bytes:
    """Called in the driver, which has them."""
    values = " ".join(os.environ[name] for name in NAMES)
    print(f"on stdout: {values}")
    print(f"on stderr: {values}", file=sys.stderr)
    raise ValueError(f"in an exception: {values}")

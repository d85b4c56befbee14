"""One episode as a picture for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from training_job.tasks.mazes.env import MazeTextEnv
from training_job.tasks.mazes.picture import CELL_PIXELS, WHITE, Pixels, draw, png

COLUMNS: Final = 5
_GAP: Final = CELL_PIXELS


def render(trace: Mapping[str, Any]) -> bytes:
    """PNG of all turns of an episode, five in a row: the spec's trace renderer for mazes.

    ``trace`` is ``{"item": {"seed": ...}, "max_turns": ..., "replies": [text, ...]}``.
    """
    env = MazeTextEnv({}, {**trace["item"], "max_turns": trace["max_turns"]})
    env.init([])
    frames = [draw(env.env.maze, env.env.agent)]
    for reply in trace["replies"]:
        env.step(reply)
        frames.append(draw(env.env.maze, env.env.agent))
    return png(_sheet(frames), scale=4)


def _sheet(frames: list[Pixels]) -> Pixels:
    rows = -(-len(frames) // COLUMNS)
    pitch = frames[0].shape[0] + _GAP
    sheet = np.full((rows * pitch + _GAP, COLUMNS * pitch + _GAP, 3), WHITE, dtype=np.uint8)
    for number, frame in enumerate(frames):
        top, left = (_GAP + pitch * (number // COLUMNS)), (_GAP + pitch * (number % COLUMNS))
        sheet[top : top + frame.shape[0], left : left + frame.shape[1]] = frame
    return sheet

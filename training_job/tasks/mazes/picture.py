"""Mazes as pixels: white ways, gray walls, a red target and a blue agent."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from training_job.tasks.mazes.maze import GRID, Cell, Maze

CELL_PIXELS: Final = 3
"""Pixels a cell's side; VisGym draws 25. The policy needs no more, and a picture of 27x27 is read in microseconds."""

SIDE: Final = GRID * CELL_PIXELS
WHITE, GRAY, RED, BLUE = (255, 255, 255), (169, 169, 169), (255, 0, 0), (0, 0, 255)

Pixels = NDArray[np.uint8]


def draw_backgrounds(mazes: Sequence[Maze]) -> Pixels:
    """Images (N, SIDE, SIDE, 3) of mazes without their agents."""
    cells = np.full((len(mazes), GRID, GRID, 3), GRAY, dtype=np.uint8)
    for image, maze in zip(cells, mazes, strict=True):
        rows, columns = zip(*maze.open_cells, strict=True)
        image[rows, columns] = WHITE
        image[maze.target] = RED
    return cells.repeat(CELL_PIXELS, axis=1).repeat(CELL_PIXELS, axis=2)


def draw_agents(backgrounds: Pixels, agents: NDArray[np.int64]) -> Pixels:
    """Copies of images (N, SIDE, SIDE, 3) with a blue dot in the middle of each agent's cell (N, 2)."""
    images = backgrounds.copy()
    middle = agents * CELL_PIXELS + CELL_PIXELS // 2
    images[np.arange(len(images)), middle[:, 0], middle[:, 1]] = BLUE
    return images


@lru_cache(maxsize=2_000)
def _background(maze: Maze) -> Pixels:
    return draw_backgrounds([maze])


def draw(maze: Maze, agent: Cell) -> Pixels:
    """What the agent sees: an image (SIDE, SIDE, 3)."""
    image: Pixels = draw_agents(_background(maze), np.array([agent], dtype=np.int64))[0]
    return image


def png(image: Pixels, scale: int = 1) -> bytes:
    """A PNG file of an image, each pixel drawn as a square of ``scale``."""
    buffer = io.BytesIO()
    Image.fromarray(image.repeat(scale, axis=0).repeat(scale, axis=1)).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


@lru_cache(maxsize=20_000)
def data_url(maze: Maze, agent: Cell) -> str:
    """The agent's view as chat messages carry it. Cached: the samples of a group see the same pictures."""
    return "data:image/png;base64," + base64.b64encode(png(draw(maze, agent))).decode()

"""Mazes as pixels: white ways, gray walls, a red target and a blue agent."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

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
    """A PNG file of an image (H, W, 3), each pixel drawn as a square of ``scale``.

    Written here, as it is all that an environment's turn costs: a library's general writer takes ten times as long.
    """
    large = image.repeat(scale, axis=0).repeat(scale, axis=1)
    height, width, _ = large.shape
    unfiltered = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # each row begins with its filter: none
    unfiltered[:, 1:] = large.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(unfiltered.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


@lru_cache(maxsize=20_000)
def data_url(maze: Maze, agent: Cell) -> str:
    """The agent's view as chat messages carry it. Cached: the samples of a group see the same pictures."""
    return "data:image/png;base64," + base64.b64encode(png(draw(maze, agent))).decode()

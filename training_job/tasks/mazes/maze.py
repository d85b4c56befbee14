"""A 9x9 maze and its shortest paths: pure, no images and no environment.

The maze is a uniform spanning tree of 4x4 rooms (Wilson's algorithm, with VisGym's order of random draws) inside an
outer wall. The agent starts in one corner room; the target is the opposite one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from gymnasium.utils import seeding

GRID: Final = 9
"""Cells a side, outer wall included."""

_INNER: Final = GRID - 2

Cell = tuple[int, int]
"""(row, column), outer wall included."""


class Action(IntEnum):
    """VisGym's numbers of the moves, and stop."""

    RIGHT = 0
    UP = 1
    LEFT = 2
    DOWN = 3
    STOP = 4


DELTA: Final[Mapping[Action, Cell]] = MappingProxyType(
    {Action.RIGHT: (0, 1), Action.UP: (-1, 0), Action.LEFT: (0, -1), Action.DOWN: (1, 0), Action.STOP: (0, 0)}
)
MOVES: Final = (Action.RIGHT, Action.UP, Action.LEFT, Action.DOWN)

_WALK_WAYS: Final[tuple[Cell, ...]] = ((0, 1), (1, 0), (0, -1), (-1, 0))
"""The order in which the random walk draws its directions; it decides which maze a seed gives."""

_ENDS: Final[tuple[tuple[Cell, Cell], ...]] = (
    ((1, 1), (_INNER, _INNER)),
    ((_INNER, _INNER), (1, 1)),
    ((_INNER, 1), (1, _INNER)),
    ((1, _INNER), (_INNER, 1)),
)


@dataclass(frozen=True)
class Maze:
    """One maze. ``open_cells`` are the cells that can be entered; equal mazes are equal, whatever their seeds."""

    open_cells: frozenset[Cell]
    start: Cell
    target: Cell

    def moved(self, at: Cell, action: Action) -> Cell:
        """Where an action leads: a wall keeps the agent where it is, and stop does not move it."""
        step = DELTA[action]
        there = (at[0] + step[0], at[1] + step[1])
        return there if there in self.open_cells else at


def _ahead(room: Cell, way: Cell, far: int) -> Cell:
    return room[0] + far * way[0], room[1] + far * way[1]


def _draw_way(room: Cell, rng: random.Random) -> Cell:
    while True:
        way = _WALK_WAYS[rng.randint(0, 3)]
        if all(0 <= x < _INNER for x in _ahead(room, way, 2)):
            return way


def _loop_erased_walk(begin: Cell, done: set[Cell], rng: random.Random) -> Iterator[tuple[Cell, Cell]]:
    """(room, way out) from ``begin`` to a room that is done; the last way out of each room erases the walk's loops."""
    last_way: dict[Cell, Cell] = {}
    room = begin
    while room not in done:
        last_way[room] = _draw_way(room, rng)
        room = _ahead(room, last_way[room], 2)
    room = begin
    while room not in done:
        yield room, last_way[room]
        room = _ahead(room, last_way[room], 2)


def _spanning_tree(rng: random.Random) -> frozenset[Cell]:
    """Cells carved by Wilson's algorithm; coordinates inside the outer wall."""
    todo: list[Cell] = [(row, column) for row in range(0, _INNER, 2) for column in range(0, _INNER, 2)]
    first = todo.pop(rng.randint(0, len(todo) - 1))
    done, carved = {first}, {first}
    while todo:
        begin = todo[rng.randint(0, len(todo) - 1)]
        for room, way in list(_loop_erased_walk(begin, done, rng)):
            done.add(room)
            todo.remove(room)
            carved |= {room, _ahead(room, way, 1)}
    return frozenset(carved)


@lru_cache(maxsize=20_000)
def make_maze(seed: int) -> Maze:
    """The maze of a seed; the same seed always gives the same maze."""
    rng, _ = seeding.np_random(seed)
    carved = _spanning_tree(random.Random(int(rng.integers(2**32))))
    start, target = _ENDS[int(rng.integers(0, len(_ENDS)))]
    return Maze(frozenset((row + 1, column + 1) for row, column in carved), start, target)


@lru_cache(maxsize=20_000)
def best_actions(maze: Maze) -> Mapping[Cell, Action]:
    """For each open cell the first action of the shortest way to a solved maze (breadth-first search)."""
    best = {maze.target: Action.STOP}
    queue = deque([maze.target])
    while queue:
        cell = queue.popleft()
        for action in MOVES:
            before = (cell[0] - DELTA[action][0], cell[1] - DELTA[action][1])
            if before in maze.open_cells and before not in best:
                best[before] = action
                queue.append(before)
    return MappingProxyType(best)


def shortest_plan(maze: Maze) -> tuple[Action, ...]:
    """The fewest actions that solve the maze; the last is stop."""
    best, at, plan = best_actions(maze), maze.start, [best_actions(maze)[maze.start]]
    while plan[-1] is not Action.STOP:
        at = maze.moved(at, plan[-1])
        plan.append(best[at])
    return tuple(plan)

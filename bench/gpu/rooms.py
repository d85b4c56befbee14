"""The maze with longer strides, as somebody's own task: a move takes the agent to the next room, two cells on.

SkyRL renders every picture so far again for each turn, so a rollout's cost grows with the square of its turns: the same 64
mazes take 7 or 9 turns here instead of 13 or 17. Pictures, replies and rewards are those of ``training_job.tasks.mazes``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from training_job.tasks.mazes.env import MazeEnv, MazeTextEnv
from training_job.tasks.mazes.maze import Action, Cell, Maze, make_maze, shortest_plan

PROMPT: Final = (
    "You see a maze from above: white cells are ways, gray cells are walls. You are the blue dot; the red square is "
    "your target. ('move', d) takes you two cells: d is 0 for right, 1 for up, 2 for left, 3 for down. When you are on the "
    "target, say ('stop', 'stop'). Respond with <observation>, <justification> and <action>, and exactly one action as "
    "a Python tuple in <action>."
)


def moved(maze: Maze, at: Cell, action: Action) -> Cell:
    """Where an action leads from a room: the cell between two rooms is open or it is a wall, and behind it is a room."""
    between = maze.moved(at, action)
    return at if between == at else maze.moved(between, action)


def turns_needed(seed: int) -> int:
    """Turns of the shortest solution, its stop included."""
    return (len(shortest_plan(make_maze(seed))) - 1) // 2 + 1


def solvable(item: Mapping[str, Any], max_turns: int, config: Mapping[str, Any]) -> bool:
    """The spec's oracle."""
    return turns_needed(int(item["seed"])) <= max_turns


class RoomEnv(MazeEnv):
    def play(self, action: Action) -> tuple[bool, bool, dict[str, Any]]:
        before = self.agent
        stopped, solved, info = super().play(action)
        self.agent = moved(self.maze, before, action)
        return stopped, solved, info


class RoomTextEnv(MazeTextEnv):
    """SkyRL's view of it."""

    def __init__(self, env_config: Mapping[str, Any] | None = None, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__(env_config, extras)
        self.env = RoomEnv()

    def init(self, prompt: Any) -> tuple[Any, dict[str, Any]]:
        self.env.reset(seed=self.seed)
        return [self._message(PROMPT)], {}

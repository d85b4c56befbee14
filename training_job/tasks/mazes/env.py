"""The maze as a gymnasium environment, and that environment as SkyRL's text environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput, ConversationType

from training_job.tasks.mazes.maze import Action, make_maze
from training_job.tasks.mazes.picture import SIDE, Pixels, data_url, draw
from training_job.tasks.mazes.reply import read_reply

TASK_SHARE: Final = 0.8
FORMAT_SHARE: Final = 0.2

PROMPT: Final = (
    "You see a maze from above: white cells are ways, gray cells are walls. You are the blue dot; the red square is "
    "your target. ('move', d) takes you one cell: d is 0 for right, 1 for up, 2 for left, 3 for down. When you are on the "
    "target, say ('stop', 'stop'). Respond with <observation>, <justification> and <action>, and exactly one action as "
    "a Python tuple in <action>."
)


class MazeEnv(gymnasium.Env[Pixels, tuple[str, Any]]):
    """One maze with VisGym's tuple actions: only ``stop`` ends it, and it pays 1.0 exactly on the target.

    There is no limit of turns here: whoever plays sets it, as SkyRL does.
    """

    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    observation_space = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Pixels, dict[str, Any]]:
        """Begin the maze of ``seed``; without one, of a seed drawn from the environment's own generator."""
        super().reset(seed=seed)
        self.maze = make_maze(int(self.np_random.integers(2**31)) if seed is None else seed)
        self.agent = self.maze.start
        return self.render(), {}

    def step(self, action: tuple[str, Any]) -> tuple[Pixels, float, bool, bool, dict[str, Any]]:
        """Play one turn. Raises ValueError for a tuple that is no action: text is checked before it comes here."""
        stopped, solved, info = self.play(_as_action(action))
        return self.render(), float(solved), stopped, False, info

    def play(self, action: Action) -> tuple[bool, bool, dict[str, Any]]:
        """The turn without the picture: (stopped, solved, info)."""
        there = self.maze.moved(self.agent, action)
        stopped = action is Action.STOP
        blocked = not stopped and there == self.agent
        self.agent = there
        feedback = "There is a wall: you did not move." if blocked else "You moved."
        return stopped, stopped and there == self.maze.target, {"env_feedback": "" if stopped else feedback}

    def render(self) -> Pixels:
        """The image (SIDE, SIDE, 3) of the maze as it is now."""
        return draw(self.maze, self.agent)


def _as_action(action: tuple[str, Any]) -> Action:
    if action == ("stop", "stop"):
        return Action.STOP
    name, way = action
    if name != "move" or isinstance(way, bool) or way not in range(4):
        raise ValueError(f"{action!r} is not an action of this maze")
    return Action(int(way))


class MazeTextEnv(BaseTextEnv):  # type: ignore[misc]  # its base is untyped
    """SkyRL's view of one maze: text in, chat messages with the picture out.

    ``extras`` is the row of the data set: ``seed`` (of the maze) and ``max_turns``. Rewards follow VisGym's SFT recipe:
    nothing until the end, then 0.8 for a solved maze and 0.2 times the share of well-formed turns. A reply that cannot
    be read costs its turn and is answered with the reason.
    """

    def __init__(self, env_config: Mapping[str, Any] | None = None, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        row = dict(extras or {})
        self.seed = int(row["seed"])
        self.max_turns = int(row["max_turns"])
        self.env = MazeEnv()
        self.well_formed = 0
        self.wasted = 0
        self.solved = False

    def init(self, prompt: ConversationType) -> tuple[ConversationType, dict[str, Any]]:
        """The first messages: the task in words, and the maze. ``prompt`` (a data set's placeholder) is not used."""
        self.env.reset(seed=self.seed)
        return [self._message(PROMPT)], {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Play what the model wrote."""
        self.turns += 1
        reply = read_reply(action)
        self.well_formed += reply.well_formed
        stopped, feedback = False, reply.problem
        if reply.action is None:
            self.wasted += 1
        else:
            stopped, self.solved, info = self.env.play(reply.action)
            feedback = info["env_feedback"]
        done = stopped or self.turns >= self.max_turns
        return BaseTextEnvStepOutput(
            observations=[] if done else [self._message(feedback)],
            reward=self._final_reward() if done else 0.0,
            done=done,
            metadata={"terminated": stopped, "truncated": done and not stopped, "env_feedback": feedback},
        )

    def get_metrics(self) -> dict[str, Any]:
        return {"turns": self.turns, "wasted_turns": self.wasted, "well_formed_turns": self.well_formed}

    def _final_reward(self) -> float:
        return TASK_SHARE * float(self.solved) + FORMAT_SHARE * (self.well_formed / int(self.turns))

    def _message(self, text: str) -> dict[str, Any]:
        image = {"type": "image_url", "image_url": {"url": data_url(self.env.maze, self.env.agent)}}
        return {"role": "user", "content": [{"type": "text", "text": text}, image]}

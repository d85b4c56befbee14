"""A VisGym environment as SkyRL's text environment: text in, chat messages with the picture out."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput, ConversationType

from training_job.errors import BadConfiguration
from training_job.tasks.mazes.picture import png
from training_job.tasks.visgym.reply import WORDS, read_tuple, read_word

TASK_SHARE: Final = 0.8
FORMAT_SHARE: Final = 0.2
"""The ``sft`` recipe's reward: a solved task, and the share of well-formed turns. ``instruct`` pays for the task alone."""

RECIPES: Final = ("sft", "instruct")
DEFAULT_ID: Final = "maze_2d/easy"

_ASK: Final = {
    "sft": "\n\nWrite exactly one action as a Python tuple, such as ('move', 0) or ('stop', 'stop'), without backticks or "
    "other formatting around it.",
    "instruct": f"\n\nEnd your response with your action as <action>ACTION</action>, where ACTION is one of: {', '.join(WORDS)}.",
}
_NO_ACTION: Final = {
    "sft": "No action could be read in your response. Write exactly one action as a Python tuple, such as ('move', 0) or "
    "('stop', 'stop').",
    "instruct": f"No action could be read in your response. End it with <action>ACTION</action>, where ACTION is one of: "
    f"{', '.join(WORDS)}.",
}


def visgym() -> Any:
    """VisGym's gymnasium. It is a fork that has the original's name: only what it adds tells it apart.

    Raises BadConfiguration where it is not installed."""
    try:
        import gymnasium
    except ImportError as error:
        raise BadConfiguration("task.environment", f"{_MISSING}: there is no gymnasium at all") from error
    if not hasattr(gymnasium, "VLMEnvMixin"):
        raise BadConfiguration(
            "task.environment", f"{_MISSING}: gymnasium {gymnasium.__version__} here is the original, not VisGym's fork"
        )
    return gymnasium


_MISSING: Final = (
    "VisGym is not in this image (build it from container/Dockerfile, or use training_job.tasks.mazes.env:MazeTextEnv)"
)


class VisGymEnv(BaseTextEnv):  # type: ignore[misc]  # its base is untyped
    """One episode. ``env_config``: ``env_id`` (VisGym's, default maze_2d/easy) and ``recipe`` (sft or instruct); ``extras``, the
    data set's row: ``seed`` and ``max_turns``. VisGym sets no limit of turns, so this one does.

    A reply that cannot be read costs its turn and is answered with the reason. Success is a sum of rewards of at least 0.8
    (sft) or 1 (instruct).
    """

    def __init__(self, env_config: Mapping[str, Any] | None = None, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        config, row = dict(env_config or {}), dict(extras or {})
        self.recipe = str(config.get("recipe", RECIPES[0]))
        if self.recipe not in RECIPES:
            raise BadConfiguration("task.config.recipe", f"{self.recipe} is not one of {', '.join(RECIPES)}")
        self.seed, self.max_turns = int(row["seed"]), int(row["max_turns"])
        self.env = _make(str(config.get("env_id", DEFAULT_ID)))
        self.well_formed = 0
        self.wasted = 0

    def init(self, prompt: ConversationType) -> tuple[ConversationType, dict[str, Any]]:
        """VisGym's own words, how to answer, and the first picture. ``prompt`` (a data set's placeholder) is not used."""
        self.env.reset(seed=self.seed)
        return [self._message(self.env.get_prompt() + _ASK[self.recipe])], {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Play what the model wrote."""
        self.turns += 1
        reply = read_tuple(action) if self.recipe == "sft" else read_word(action)
        self.well_formed += reply.well_formed
        score, ended, feedback = 0.0, False, _NO_ACTION[self.recipe]
        if reply.action is None:
            self.wasted += 1
        else:
            _, paid, terminated, truncated, info = self.env.step(reply.action)
            score, ended = float(paid), bool(terminated or truncated)
            feedback = str(info.get("env_feedback") or "Done. This is how it looks now:")
        done = ended or self.turns >= self.max_turns
        return BaseTextEnvStepOutput(
            observations=[] if done else [self._message(feedback)],
            reward=self._final_reward(score) if done else 0.0,
            done=done,
            metadata={"terminated": ended, "truncated": done and not ended, "env_feedback": feedback},
        )

    def close(self) -> None:
        self.env.close()

    def get_metrics(self) -> dict[str, Any]:
        return {"turns": self.turns, "wasted_turns": self.wasted, "well_formed_turns": self.well_formed}

    def _final_reward(self, score: float) -> float:
        if self.recipe == "instruct":
            return score
        return TASK_SHARE * score + FORMAT_SHARE * (self.well_formed / int(self.turns))

    def _message(self, text: str) -> dict[str, Any]:
        pixels = np.ascontiguousarray(self.env.render(), dtype=np.uint8)[..., :3]
        url = "data:image/png;base64," + base64.b64encode(png(pixels)).decode()
        return {
            "role": "user",
            "content": [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}],
        }


def _make(env_id: str) -> Any:
    gymnasium = visgym()
    try:
        return gymnasium.make(env_id).unwrapped
    except gymnasium.error.Error as error:
        raise BadConfiguration("task.config.env_id", f"VisGym has no environment {env_id}: {error}") from error

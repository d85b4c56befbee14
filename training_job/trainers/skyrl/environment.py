"""The task's environment as SkyRL sees it: one name in its registry, and a record of each episode in its own row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput, ConversationType

from training_job.plug import TaskPlan
from training_job.trainers.skyrl.config import ENVIRONMENT_ID
from training_job.trainers.skyrl.datasets import ITEM

REWARDS: Final = "nightshift_rewards"
"""Column of a row that receives the rewards of its episode, one a turn. SkyRL's eval dump keeps an episode's row but
neither its turns nor, for text policies, its single rewards."""


class RecordedEnv(BaseTextEnv):  # type: ignore[misc]  # its base is untyped
    """Plays the task's environment, and writes what each turn paid into ``extras``."""

    def __init__(
        self,
        make: Callable[..., BaseTextEnv],
        config: Mapping[str, Any],
        env_config: Any = None,
        extras: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        row = extras if extras is not None else {}
        self._rewards: list[float] = []
        row[REWARDS] = self._rewards
        self._inner = make(env_config=dict(config), extras={k: v for k, v in row.items() if k not in (REWARDS, ITEM)})

    def init(self, prompt: ConversationType) -> tuple[ConversationType, dict[str, Any]]:
        first: tuple[ConversationType, dict[str, Any]] = self._inner.init(prompt)
        return first

    def step(self, action: str) -> BaseTextEnvStepOutput:
        output: BaseTextEnvStepOutput = self._inner.step(action)
        self._rewards.append(float(output["reward"]))
        return output

    def close(self) -> None:
        self._inner.close()

    def get_metrics(self) -> dict[str, Any]:
        metrics: dict[str, Any] = self._inner.get_metrics()
        return metrics


def register_environment(plan: TaskPlan) -> None:
    """Under ``ENVIRONMENT_ID``, in this process: SkyRL makes its environments where its generator runs, the driver.

    The class is made here because SkyRL aggregates an episode's metrics through the registered class."""
    from skyrl_gym.envs.registration import deregister, register, registry

    task = plan.environment_class()

    class TaskEnv(RecordedEnv):
        def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None) -> None:
            super().__init__(task, plan.config, env_config, extras)

        aggregate_metrics = staticmethod(getattr(task, "aggregate_metrics", BaseTextEnv.aggregate_metrics))

    if ENVIRONMENT_ID in registry:
        deregister(ENVIRONMENT_ID)
    register(id=ENVIRONMENT_ID, entry_point=TaskEnv)

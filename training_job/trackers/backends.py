"""The trackers themselves. Each imports its library late: the image may lack those that a run does not use."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

Facts = Mapping[str, str | int | float | bool]

TAG: Final = "nightshift.run_id"
"""MLflow's tag that names the Nightshift run: an attempt finds the tracker run of those before it by it."""


class Backend(Protocol):
    """One open tracker run. Any method may raise anything, and may block."""

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class Tensorboard:
    """Event files in one folder; each attempt adds a file of its own, and Tensorboard shows them as one run."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._writer: Any = SummaryWriter(str(folder))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """The run with the Nightshift run's id, made or continued. The key comes from WANDB_API_KEY."""

    def __init__(self, project: str, run_id: str, folder: Path, facts: Facts) -> None:
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project=project,
            id=run_id,
            name=run_id,
            resume="allow",
            dir=str(folder),
            config=dict(facts),
            allow_val_change=True,
            # What the job prints stays in the job's log: W&B would copy all of it.
            settings=wandb.Settings(console="off"),
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class Mlflow:
    """The run that carries the Nightshift run's id as its tag, in the experiment of the project. ``uri`` may be the ARN of a
    SageMaker tracking server: the image then needs the package sagemaker-mlflow."""

    def __init__(self, uri: str, project: str, run_id: str, facts: Facts) -> None:
        # Its defaults retry for minutes; a tracker is not worth that.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        self._metric: Any = Metric
        self._client: Any = MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(project)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(project)
        self._id: str = self._found(experiment_id, run_id) or self._made(experiment_id, run_id, facts)
        self._client.update_run(self._id, status="RUNNING")

    def _found(self, experiment_id: str, run_id: str) -> str | None:
        found = self._client.search_runs([experiment_id], f"tags.`{TAG}` = '{run_id}'", max_results=1)
        return found[0].info.run_id if found else None

    def _made(self, experiment_id: str, run_id: str, facts: Facts) -> str:
        from mlflow.entities import Param

        made: str = self._client.create_run(experiment_id, run_name=run_id, tags={TAG: run_id}).info.run_id
        self._client.log_batch(made, params=[Param(name, str(value)[:500]) for name, value in facts.items()])
        return made

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1_000)
        rows = [self._metric(name.replace("@", "_at_"), value, now, step) for name, value in metrics.items()]
        for start in range(0, len(rows), 1_000):  # what one request of MLflow takes
            self._client.log_batch(self._id, metrics=rows[start : start + 1_000])

    def close(self) -> None:
        self._client.set_terminated(self._id)

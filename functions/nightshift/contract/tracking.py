"""Where a run's metrics go beside its own curve. One tracker run for a Nightshift run, whatever its attempts."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, StringConstraints

from nightshift.contract.base import Model

if TYPE_CHECKING:
    from nightshift.contract.spec import RunSpec

WANDB_KEY = "WANDB_API_KEY"

MlflowUri = Annotated[
    str,
    StringConstraints(
        pattern=r"^(arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:\d{12}:(mlflow-tracking-server|mlflow-app)/[\w-]{1,100}"
        r"|https?://[\w.:/-]+)$",
        max_length=500,
    ),
]
"""A tracking server: SageMaker's by its ARN, any other by its address; no user, no query: nothing secret is in it."""


class Tracker(StrEnum):
    """``console``: only the job's own log."""

    CONSOLE = "console"
    WANDB = "wandb"
    MLFLOW = "mlflow"
    TENSORBOARD = "tensorboard"


class Tracking(Model):
    """``project`` is the project of W&B, the experiment of MLflow. Tensorboard writes below /shared/runs/<run_id>."""

    tracker: Tracker = Tracker.CONSOLE
    project: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")] = "nightshift"
    mlflow_uri: MlflowUri | None = Field(None, description="where MLflow's server is; tracker mlflow needs it")


def tracking_problems(spec: RunSpec) -> Sequence[tuple[str, str]]:
    """(field, problem) pairs: what the tracker needs and the spec does not name."""
    asked = spec.tracking
    if asked.tracker is Tracker.MLFLOW and asked.mlflow_uri is None:
        return [("tracking.mlflow_uri", "tracker mlflow needs a tracking server: an ARN of SageMaker, or an address")]
    if asked.tracker is Tracker.WANDB and WANDB_KEY not in spec.secrets:
        return [("tracking.tracker", f"tracker wandb needs secrets.{WANDB_KEY}, the id of a secret with its API key")]
    return []

"""Environment variables of the functions, as small models: a missing one is an error at the first call, by name."""

from __future__ import annotations

import os
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field

from nightshift.core.history import BOUNDS, LEAST_PARENT_EVENTS, Bounds


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=False)


class StoreSettings(Settings):
    """Table and bucket; the region comes with every Lambda."""

    table: str = Field(alias="TABLE_NAME", min_length=1)
    bucket: str = Field(alias="BUCKET_NAME", min_length=1)
    region: str = Field(alias="AWS_REGION", min_length=1)


class ScalingSettings(StoreSettings):
    """``pool_scaling``: JSON, as ``core.scaling.read_scaling`` takes it."""

    pool_scaling: str = Field("", alias="POOL_SCALING", max_length=3_000)


class IntakeSettings(StoreSettings):
    training_run_arn: str = Field(alias="TRAINING_RUN_ARN", min_length=1)
    hyperpod_cluster: str = Field(alias="HYPERPOD_CLUSTER_NAME", min_length=1)
    namespace: str = Field(alias="NAMESPACE", min_length=1)


class OperatorSettings(StoreSettings):
    """``operator_arns``: patterns of who may steer anybody's run, separated by commas."""

    operator_arns: str = Field("", alias="OPERATOR_ARNS", max_length=4_000)


class ApiSettings(IntakeSettings, OperatorSettings, ScalingSettings):
    """Of the API."""


class ControllerSettings(ScalingSettings):
    role_arn: str = Field(alias="CONTROLLER_ROLE_ARN", min_length=1)
    session_name: str = Field(alias="CONTROLLER_SESSION_NAME", min_length=2)
    eks_cluster: str = Field(alias="EKS_CLUSTER_NAME", min_length=1)
    hyperpod_cluster: str = Field(alias="HYPERPOD_CLUSTER_NAME", min_length=1)
    namespace: str = Field(alias="NAMESPACE", min_length=1)
    service_account: str = Field(alias="SERVICE_ACCOUNT", min_length=1)
    shared_claim: str = Field(alias="SHARED_CLAIM_NAME", min_length=1)
    look_seconds: int = Field(60, alias="LOOK_SECONDS_ATTEMPT", ge=1, le=3_600)


class StepSettings(ControllerSettings):
    """Of the function that the state machines call. Smaller bounds than the proven ones are for tests; larger ones are
    refused."""

    training_run_arn: str = Field(alias="TRAINING_RUN_ARN", min_length=1)
    shift_looks: int = Field(BOUNDS.looks, alias="SHIFT_LOOKS", ge=1, le=BOUNDS.looks)
    parent_events: int = Field(
        BOUNDS.parent_events, alias="PARENT_EVENTS", ge=LEAST_PARENT_EVENTS, le=BOUNDS.parent_events
    )

    @property
    def bounds(self) -> Bounds:
        return Bounds(looks=self.shift_looks, parent_events=self.parent_events)


class DashboardSettings(ControllerSettings, OperatorSettings):
    """Of the function that mints addresses of dashboards."""


class ReconcilerSettings(ControllerSettings):
    training_run_arn: str = Field(alias="TRAINING_RUN_ARN", min_length=1)


S = TypeVar("S", bound=Settings)


def load(kind: type[S]) -> S:
    """Raises ``pydantic.ValidationError`` naming each variable that is missing or wrong."""
    return kind.model_validate(dict(os.environ))

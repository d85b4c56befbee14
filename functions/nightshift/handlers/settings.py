"""Environment variables of the functions, as small models: a missing one is an error at the first call, by name."""

from __future__ import annotations

import os
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=False)


class StoreSettings(Settings):
    """Table and bucket; the region comes with every Lambda."""

    table: str = Field(alias="TABLE_NAME", min_length=1)
    bucket: str = Field(alias="BUCKET_NAME", min_length=1)
    region: str = Field(alias="AWS_REGION", min_length=1)


class IntakeSettings(StoreSettings):
    training_run_arn: str = Field(alias="TRAINING_RUN_ARN", min_length=1)
    hyperpod_cluster: str = Field(alias="HYPERPOD_CLUSTER_NAME", min_length=1)
    namespace: str = Field(alias="NAMESPACE", min_length=1)


class ControllerSettings(StoreSettings):
    role_arn: str = Field(alias="CONTROLLER_ROLE_ARN", min_length=1)
    session_name: str = Field(alias="CONTROLLER_SESSION_NAME", min_length=2)
    eks_cluster: str = Field(alias="EKS_CLUSTER_NAME", min_length=1)
    hyperpod_cluster: str = Field(alias="HYPERPOD_CLUSTER_NAME", min_length=1)
    namespace: str = Field(alias="NAMESPACE", min_length=1)
    service_account: str = Field(alias="SERVICE_ACCOUNT", min_length=1)
    shared_claim: str = Field(alias="SHARED_CLAIM_NAME", min_length=1)
    look_seconds: int = Field(60, alias="LOOK_SECONDS_ATTEMPT", ge=1, le=3_600)


S = TypeVar("S", bound=Settings)


def load(kind: type[S]) -> S:
    """Raises ``pydantic.ValidationError`` naming each variable that is missing or wrong."""
    return kind.model_validate(dict(os.environ))

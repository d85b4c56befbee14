"""SageMaker's model registry, through the SageMaker SDK (sagemaker-core)."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from nightshift.core.errors import PermanentError, TransientError, bounded
from nightshift.core.registration import Registration, mark_of

MOST_LOOKED_AT = 1_000
"""Packages of a group, newest first. A run's own is among the newest when it is looked for."""

NOT_THERE = frozenset({"ValidationException", "ValidationError", "ResourceNotFound", "ResourceNotFoundException"})
"""Error codes of a description of what does not exist, in AWS and its local stand-in."""

SILENT = frozenset({"ThrottlingException", "InternalFailure", "ServiceUnavailable"})


class SageMakerRegistry:
    """Implements ``steps.ports.Registry``. ``client`` gives a boto3 SageMaker client, whose deadlines the SDK then has."""

    def __init__(self, client: Callable[[], Any], region: str, bucket: str) -> None:
        self._client, self._region, self._bucket = client, region, bucket

    def register(self, wanted: Registration) -> str:
        try:
            resources, shapes = self._sdk()
            self._make_group(resources, wanted)
            there = self._find(wanted)
            if there is None:
                self._create(resources, shapes, wanted)
                there = self._find(wanted)
        except ClientError as error:
            if error.response["Error"].get("Code") in SILENT:
                raise TransientError(wanted.run_id, f"SageMaker does not answer: {error}") from error
            raise _refused(wanted, error) from error
        except BotoCoreError as error:
            raise TransientError(wanted.run_id, f"SageMaker does not answer: {error}") from error
        if there is None:
            raise TransientError(wanted.run_id, f"the package is not listed in {wanted.group} yet")
        return there

    def _sdk(self) -> tuple[Any, Any]:
        """Imported when it is needed: more than a second and 60 MB that most invocations can do without. It keeps one client
        for the whole process, with boto3's own long deadlines: ours takes its place."""
        from sagemaker_core.main import resources, shapes
        from sagemaker_core.main.utils import SageMakerClient

        for name in ("resources", "utils"):  # each has a level of its own, and a handler that draws
            logging.getLogger(f"sagemaker_core.main.{name}").setLevel(logging.ERROR)
        SageMakerClient(boto3.Session(region_name=self._region), self._region).sagemaker_client = self._client()
        return resources, shapes

    def _make_group(self, resources: Any, wanted: Registration) -> None:
        """Tags belong to the group: a package of a group takes none of its own."""
        try:
            resources.ModelPackageGroup.get(model_package_group_name=wanted.group, region=self._region)
        except ClientError as error:
            if error.response["Error"].get("Code") not in NOT_THERE:
                raise
            resources.ModelPackageGroup.create(
                model_package_group_name=wanted.group,
                model_package_group_description="LoRA adapters of Nightshift's runs",
                tags=[{"key": "created-by", "value": "nightshift"}],
                region=self._region,
            )

    def _find(self, wanted: Registration) -> str | None:
        """By the description, which nobody can change. The SDK cannot list the packages of a group: it asks each for a name,
        which only packages outside of groups have."""
        pages = (
            self._client()
            .get_paginator("list_model_packages")
            .paginate(
                ModelPackageGroupName=wanted.group,
                SortBy="CreationTime",
                SortOrder="Descending",
                PaginationConfig={"MaxItems": MOST_LOOKED_AT, "PageSize": 100},
            )
        )
        for one in (one for page in pages for one in page["ModelPackageSummaryList"]):
            if str(one.get("ModelPackageDescription", "")).startswith(mark_of(wanted.run_id)):
                return str(one["ModelPackageArn"])
            if one["CreationTime"] < wanted.asked_at:
                return None
        return None

    def _create(self, resources: Any, shapes: Any, wanted: Registration) -> None:
        source = shapes.S3ModelDataSource(
            s3_uri=f"s3://{self._bucket}/{wanted.model_prefix}", s3_data_type="S3Prefix", compression_type="None"
        )
        container = shapes.ModelPackageContainerDefinition(
            model_data_source=shapes.ModelDataSource(s3_data_source=source)
        )
        statistics = shapes.MetricsSource(
            content_type="application/json", s3_uri=f"s3://{self._bucket}/{wanted.statistics_key}"
        )
        try:
            resources.ModelPackage.create(
                model_package_group_name=wanted.group,
                model_package_description=wanted.description,
                inference_specification=shapes.InferenceSpecification(containers=[container]),
                model_approval_status="PendingManualApproval",
                model_metrics=shapes.ModelMetrics(model_quality=shapes.ModelQuality(statistics=statistics)),
                customer_metadata_properties=wanted.metadata,
                client_token=hashlib.sha256(f"{wanted.group}/{wanted.run_id}".encode()).hexdigest()[:36],
                region=self._region,
            )
        except KeyError as error:
            # After the call, the SDK (1.0.78) looks for a name in an answer that has an ARN only. The package is looked up.
            if error.args != ("ModelPackageName",):
                raise


def _refused(wanted: Registration, error: ClientError) -> PermanentError:
    return PermanentError(
        wanted.run_id,
        f"SageMaker refuses the model package: {bounded(error, 400)}",
        f"Register {wanted.model_prefix} by hand, or give the controller the right to group {wanted.group}.",
    )

"""The HyperPod cluster, through the SageMaker API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from nightshift.core.capacity import GroupCapacity, HyperPodView
from nightshift.core.errors import TransientError, bounded

MAX_REPLACED = 25
"""Instances of one BatchReplaceClusterNodes call."""

ON_ITS_WAY = frozenset({"InstanceIdNotFound", "InstanceIdInUse"})
"""Error codes of an instance that is gone already, or with which something is being done already."""


class SageMakerHyperPod:
    """Implements ``steps.ports.HyperPod``. ``client`` is a boto3 SageMaker client."""

    def __init__(self, client: Any, cluster: str) -> None:
        self._client, self._cluster = client, cluster

    def view(self) -> HyperPodView:
        found = self._client.describe_cluster(ClusterName=self._cluster)
        groups = tuple(
            GroupCapacity(
                name=g["InstanceGroupName"],
                instance_type=g.get("InstanceType", "unknown"),
                current=g.get("CurrentCount", 0),
                target=g.get("TargetCount", g.get("CurrentCount", 0)),
            )
            for g in found.get("InstanceGroups", [])
        )
        return HyperPodView(self._cluster, found["ClusterStatus"], groups)

    def replace(self, instances: Sequence[str]) -> dict[str, str]:
        """Errors come by instance. An instance of which the answer says nothing was not accepted."""
        wanted, told = list(dict.fromkeys(instances)), dict[str, str]()
        for start in range(0, len(wanted), MAX_REPLACED):
            told |= self._replace(wanted[start : start + MAX_REPLACED])
        return told

    def _replace(self, instances: Sequence[str]) -> dict[str, str]:
        try:
            answer = self._client.batch_replace_cluster_nodes(ClusterName=self._cluster, NodeIds=list(instances))
        except ClientError as error:
            code = error.response["Error"].get("Code", "unknown")
            if code in ("ThrottlingException", "InternalFailure", "ServiceUnavailable"):
                raise TransientError(self._cluster, f"HyperPod does not answer: {error}") from error
            return {one: bounded(f"{code}: {error}", 300) for one in instances}
        except BotoCoreError as error:
            raise TransientError(self._cluster, f"HyperPod does not answer: {error}") from error
        refused = {f["NodeId"]: f for f in answer.get("Failed", []) if "NodeId" in f}
        accepted = set(answer.get("Successful", []))
        return {one: "" if one in accepted else _why(refused.get(one)) for one in instances}


def _why(refusal: dict[str, Any] | None) -> str:
    if refusal is None:
        return "HyperPod's answer does not name it"
    code = str(refusal.get("ErrorCode", "unknown"))
    return "" if code in ON_ITS_WAY else bounded(f"{code}: {refusal.get('Message', '')}", 300)

"""The HyperPod cluster, through the SageMaker API."""

from __future__ import annotations

from typing import Any

from nightshift.core.capacity import GroupCapacity, HyperPodView


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

"""The HyperPod cluster, through the SageMaker API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from nightshift.core.capacity import GroupCapacity, HyperPodView
from nightshift.core.errors import TransientError, bounded
from nightshift.core.scaling import group_request

MAX_REPLACED = 25
"""Instances of one BatchReplaceClusterNodes call."""

ON_ITS_WAY = frozenset({"InstanceIdNotFound", "InstanceIdInUse"})
"""Error codes of an instance that is gone already, or with which something is being done already."""


UNANSWERED = frozenset({"ThrottlingException", "InternalFailure", "ServiceUnavailable"})
"""Error codes that say nothing about what was asked for."""


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
            with _answers(self._cluster):
                answer = self._client.batch_replace_cluster_nodes(ClusterName=self._cluster, NodeIds=list(instances))
        except ClientError as error:
            return {one: bounded(f"{_code(error)}: {error}", 300) for one in instances}
        refused = {f["NodeId"]: f for f in answer.get("Failed", []) if "NodeId" in f}
        accepted = set(answer.get("Successful", []))
        return {one: "" if one in accepted else _why(refused.get(one)) for one in instances}

    def resize(self, targets: Mapping[str, int]) -> str:
        """All groups are described and sent again, the named ones with their new count: UpdateCluster is told the whole cluster.
        Between the two somebody else may have changed a count; it is seen at the next look."""
        try:
            with _answers(self._cluster):
                return self._resize(targets)
        except ClientError as error:
            return bounded(f"{_code(error)}: {error.response['Error'].get('Message', '')}", 400)

    def _resize(self, targets: Mapping[str, int]) -> str:
        found = self._client.describe_cluster(ClusterName=self._cluster)
        groups = {g["InstanceGroupName"]: g for g in found.get("InstanceGroups", [])}
        counts = {name: int(g.get("TargetCount", g.get("CurrentCount", 0))) for name, g in groups.items()}
        unknown = sorted(targets.keys() - groups.keys())
        if unknown:
            return f"HyperPod cluster {self._cluster} has no instance group {', '.join(unknown)}"
        if all(counts[name] == count for name, count in targets.items()):
            return ""
        shape = _names(self._client.meta.service_model.operation_model("UpdateCluster").input_shape)["InstanceGroups"]
        wanted = counts | dict(targets)
        self._client.update_cluster(
            ClusterName=self._cluster,
            InstanceGroups=[group_request(g, shape, wanted[name]) for name, g in groups.items()],
            **({"NodeRecovery": found["NodeRecovery"]} if "NodeRecovery" in found else {}),
        )
        return ""


@contextmanager
def _answers(cluster: str) -> Iterator[None]:
    """Raises TransientError for what says nothing about what was asked for; a refusal goes through as it is."""
    try:
        yield
    except ClientError as error:
        if _code(error) in UNANSWERED:
            raise TransientError(cluster, f"HyperPod does not answer: {error}") from error
        raise
    except BotoCoreError as error:
        raise TransientError(cluster, f"HyperPod does not answer: {error}") from error


def _code(error: ClientError) -> str:
    return str(error.response["Error"].get("Code", "unknown"))


def _names(shape: Any) -> dict[str, Any]:
    """Nested names of a botocore shape's members; empty for what has none."""
    inner = shape.member if shape.type_name == "list" else shape
    return {name: _names(one) for name, one in inner.members.items()} if inner.type_name == "structure" else {}


def _why(refusal: dict[str, Any] | None) -> str:
    if refusal is None:
        return "HyperPod's answer does not name it"
    code = str(refusal.get("ErrorCode", "unknown"))
    return "" if code in ON_ITS_WAY else bounded(f"{code}: {refusal.get('Message', '')}", 300)

"""Answers of the SageMaker API about the pretended cluster, in botocore's shapes (times are epoch seconds)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from local.kube.errors import Json
from local.kube.hyperpod import HyperPod, Instance
from local.kube.hyperpod_events import cluster_arn

MAX_RESULTS = 100
MAX_REPLACED = 25
MAX_INSTANCES = 8
"""The account's limit for each instance type."""


class SageMakerError(Exception):
    """``code`` is the API's error name, ``status`` the HTTP status."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


def answer(pod: HyperPod, operation: str, body: Json) -> Json:
    """One call. Raises :class:`SageMakerError`."""
    operations: dict[str, Callable[[HyperPod, Json], Json]] = {
        "DescribeCluster": describe_cluster,
        "ListClusterNodes": list_cluster_nodes,
        "DescribeClusterNode": describe_cluster_node,
        "BatchReplaceClusterNodes": batch_replace_cluster_nodes,
        "UpdateCluster": update_cluster,
    }
    if operation not in operations:
        raise SageMakerError("UnknownOperationException", f"{operation[:100]} is not part of the local stack")
    named = str(body.get("ClusterName", ""))
    if named not in (pod.config.hyperpod_cluster, cluster_arn(pod.config)):
        raise SageMakerError("ResourceNotFound", f"Cluster with name {named[:200]} not found")
    return operations[operation](pod, body)


def describe_cluster(pod: HyperPod, body: Json) -> Json:
    config = pod.config
    return {
        "ClusterArn": cluster_arn(config),
        "ClusterName": config.hyperpod_cluster,
        "ClusterStatus": "InService",
        "CreationTime": pod.created_at.timestamp(),
        "InstanceGroups": [
            {
                "InstanceGroupName": name,
                "InstanceType": kind,
                "CurrentCount": sum(i.group == name and i.joined for i in pod.instances.values()),
                "TargetCount": count,
                "Status": "InService",
                "ThreadsPerCore": 1,
                "ExecutionRole": f"arn:aws:iam::{config.account}:role/hyperpod-instances",
                "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-local-lifecycle/src", "OnCreate": "on_create.sh"},
            }
            for name, kind, count in pod.groups()
        ],
        "Orchestrator": {
            "Eks": {"ClusterArn": f"arn:aws:eks:{config.region}:{config.account}:cluster/{config.eks_cluster}"}
        },
        "NodeRecovery": "Automatic",
        "NodeProvisioningMode": "Continuous",
    }


def list_cluster_nodes(pod: HyperPod, body: Json) -> Json:
    part = str(body.get("InstanceGroupNameContains", ""))
    chosen = [one for one in pod.instances.values() if part in one.group]
    by_name = body.get("SortBy", "CREATION_TIME") == "NAME"
    chosen.sort(
        key=lambda one: one.instance_id if by_name else f"{one.launched_at.timestamp():020.6f}",
        reverse=body.get("SortOrder", "Ascending") == "Descending",
    )
    start, size = _page(body)
    found: Json = {"ClusterNodeSummaries": [_summary(one) for one in chosen[start : start + size]]}
    if start + size < len(chosen):
        found["NextToken"] = str(start + size)
    return found


def describe_cluster_node(pod: HyperPod, body: Json) -> Json:
    wanted = {str(body[name]) for name in ("NodeId", "NodeLogicalId") if name in body}
    for one in pod.instances.values():
        if wanted and wanted <= {one.instance_id, one.logical_id}:
            details = _summary(one) | {
                "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-local-lifecycle/src", "OnCreate": "on_create.sh"},
                "ThreadsPerCore": 1,
                "CapacityType": "OnDemand",
                "Placement": {"AvailabilityZone": f"{pod.config.region}a"},
            }
            return {"NodeDetails": details}
    raise SageMakerError("ResourceNotFound", f"Instance {', '.join(sorted(wanted))[:200]} not found")


def batch_replace_cluster_nodes(pod: HyperPod, body: Json) -> Json:
    """Accepted at once and done in the background, with the events of any replacement. Takes instance ids only."""
    wanted = [str(one) for one in body.get("NodeIds", [])]
    if not 1 <= len(wanted) <= MAX_REPLACED:
        raise SageMakerError("ValidationException", f"NodeIds must be 1 to {MAX_REPLACED} instance ids")
    known = [one for one in dict.fromkeys(wanted) if one in pod.instances]
    for one in known:
        pod.replace_soon(one)
    unknown = [one for one in dict.fromkeys(wanted) if one not in pod.instances]
    failed = [
        {"NodeId": one, "ErrorCode": "InstanceIdNotFound", "Message": f"Instance {one[:100]} is not in the cluster"}
        for one in unknown
    ]
    return {"Successful": known, "Failed": failed}


def update_cluster(pod: HyperPod, body: Json) -> Json:
    """New counts of instance groups. As the real one it takes no second update while one is under way, and must be told of every
    group with its role; one that is left out would be an error of ours, and is one here."""
    if pod.scaling:
        raise SageMakerError("ConflictException", "An update of the cluster is in progress")
    asked = {str(one["InstanceGroupName"]): one for one in body.get("InstanceGroups", [])}
    groups = {name: (kind, count) for name, kind, count in pod.groups()}
    if asked.keys() != groups.keys():
        raise SageMakerError("ValidationException", f"InstanceGroups must be {', '.join(sorted(groups))}")
    for name, one in asked.items():
        kind, _ = groups[name]
        if one.get("InstanceType") != kind or "ExecutionRole" not in one or "LifeCycleConfig" not in one:
            raise SageMakerError("ValidationException", f"instance group {name} is not the one that is there")
        if int(one["InstanceCount"]) > MAX_INSTANCES:
            raise SageMakerError(
                "ResourceLimitExceeded", f"The account-level limit for {kind} is {MAX_INSTANCES} instances"
            )
    for name, one in asked.items():
        pod.resize(name, groups[name][0], int(one["InstanceCount"]))
    return {"ClusterArn": cluster_arn(pod.config)}


def _summary(one: Instance) -> Json:
    status: Any = {"Status": one.status}
    if not one.joined:
        status["Message"] = "Waiting for the replacement to join the cluster."
    return {
        "InstanceGroupName": one.group,
        "InstanceId": one.instance_id,
        "NodeLogicalId": one.logical_id,
        "InstanceType": one.instance_type,
        "LaunchTime": one.launched_at.timestamp(),
        "InstanceStatus": status,
        "PrivateDnsHostname": f"{one.node_name}.local",
    }


def _page(body: Json) -> tuple[int, int]:
    token, size = str(body.get("NextToken", "0")), int(body.get("MaxResults", MAX_RESULTS))
    if not token.isdigit() or not 1 <= size <= MAX_RESULTS:
        raise SageMakerError("ValidationException", "NextToken or MaxResults is not valid")
    return int(token), size

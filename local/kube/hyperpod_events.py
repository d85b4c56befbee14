"""Events as HyperPod sends them to EventBridge: exact payload shapes, from the documentation and from accounts of
people who ran it (facts: dates are of 2026-11). Pure; identifiers and times are passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from local.config import StackConfig

Json = dict[str, Any]
SOURCE = "aws.sagemaker"
NODE_HEALTH = "SageMaker HyperPod Cluster Node Health Event"
CLUSTER_EVENT = "SageMaker HyperPod Cluster Event"
STATE_CHANGE = "SageMaker HyperPod Cluster State Change"


def cluster_arn(config: StackConfig) -> str:
    return f"arn:aws:sagemaker:{config.region}:{config.account}:cluster/{config.hyperpod_cluster}"


@dataclass(frozen=True)
class Moment:
    """When an event happens, and its envelope's id (EventBridge gives each delivery of a state change its own)."""

    at: datetime
    event_id: str


def node_health(config: StackConfig, moment: Moment, instance_id: str, healthy: bool = False) -> Json:
    """A node turned unhealthy, or healthy again. It has no instance group."""
    if healthy:
        summary = {"HealthStatus": "Healthy", "HealthStatusReason": "", "RepairAction": "None", "Recommendation": ""}
    else:
        summary = {
            "HealthStatus": "Unhealthy",
            "HealthStatusReason": "HyperPod Health Monitoring Agent (HMA) has detected fault type NvidiaErrorTerminate "
            "on this node and is unhealthy.",
            "RepairAction": "Replace",
            "Recommendation": "HyperPod is working on repairing the unhealthy node. Please wait for the RepairAction "
            "to complete.",
        }
    detail = {
        "ClusterName": config.hyperpod_cluster,
        "ClusterArn": cluster_arn(config),
        "InstanceId": instance_id,
        "Tags": {},
        "HealthSummary": summary,
    }
    return _envelope(config, moment, NODE_HEALTH, detail)


def replacement_started(config: StackConfig, moment: Moment, instance_id: str, group: str, event_id: str) -> Json:
    where = f"in Cluster {config.hyperpod_cluster} and IG {group}"
    description = f"Instance {instance_id} is starting as part of instance replacement {where}"
    return _cluster_event(config, moment, instance_id, group, event_id, description)


def replacement_completed(config: StackConfig, moment: Moment, instance_id: str, group: str, event_id: str) -> Json:
    where = f"in Cluster {config.hyperpod_cluster} and IG {group}"
    description = f"Instance {instance_id} creation completed successfully as part of instance replacement {where}"
    return _cluster_event(config, moment, instance_id, group, event_id, description)


def _cluster_event(
    config: StackConfig, moment: Moment, instance_id: str, group: str, event_id: str, description: str
) -> Json:
    """``EventMetadata``'s subtrees arrive as null through EventBridge; DescribeClusterEvent has them."""
    details = {
        "EventId": event_id,
        "ClusterArn": cluster_arn(config),
        "ClusterName": config.hyperpod_cluster,
        "InstanceGroupName": group,
        "InstanceId": instance_id,
        "ResourceType": "Instance",
        "EventTime": int(moment.at.timestamp() * 1000),
        "EventLevel": "Info",
        "Description": description,
        "EventDetails": {
            "EventMetadata": {"Cluster": None, "InstanceGroup": None, "InstanceGroupScaling": None, "Instance": None}
        },
    }
    return _envelope(config, moment, CLUSTER_EVENT, {"EventDetails": details})


def _envelope(config: StackConfig, moment: Moment, detail_type: str, detail: Json) -> Json:
    return {
        "version": "0",
        "id": moment.event_id,
        "detail-type": detail_type,
        "source": SOURCE,
        "account": config.account,
        "time": moment.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "region": config.region,
        "resources": [cluster_arn(config)],
        "detail": detail,
    }

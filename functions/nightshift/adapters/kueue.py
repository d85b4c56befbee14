"""Workloads of Kueue, read through the Kubernetes API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightkube import ApiError, Client
from lightkube.generic_resource import create_namespaced_resource

from nightshift.core.errors import bounded
from nightshift.core.observation import WorkloadView
from nightshift.core.queueing import workload_view
from nightshift.core.raycluster import QUEUE_LABEL

Workload = create_namespaced_resource("kueue.x-k8s.io", "v1beta1", "Workload", "workloads")
JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"
"""Kueue labels a Workload with the uid of what it admits; the Workload's name is Kueue's own business."""

UNREADABLE = frozenset({403, 404})
MAX_REFUSAL = 300


def queue_view(client: Client, cluster: Any) -> dict[str, Any]:
    """Fields of a ClusterView for a RayCluster as lightkube has it: what Kueue does with it, and why a pod is refused."""
    document = cluster.to_dict()
    status = document.get("status")
    listed = status.get("conditions") if isinstance(status, dict) else None
    refusals = [c for c in listed or [] if c.get("type") == "ReplicaFailure" and c.get("status") == "True"]
    return {
        "suspended": bool((document.get("spec") or {}).get("suspend")),
        "workload": workload_of(client, document),
        "pods_refused": bounded(refusals[0].get("message", ""), MAX_REFUSAL) if refusals else None,
    }


def workload_of(client: Client, cluster: Mapping[str, Any]) -> WorkloadView | None:
    """What Kueue says about a RayCluster, given as JSON. None where it names no queue, where Kueue has no Workload of it,
    and where Kueue is not there or may not be read: then nothing is known. Raises lightkube's ApiError and httpx's errors."""
    metadata = cluster.get("metadata") or {}
    if QUEUE_LABEL not in (metadata.get("labels") or {}) or not metadata.get("uid"):
        return None
    try:
        items: list[Any] = list(client.list(Workload, labels={JOB_UID_LABEL: str(metadata["uid"])}))
    except ApiError as error:
        if error.status.code in UNREADABLE:
            return None
        raise
    found: list[dict[str, Any]] = [item.to_dict() for item in items]
    newest = max(found, key=lambda w: str((w.get("metadata") or {}).get("creationTimestamp", "")), default=None)
    return None if newest is None else workload_view(newest)

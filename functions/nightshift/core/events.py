"""EventBridge events of others, reduced to hints. Unknown shapes give None: a hint that cannot be read is no hint."""

from __future__ import annotations

import re
from typing import Any

from nightshift.core.errors import bounded
from nightshift.core.relevance import NodeHint
from nightshift.core.run import SignalKind

HYPERPOD_TYPES = {
    "SageMaker HyperPod Cluster Node Health Event": SignalKind.NODE_HEALTH,
    "SageMaker HyperPod Cluster Event": SignalKind.CLUSTER_EVENT,
    "SageMaker HyperPod Cluster State Change": SignalKind.CLUSTER_STATE,
}
OUTCOME_KEY = re.compile(r"runs/(?P<run_id>[a-z][-a-z0-9]{0,39})/attempts/(?P<attempt>[1-9][0-9]{0,5})/outcome\.json")
NAME = re.compile(r"[\w.-]{1,100}", re.ASCII)
"""Names of clusters and ids of instances. What is longer or has other characters would only break the table's keys."""


def node_hint(event: Any) -> NodeHint | None:
    """The hint of a HyperPod event. The cluster's name sits at ``detail.ClusterName`` or, in cluster events, at
    ``detail.EventDetails.ClusterName``; so does the instance's id."""
    detail = _inside(event, "detail")
    kind = HYPERPOD_TYPES.get(str(event.get("detail-type"))) if detail is not None else None
    if kind is None or detail is None:
        return None
    inner = _inside(detail, "EventDetails") or detail
    cluster, instance = _name(inner.get("ClusterName")), _name(inner.get("InstanceId"))
    if cluster is None:
        return None
    summary = inner.get("HealthSummary")
    said = inner.get("Description") or (summary.get("HealthStatusReason") if isinstance(summary, dict) else None)
    return NodeHint(kind, cluster, instance, bounded(said or "", 300))


def outcome_object(event: Any) -> tuple[str, int] | None:
    """(run_id, attempt) of an "Object Created" event for an outcome.json."""
    key = (_inside(_inside(event, "detail"), "object") or {}).get("key")
    match = OUTCOME_KEY.fullmatch(key) if isinstance(key, str) else None
    return (match["run_id"], int(match["attempt"])) if match else None


def _inside(event: Any, name: str) -> dict[str, Any] | None:
    found = event.get(name) if isinstance(event, dict) else None
    return found if isinstance(found, dict) else None


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and NAME.fullmatch(value) else None

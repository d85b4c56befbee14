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
OUTCOME_KEY = re.compile(r"^runs/(?P<run_id>[a-z][-a-z0-9]{0,39})/attempts/(?P<attempt>[1-9]\d{0,5})/outcome\.json$")


def node_hint(event: dict[str, Any]) -> NodeHint | None:
    """The hint of a HyperPod event. The cluster's name sits at ``detail.ClusterName`` or, in cluster events, at
    ``detail.EventDetails.ClusterName``; so does the instance's id."""
    kind = HYPERPOD_TYPES.get(str(event.get("detail-type")))
    detail = event.get("detail")
    if kind is None or not isinstance(detail, dict):
        return None
    inner = detail.get("EventDetails") if isinstance(detail.get("EventDetails"), dict) else detail
    assert isinstance(inner, dict)
    cluster, instance = inner.get("ClusterName"), inner.get("InstanceId")
    if not isinstance(cluster, str):
        return None
    summary = inner.get("HealthSummary")
    said = inner.get("Description") or (summary.get("HealthStatusReason") if isinstance(summary, dict) else None)
    return NodeHint(kind, cluster, instance if isinstance(instance, str) else None, bounded(said or "", 300))


def outcome_object(event: dict[str, Any]) -> tuple[str, int] | None:
    """(run_id, attempt) of an "Object Created" event for an outcome.json."""
    detail = event.get("detail")
    thing = detail.get("object") if isinstance(detail, dict) else None
    key = thing.get("key") if isinstance(thing, dict) else None
    match = OUTCOME_KEY.match(key) if isinstance(key, str) else None
    return (match["run_id"], int(match["attempt"])) if match else None

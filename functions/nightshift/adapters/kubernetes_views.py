"""What the Kubernetes API's objects say, as the core's views and as records for a person. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from lightkube.models.core_v1 import ContainerStateTerminated, Event, PodCondition
from lightkube.models.core_v1 import Node as NodeModel
from lightkube.models.core_v1 import Pod as PodModel

from nightshift.core.errors import bounded
from nightshift.core.observation import PodView
from nightshift.core.raycluster import NODE_PREFIX, WORKER_GROUP

HEALTH_LABEL = "sagemaker.amazonaws.com/node-health-status"
HEALTHY = "Schedulable"
GROUP_LABEL = "sagemaker.amazonaws.com/instance-group-name"
DISRUPTION = "DisruptionTarget"
"""The pod condition that Kubernetes sets before it takes a pod away: preemption, eviction, a taint, a node's end."""

TAKEN_AWAY = frozenset({"Evicted", "Preempting", "Preempted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated"})
"""Values of a pod's ``status.reason`` that mean the same, set by the kubelet."""

MAX_RECORDS = 200
MAX_TEXT = 500
SHORTEST_CUT = 40
"""A name is cut only where it is longer than this."""

_DAWN = datetime.min.replace(tzinfo=UTC)


def pod_view(pod: PodModel) -> PodView:
    metadata, status = pod.metadata, pod.status
    assert metadata is not None and metadata.name is not None, "the API server names every pod"
    conditions = (status.conditions if status else None) or []
    containers = (status.containerStatuses if status else None) or []
    waiting = [c.state.waiting for c in containers if c.state is not None and c.state.waiting is not None]
    ended = next(iter(_ended(pod)), None)
    return PodView(
        name=metadata.name,
        is_head=(metadata.labels or {}).get("ray.io/node-type") == "head",
        ready=metadata.deletionTimestamp is None and any(c.type == "Ready" and c.status == "True" for c in conditions),
        instance_id=instance_of(pod),
        ip=status.podIP if status else None,
        waiting_reason=f"{waiting[0].reason}: {bounded(waiting[0].message or '', 300)}" if waiting else None,
        created_at=metadata.creationTimestamp,
        terminating=metadata.deletionTimestamp is not None,
        ended=f"{ended.reason or 'ended'}, exit code {ended.exitCode}" if ended is not None else None,
        exit_code=ended.exitCode if ended is not None else None,
        ended_at=ended.finishedAt if ended is not None else None,
        disruption=_disruption(pod, conditions),
    )


def pods_by_group(pods: Iterable[PodModel], nodes: Iterable[NodeModel]) -> dict[str, list[str]]:
    """Instance group -> at most five pods on its HyperPod nodes that somebody would miss. ``""`` is the group of a node without
    the label. DaemonSets' pods are on every node, and a node's own static ones too: neither makes it useful."""
    labels = {n.metadata.name: n.metadata.labels or {} for n in nodes if n.metadata is not None}
    found: dict[str, list[str]] = {}
    for pod in pods:
        metadata, node = pod.metadata, pod.spec.nodeName if pod.spec is not None else None
        if metadata is None or node is None or not node.startswith(NODE_PREFIX):
            continue
        over = pod.status is not None and pod.status.phase in ("Succeeded", "Failed")
        anyway = {o.kind for o in metadata.ownerReferences or []} & {"DaemonSet", "Node"}
        if not over and not anyway:
            found.setdefault(labels.get(node, {}).get(GROUP_LABEL, ""), []).append(
                f"{metadata.namespace}/{metadata.name}"
            )
    return {group: sorted(names)[:5] for group, names in found.items()}


def instance_of(pod: PodModel) -> str | None:
    node = pod.spec.nodeName if pod.spec is not None else None
    return node.removeprefix(NODE_PREFIX) if node else None


def _ended(pod: PodModel) -> Iterable[ContainerStateTerminated]:
    """How containers ended: now, or before they were started again."""
    for container in (pod.status.containerStatuses if pod.status else None) or []:
        for state in (container.state, container.lastState):
            if state is not None and state.terminated is not None:
                yield state.terminated


def _disruption(pod: PodModel, conditions: Iterable[PodCondition]) -> str | None:
    for condition in conditions:
        if condition.type == DISRUPTION and condition.status == "True":
            return f"{condition.reason or DISRUPTION}: {bounded(condition.message or '', 300)}"
    if pod.status is not None and pod.status.reason in TAKEN_AWAY:
        return f"{pod.status.reason}: {bounded(pod.status.message or '', 300)}"
    return None


def unhealthy_instances(nodes: Sequence[NodeModel], wanted: frozenset[str]) -> frozenset[str]:
    """Of the wanted instances those that HyperPod's label marks as not schedulable."""
    health = {_instance(n): _labels(n).get(HEALTH_LABEL, HEALTHY) for n in nodes}
    return frozenset(i for i in wanted if health.get(i, HEALTHY) != HEALTHY)


def silent_instances(nodes: Sequence[NodeModel], wanted: frozenset[str]) -> frozenset[str]:
    """Of the wanted instances those whose node is not Ready (its kubelet posts nothing), or is gone."""
    speaking = {_instance(n) for n in nodes if _is_ready(n)}
    return wanted - speaking


def _instance(node: NodeModel) -> str:
    name = node.metadata.name if node.metadata is not None else None
    return (name or "").removeprefix(NODE_PREFIX)


def _labels(node: NodeModel) -> Mapping[str, str]:
    return (node.metadata.labels if node.metadata is not None else None) or {}


def _is_ready(node: NodeModel) -> bool:
    conditions = (node.status.conditions if node.status is not None else None) or []
    return any(c.type == "Ready" and c.status == "True" for c in conditions)


def pod_record(pod: PodModel) -> dict[str, Any]:
    """A pod for a person. Nothing of its spec but the node and the image: environments may hold secrets."""
    assert pod.metadata is not None, "the API server names every pod"
    status, containers = pod.status, (pod.status.containerStatuses if pod.status else None) or []
    image = pod.spec.containers[0].image if pod.spec is not None and pod.spec.containers else None
    return {
        "name": pod.metadata.name,
        "uid": pod.metadata.uid,
        "node": pod.spec.nodeName if pod.spec is not None else None,
        "image": image,
        "created": _time(pod.metadata.creationTimestamp),
        "deleting_since": _time(pod.metadata.deletionTimestamp),
        "labels": dict(pod.metadata.labels or {}),
        "phase": status.phase if status else None,
        "reason": status.reason if status else None,
        "message": bounded(status.message or "", MAX_TEXT) if status else None,
        "ip": status.podIP if status else None,
        "conditions": [_condition_record(c) for c in (status.conditions if status else None) or []],
        "containers": [
            {
                "name": c.name,
                "ready": c.ready,
                "restarts": c.restartCount,
                "state": _state_record(c.state),
                "last_state": _state_record(c.lastState),
            }
            for c in containers
        ],
    }


def _condition_record(condition: Any) -> dict[str, Any]:
    """A pod's or a node's condition; ``status`` is True, False or Unknown."""
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": bounded(condition.message or "", MAX_TEXT),
        "since": _time(condition.lastTransitionTime),
    }


def _state_record(state: Any) -> dict[str, Any] | None:
    if state is None:
        return None
    if state.terminated is not None:
        end = state.terminated
        return {
            "terminated": end.reason,
            "exit_code": end.exitCode,
            "signal": end.signal,
            "message": bounded(end.message or "", MAX_TEXT),
            "at": _time(end.finishedAt),
        }
    if state.waiting is not None:
        return {"waiting": state.waiting.reason, "message": bounded(state.waiting.message or "", MAX_TEXT)}
    return {"running_since": _time(state.running.startedAt)} if state.running is not None else None


def event_record(event: Event) -> dict[str, Any]:
    about = event.involvedObject
    return {
        "at": _time(event_time(event)),
        "about": f"{about.kind}/{about.name}",
        "type": event.type,
        "reason": event.reason,
        "message": bounded(event.message or "", MAX_TEXT),
        "count": event.count,
        "source": event.reportingComponent or (event.source.component if event.source is not None else None),
    }


def event_time(event: Event) -> datetime:
    """When it was seen last; older and newer sources fill different fields."""
    series = event.series.lastObservedTime if event.series is not None else None
    created = event.metadata.creationTimestamp
    return series or event.lastTimestamp or event.eventTime or event.firstTimestamp or created or _DAWN


def is_about(event: Event, cluster: str) -> bool:
    """About the RayCluster or one of its pods, also about pods that are gone.

    KubeRay names a pod by its cluster, group and kind, and cuts what is too long from the front."""
    name = event.involvedObject.name or ""
    stem = name.rpartition("-")[0]
    stems = (f"{cluster}-head", f"{cluster}-{WORKER_GROUP}-worker")
    return name == cluster or any(stem == s or (len(stem) >= SHORTEST_CUT and s.endswith(stem)) for s in stems)


def node_record(node: NodeModel) -> dict[str, Any]:
    spec, status = node.spec, node.status
    return {
        "name": node.metadata.name if node.metadata is not None else None,
        "labels": dict(_labels(node)),
        "unschedulable": bool(spec.unschedulable) if spec is not None else False,
        "taints": [f"{t.key}={t.value or ''}:{t.effect}" for t in (spec.taints if spec is not None else None) or []],
        "conditions": [_condition_record(c) for c in (status.conditions if status is not None else None) or []],
    }


def _time(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None and moment is not _DAWN else None

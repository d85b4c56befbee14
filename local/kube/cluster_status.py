"""The status that KubeRay v1.7 writes into a RayCluster. Pure.

Counts of 0 are absent (Go's omitempty). ``state`` becomes "ready" once and is never taken back; so is
RayClusterProvisioned. Neither says anything about health now.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from local.kube.admission import gpus_of
from local.kube.errors import Json
from local.kube.pods import NODE_TYPE_LABEL

_UNITS: dict[str, Fraction] = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    **{letter: Fraction(1000) ** power for power, letter in enumerate("kMGT", start=1)},
    **{f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGT", start=1)},
}


def quantity(text: str | int) -> Fraction:
    """``"500m"`` -> 1/2, ``"64Gi"`` -> 68719476736."""
    value = str(text)
    digits = value.rstrip("mkKMGTi")
    return Fraction(digits) * _UNITS[value[len(digits) :]]


def ready(pod: Json) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and any(
        c["type"] == "Ready" and c["status"] == "True" for c in pod["status"]["conditions"]
    )


def next_status(cluster: Json, pods: list[Json], failure: str | None, now: str) -> Json:
    """From the spec, the pods as they are, and the status before (for what latches). ``failure``: a pod could not be
    made or started."""
    old: Json = cluster.get("status", {})
    head = next((p for p in pods if p["metadata"]["labels"][NODE_TYPE_LABEL] == "head"), None)
    workers = [p for p in pods if p["metadata"]["labels"][NODE_TYPE_LABEL] == "worker"]
    groups = cluster["spec"]["workerGroupSpecs"]
    desired = 0 if cluster["spec"].get("suspend") else sum(group["replicas"] for group in groups)
    ready_workers = sum(map(ready, workers))
    all_ready = head is not None and ready(head) and ready_workers == desired
    suspended = bool(cluster["spec"].get("suspend")) and not pods
    provisioned = (_is_true(old, "RayClusterProvisioned") or all_ready) and not suspended
    counts = {
        "desiredWorkerReplicas": desired,
        "readyWorkerReplicas": ready_workers,
        "availableWorkerReplicas": sum(p["status"]["phase"] == "Running" for p in workers),
        "minWorkerReplicas": sum(group["minReplicas"] for group in groups),
        "maxWorkerReplicas": sum(group["maxReplicas"] for group in groups),
        "observedGeneration": cluster["metadata"]["generation"],
    }
    status: Json = {name: count for name, count in counts.items() if count}
    status |= _desired_resources(cluster)
    state = "suspended" if suspended else "ready" if all_ready else old.get("state")
    if state:
        status["state"] = state
        since = old.get("stateTransitionTimes", {}).get(state, now)
        status["stateTransitionTimes"] = {state: since}
    status["head"] = _head(cluster, head)
    status["endpoints"] = {"client": "10001", "dashboard": "8265", "gcs-server": "6379", "metrics": "8080"}
    conditions = [_head_condition(head), _provisioned_condition(provisioned)]
    if suspended:
        conditions.append(
            ("RayClusterSuspended", True, "RayClusterSuspended", "All pods of the RayCluster are deleted")
        )
    if failure:
        conditions.append(("ReplicaFailure", True, "FailedCreateWorkerPod", failure[:1_000]))
    status["conditions"] = _dated(conditions, old, now)
    return status


def _desired_resources(cluster: Json) -> Json:
    total = {"cpu": Fraction(0), "memory": Fraction(0)}
    groups = [(cluster["spec"]["headGroupSpec"], 1)]
    groups += [(group, group["replicas"]) for group in cluster["spec"]["workerGroupSpecs"]]
    for group, count in groups:
        resources = group["template"]["spec"]["containers"][0]["resources"]
        for name in total:
            text = resources.get("limits", {}).get(name) or resources.get("requests", {}).get(name, 0)
            total[name] += count * quantity(text)
    gpus = sum(count * gpus_of(group) for group, count in groups)
    return {"desiredCPU": _text(total["cpu"]), "desiredMemory": _text(total["memory"]), "desiredGPU": str(gpus)}


def _text(value: Fraction) -> str:
    return str(int(value)) if value.denominator == 1 else f"{int(value * 1000)}m"


def _head(cluster: Json, head: Json | None) -> Json:
    service = f"{cluster['metadata']['name']}-head-svc"
    if head is None:
        return {"serviceName": service}
    ip = head["status"].get("podIP")
    addresses = {"podIP": ip, "serviceIP": ip} if ip else {}
    return {"podName": head["metadata"]["name"], "serviceName": service, **addresses}


Condition = tuple[str, bool, str, str]
"""(type, is it true, reason, message)."""


def _head_condition(head: Json | None) -> Condition:
    if head is None:
        return "HeadPodReady", False, "HeadPodNotFound", "Head Pod not found"
    if ready(head):
        return "HeadPodReady", True, "HeadPodRunningAndReady", ""
    waiting = next(iter(waiting_reasons([head])), None)
    return "HeadPodReady", False, waiting or "ContainersNotReady", "containers with unready status: [ray-head]"


def waiting_reasons(pods: Iterable[Json]) -> list[str]:
    """Reasons such as ImagePullBackOff of containers that wait."""
    return [
        state["waiting"]["reason"]
        for pod in pods
        for container in pod["status"].get("containerStatuses", [])
        if "waiting" in (state := container["state"])
    ]


def _provisioned_condition(provisioned: bool) -> Condition:
    if provisioned:
        reason, message = "AllPodRunningAndReadyFirstTime", "All Ray Pods are ready for the first time"
    else:
        reason, message = "RayClusterPodsProvisioning", "RayCluster Pods are being provisioned for first time"
    return "RayClusterProvisioned", provisioned, reason, message


def _dated(conditions: list[Condition], old: Json, now: str) -> list[Json]:
    before = {c["type"]: c for c in old.get("conditions", [])}
    dated = []
    for kind, true, reason, message in conditions:
        status = "True" if true else "False"
        same = kind in before and before[kind]["status"] == status
        moment = before[kind]["lastTransitionTime"] if same else now
        dated.append(
            {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": moment}
        )
    return dated


def _is_true(status: Json, kind: str) -> bool:
    return any(c["type"] == kind and c["status"] == "True" for c in status.get("conditions", []))

"""Kueue's Workload and LocalQueue as documents, and what task governance refuses. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from local.kube.admission import gpus_of
from local.kube.errors import Forbidden, Json
from local.kube.store import Kind

GROUP, VERSION = "kueue.x-k8s.io", "v1beta1"
WORKLOAD = Kind("Workload", "workloads", GROUP, VERSION)
LOCAL_QUEUE = Kind("LocalQueue", "localqueues", GROUP, VERSION)
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"
GPU = "nvidia.com/gpu"
PRIORITY_CLASSES: dict[str, int] = {"urgent-priority": 1_000}
"""WorkloadPriorityClasses that are there. A job that names another one gets no Workload."""

_DENIED = (
    "ValidatingAdmissionPolicy 'hyperpod-task-governance-admission-policy' denied request: The label "
    f"'{QUEUE_LABEL}' is either missing or does not have a value set."
)


def queue_of(item: Json) -> str:
    """The queue that an object's label names, or an empty string."""
    return str(item["metadata"].get("labels", {}).get(QUEUE_LABEL, ""))


def denial(item: Json) -> str | None:
    """What the admission policy of a governed namespace says about a RayCluster or a pod without the label."""
    return None if queue_of(item) else f'{item["kind"].lower()} "{item["metadata"]["name"]}" is forbidden: {_DENIED}'


def refuse_without_label(item: Json) -> None:
    """Raises :class:`Forbidden`."""
    why = denial(item)
    if why is not None:
        raise Forbidden(why)


def gpus_wanted(cluster: Json) -> int:
    """GPUs of the whole declared size: what a RayCluster holds of the quota from its admission to its end."""
    return sum(gpus_of(group) * int(group["replicas"]) for group in cluster["spec"]["workerGroupSpecs"])


def local_queue(name: str, namespace: str, gpus: int) -> Json:
    """A LocalQueue. Its quota is really the ClusterQueue's; here it is in an annotation."""
    return {
        "metadata": {"name": name, "namespace": namespace, "annotations": {"local/quota-gpus": str(gpus)}},
        "spec": {"clusterQueue": f"{name}-clusterqueue"},
        "status": {},
    }


def quota(queue: Json) -> int:
    return int(queue["metadata"]["annotations"]["local/quota-gpus"])


def workload(cluster: Json) -> Json | None:
    """A new Workload for a RayCluster; None where it names a priority class that is not there."""
    metadata, spec = cluster["metadata"], cluster["spec"]
    named = metadata.get("labels", {}).get(PRIORITY_LABEL)
    if named is not None and named not in PRIORITY_CLASSES:
        return None
    sets = [("head", spec["headGroupSpec"], 1)]
    sets += [(str(group["groupName"]).lower(), group, int(group["replicas"])) for group in spec["workerGroupSpecs"]]
    suffix = hashlib.sha256(str(metadata["uid"]).encode()).hexdigest()[:5]
    return {
        "metadata": {
            "name": f"raycluster-{metadata['name']}-{suffix}",
            "namespace": metadata["namespace"],
            "labels": {JOB_UID_LABEL: metadata["uid"]},
            "ownerReferences": [
                {
                    "apiVersion": "ray.io/v1",
                    "kind": "RayCluster",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "active": True,
            "queueName": queue_of(cluster),
            "priority": PRIORITY_CLASSES.get(str(named), 0),
            **({"priorityClassName": named} if named else {}),
            "podSets": [{"name": name, "count": count, "template": group["template"]} for name, group, count in sets],
        },
        "status": {"conditions": []},
    }


def owner_uid(item: Json) -> str:
    return str(item["metadata"]["ownerReferences"][0]["uid"])


def is_true(item: Json, kind: str) -> bool:
    return any(c["type"] == kind and c["status"] == "True" for c in item["status"]["conditions"])


def said(item: Json, kind: str) -> Mapping[str, str]:
    """A condition, or nothing."""
    return next((c for c in item["status"]["conditions"] if c["type"] == kind), {})


def with_condition(item: Json, kind: str, true: bool, reason: str, message: str, now: str) -> bool:
    """Set a condition as Kubernetes does: its time is that of the last change of its status. True where it changed."""
    status, old = "True" if true else "False", said(item, kind)
    new = {"type": kind, "status": status, "reason": reason, "message": message[:32_768]}
    if {name: old.get(name) for name in new} == new:
        return False
    since = old["lastTransitionTime"] if old and old["status"] == status else now
    others = [c for c in item["status"]["conditions"] if c["type"] != kind]
    item["status"]["conditions"] = [*others, {**new, "lastTransitionTime": since}]
    return True

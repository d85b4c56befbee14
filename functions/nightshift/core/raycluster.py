"""The RayCluster of a run, as a manifest."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from nightshift.contract.base import Model
from nightshift.contract.layout import SHARED_ENV, SHARED_MOUNT
from nightshift.contract.spec import InstanceGroup, Priority, RunSpec
from nightshift.contract.versions import RAY, RAY_ENV

HEAD_RESOURCE = "head"
"""Custom Ray resource that only the head has: an entrypoint that asks for it never runs on a node that gets replaced."""

RUN_LABEL = "nightshift/run"
OWNER_LABEL = "nightshift/owner"
ENDPOINT_ANNOTATION = "access.sagemaker.amazonaws.com/enabled"
INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
URGENT_CLASS = "urgent-priority"
"""WorkloadPriorityClass of urgent runs: task governance names the class of a priority ``<priority>-priority``."""

HOSTNAME_LABEL = "kubernetes.io/hostname"
NODE_PREFIX = "hyperpod-"
"""HyperPod names a Kubernetes node ``hyperpod-<instance id>``."""

WORKER_GROUP = "gpu-workers"
PROFILING_ENV = "RAY_DASHBOARD_ENABLE_PROFILING"
EVICTION_SECONDS = 30
"""Kubernetes' default of 300 s would leave pods on a dead node for five minutes."""


class Placement(Model):
    """What the deployment, not the run, decides about a RayCluster."""

    namespace: str
    service_account: str
    shared_claim: str
    labels: dict[str, str] = Field(default_factory=dict)


def label_value(text: str) -> str:
    """A Kubernetes label value: at most 63 of the allowed characters, beginning and ending with an alphanumeric."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[-63:].strip("-_.") or "unknown"


def queue_labels(spec: RunSpec) -> dict[str, str]:
    """What makes Kueue admit a RayCluster. Task governance wants the queue on the RayCluster and on every pod template: with
    the first alone, Kueue admits it and then no pod may be created, for ever."""
    if spec.queue is None:
        return {}
    urgent = {PRIORITY_LABEL: URGENT_CLASS} if spec.priority is Priority.URGENT else {}
    return {QUEUE_LABEL: spec.queue, **urgent}


def away_from(excluded: Sequence[str]) -> dict[str, Any]:
    """A pod's affinity that keeps it off the excluded instances."""
    nodes = [f"{NODE_PREFIX}{instance}" for instance in sorted(set(excluded))]
    expression = {"key": HOSTNAME_LABEL, "operator": "NotIn", "values": nodes}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def raycluster_manifest(
    spec: RunSpec, owner: str, placement: Placement, excluded: Sequence[str] = ()
) -> dict[str, Any]:
    """The RayCluster (ray.io/v1) as a JSON object: one head without GPUs, and the workers; no pod on the excluded
    instances."""
    labels = {**placement.labels, RUN_LABEL: spec.run_id, OWNER_LABEL: label_value(owner), **queue_labels(spec)}
    head = _pod(spec, spec.topology.head, placement, labels, cpu="8", memory="64Gi", name="ray-head")
    head["spec"]["containers"][0]["ports"] = [
        {"containerPort": 6379, "name": "gcs-server"},
        {"containerPort": 8265, "name": "dashboard"},
        {"containerPort": 10001, "name": "client"},
    ]
    # Stacks of a job that stands still, in its diagnostics: the dashboard dumps none without this. It is reached through the
    # authenticated endpoint only, by who may run code there anyway.
    head["spec"]["containers"][0]["env"].append({"name": PROFILING_ENV, "value": "1"})
    workers = spec.topology.workers
    manifest: dict[str, Any] = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": spec.run_id,
            "namespace": placement.namespace,
            "labels": labels,
            "annotations": {ENDPOINT_ANNOTATION: "true"},
        },
        "spec": {
            "rayVersion": RAY,
            # Kueue takes the suspension away when it admits; where no Kueue is, nothing starts beside somebody's quota.
            **({"suspend": True} if spec.queue is not None else {}),
            "headGroupSpec": {
                # The endpoint reaches the dashboard through the pod's address, so it must listen on all of them.
                "rayStartParams": {
                    "dashboard-host": "0.0.0.0",
                    "num-cpus": "0",
                    "resources": json.dumps(json.dumps({HEAD_RESOURCE: 1})),
                },
                "template": head,
            },
            "workerGroupSpecs": [
                {
                    "groupName": WORKER_GROUP,
                    "replicas": workers.count,
                    "minReplicas": workers.count,
                    "maxReplicas": workers.count,
                    "rayStartParams": {},
                    "template": _pod(spec, workers, placement, labels, cpu="16", memory="128Gi", name="ray-worker"),
                }
            ],
        },
    }
    return excluding(manifest, excluded) if excluded else manifest


def excluding(cluster: dict[str, Any], excluded: Sequence[str]) -> dict[str, Any]:
    """A RayCluster, as it is in Kubernetes, with every pod template kept off the excluded instances. Nothing else of it
    changes, and the argument stays as it was."""
    changed = copy.deepcopy(cluster)
    for group in (changed["spec"]["headGroupSpec"], *changed["spec"].get("workerGroupSpecs", [])):
        group["template"]["spec"]["affinity"] = away_from(excluded)
    return changed


def _pod(
    spec: RunSpec, group: InstanceGroup, placement: Placement, labels: dict[str, str], cpu: str, memory: str, name: str
) -> dict[str, Any]:
    requests = {"cpu": cpu, "memory": memory}
    limits = {"memory": memory}
    if group.gpus:
        requests["nvidia.com/gpu"] = limits["nvidia.com/gpu"] = str(group.gpus)
    return {
        "metadata": {"labels": labels},
        "spec": {
            "serviceAccountName": placement.service_account,
            "nodeSelector": {INSTANCE_TYPE_LABEL: group.instance_type},
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{condition}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": EVICTION_SECONDS,
                }
                for condition in ("not-ready", "unreachable")
            ],
            "containers": [
                {
                    "name": name,
                    "image": spec.image,
                    "env": [{"name": SHARED_ENV, "value": SHARED_MOUNT}, {"name": RAY_ENV, "value": RAY}],
                    "resources": {"requests": requests, "limits": limits},
                    "volumeMounts": [{"name": "shared", "mountPath": SHARED_MOUNT}],
                }
            ],
            "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": placement.shared_claim}}],
        },
    }

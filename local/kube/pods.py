"""Pods of a RayCluster: their objects, and what their container would run. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from local.kube.admission import GPU, INSTANCE_TYPE, SHARED, start_resources
from local.kube.errors import Json

CLUSTER_LABEL = "ray.io/cluster"
GROUP_LABEL = "ray.io/group"
NODE_TYPE_LABEL = "ray.io/node-type"
HEAD_GROUP = "headgroup"
DEFAULT_GRACE_SECONDS = 3.0
"""Ray's processes end within it; a longer terminationGracePeriodSeconds of the manifest is not waited for."""

MAX_POD_CPUS = 2
"""Ray's bookkeeping of CPUs on one computer; more would let a job start more worker processes than it can carry."""

OBJECT_STORE_BYTES = 96 * 2**20
NodeType = Literal["head", "worker"]


@dataclass(frozen=True)
class Slot:
    """One pod that a RayCluster wants: the head, or number ``index`` of a worker group."""

    node_type: NodeType
    group: str
    index: int
    template: Json
    start: dict[str, str]


def slots(cluster: Json) -> list[Slot]:
    """Every pod that the spec asks for, the head first; none while it is suspended."""
    spec = cluster["spec"]
    if spec.get("suspend"):
        return []
    head = spec["headGroupSpec"]
    wanted = [Slot("head", HEAD_GROUP, 0, head["template"], head["rayStartParams"])]
    for group in spec["workerGroupSpecs"]:
        start = group.get("rayStartParams", {})
        wanted += [Slot("worker", group["groupName"], n, group["template"], start) for n in range(group["replicas"])]
    return wanted


def pod_object(cluster: Json, slot: Slot, suffix: str) -> Json:
    """The Pod as KubeRay writes it: template, its own labels, the owner."""
    metadata, template = cluster["metadata"], slot.template
    name = (
        f"{metadata['name']}-head-{suffix}"
        if slot.node_type == "head"
        else (f"{metadata['name']}-{slot.group}-worker-{suffix}"[-63:].lstrip("-"))
    )
    labels = {
        **template.get("metadata", {}).get("labels", {}),
        CLUSTER_LABEL: metadata["name"],
        GROUP_LABEL: slot.group,
        NODE_TYPE_LABEL: slot.node_type,
        "ray.io/is-ray-node": "yes",
        "app.kubernetes.io/created-by": "kuberay-operator",
    }
    return {
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": labels,
            "annotations": dict(template.get("metadata", {}).get("annotations", {})),
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
        "spec": {**template["spec"], "restartPolicy": template["spec"].get("restartPolicy", "Always")},
        "status": {"phase": "Pending", "conditions": []},
    }


def slot_of(pod: Json, wanted: list[Slot], taken: set[int]) -> int | None:
    """Which of the wanted slots this pod fills, not counting those in ``taken``."""
    labels = pod["metadata"]["labels"]
    for number, slot in enumerate(wanted):
        same = slot.node_type == labels[NODE_TYPE_LABEL] and slot.group == labels[GROUP_LABEL]
        if same and number not in taken:
            return number
    return None


def gpus(pod: Json) -> int:
    """GPUs that the pod's container is limited to, and so holds."""
    return int(str(pod["spec"]["containers"][0]["resources"].get("limits", {}).get(GPU, 0)))


def fits(pod: Json, node: Json, free_gpus: int) -> bool:
    """By node selector, affinity, health and GPUs. CPU and memory are not counted: the nodes are pretended."""
    labels = node["metadata"]["labels"]
    selected = all(labels.get(key) == value for key, value in pod["spec"].get("nodeSelector", {}).items())
    return selected and _has_affinity(pod, labels) and schedulable(node) and gpus(pod) <= free_gpus


def _has_affinity(pod: Json, labels: Json) -> bool:
    """Whether a node's labels meet the pod's required node affinity: one of its terms as a whole."""
    required = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = required.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")
    return terms is None or any(all(_matches(one, labels) for one in term["matchExpressions"]) for term in terms)


def _matches(expression: Json, labels: Json) -> bool:
    inside = labels.get(expression["key"]) in expression["values"]
    return inside if expression["operator"] == "In" else not inside


def schedulable(node: Json) -> bool:
    healthy = node["metadata"]["labels"].get("sagemaker.amazonaws.com/node-health-status") == "Schedulable"
    return healthy and answers(node) and not node["spec"].get("unschedulable")


def answers(node: Json) -> bool:
    """Whether the node's kubelet posts its status."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])


def tolerated_seconds(pod: Json) -> float:
    """How long the pod stays on a node that does not answer; Kubernetes' default is five minutes."""
    found = [t for t in pod["spec"].get("tolerations", []) if t.get("key") == "node.kubernetes.io/unreachable"]
    return float(found[0].get("tolerationSeconds", "inf")) if found else 300.0


def wanted_type(pod: Json) -> str:
    return str(pod["spec"].get("nodeSelector", {}).get(INSTANCE_TYPE, "any"))


def container_env(pod: Json, pod_ip: str, shared: str) -> dict[str, str]:
    """The manifest's environment; paths at or below the shared mount become paths of the local folder."""
    metadata = pod["metadata"]
    fields = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "status.podIP": pod_ip,
    }
    env: dict[str, str] = {}
    for variable in pod["spec"]["containers"][0].get("env", []):
        source = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        env[variable["name"]] = fields[source] if source else _local(variable.get("value", ""), shared)
    return env


def _local(value: str, shared: str) -> str:
    return shared + value[len(SHARED) :] if value == SHARED or value.startswith(f"{SHARED}/") else value


@dataclass(frozen=True)
class RayPorts:
    """Free ports of the pod's address, chosen when the head starts."""

    gcs: int
    dashboard: int
    client: int


def head_command(ray: str, pod: Json, start: dict[str, str], pod_ip: str, ports: RayPorts) -> list[str]:
    """``ray start --head``. The dashboard proper is a second process, see :func:`dashboard_command`."""
    return [
        *[ray, "start", "--head", f"--port={ports.gcs}"],
        *["--include-dashboard=false", "--no-monitor", f"--ray-client-server-port={ports.client}"],
        *_common(pod, start, pod_ip),
    ]


def worker_command(ray: str, pod: Json, start: dict[str, str], pod_ip: str, gcs_address: str) -> list[str]:
    """``ray start --address``."""
    return [ray, "start", f"--address={gcs_address}", *_common(pod, start, pod_ip)]


def _common(pod: Json, start: dict[str, str], pod_ip: str) -> list[str]:
    cpus = min(int(start.get("num-cpus", MAX_POD_CPUS)), MAX_POD_CPUS)
    return [
        *[f"--node-ip-address={pod_ip}", f"--num-cpus={cpus}", f"--num-gpus={start.get('num-gpus', gpus(pod))}"],
        *[f"--resources={json.dumps(start_resources(start.get('resources')))}"],
        *[f"--object-store-memory={OBJECT_STORE_BYTES}", "--disable-usage-stats", "--include-log-monitor=false"],
        # Ray's default range is shared by all nodes of one computer; 0 lets the system choose.
        *["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0", "--block"],
    ]


DASHBOARD_MODULES = ("JobHead", "NodeHead", "StateHead")


def dashboard_command(
    minimal: list[str], pod_ip: str, port: int, modules: Sequence[str] = DASHBOARD_MODULES
) -> list[str]:
    """Ray's dashboard with some of its modules, made from the command line of the one that ``ray start`` runs without
    them.

    ``ray start`` can start all ten modules, each a process of 60 MiB, or none. The dashboard's own option
    ``--modules-to-load`` chooses; its other arguments (session, cluster id) are the same as those of its sibling.
    """
    dropped = ("--modules-to-load=", "--disable-frontend", "--host=", "--port=", "--port-retries=", "--std")
    kept = [word for word in minimal if not word.startswith(dropped)]
    return [
        *kept,
        f"--host={pod_ip}",
        f"--port={port}",
        "--port-retries=0",
        f"--modules-to-load={','.join(modules)}",
    ]

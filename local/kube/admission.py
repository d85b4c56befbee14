"""Which RayClusters the local Kubernetes API accepts. Pure.

Two layers: the JSON schema beside this file (shape: the parts used, nothing else), then the rules that HyperPod, Ray
and this project's own promises add. Everything found wrong is named by field, in one answer.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from local.kube.errors import Invalid, Json

SCHEMA_FILE = Path(__file__).with_name("raycluster.schema.json")
ENDPOINT_ANNOTATION = "access.sagemaker.amazonaws.com/enabled"
STRATEGY_ANNOTATION = "access.sagemaker.amazonaws.com/access-strategy"
STRATEGIES = ("ray-access-strategy-private", "ray-access-strategy-public")
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
GPU = "nvidia.com/gpu"
SHARED = "/shared"
HEAD_RESOURCE = "head"
MAX_NAME = 53
EVICTION_SECONDS = 30
EVICTION_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
START_PARAMETERS = frozenset(
    {
        *("block", "dashboard-host", "dashboard-port", "metrics-export-port", "num-cpus", "num-gpus"),
        *("object-store-memory", "port", "resources"),
    }
)

_NAME = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_IMAGE = re.compile(r"^[\w.\-/:]+@sha256:[0-9a-f]{64}$")
_MAX_PROBLEMS = 20

Problem = tuple[str, str]
"""(dotted path of the field, what is wrong with it)."""


@cache
def schema() -> Json:
    loaded: Json = json.loads(SCHEMA_FILE.read_text())
    return loaded


def admit(cluster: Json) -> None:
    """Raises :class:`Invalid` that names every problem (at most 20)."""
    found = list(shape_problems(cluster)) or list(rule_problems(cluster))
    if found:
        name = str(cluster.get("metadata", {}).get("name", ""))[:100]
        listed = ", ".join(f"{field}: {problem}" for field, problem in found[:_MAX_PROBLEMS])
        raise Invalid(f'RayCluster.ray.io "{name}" is invalid: {listed}', found[:_MAX_PROBLEMS])


def shape_problems(cluster: Json) -> Iterator[Problem]:
    """What the schema refuses."""
    for error in Draft202012Validator(schema()).iter_errors(cluster):
        yield _dotted(error.absolute_path), error.message[:300]


def rule_problems(cluster: Json) -> Iterator[Problem]:
    """What the rules refuse in a RayCluster whose shape is right."""
    metadata, spec = cluster["metadata"], cluster["spec"]
    name = metadata["name"]
    if not _NAME.match(name) or len(name) > MAX_NAME:
        yield "metadata.name", f"must be a DNS-1035 label of at most {MAX_NAME} characters"
    if not spec.get("rayVersion"):
        yield "spec.rayVersion", "is required: it must equal the Ray version of the image"
    if spec.get("enableInTreeAutoscaling"):
        yield "spec.enableInTreeAutoscaling", "autoscaling is not used here"
    yield from _endpoint_problems(metadata.get("annotations", {}), spec["headGroupSpec"]["rayStartParams"])
    yield from _head_problems("spec.headGroupSpec", spec["headGroupSpec"])
    for index, group in enumerate(spec["workerGroupSpecs"]):
        yield from _worker_problems(f"spec.workerGroupSpecs[{index}]", group)


def _endpoint_problems(annotations: dict[str, str], start: dict[str, str]) -> Iterator[Problem]:
    enabled = annotations.get(ENDPOINT_ANNOTATION)
    if enabled not in (None, "true", "false"):
        yield f"metadata.annotations[{ENDPOINT_ANNOTATION}]", 'must be "true" or "false"'
    strategy = annotations.get(STRATEGY_ANNOTATION)
    if strategy is not None and strategy not in STRATEGIES:
        yield f"metadata.annotations[{STRATEGY_ANNOTATION}]", f"must be one of {', '.join(STRATEGIES)}"
    if enabled == "true" and start.get("dashboard-host") != "0.0.0.0":
        yield (
            "spec.headGroupSpec.rayStartParams.dashboard-host",
            'must be "0.0.0.0": the authenticated endpoint reaches the dashboard from outside the pod',
        )


def _head_problems(path: str, group: Json) -> Iterator[Problem]:
    start = group["rayStartParams"]
    yield from _start_problems(path, start)
    try:
        custom = start_resources(start.get("resources"))
    except ValueError:
        custom = {}
    if not custom.get(HEAD_RESOURCE):
        yield (
            f"{path}.rayStartParams.resources",
            f'must hold the custom resource "{HEAD_RESOURCE}", which pins the driver',
        )
    if gpus_of(group) != 0:
        yield f"{path}.template.spec.containers[0].resources.limits[{GPU}]", "the head must have no GPUs"
    yield from _pod_problems(path, group["template"]["spec"])


def _worker_problems(path: str, group: Json) -> Iterator[Problem]:
    yield from _start_problems(path, group.get("rayStartParams", {}))
    if not group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]:
        yield f"{path}.replicas", "must lie between minReplicas and maxReplicas"
    if gpus_of(group) < 1:
        yield f"{path}.template.spec.containers[0].resources.limits[{GPU}]", "a worker needs GPUs"
    requests = group["template"]["spec"]["containers"][0]["resources"].get("requests", {})
    if GPU in requests and int(str(requests[GPU])) != gpus_of(group):
        yield f"{path}.template.spec.containers[0].resources.requests[{GPU}]", "must equal the limit"
    yield from _pod_problems(path, group["template"]["spec"])


def _start_problems(path: str, start: dict[str, str]) -> Iterator[Problem]:
    for name in sorted(start.keys() - START_PARAMETERS):
        yield f"{path}.rayStartParams.{name}", "unknown here"
    try:
        start_resources(start.get("resources"))
    except ValueError as error:
        yield f"{path}.rayStartParams.resources", str(error)


def _pod_problems(path: str, pod: Json) -> Iterator[Problem]:
    at = f"{path}.template.spec"
    container = pod["containers"][0]
    if not _IMAGE.match(container["image"]):
        yield f"{at}.containers[0].image", "must name the image by digest: name@sha256:<64 hex digits>"
    if not pod.get("nodeSelector", {}).get(INSTANCE_TYPE):
        yield f"{at}.nodeSelector[{INSTANCE_TYPE}]", "is required"
    if not pod.get("serviceAccountName"):
        yield f"{at}.serviceAccountName", "is required"
    if not _has_shared_claim(pod, container):
        yield f"{at}.containers[0].volumeMounts", f"a persistentVolumeClaim must be mounted at {SHARED}"
    for taint in EVICTION_TAINTS:
        if not _tolerates(pod.get("tolerations", []), taint):
            yield (
                f"{at}.tolerations",
                f"{taint} must be tolerated with effect NoExecute for {EVICTION_SECONDS} s (the default is 300 s)",
            )


def _has_shared_claim(pod: Json, container: Json) -> bool:
    claims = {volume["name"] for volume in pod.get("volumes", []) if "persistentVolumeClaim" in volume}
    mounts = container.get("volumeMounts", [])
    return any(mount["mountPath"].rstrip("/") == SHARED and mount["name"] in claims for mount in mounts)


def _tolerates(tolerations: list[Json], taint: str) -> bool:
    return any(
        one.get("key") == taint
        and one.get("operator") == "Exists"
        and one.get("effect") == "NoExecute"
        and one.get("tolerationSeconds") == EVICTION_SECONDS
        for one in tolerations
    )


def gpus_of(group: Json) -> int:
    """GPUs of one pod of a group: its container's limit."""
    limits = group["template"]["spec"]["containers"][0]["resources"].get("limits", {})
    text = str(limits.get(GPU, 0))
    return int(text) if text.isdigit() else 0


def start_resources(text: str | None) -> dict[str, float]:
    """``rayStartParams.resources`` as KubeRay's shell command would pass it on: ``'"{\\"head\\": 1}"'``.

    Raises ValueError where the shell would leave something that is not a JSON object of numbers.
    """
    if text is None:
        return {}
    try:
        words = shlex.split(text)
        value: Any = json.loads(words[0]) if len(words) == 1 else None
    except ValueError:
        value = None
    if not isinstance(value, dict) or not all(isinstance(v, int | float) and v > 0 for v in value.values()):
        raise ValueError('must be JSON that survives a shell, such as "{\\"head\\": 1}" with its outer quotes')
    return value


def _dotted(path: Any) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".") or "(root)"

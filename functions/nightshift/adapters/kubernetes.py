"""RayClusters, pods and nodes through the Kubernetes API, with lightkube."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpx2 as httpx
from lightkube import ApiError, Client, KubeConfig
from lightkube.config.models import Cluster, Context, User
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.core_v1 import Pod as PodModel
from lightkube.resources.core_v1 import Node, Pod

from nightshift.contract.spec import RunSpec
from nightshift.core.errors import PermanentError, TransientError, bounded
from nightshift.core.observation import ClusterView, PodView
from nightshift.core.raycluster import Placement, raycluster_manifest

__all__ = ["EksCluster", "KubernetesClusters", "raycluster_manifest"]

RayCluster = create_namespaced_resource("ray.io", "v1", "RayCluster", "rayclusters")
TIMEOUT_SECONDS = 10.0
NODE_PREFIX = "hyperpod-"
"""HyperPod names a Kubernetes node ``hyperpod-<instance id>``."""

HEALTH_LABEL = "sagemaker.amazonaws.com/node-health-status"
REFUSED = frozenset({400, 403, 422})


@dataclass(frozen=True)
class EksCluster:
    """Address, CA (base64 of PEM) and name of the EKS cluster."""

    name: str
    endpoint: str
    ca_data: str


def describe_eks_cluster(session: Any, name: str) -> EksCluster:
    """``session`` is a boto3 Session of the controller role."""
    found = session.client("eks").describe_cluster(name=name)["cluster"]
    return EksCluster(name, found["endpoint"], found["certificateAuthority"]["data"])


class KubernetesClusters:
    """Implements ``steps.ports.Clusters``. One client an invocation: its token is short-lived."""

    def __init__(self, eks: EksCluster, token: str, placement: Placement) -> None:
        config = KubeConfig(
            clusters={"eks": Cluster(server=eks.endpoint, certificate_auth_data=eks.ca_data)},
            users={"controller": User(token=token)},
            contexts={"eks": Context(cluster="eks", user="controller", namespace=placement.namespace)},
            current_context="eks",
        )
        self._client = Client(config=config, namespace=placement.namespace, timeout=httpx.Timeout(TIMEOUT_SECONDS))
        self._placement = placement

    def create(self, spec: RunSpec, owner: str) -> bool:
        manifest = raycluster_manifest(spec, owner, self._placement)
        try:
            self._client.create(RayCluster.from_dict(manifest))
        except ApiError as error:
            if error.status.code == 409 and error.status.reason == "AlreadyExists":
                return self._adopt(spec.run_id)
            if error.status.code in REFUSED:
                raise PermanentError(
                    spec.run_id,
                    f"Kubernetes refuses the RayCluster ({error.status.code}): {error.status.message}",
                    "Compare the run spec and the deployment's parameters with what the message names.",
                ) from error
            raise _transient(spec.run_id, error) from error
        except httpx.HTTPError as error:
            raise _transient(spec.run_id, error) from error
        return True

    def _adopt(self, name: str) -> bool:
        """The run's RayCluster is there already: False; one that is still being deleted has to be waited for."""
        try:
            there: Any = self._client.get(RayCluster, name).metadata
        except (ApiError, httpx.HTTPError) as error:
            raise _transient(name, error) from error
        if there.deletionTimestamp is not None:
            raise TransientError(name, f"the RayCluster {name} is still being deleted")
        return False

    def view(self, name: str) -> ClusterView:
        try:
            cluster = self._client.get(RayCluster, name)
        except ApiError as error:
            if error.status.code == 404:
                return ClusterView(exists=False, pods=self._pods(name))
            raise _transient(name, error) from error
        except httpx.HTTPError as error:
            raise _transient(name, error) from error
        reported: Any = cluster.status
        status: dict[str, Any] = reported if isinstance(reported, dict) else {}
        metadata: Any = cluster.metadata
        pods = self._pods(name)
        return ClusterView(
            exists=metadata.deletionTimestamp is None,
            head_ready=_condition(status, "HeadPodReady"),
            ready_workers=status.get("readyWorkerReplicas", 0),
            desired_workers=status.get("desiredWorkerReplicas", 0),
            current=status.get("observedGeneration", 0) >= (metadata.generation or 0),
            pods=pods,
            unhealthy_instances=self._unhealthy({p.instance_id for p in pods if p.instance_id}, name),
        )

    def delete(self, name: str) -> None:
        try:
            self._client.delete(RayCluster, name)
        except ApiError as error:
            if error.status.code != 404:
                raise _transient(name, error) from error
        except httpx.HTTPError as error:
            raise _transient(name, error) from error

    def _pods(self, name: str) -> tuple[PodView, ...]:
        try:
            return tuple(_pod_view(p) for p in self._client.list(Pod, labels={"ray.io/cluster": name}))
        except (ApiError, httpx.HTTPError) as error:
            raise _transient(name, error) from error

    def _unhealthy(self, instances: Iterable[str], run_id: str) -> frozenset[str]:
        """Of the given instances those that HyperPod's label marks as not schedulable."""
        wanted = set(instances)
        try:
            nodes = list(self._client.list(Node)) if wanted else []
        except (ApiError, httpx.HTTPError) as error:
            raise _transient(run_id, error) from error
        labels = {
            (n.metadata.name or "").removeprefix(NODE_PREFIX): (n.metadata.labels or {}).get(
                HEALTH_LABEL, "Schedulable"
            )
            for n in nodes
            if n.metadata is not None
        }
        return frozenset(i for i, health in labels.items() if i in wanted and health != "Schedulable")


def _pod_view(pod: PodModel) -> PodView:
    metadata, status = pod.metadata, pod.status
    assert metadata is not None and metadata.name is not None, "the API server names every pod"
    conditions = (status.conditions if status else None) or []
    containers = (status.containerStatuses if status else None) or []
    waiting = [c.state.waiting for c in containers if c.state is not None and c.state.waiting is not None]
    node = pod.spec.nodeName if pod.spec is not None else None
    return PodView(
        name=metadata.name,
        is_head=(metadata.labels or {}).get("ray.io/node-type") == "head",
        ready=metadata.deletionTimestamp is None and any(c.type == "Ready" and c.status == "True" for c in conditions),
        instance_id=node.removeprefix(NODE_PREFIX) if node else None,
        ip=status.podIP if status else None,
        waiting_reason=f"{waiting[0].reason}: {bounded(waiting[0].message or '', 300)}" if waiting else None,
    )


def _condition(status: dict[str, Any], kind: str) -> bool:
    return any(c.get("type") == kind and c.get("status") == "True" for c in status.get("conditions", []))


def _transient(run_id: str, error: Exception) -> TransientError:
    said = error.status.message if isinstance(error, ApiError) else repr(error)
    return TransientError(run_id, f"the Kubernetes API failed: {said}")

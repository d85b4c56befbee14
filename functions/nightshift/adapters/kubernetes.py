"""RayClusters, pods and nodes through the Kubernetes API, with lightkube."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

import httpx2 as httpx
from lightkube import ApiError, Client, KubeConfig
from lightkube.config.models import Cluster, Context, User
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.core_v1 import Node as NodeModel
from lightkube.models.core_v1 import Pod as PodModel
from lightkube.resources.core_v1 import Event, Node, Pod
from lightkube.types import PatchType

from nightshift.adapters import kubernetes_views as views
from nightshift.adapters.kueue import queue_view
from nightshift.contract.spec import RunSpec
from nightshift.core.errors import PermanentError, TransientError
from nightshift.core.observation import ClusterView, OwnedCluster
from nightshift.core.raycluster import (
    NODE_PREFIX,
    RUN_LABEL,
    Placement,
    away_from,
    excluding,
    raycluster_manifest,
)

__all__ = ["EksCluster", "KubernetesClusters", "raycluster_manifest"]

RayCluster = create_namespaced_resource("ray.io", "v1", "RayCluster", "rayclusters")
TIMEOUT_SECONDS = 10.0
REFUSED = frozenset({400, 403, 422})
PATCH_TRIES = 3
"""Somebody else's write to the RayCluster between our read and our patch makes the API refuse the patch (409)."""

MAX_EVENTS_READ = 5_000


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


def kubernetes_client(eks: EksCluster, token: str, namespace: str) -> Client:
    """One an invocation: its token is short-lived."""
    config = KubeConfig(
        clusters={"eks": Cluster(server=eks.endpoint, certificate_auth_data=eks.ca_data)},
        users={"controller": User(token=token)},
        contexts={"eks": Context(cluster="eks", user="controller", namespace=namespace)},
        current_context="eks",
    )
    return Client(config=config, namespace=namespace, timeout=httpx.Timeout(TIMEOUT_SECONDS))


class KubernetesClusters:
    """Implements ``steps.ports.Clusters``."""

    def __init__(self, eks: EksCluster, token: str, placement: Placement) -> None:
        self._client = kubernetes_client(eks, token, placement.namespace)
        self._placement = placement

    def create(self, spec: RunSpec, owner: str, excluded: Sequence[str] = ()) -> bool:
        manifest = raycluster_manifest(spec, owner, self._placement, excluded)
        try:
            self._client.create(RayCluster.from_dict(manifest))
        except ApiError as error:
            if error.status.code == 409 and error.status.reason == "AlreadyExists":
                return self._adopt(spec.run_id)
            raise _refused(spec.run_id, error) from error
        except httpx.HTTPError as error:
            raise _transient(spec.run_id, error) from error
        return True

    def _adopt(self, name: str) -> bool:
        """The run's RayCluster is there already: False; one that is still being deleted has to be waited for."""
        with _answers(name):
            there: Any = self._client.get(RayCluster, name).metadata
        if there.deletionTimestamp is not None:
            raise TransientError(name, f"the RayCluster {name} is still being deleted")
        return False

    def view(self, name: str) -> ClusterView:
        with _answers(name):
            cluster = self._find(name)
            pods = tuple(views.pod_view(p) for p in self._pods(name))
            hosts = frozenset(p.instance_id for p in pods if p.instance_id)
            nodes = self._nodes() if hosts else ()
            queue = queue_view(self._client, cluster) if cluster is not None else {}
        silent = views.silent_instances(nodes, hosts)
        if cluster is None:
            return ClusterView(exists=False, pods=pods, silent_instances=silent)
        reported: Any = cluster.status
        status: dict[str, Any] = reported if isinstance(reported, dict) else {}
        metadata: Any = cluster.metadata
        return ClusterView(
            exists=metadata.deletionTimestamp is None,
            head_ready=_condition(status, "HeadPodReady"),
            ready_workers=status.get("readyWorkerReplicas", 0),
            desired_workers=status.get("desiredWorkerReplicas", 0),
            current=status.get("observedGeneration", 0) >= (metadata.generation or 0),
            pods=pods,
            unhealthy_instances=views.unhealthy_instances(nodes, hosts),
            silent_instances=silent,
            created_at=metadata.creationTimestamp,
            **queue,
        )

    def delete(self, name: str) -> None:
        with _answers(name), _absence_is_fine():
            self._client.delete(RayCluster, name)

    def owned(self) -> Sequence[OwnedCluster]:
        """Every RayCluster of the namespace that carries a run's label. Raises TransientError."""
        with _answers("of every RayCluster"):
            found: list[Any] = [c.metadata for c in self._client.list(RayCluster, labels={RUN_LABEL: None})]
        return [
            OwnedCluster(str(m.name), m.labels[RUN_LABEL], m.creationTimestamp)
            for m in found
            if m.deletionTimestamp is None
        ]

    def delete_pods(
        self,
        name: str,
        instances: frozenset[str] | None = None,
        created_before: datetime | None = None,
        force: bool = False,
    ) -> int:
        with _answers(name):
            doomed = [p for p in self._pods(name) if _is_meant(p, instances, created_before, force)]
            for pod in doomed:
                assert pod.metadata is not None and pod.metadata.name is not None, "the API server names every pod"
                with _absence_is_fine():
                    self._client.delete(Pod, pod.metadata.name, grace_period=0 if force else None)
        return len(doomed)

    def exclude(self, spec: RunSpec, owner: str, excluded: Sequence[str]) -> bool:
        """``owner`` is not needed: what is there keeps its labels."""
        if not excluded:
            return False
        changed = self._keep_off(spec.run_id, excluded)
        return changed is not None and (self.delete_pods(spec.run_id, frozenset(excluded)) > 0 or changed)

    def _keep_off(self, name: str, excluded: Sequence[str]) -> bool | None:
        """Whether the templates had to be changed; None where there is no RayCluster."""
        for attempt in range(PATCH_TRIES):
            with _answers(name):
                there = self._find(name)
            if there is None or there.metadata.deletionTimestamp is not None:
                return None
            now = there.to_dict()
            if all(t["spec"].get("affinity") == away_from(excluded) for t in _templates(now)):
                return False
            version = now["metadata"]["resourceVersion"]
            patch = {"metadata": {"resourceVersion": version}, "spec": excluding(now, excluded)["spec"]}
            try:
                self._client.patch(RayCluster, name, patch, patch_type=PatchType.MERGE)
            except ApiError as error:
                if error.status.code != 409 or attempt == PATCH_TRIES - 1:
                    raise _refused(name, error) from error
            except httpx.HTTPError as error:
                raise _transient(name, error) from error
            else:
                return True
        return None

    def pod_records(self, name: str) -> Sequence[Mapping[str, Any]]:
        with _answers(name):
            return [views.pod_record(p) for p in self._pods(name)[: views.MAX_RECORDS]]

    def event_records(self, name: str) -> Sequence[Mapping[str, Any]]:
        with _answers(name):
            found = list(islice(self._client.list(Event, chunk_size=500), MAX_EVENTS_READ))
        mine = sorted((e for e in found if views.is_about(e, name)), key=views.event_time)
        return [views.event_record(e) for e in mine[-views.MAX_RECORDS :]]

    def node_records(self, instances: frozenset[str]) -> Sequence[Mapping[str, Any]]:
        names = {f"{NODE_PREFIX}{i}" for i in instances}
        with _answers("of the run's nodes"):
            nodes = [n for n in self._nodes() if n.metadata is not None and n.metadata.name in names]
        return [views.node_record(n) for n in nodes]

    def occupied(self) -> Mapping[str, Sequence[str]]:
        with _answers("of every pod"):
            pods = list(self._client.list(Pod, namespace="*"))
            nodes = self._nodes()
        return views.pods_by_group(pods, nodes)

    def _find(self, name: str) -> Any:
        """The RayCluster, or None."""
        try:
            return self._client.get(RayCluster, name)
        except ApiError as error:
            if error.status.code == 404:
                return None
            raise

    def _pods(self, name: str) -> list[PodModel]:
        return list(self._client.list(Pod, labels={"ray.io/cluster": name}))

    def _nodes(self) -> list[NodeModel]:
        return list(self._client.list(Node))


def _is_meant(
    pod: PodModel, instances: frozenset[str] | None, created_before: datetime | None, being_deleted_too: bool
) -> bool:
    metadata = pod.metadata
    assert metadata is not None, "the API server gives every pod its metadata"
    if metadata.deletionTimestamp is not None and not being_deleted_too:
        return False
    born = metadata.creationTimestamp
    if created_before is not None and born is not None and born >= created_before:
        return False
    return instances is None or views.instance_of(pod) in instances


def _templates(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    spec = cluster["spec"]
    return [g["template"] for g in (spec["headGroupSpec"], *spec.get("workerGroupSpecs", []))]


@contextmanager
def _answers(run_id: str) -> Iterator[None]:
    """Whatever the Kubernetes API refuses or fails at is worth repeating."""
    try:
        yield
    except (ApiError, httpx.HTTPError) as error:
        raise _transient(run_id, error) from error


@contextmanager
def _absence_is_fine() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.status.code != 404:
            raise


def _condition(status: dict[str, Any], kind: str) -> bool:
    return any(c.get("type") == kind and c.get("status") == "True" for c in status.get("conditions", []))


def _refused(run_id: str, error: ApiError) -> PermanentError | TransientError:
    """A manifest that the API will never take is permanent; everything else may pass."""
    if error.status.code not in REFUSED:
        return _transient(run_id, error)
    return PermanentError(
        run_id,
        f"Kubernetes refuses the RayCluster ({error.status.code}): {error.status.message}",
        "Compare the run spec and the deployment's parameters with what the message names.",
    )


def _transient(run_id: str, error: Exception) -> TransientError:
    said = error.status.message if isinstance(error, ApiError) else repr(error)
    return TransientError(run_id, f"the Kubernetes API failed: {said}")

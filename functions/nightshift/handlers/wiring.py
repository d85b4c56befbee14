"""Real adapters for the steps. Clients are made when they are first needed and can be replaced by tests."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from nightshift.adapters.artifacts import S3Artifacts
from nightshift.adapters.downloads import S3Downloads
from nightshift.adapters.model_registry import SageMakerRegistry
from nightshift.adapters.run_store import DynamoRunStore
from nightshift.adapters.threads import at_once
from nightshift.adapters.workflow import EventBridgeStages, StepFunctions
from nightshift.contract.spec import RunSpec
from nightshift.core.capacity import HyperPodView
from nightshift.core.errors import TransientError, bounded
from nightshift.core.observation import ClusterView, OwnedCluster
from nightshift.core.raycluster import Placement
from nightshift.core.scaling import PoolScaling, read_scaling
from nightshift.handlers.observability import measure
from nightshift.handlers.settings import ApiSettings, ControllerSettings, ScalingSettings, StoreSettings
from nightshift.steps.ports import CapacityLog, Clusters, Dashboards, Downloads, HyperPod, Jobs, Listings, Ports

logger = logging.getLogger(__name__)

BOTO = Config(
    connect_timeout=5, read_timeout=20, retries={"max_attempts": 4, "mode": "standard"}, max_pool_connections=16
)

REGISTRY = Config(connect_timeout=3, read_timeout=5, retries={"total_max_attempts": 2, "mode": "standard"})
"""Several calls have to fit into what a step has left: a slow SageMaker is told, and not waited for."""


@lru_cache(maxsize=16)
def client(service: str, config: Config = BOTO) -> Any:
    """A boto3 client with the function's own role."""
    return boto3.client(service, config=config)


@lru_cache(maxsize=1)
def signing_client() -> Any:
    """Of S3, for addresses: presigned ones are only good everywhere with version 4."""
    return boto3.client("s3", config=BOTO.merge(Config(signature_version="s3v4")))


@lru_cache(maxsize=4)
def table(name: str) -> Any:
    return boto3.resource("dynamodb", config=BOTO).Table(name)


@dataclass(frozen=True)
class ApiPorts:
    """What the API touches beyond the steps of a run."""

    ports: Ports
    listings: Listings
    downloads: Downloads
    capacity: CapacityLog


class Controller:
    """Everything that needs the controller role, made once for an invocation: credentials, token and clients must not
    outlive it."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._settings = settings

    @cached_property
    def _role(self) -> Any:
        from nightshift.adapters.identity import assume_controller_role

        return assume_controller_role(self._settings.role_arn, self._settings.session_name, self._settings.region)

    @cached_property
    def _eks(self) -> Any:
        from nightshift.adapters.kubernetes import describe_eks_cluster

        return describe_eks_cluster(self._role.session(), self._settings.eks_cluster)

    @cached_property
    def _token(self) -> str:
        from nightshift.adapters.identity import eks_token

        return eks_token(self._role, self._settings.eks_cluster)

    @cached_property
    def clusters(self) -> Clusters:
        from nightshift.adapters.kubernetes import KubernetesClusters

        s = self._settings
        placement = Placement(namespace=s.namespace, service_account=s.service_account, shared_claim=s.shared_claim)
        return KubernetesClusters(self._eks, self._token, placement)

    @cached_property
    def hyperpod(self) -> HyperPod:
        from nightshift.adapters.hyperpod import SageMakerHyperPod

        return SageMakerHyperPod(self._role.session().client("sagemaker", config=BOTO), self._settings.hyperpod_cluster)

    @cached_property
    def dashboards(self) -> Dashboards:
        from nightshift.adapters.ray_dashboard import RayDashboards

        return RayDashboards(self._eks, self._token, self._settings.namespace)

    def jobs(self, raycluster: str) -> Jobs:
        from nightshift.adapters.ray_jobs import RayJobs, write_kubeconfig

        if raycluster not in self._jobs:
            with temporary_faults_named(raycluster):
                write_kubeconfig(self._eks, self._token)
            self._jobs[raycluster] = RayJobs(raycluster, self._settings.namespace)
        return self._jobs[raycluster]

    @cached_property
    def _jobs(self) -> dict[str, Jobs]:
        return {}


class _Lazy:
    """Clusters and HyperPod that are only connected to when a step touches them."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def create(self, spec: RunSpec, owner: str, excluded: Sequence[str] = ()) -> bool:
        with temporary_faults_named(spec.run_id):
            return self._controller.clusters.create(spec, owner, excluded)

    def view(self, name: str) -> ClusterView:
        with temporary_faults_named(name):
            return self._controller.clusters.view(name)

    def delete(self, name: str) -> None:
        with temporary_faults_named(name):
            self._controller.clusters.delete(name)

    def owned(self) -> Sequence[OwnedCluster]:
        with temporary_faults_named("of every RayCluster"):
            return self._controller.clusters.owned()

    def occupied(self) -> Mapping[str, Sequence[str]]:
        with temporary_faults_named("of every pod"):
            return self._controller.clusters.occupied()

    def delete_pods(
        self,
        name: str,
        instances: frozenset[str] | None = None,
        created_before: datetime | None = None,
        force: bool = False,
    ) -> int:
        with temporary_faults_named(name):
            return self._controller.clusters.delete_pods(name, instances, created_before, force)

    def exclude(self, spec: RunSpec, owner: str, excluded: Sequence[str]) -> bool:
        with temporary_faults_named(spec.run_id):
            return self._controller.clusters.exclude(spec, owner, excluded)

    def pod_records(self, name: str) -> Sequence[Mapping[str, Any]]:
        with temporary_faults_named(name):
            return self._controller.clusters.pod_records(name)

    def event_records(self, name: str) -> Sequence[Mapping[str, Any]]:
        with temporary_faults_named(name):
            return self._controller.clusters.event_records(name)

    def node_records(self, instances: frozenset[str]) -> Sequence[Mapping[str, Any]]:
        with temporary_faults_named("of the run's nodes"):
            return self._controller.clusters.node_records(instances)


class _LazyHyperPod:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def view(self) -> HyperPodView:
        return self._controller.hyperpod.view()

    def replace(self, instances: Sequence[str]) -> dict[str, str]:
        return self._controller.hyperpod.replace(instances)

    def resize(self, targets: Mapping[str, int]) -> str:
        return self._controller.hyperpod.resize(targets)


class _OwnHyperPod:
    """HyperPod under the function's own role, for a look only: whatever keeps it from answering is told as one thing."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    def view(self) -> HyperPodView:
        from nightshift.adapters.hyperpod import SageMakerHyperPod

        try:
            return SageMakerHyperPod(client("sagemaker"), self._cluster).view()
        except (ClientError, BotoCoreError) as error:
            raise TransientError(f"of HyperPod cluster {self._cluster}", str(error)) from error

    def replace(self, instances: Sequence[str]) -> dict[str, str]:
        raise RuntimeError("this function may only look at HyperPod")

    def resize(self, targets: Mapping[str, int]) -> str:
        raise RuntimeError("this function may only look at HyperPod")


class _OwnDashboards:
    """Dashboards under the controller role, which is assumed when one is asked for."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._controller = Controller(settings)

    def address(self, raycluster: str) -> str:
        with temporary_faults_named(raycluster):
            return self._controller.dashboards.address(raycluster)


class _None:
    """In place of what a function has no right to touch: any use is a fault of the wiring."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"this function is not wired to {name}")

    def __call__(self, *_: Any) -> Any:
        raise RuntimeError("this function is not wired to Ray")


PERMANENT = frozenset({"AccessDenied", "AccessDeniedException", "ValidationException", "ResourceNotFoundException"})
"""AWS error codes that repeating cannot help."""


@contextmanager
def temporary_faults_named(run_id: str) -> Iterator[None]:
    """Faults of AWS services become TransientError, which the state machine repeats within its budget; what repeating
    cannot help keeps its own name."""
    try:
        yield
    except ClientError as error:
        if error.response["Error"]["Code"] in PERMANENT:
            raise
        raise TransientError(run_id, str(error)) from error
    except BotoCoreError as error:
        raise TransientError(run_id, str(error)) from error


def _scaling(settings: ScalingSettings) -> dict[str, PoolScaling]:
    """A parameter that cannot be read scales nothing: it must not end the runs that go on without it."""
    try:
        return read_scaling(settings.pool_scaling)
    except ValueError as error:
        logger.error("the parameter PoolScaling cannot be used, and nothing is scaled: %s", bounded(error, 600))
        return {}


def _now() -> datetime:
    return datetime.now(UTC)


def store_ports(settings: StoreSettings, remaining: Callable[[], float], training_run_arn: str | None = None) -> Ports:
    """Ports of a function that touches AWS services only."""
    nothing: Any = _None()
    return Ports(
        runs=DynamoRunStore(table(settings.table)),
        clusters=nothing,
        jobs=nothing,
        hyperpod=nothing,
        artifacts=S3Artifacts(client("s3"), settings.bucket),
        stages=EventBridgeStages(client("events")),
        executions=StepFunctions(client("stepfunctions"), training_run_arn),
        now=_now,
        sleep=time.sleep,
        remaining=remaining,
        measure=measure,
    )


def api_ports(settings: ApiSettings, remaining: Callable[[], float]) -> ApiPorts:
    """Ports of the API: AWS services only, HyperPod among them for a look."""
    plain = store_ports(settings, remaining, settings.training_run_arn)
    return ApiPorts(
        ports=replace(plain, hyperpod=_OwnHyperPod(settings.hyperpod_cluster), scaling=_scaling(settings)),
        listings=DynamoRunStore(table(settings.table)),
        downloads=S3Downloads(signing_client(), settings.bucket),
        capacity=capacity_log(settings),
    )


def capacity_log(settings: StoreSettings) -> CapacityLog:
    return DynamoRunStore(table(settings.table))


def dashboards(settings: ControllerSettings) -> Dashboards:
    """Made anew for each invocation, as the controller's credentials are."""
    return _OwnDashboards(settings)


def controller_ports(
    settings: ControllerSettings, remaining: Callable[[], float], training_run_arn: str | None = None
) -> Ports:
    """Ports of a function that also touches Kubernetes, Ray and HyperPod, all under the one controller role."""
    controller, plain = Controller(settings), store_ports(settings, remaining, training_run_arn)
    return Ports(
        runs=plain.runs,
        clusters=_Lazy(controller),
        jobs=controller.jobs,
        hyperpod=_LazyHyperPod(controller),
        artifacts=plain.artifacts,
        stages=plain.stages,
        executions=plain.executions,
        now=plain.now,
        sleep=plain.sleep,
        remaining=remaining,
        measure=measure,
        together=at_once,
        scaling=_scaling(settings),
        registry=SageMakerRegistry(lambda: client("sagemaker", REGISTRY), settings.region, settings.bucket),
    )

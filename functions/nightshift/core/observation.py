"""Everything known about a run at one moment, read afresh. Old evidence is filtered out before it gets here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from nightshift.contract.job import Outcome, Progress
from nightshift.core.run import Attempt, Signal, SignalKind

TEMPORARY_PULL = re.compile(
    r"too ?many ?requests|time(d )?out|deadline exceeded|connection (reset|refused)|no such host|service unavailable",
    re.IGNORECASE,
)
"""What a registry or the way to it says when a pull may work later."""


class JobState(StrEnum):
    """Ray's job status, and two answers that are none: MISSING (404) and UNREACHABLE (no answer that can be trusted)."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPED = "stopped"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    MISSING = "missing"
    UNREACHABLE = "unreachable"

    @property
    def is_terminal(self) -> bool:
        return self in (JobState.STOPPED, JobState.SUCCEEDED, JobState.FAILED)


@dataclass(frozen=True)
class JobView:
    """The attempt's Ray job; ``message`` is bounded text from Ray, ``driver`` its driver's address and process id."""

    state: JobState
    message: str = ""
    driver: tuple[str, int] | None = None


@dataclass(frozen=True)
class PodView:
    """One pod of the RayCluster. ``instance_id`` is None while it is not scheduled.

    ``ended`` is how its container ended last ("OOMKilled, exit code 137"), ``exit_code`` and ``ended_at`` of that end;
    ``disruption`` is why Kubernetes took the pod away ("PreemptionByScheduler: ...", "Evicted: ..."). A pod keeps these
    only as long as its object exists."""

    name: str
    is_head: bool
    ready: bool
    instance_id: str | None = None
    ip: str | None = None
    waiting_reason: str | None = None
    created_at: datetime | None = None
    terminating: bool = False
    ended: str | None = None
    exit_code: int | None = None
    ended_at: datetime | None = None
    disruption: str | None = None


@dataclass(frozen=True)
class WorkloadView:
    """Kueue's Workload of a RayCluster, by its conditions. ``admitted_at`` is when Kueue last admitted it, by Kueue's own
    clock: another moment is another admission. ``evicted`` and ``refused`` are Kueue's reasons, while they hold; ``message``
    is its bounded text about what holds."""

    quota_reserved: bool = False
    admitted: bool = False
    admitted_at: datetime | None = None
    evicted: str | None = None
    refused: str | None = None
    pods_ready: bool = False
    message: str = ""


@dataclass(frozen=True)
class ClusterView:
    """The RayCluster and its pods. ``state`` of its status is not looked at: it stays "ready" after a node's death.

    ``workload`` is what Kueue says, None where no Kueue queue is named or Kueue knows nothing of it; ``pods_refused`` is why
    KubeRay could not create a pod, for the time being.

    ``silent_instances`` are those whose Kubernetes node is not Ready or is gone: nothing on them can be told to end, and
    nothing is heard of them. A view that could not be had counts as a cluster that is there and has no pods to tell of
    (``UNKNOWN_CLUSTER``): it proves nothing."""

    exists: bool
    head_ready: bool = False
    ready_workers: int = 0
    desired_workers: int = 0
    current: bool = False
    pods: tuple[PodView, ...] = ()
    unhealthy_instances: frozenset[str] = frozenset()
    suspended: bool = False
    workload: WorkloadView | None = None
    pods_refused: str | None = None
    silent_instances: frozenset[str] = frozenset()
    created_at: datetime | None = None

    @property
    def instances(self) -> tuple[str, ...]:
        """Instances that host its pods, sorted."""
        return tuple(sorted({p.instance_id for p in self.pods if p.instance_id}))

    @property
    def bad_image(self) -> str | None:
        """Why an image cannot be pulled, where that is what keeps a pod waiting and waiting cannot help."""
        reasons = [p.waiting_reason for p in self.pods if p.waiting_reason]
        pulls = [r for r in reasons if r.startswith(("ImagePullBackOff", "ErrImagePull", "InvalidImageName"))]
        return next((r for r in pulls if not TEMPORARY_PULL.search(r)), None)


UNKNOWN_CLUSTER = ClusterView(exists=True)


@dataclass(frozen=True)
class OwnedCluster:
    """A RayCluster that carries the label of a run, whether that run still is or not."""

    name: str
    run_id: str
    created_at: datetime


@dataclass(frozen=True)
class RayView:
    """What Ray itself lists: GPUs of living nodes by their address. None means that it could not be asked.

    Ray goes on to list a dead node for some seconds, so only the nodes of pods that are there now count.

    ``placement_groups`` are those not removed. ``dying_by_ip`` counts, by node, the processes that still live of actors
    that Ray calls dead: Ray gives their GPUs back in its books at once, while a process that does not react (frozen, or
    stuck on a file system) keeps the GPU's memory until the raylet kills it, about ten seconds later. ``drivers`` are
    living driver processes (address, process id), internal ones included."""

    gpus_by_ip: Mapping[str, int] | None = None
    live_actors: int | None = None
    placement_groups: int = 0
    dying_by_ip: Mapping[str, int] = field(default_factory=dict)
    drivers: frozenset[tuple[str, int]] = frozenset()

    def gpus_of(self, cluster: ClusterView) -> int | None:
        """GPUs that Ray lists on the cluster's ready pods."""
        if self.gpus_by_ip is None:
            return None
        return sum(self.gpus_by_ip.get(p.ip, 0) for p in cluster.pods if p.ready and p.ip is not None)


@dataclass(frozen=True)
class Observation:
    """``progress`` and ``outcome`` are the current attempt's or None; ``evidence`` is whether S3 holds the final eval
    and a verified export of the final step, made by the current attempt. ``witness`` is a fingerprint of the driver's log,
    had only where the progress is overdue. ``attempts`` are all of the run's, the current one last, as the record has
    them."""

    cluster: ClusterView
    job: JobView = JobView(JobState.MISSING)
    ray: RayView = RayView()
    progress: Progress | None = None
    outcome: Outcome | None = None
    evidence: bool = False
    lease_holder: str | None = None
    next_in_line: str | None = None
    signals: tuple[Signal, ...] = field(default=())
    job_since: datetime | None = None
    witness: str | None = None
    gpu_hours: float = 0.0
    attempts: tuple[Attempt, ...] = ()

    @property
    def signal(self) -> str:
        """What made the controller look: the kinds of the signals since the last look, or the timer."""
        return "+".join(dict.fromkeys(s.kind.value for s in self.signals)) or SignalKind.TIMER.value

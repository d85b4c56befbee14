"""HyperPod nodes, RayClusters and Kueue, in virtual time.

Gaps: one pod fills a node; Kubernetes never answers garbage, only not at all; a pod that was told to go is replaced at once,
where its node is another; Kueue admits and evicts one RayCluster by the plan of a seed and knows no other tenants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from nightshift.contract.job import OutcomeCause
from nightshift.contract.spec import RunSpec
from nightshift.core.capacity import GroupCapacity, HyperPodView
from nightshift.core.errors import TransientError
from nightshift.core.observation import ClusterView, JobState, OwnedCluster, PodView, WorkloadView
from nightshift.core.run import SignalKind
from tests.fakeworld.cloud import Bucket, Loop
from tests.fakeworld.job import Job, JobFaults

HEAD, GPU = "ml.r5d.16xlarge", "ml.g7e.12xlarge"
FOREVER = float("inf")
NOT_READY, EVICTED = 40.0, 340.0
"""Seconds from a host's last heartbeat until its node is not ready, and until its pods are told to go."""


@dataclass
class Node:
    """``curse`` is the chance that a step with a worker here breaks; until ``taken_until`` somebody else has it."""

    name: str
    kind: str
    dead_at: float | None = None
    frozen_at: float | None = None
    unhealthy: bool = False
    curse: float = 0.0
    taken_until: float = 0.0


@dataclass
class Pod:
    name: str
    is_head: bool
    born: datetime
    node: Node | None = None
    ready_at: float = FOREVER
    gone_at: float = FOREVER
    terminating: bool = False
    disruption: str | None = None
    jobs: dict[str, Job] = field(default_factory=dict)


@dataclass
class Admission:
    """What Kueue says of a RayCluster that names a queue."""

    admitted_at: datetime | None = None
    evicted: str | None = None
    refused: str | None = None


@dataclass
class RayCluster:
    spec: RunSpec
    created_at: datetime
    exists: bool = True
    pods: list[Pod] = field(default_factory=list)
    excluded: frozenset[str] = frozenset()
    kueue: Admission | None = None

    @property
    def suspended(self) -> bool:
        return self.kueue is not None and (self.kueue.admitted_at is None or self.kueue.evicted is not None)


class Fleet:
    """Implements ``Clusters`` and ``HyperPod``, and hands out ``Jobs``."""

    def __init__(self, loop: Loop, bucket: Bucket) -> None:
        self.loop, self.bucket, self.job_faults = loop, bucket, JobFaults()
        self.nodes = [Node("i-head", HEAD), *(Node(f"i-w{n}", GPU) for n in range(1, 4))]
        self.clusters: dict[str, RayCluster] = {}
        self.old: list[RayCluster] = []
        self.checkpoints: dict[str, set[int]] = {}
        self.jobs: list[Job] = []
        self.submits: list[tuple[str, str]] = []
        self.storage_full = self.kueue_refuses = False
        self.ray_down_until = self.kubernetes_down_until = 0.0
        self.starting = (2.0, 10.0)
        self.terminating = (0.0, 10.0)
        self.admits_after = (1.0, 20.0)
        self.replaces_after = (60.0, 900.0)
        self.replaced: set[str] = set()
        self._dirty = True
        self._next_change = 0.0
        self._views: dict[str, tuple[float, ClusterView]] = {}
        self.node_event: Any = lambda *_: None
        self.outcome_written: Any = lambda *_: None
        self.resumed: Any = lambda _: None
        self.submitted: Any = lambda _: None

    # nodes ------------------------------------------------------------------------------------------------------

    def kill_node(self, node: Node, replaced_after: float | None) -> None:
        """The node's processes die at once; what others notice of it comes later."""
        if node.dead_at is not None:
            return
        node.dead_at, node.frozen_at, self._dirty = self.loop.time, None, True
        self.loop.note(f"node {node.name} died")
        self.node_event(SignalKind.NODE_HEALTH, node.name)
        for cluster, pod in self._pods_on(node):
            self._leaves(pod, self.loop.rng.uniform(0, 40))
            self._hurt(cluster, pod)
        if replaced_after is not None:
            self.loop.at(replaced_after, lambda: self.join(Node(f"{node.name}x", node.kind)))

    def join(self, node: Node) -> None:
        self.nodes.append(node)
        self._dirty = True
        self.loop.note(f"node {node.name} joined")
        self.node_event(SignalKind.CLUSTER_EVENT, node.name)

    def call_unhealthy(self, node: Node) -> None:
        node.unhealthy, self._dirty = True, True

    def freeze_node(self, node: Node, thaws_after: float | None, replaced_after: float | None) -> None:
        """Every process of the host stands still; nothing says so. Ray notices a worker's silence, nobody a head's."""
        if node.dead_at is not None or node.frozen_at is not None:
            return
        node.frozen_at, self._dirty = self.loop.time, True
        self.loop.note(f"node {node.name} is frozen")
        for cluster, pod in self._pods_on(node):
            pod.ready_at = FOREVER if pod.ready_at > self.loop.time else pod.ready_at
            if pod.is_head:
                for job in pod.jobs.values():
                    job.freeze()
            else:
                self._hurt(cluster, pod, after=30.0)
        self.loop.at(NOT_READY, lambda: self._not_ready(node), background=True)
        self.loop.at(EVICTED, lambda: self._evict(node), background=True)
        if thaws_after is not None:
            self.loop.at(thaws_after, lambda: self._thaw(node))
        if replaced_after is not None:
            self.loop.at(replaced_after, lambda: self.kill_node(node, 5.0))

    def _not_ready(self, node: Node) -> None:
        self._dirty = True
        for _, pod in self._pods_on(node) if node.frozen_at is not None else ():
            pod.ready_at = FOREVER

    def _evict(self, node: Node) -> None:
        for _, pod in self._pods_on(node) if node.frozen_at is not None else ():
            self._leaves(pod, FOREVER)

    def _thaw(self, node: Node) -> None:
        if node.frozen_at is None:
            return
        node.frozen_at, self._dirty = None, True
        self.loop.note(f"node {node.name} goes on")
        for _, pod in self._pods_on(node):
            if pod.terminating:
                self._leaves(pod, self.loop.rng.uniform(0, 5))
                continue
            pod.ready_at = min(pod.ready_at, self.loop.time + 1.0)
            for job in pod.jobs.values():
                job.thaw()

    def preempt(self, pod: Pod, seconds: float) -> None:
        """The scheduler gives a pod's node to somebody else for a while."""
        if pod.node is None or pod.terminating:
            return
        self.loop.note(f"pod {pod.name} on {pod.node.name} is preempted")
        pod.node.taken_until = self.loop.time + seconds
        pod.disruption = "PreemptionByScheduler: preempted"
        cluster = next(c for c in self._all() if pod in c.pods)
        self._leaves(pod, self.loop.rng.uniform(1, 30))
        self._hurt(cluster, pod)

    def _pods_on(self, node: Node) -> list[tuple[RayCluster, Pod]]:
        return [(c, p) for c in self._all() for p in c.pods if p.node is node]

    def _all(self) -> list[RayCluster]:
        return [*self.old, *self.clusters.values()]

    def _leaves(self, pod: Pod, after: float) -> None:
        """Told to go; its processes end with it."""
        pod.terminating, pod.ready_at, self._dirty = True, FOREVER, True
        if pod.node is not None and pod.node.frozen_at is not None:
            after = FOREVER  # nobody there confirms
        if self.loop.time + after < pod.gone_at:
            pod.gone_at = self.loop.time + after
            self.loop.at(after, lambda: self._ends(pod), background=True)

    def _ends(self, pod: Pod) -> None:
        if pod.gone_at <= self.loop.time:
            _end_all(pod)

    def _hurt(self, cluster: RayCluster, pod: Pod, after: float = 0.0) -> None:
        for job in [j for p in cluster.pods for j in p.jobs.values() if j.lives]:
            job.hurt = True
        if pod.is_head:
            for job in pod.jobs.values() if pod.node is None or pod.node.dead_at is not None else ():
                job.gone = True
            return
        for job in [j for p in cluster.pods for j in p.jobs.values() if j.lives]:
            cause = OutcomeCause.WORKER_LOST if self.loop.rng.random() < 0.7 else None
            delay = after + self.loop.rng.uniform(1, 45)
            self.loop.at(delay, lambda job=job, cause=cause: job.end(cause, JobState.FAILED, "ActorDiedError"))  # type: ignore[misc]

    # Kueue ------------------------------------------------------------------------------------------------------

    def _queued(self, cluster: RayCluster) -> Admission:
        self.loop.at(self.loop.rng.uniform(*self.admits_after), lambda: self.admit(cluster))
        return Admission(refused="Inadmissible" if self.kueue_refuses else None)

    def admit(self, cluster: RayCluster) -> None:
        kueue = cluster.kueue
        if kueue is None or not cluster.exists or not cluster.suspended or self.kueue_refuses:
            return
        kueue.admitted_at, kueue.evicted, kueue.refused = self.loop.now(), None, None
        self._dirty = True
        self.loop.note(f"Kueue admits {cluster.spec.run_id}")

    def evict(self, cluster: RayCluster, back_after: float) -> None:
        if cluster.kueue is None or cluster.suspended or not cluster.exists:
            return
        cluster.kueue.evicted, self._dirty = "Preempted", True
        self.loop.note(f"Kueue evicts {cluster.spec.run_id}")
        for pod in cluster.pods:
            self._leaves(pod, self.loop.rng.uniform(0, 20))
            for job in pod.jobs.values():
                job.evicted = job.evicted or (job.lives and not job.hurt)
        self.loop.at(back_after, lambda: self.admit(cluster))

    # Kubernetes -------------------------------------------------------------------------------------------------

    def _kubernetes(self) -> None:
        self.loop.touch("Kubernetes")
        if self.loop.time < self.kubernetes_down_until and not self.loop.sheltered:
            raise TransientError("chaos", "Kubernetes does not answer")

    def create(self, spec: RunSpec, owner: str, excluded: Sequence[str] = ()) -> bool:
        self._kubernetes()
        there = self.clusters.get(spec.run_id)
        if there is not None and there.exists:
            return False
        if there is not None:
            self.old.append(there)
        made = self.clusters[spec.run_id] = RayCluster(
            spec, self.loop.now().replace(microsecond=0), excluded=frozenset(excluded)
        )
        made.kueue = self._queued(made) if spec.queue is not None else None
        self._dirty = True
        self.loop.wrote("create RayCluster")
        return True

    def delete(self, name: str) -> None:
        self._kubernetes()
        cluster = self.clusters.get(name)
        if cluster is not None and cluster.exists:
            cluster.exists, self._dirty = False, True
            for pod in cluster.pods:
                self._leaves(pod, self.loop.rng.uniform(*self.terminating))
        self.loop.wrote("delete RayCluster")

    def owned(self) -> Sequence[OwnedCluster]:
        self._kubernetes()
        return [OwnedCluster(name, name, c.created_at) for name, c in self.clusters.items() if c.exists]

    def delete_pods(
        self,
        name: str,
        instances: frozenset[str] | None = None,
        created_before: datetime | None = None,
        force: bool = False,
    ) -> int:
        self._kubernetes()
        meant = [
            p
            for p in self._pods_of(name)
            if (force or not p.terminating)
            and (created_before is None or p.born < created_before)
            and (instances is None or (p.node is not None and p.node.name in instances))
        ]
        for pod in meant:
            self._leaves(pod, self.loop.rng.uniform(*self.terminating))
            if force:
                pod.gone_at = self.loop.time
        self.loop.wrote("delete pods")
        return len(meant)

    def exclude(self, spec: RunSpec, owner: str, excluded: Sequence[str]) -> bool:
        self._kubernetes()
        cluster = self.clusters.get(spec.run_id)
        if cluster is None or not cluster.exists:
            return False
        changed = cluster.excluded != frozenset(excluded)
        cluster.excluded, self._dirty = frozenset(excluded), True
        self.loop.wrote("exclude instances")
        return self.delete_pods(spec.run_id, frozenset(excluded)) > 0 or changed

    def pod_records(self, name: str) -> Sequence[Mapping[str, Any]]:
        return []

    def event_records(self, name: str) -> Sequence[Mapping[str, Any]]:
        return []

    def node_records(self, instances: frozenset[str]) -> Sequence[Mapping[str, Any]]:
        return []

    def _pods_of(self, name: str) -> list[Pod]:
        return [p for c in self._all() if c.spec.run_id == name for p in c.pods]

    def view(self, name: str) -> ClusterView:
        self._kubernetes()
        cluster = self.clusters.get(name)
        if cluster is None:
            return ClusterView(exists=False)
        self.settle()
        kept = self._views.get(name)
        if kept is None or kept[0] <= self.loop.time:
            kept = self._views[name] = self._view(name, cluster)
        return kept[1]

    def _view(self, name: str, cluster: RayCluster) -> tuple[float, ClusterView]:
        """Until when it holds if nothing else happens, and the view."""
        now, pods = self.loop.time, self._pods_of(name)
        mine = cluster.pods
        until = min((p.ready_at for p in mine if p.ready_at > now), default=FOREVER)
        return until, ClusterView(
            exists=cluster.exists,
            head_ready=any(p.is_head and p.ready_at <= now for p in mine),
            ready_workers=sum(not p.is_head and p.ready_at <= now for p in mine),
            desired_workers=cluster.spec.topology.workers.count,
            current=True,
            pods=tuple(
                PodView(
                    p.name,
                    p.is_head,
                    p.ready_at <= now,
                    p.node.name if p.node else None,
                    p.name,
                    created_at=p.born,
                    terminating=p.terminating,
                    disruption=p.disruption,
                )
                for p in pods
            ),
            unhealthy_instances=frozenset(n.name for n in self.nodes if n.unhealthy and n.dead_at is None),
            suspended=cluster.suspended,
            workload=_workload(cluster.kueue),
            silent_instances=frozenset(n.name for n in self.nodes if _is_silent(n, now)),
            created_at=cluster.created_at,
        )

    def settle(self) -> None:
        """What the controllers of Kubernetes would have done by now."""
        now = self.loop.time
        if not self._dirty and now < self._next_change:
            return
        for cluster in self._all():
            for pod in [p for p in cluster.pods if p.gone_at <= now]:
                _end_all(pod)
                cluster.pods.remove(pod)
            if cluster.exists and not cluster.suspended:
                self._make_pods(cluster)
        self.old = [c for c in self.old if c.pods]
        free = self._free()
        waiting = [(c, p) for c in self.clusters.values() for p in c.pods if p.node is None and not p.terminating]
        for cluster, pod in waiting:
            kind = HEAD if pod.is_head else GPU
            node = next((n for n in free if n.kind == kind and n.name not in cluster.excluded), None)
            if node is not None:
                free.remove(node)
                pod.node, pod.ready_at = node, now + self.loop.rng.uniform(*self.starting)
        self._dirty = False
        self._views.clear()
        changes = [p.gone_at for c in self._all() for p in c.pods] + [
            n.taken_until for n in self.nodes if n.taken_until > now
        ]
        self._next_change = min((t for t in changes if t > now), default=FOREVER)

    def _make_pods(self, cluster: RayCluster) -> None:
        staying = [p for p in cluster.pods if not p.terminating]
        for is_head, wanted in ((True, 1), (False, cluster.spec.topology.workers.count)):
            for _ in range(wanted - sum(p.is_head is is_head for p in staying)):
                self.loop.events += 1
                name = f"{cluster.spec.run_id}-{self.loop.events}-{len(cluster.pods)}"
                # In whole seconds, as Kubernetes writes its times.
                cluster.pods.append(Pod(name, is_head, self.loop.now().replace(microsecond=0)))

    def _free(self) -> list[Node]:
        taken, now = {p.node.name for c in self._all() for p in c.pods if p.node is not None}, self.loop.time
        alive = [n for n in self.nodes if n.dead_at is None and n.frozen_at is None and n.taken_until <= now]
        return [n for n in alive if n.name not in taken]

    # HyperPod and Ray -------------------------------------------------------------------------------------------

    def hyperpod(self) -> HyperPodView:
        self.loop.touch("SageMaker")
        return HyperPodView("hp", "InService", (GroupCapacity("head", HEAD, 1, 1), GroupCapacity("gpu", GPU, 3, 3)))

    def replace(self, instances: Sequence[str]) -> dict[str, str]:
        self.loop.touch("SageMaker")
        for name in set(instances) - self.replaced:
            self.replaced.add(name)
            node = next((n for n in self.nodes if n.name == name and n.dead_at is None), None)
            if node is not None:
                after = self.loop.rng.uniform(*self.replaces_after)
                self.loop.at(1.0, lambda node=node, after=after: self.kill_node(node, after))  # type: ignore[misc]
        self.loop.wrote("replace nodes")
        return dict.fromkeys(instances, "")

    def head_of(self, name: str) -> Pod | None:
        cluster = self.clusters.get(name)
        if cluster is None or not cluster.exists or self.loop.time < self.ray_down_until:
            return None
        head = next((p for p in cluster.pods if p.is_head and p.ready_at <= self.loop.time), None)
        return head if head is not None and (head.node is None or head.node.frozen_at is None) else None

    def live_jobs(self, run_id: str) -> Iterator[Job]:
        return (j for j in self.jobs if j.run_id == run_id and j.lives)


def _is_silent(node: Node, now: float) -> bool:
    return node.dead_at is not None or (node.frozen_at is not None and now - node.frozen_at >= NOT_READY)


def _workload(kueue: Admission | None) -> WorkloadView | None:
    if kueue is None:
        return None
    admitted = kueue.admitted_at is not None and kueue.evicted is None
    at = kueue.admitted_at if admitted else None
    return WorkloadView(admitted, admitted, at, kueue.evicted, kueue.refused if not admitted else None)


def _end_all(pod: Pod) -> None:
    for job in pod.jobs.values():
        job.gone = True

"""HyperPod nodes, RayClusters, Ray and its jobs, in virtual time.

Gaps: one pod fills a node; Kubernetes and Ray never answer garbage, only not at all; checkpoints on /shared are whole or
absent, and the fake guard never rolls back below its floor; a job's uploads are never half there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from nightshift.contract.control import ControlCommand
from nightshift.contract.evals import EvalSet, EvalSummary
from nightshift.contract.job import ExportRecord, FileDigest, Outcome, OutcomeCause, Phase, Progress
from nightshift.contract.layout import RunKeys
from nightshift.contract.spec import RunSpec
from nightshift.core.capacity import GroupCapacity, HyperPodView
from nightshift.core.errors import TransientError
from nightshift.core.observation import ClusterView, JobState, JobView, OwnedCluster, PodView, RayView
from nightshift.core.run import SignalKind
from tests.fakeworld.cloud import Bucket, Loop

HEAD, GPU = "ml.r5d.16xlarge", "ml.g7e.12xlarge"
ADAPTER = {name: f"bytes of {name}".encode() for name in ("adapter_config.json", "adapter_model.safetensors")}
ADAPTER_DIGESTS = {n: FileDigest(sha256=hashlib.sha256(b).hexdigest(), size=len(b)) for n, b in ADAPTER.items()}
ROWS = b"rows"
ROWS_SHA = hashlib.sha256(ROWS).hexdigest()
LIVE = (JobState.PENDING, JobState.RUNNING)


@dataclass(frozen=True)
class JobFaults:
    """Chances a step of a job, and of a stop that is ignored."""

    dies: float = 0.0
    dies_in_save: float = 0.0
    hangs: float = 0.0
    lies_at_end: float = 0.0
    ignores_stop: float = 0.0


@dataclass
class Node:
    name: str
    kind: str
    dead_at: float | None = None
    unhealthy: bool = False


@dataclass
class Pod:
    name: str
    is_head: bool
    node: Node | None = None
    ready_at: float = float("inf")
    gone_at: float = float("inf")
    jobs: dict[str, Job] = field(default_factory=dict)


@dataclass
class RayCluster:
    spec: RunSpec
    created_at: datetime
    exists: bool = True
    pods: list[Pod] = field(default_factory=list)


class Job:
    """One Ray job that trains, saves and publishes honestly until it ends or dies."""

    def __init__(self, world: Fleet, cluster: RayCluster, submission_id: str, attempt: int, floor: int) -> None:
        self.world, self.cluster, self.id, self.n, self.floor = world, cluster, submission_id, attempt, floor
        self.run_id, self.spec = cluster.spec.run_id, cluster.spec
        self.state, self.message, self.gone = JobState.PENDING, "", False
        self.step, self.saved, self.resumed, self.acknowledged = floor, floor, -1, 0
        self.reported, self.actors_until, self.proved = floor, 0.0, False
        self._go(world.loop.rng.uniform(1, 15), self._start)

    @property
    def lives(self) -> bool:
        return self.state in LIVE and not self.gone

    def _go(self, delay: float, call: Any) -> None:
        self.world.loop.at(delay, lambda: call() if self.lives else None)

    def _start(self) -> None:
        self.state = JobState.RUNNING
        self._tell(Phase.SETUP)
        self._go(self.world.loop.rng.uniform(2, 20), self._resume)

    def _resume(self) -> None:
        newest = max(self.world.checkpoints.setdefault(self.run_id, {0}))
        if newest < self.floor:
            return self.end(OutcomeCause.CHECKPOINT_UNUSABLE, JobState.FAILED)
        self.step = self.saved = self.resumed = newest
        self.world.resumed(self)
        if newest == 0:
            self._eval()
        if self.step >= self.spec.training.total_steps:  # only the proof is missing
            self._tell(Phase.EVAL)
            return self._go(self.world.loop.rng.uniform(20, 90), self._prove)
        return self._next()

    def _prove(self) -> None:
        if self.world.loop.rng.random() < self.world.job_faults.dies:
            return self.end(None, JobState.FAILED)
        self._eval()
        self._export()
        return self._finish()

    def _next(self) -> None:
        self._tell(Phase.GENERATE)
        self._go(self.world.loop.rng.uniform(20, 90), self._stepped)

    def _stepped(self) -> None:
        rng, faults, training = self.world.loop.rng, self.world.job_faults, self.spec.training
        luck = rng.random()
        if luck < faults.dies:
            cause = rng.choice(
                (OutcomeCause.WORKER_LOST, OutcomeCause.ENGINE_FAILURE, OutcomeCause.CREDENTIALS_EXPIRED)
            )
            return self.end(cause if rng.random() < 0.5 else None, JobState.FAILED)
        if luck < faults.dies + faults.hangs:
            return None
        self.step += 1
        last = self.step >= training.total_steps
        asked = self.world.bucket.asked(self.run_id)
        command = asked.command if asked is not None and asked.seq > self.acknowledged else None
        if last or command or self.step % training.ckpt_interval == 0:
            self.world.checkpoints[self.run_id].add(self.step)
            if rng.random() < faults.dies_in_save:
                return self.end(None, JobState.FAILED)
            self.saved = self.step
        if asked is not None:
            self.acknowledged = asked.seq
        if last or self.step % training.eval_interval == 0:
            self._eval()
        if last or self.step % training.hf_save_interval == 0:
            self._export()
        if last:
            return self._finish()
        if command is ControlCommand.STOP_AFTER_CHECKPOINT:
            return self.end(OutcomeCause.STOPPED_ON_REQUEST, JobState.FAILED)
        return self._next()

    def _finish(self) -> None:
        self.proved = True
        if self.world.loop.rng.random() < self.world.job_faults.lies_at_end:
            # everything is there, but the job says that it failed, and its word is taken
            return self.end(OutcomeCause.WORKER_LOST, JobState.FAILED)
        return self.end(OutcomeCause.FINISHED, JobState.SUCCEEDED)

    def end(self, cause: OutcomeCause | None, state: JobState, message: str = "died") -> None:
        """The process is over; with a cause it still wrote its outcome."""
        if not self.lives:
            return
        if cause is not None:
            self._store(RunKeys(self.run_id).outcome(self.n), Outcome(
                run_id=self.run_id, attempt=self.n, cause=cause, message=message, step=self.step,
                total_steps=self.spec.training.total_steps, resumed_step=max(self.resumed, 0), saved_step=self.saved,
                exit_code=0 if cause.is_success else 75, at=self.world.loop.now(),
            ))  # fmt: skip
            self.reported = max(self.reported, self.saved)
            self.world.outcome_written(self.run_id, self.n)
        self.state, self.message = state, message
        self.actors_until = self.world.loop.time + self.world.loop.rng.uniform(0, 8)

    def _store(self, key: str, thing: Any) -> None:
        self.world.bucket.store(self.run_id, key, thing)

    def _tell(self, phase: Phase) -> None:
        self.reported = max(self.reported, self.saved)
        self._store(RunKeys(self.run_id).progress(self.n), Progress(
            run_id=self.run_id, attempt=self.n, phase=phase, step=self.step,
            total_steps=self.spec.training.total_steps, resumed_step=None if self.resumed < 0 else self.resumed,
            saved_step=self.saved, acknowledged=self.acknowledged, at=self.world.loop.now(),
        ))  # fmt: skip

    def _eval(self) -> None:
        keys = RunKeys(self.run_id)
        self._store(keys.eval_rows(self.n, self.step, EvalSet.FIXED), ROWS)
        self._store(keys.eval_summary(self.n, self.step, EvalSet.FIXED), EvalSummary(
            run_id=self.run_id, attempt=self.n, step=self.step, eval_set=EvalSet.FIXED, solved=32 + self.step, of=64,
            low=0.1, high=0.9, avg_score=0.5, pass_at_1=0.5, rows_sha256=ROWS_SHA, at=self.world.loop.now(),
        ))  # fmt: skip

    def _export(self) -> None:
        keys = RunKeys(self.run_id)
        for name, body in ADAPTER.items():
            self._store(f"{keys.export(self.n, self.step)}{name}", body)
        self._store(keys.export_record(self.n, self.step), ExportRecord(
            run_id=self.run_id, attempt=self.n, step=self.step, files=ADAPTER_DIGESTS, lora_b_nonzero=5,
            lora_b_total=5, at=self.world.loop.now(),
        ))  # fmt: skip


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
        self.ray_down_until = self.kubernetes_down_until = 0.0
        self.starting = (2.0, 10.0)
        self.terminating = (0.0, 10.0)
        self.node_event: Any = lambda *_: None
        self.outcome_written: Any = lambda *_: None
        self.resumed: Any = lambda _: None

    # nodes ------------------------------------------------------------------------------------------------------

    def kill_node(self, node: Node, replaced_after: float | None) -> None:
        """The node's processes die at once; what others notice of it comes later."""
        if node.dead_at is not None:
            return
        node.dead_at = self.loop.time
        self.loop.note(f"node {node.name} died")
        self.node_event(SignalKind.NODE_HEALTH, node.name)
        for cluster in [*self.clusters.values(), *self.old]:
            for pod in [p for p in cluster.pods if p.node is node]:
                pod.gone_at = min(pod.gone_at, self.loop.time + self.loop.rng.uniform(0, 40))
                pod.ready_at = float("inf")
                self._hurt(cluster, pod)
        if replaced_after is not None:
            self.loop.at(replaced_after, lambda: self._join(Node(f"{node.name}x", node.kind)))

    def _join(self, node: Node) -> None:
        self.nodes.append(node)
        self.loop.note(f"node {node.name} joined")
        self.node_event(SignalKind.CLUSTER_EVENT, node.name)

    def _hurt(self, cluster: RayCluster, pod: Pod) -> None:
        if pod.is_head:
            for job in pod.jobs.values():
                job.gone = True
            return
        for job in [j for p in cluster.pods for j in p.jobs.values() if j.lives]:
            cause = OutcomeCause.WORKER_LOST if self.loop.rng.random() < 0.7 else None
            delay = self.loop.rng.uniform(1, 45)
            self.loop.at(delay, lambda job=job, cause=cause: job.end(cause, JobState.FAILED, "ActorDiedError"))  # type: ignore[misc]

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
        self.clusters[spec.run_id] = RayCluster(spec, self.loop.now())
        self.loop.wrote("create RayCluster")
        return True

    def delete(self, name: str) -> None:
        self._kubernetes()
        cluster = self.clusters.get(name)
        if cluster is not None and cluster.exists:
            cluster.exists = False
            for pod in cluster.pods:
                pod.gone_at = min(pod.gone_at, self.loop.time + self.loop.rng.uniform(*self.terminating))
                pod.ready_at = float("inf")
                if pod.is_head:
                    self.loop.at(pod.gone_at - self.loop.time, lambda pod=pod: _end_all(pod), background=True)  # type: ignore[misc]
        self.loop.wrote("delete RayCluster")

    def owned(self) -> Sequence[OwnedCluster]:
        self._kubernetes()
        return [OwnedCluster(name, name, c.created_at) for name, c in self.clusters.items() if c.exists]

    def view(self, name: str) -> ClusterView:
        self._kubernetes()
        cluster = self.clusters.get(name)
        if cluster is None:
            return ClusterView(exists=False)
        self.settle()
        now = self.loop.time
        pods = [p for c in (cluster, *self.old) if c.spec.run_id == name for p in c.pods]
        mine = cluster.pods
        return ClusterView(
            exists=cluster.exists,
            head_ready=any(p.is_head and p.ready_at <= now for p in mine),
            ready_workers=sum(not p.is_head and p.ready_at <= now for p in mine),
            desired_workers=cluster.spec.topology.workers.count,
            current=True,
            pods=tuple(
                PodView(p.name, p.is_head, p.ready_at <= now, p.node.name if p.node else None, p.name) for p in pods
            ),
            unhealthy_instances=frozenset(n.name for n in self.nodes if n.unhealthy and n.dead_at is None),
        )

    def settle(self) -> None:
        """What the controllers of Kubernetes would have done by now."""
        now = self.loop.time
        for cluster in [*self.old, *self.clusters.values()]:
            for pod in [p for p in cluster.pods if p.gone_at <= now]:
                _end_all(pod)
                cluster.pods.remove(pod)
            if not cluster.exists:
                continue
            staying = [p for p in cluster.pods if p.gone_at == float("inf")]
            for is_head, wanted in ((True, 1), (False, cluster.spec.topology.workers.count)):
                for _ in range(wanted - sum(p.is_head is is_head for p in staying)):
                    self.loop.events += 1
                    cluster.pods.append(Pod(f"{cluster.spec.run_id}-{self.loop.events}-{len(cluster.pods)}", is_head))
        free = self._free()
        for pod in [p for c in self.clusters.values() for p in c.pods if p.node is None]:
            node = next((n for n in free if n.kind == (HEAD if pod.is_head else GPU)), None)
            if node is not None:
                free.remove(node)
                pod.node, pod.ready_at = node, now + self.loop.rng.uniform(*self.starting)

    def _free(self) -> list[Node]:
        taken = {p.node.name for c in [*self.clusters.values(), *self.old] for p in c.pods if p.node is not None}
        return [n for n in self.nodes if n.dead_at is None and n.name not in taken]

    # HyperPod and Ray -------------------------------------------------------------------------------------------

    def hyperpod(self) -> HyperPodView:
        self.loop.touch("SageMaker")
        return HyperPodView("hp", "InService", (GroupCapacity("head", HEAD, 1, 1), GroupCapacity("gpu", GPU, 3, 3)))

    def head_of(self, name: str) -> Pod | None:
        cluster = self.clusters.get(name)
        if cluster is None or not cluster.exists or self.loop.time < self.ray_down_until:
            return None
        return next((p for p in cluster.pods if p.is_head and p.ready_at <= self.loop.time), None)

    def live_jobs(self, run_id: str) -> Iterator[Job]:
        return (j for j in self.jobs if j.run_id == run_id and j.lives)


def _end_all(pod: Pod) -> None:
    for job in pod.jobs.values():
        job.gone = True


class RayPorts:
    """Implements ``steps.ports.Jobs`` for one RayCluster; a job table lives and dies with its head's pod."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self._fleet, self._name = fleet, name

    def submit(self, run_id: str, submission_id: str, entrypoint: str, metadata: dict[str, str]) -> None:
        fleet, loop = self._fleet, self._fleet.loop
        if self.view(submission_id).state not in (JobState.MISSING, JobState.UNREACHABLE):
            return
        loop.touch("Ray")
        head = fleet.head_of(self._name)
        if head is None:
            raise TransientError(run_id, f"job {submission_id} could not be submitted: no answer")
        if submission_id not in head.jobs:
            words = entrypoint.split()
            attempt, floor = (int(words[words.index(f"--{name}") + 1]) for name in ("attempt", "floor"))
            job = Job(fleet, fleet.clusters[self._name], submission_id, attempt, floor)
            head.jobs[submission_id] = job
            fleet.jobs.append(job)
            fleet.submits.append((submission_id, head.name))
            loop.note(f"job {submission_id} submitted, floor {floor}")
        loop.wrote("submit job")

    def view(self, submission_id: str) -> JobView:
        head = self._asked()
        if head is None:
            return JobView(JobState.UNREACHABLE, "connection refused")
        job = head.jobs.get(submission_id)
        return JobView(JobState.MISSING) if job is None else JobView(job.state, job.message)

    def ray(self) -> RayView:
        head = self._asked()
        if head is None:
            return RayView()
        now, pods = self._fleet.loop.time, self._fleet.clusters[self._name].pods
        ready = {p.name: 2 for p in pods if not p.is_head and p.ready_at <= now}
        return RayView(ready, sum(3 for j in head.jobs.values() if j.lives or j.actors_until > now))

    def stop(self, submission_id: str) -> None:
        head, loop = self._asked(), self._fleet.loop
        job = head.jobs.get(submission_id) if head is not None else None
        if job is not None and job.lives and loop.rng.random() >= self._fleet.job_faults.ignores_stop:
            loop.at(loop.rng.uniform(0.5, 15), lambda: job.end(None, JobState.STOPPED, "stopped"))
        loop.wrote("stop job")

    def logs(self, submission_id: str) -> str:
        self._fleet.loop.touch("Ray")
        return f"log of {submission_id}"

    def _asked(self) -> Any:
        try:
            self._fleet.loop.touch("Ray")
        except TransientError:  # the adapter turns every failed read into "no answer"
            return None
        return self._fleet.head_of(self._name)

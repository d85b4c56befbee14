"""The pretended HyperPod cluster: instances, their Kubernetes nodes, their loss and their replacement."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import aiohttp

from local.config import StackConfig
from local.kube import hyperpod_events as events
from local.kube import processes
from local.kube.controller import Controller
from local.kube.errors import Json, NotFound
from local.kube.ray_pods import RayPods
from local.kube.store import NODE, POD, Store, timestamp

HEAD_TYPE, HEAD_GROUP = "ml.r5d.16xlarge", "cpu-head"
WORKER_TYPE, WORKER_GROUP = "ml.g7e.12xlarge", "gpu-workers"
GPUS = {HEAD_TYPE: 0, WORKER_TYPE: 2}
CPUS = {HEAD_TYPE: 64, WORKER_TYPE: 48}
MEMORY = {HEAD_TYPE: "512Gi", WORKER_TYPE: "512Gi"}
STRANGER = "i-0badcafe000000000"
"""An instance of another group's work: its event must move nobody."""

SEND_TIMEOUT = aiohttp.ClientTimeout(total=15)
SEND_TRIES = 3
RETRY_SECONDS = 0.5

LOG = logging.getLogger("local.kube.hyperpod")


@dataclass(frozen=True)
class Instance:
    """One machine of the cluster. ``joined``: its Kubernetes node exists."""

    instance_id: str
    group: str
    instance_type: str
    launched_at: datetime
    logical_id: str
    joined: bool = True
    frozen: bool = False

    @property
    def node_name(self) -> str:
        return f"hyperpod-{self.instance_id}"

    @property
    def status(self) -> str:
        """HyperPod's InstanceStatus."""
        return "Running" if self.joined else "Pending"


@dataclass
class HyperPod:
    """All instances; the only place that makes and removes nodes."""

    config: StackConfig
    store: Store
    ray: RayPods
    controller: Controller
    http: aiohttp.ClientSession
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    instances: dict[str, Instance] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _targets: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.created_at = self.clock()
        self._targets = {HEAD_GROUP: 1, WORKER_GROUP: self.config.worker_nodes}
        for group, kind, count in self.groups():
            for _ in range(count):
                self._join(self._new_instance(group, kind, str(uuid.uuid4())))

    def groups(self) -> list[tuple[str, str, int]]:
        """(name, instance type, target count) of each instance group."""
        kinds = ((HEAD_GROUP, HEAD_TYPE), (WORKER_GROUP, WORKER_TYPE))
        return [(group, kind, self._targets[group]) for group, kind in kinds]

    @property
    def scaling(self) -> bool:
        """Nodes of a group are still on their way."""
        return any(not one.joined for one in self.instances.values())

    def resize(self, group: str, kind: str, count: int) -> None:
        """A group's new target: nodes come after a while, as a replacement does; the newest go at once, whatever runs there."""
        self._targets[group] = count
        there = sorted((i for i in self.instances.values() if i.group == group), key=lambda i: i.launched_at)
        for one in there[count:]:
            self._background(self._take_away(one))
        for _ in range(count - len(there)):
            fresh = self._new_instance(group, kind, str(uuid.uuid4()))
            self.instances[fresh.instance_id] = fresh
            self._background(self._join_later(fresh))

    async def _take_away(self, one: Instance) -> None:
        pods = self.pods_on(one)
        self.instances.pop(one.instance_id, None)
        if node := self.store.find(NODE, "", one.node_name):
            self.store.remove(NODE, node)
        await self.controller.lose(pods)

    async def _join_later(self, fresh: Instance) -> None:
        await asyncio.sleep(self.config.spare_joins_after)
        if fresh.instance_id in self.instances:
            self._join(fresh)
            self.controller.wake()

    def instance(self, instance_id: str) -> Instance:
        """Raises :class:`NotFound`."""
        if instance_id not in self.instances:
            raise NotFound(f'instance "{instance_id[:100]}" not found')
        return self.instances[instance_id]

    def pods_on(self, instance: Instance) -> list[Json]:
        return [pod for pod in self.store.all(POD) if pod["spec"].get("nodeName") == instance.node_name]

    async def kill_node(self, instance_id: str, emit_events: bool, joins_after: float | None = None) -> Json:
        """SIGKILL to everything on the node, the node gone, a replacement on its way. Returns what was done.

        The events go out in HyperPod's order: health (twice, as it does), one about a stranger, replacement started;
        and replacement completed when the new node has joined, ``joins_after`` seconds later (default: the
        configuration's). A head node has no GPU and so no health agent: nothing is said about its health.
        """
        lost = self.instance(instance_id)
        killed = self.pods_on(lost)
        del self.instances[instance_id]
        if node := self.store.find(NODE, "", lost.node_name):
            self.store.remove(NODE, node)
        await self.controller.lose(killed)
        spare = self._new_instance(lost.group, lost.instance_type, lost.logical_id)
        self.instances[spare.instance_id] = spare
        joins_after = self.config.spare_joins_after if joins_after is None else joins_after
        self._background(self._replace(lost, spare, emit_events, joins_after))
        names = [pod["metadata"]["name"] for pod in killed]
        LOG.info("node %s killed with pods %s", lost.node_name, names)
        return {"instance_id": instance_id, "pods": names, "replacement": spare.instance_id}

    def replace_soon(self, instance_id: str) -> None:
        """A replacement that somebody asked for: to what runs there it is the same as a node's death."""
        self._background(self._asked_for(instance_id))

    async def _asked_for(self, instance_id: str) -> None:
        if instance_id in self.instances:  # a second request finds the first at work
            await self.kill_node(instance_id, True)

    async def kill_head(self, raycluster: str) -> Json:
        """SIGKILL to the processes of a RayCluster's head pod; its node stays."""
        heads = [
            pod
            for pod in self.store.all(POD)
            if pod["metadata"]["labels"].get("ray.io/cluster") == raycluster
            and pod["metadata"]["labels"].get("ray.io/node-type") == "head"
        ]
        if not heads:
            raise NotFound(f'RayCluster "{raycluster[:100]}" has no head pod')
        await self.controller.lose(heads)
        return {"pods": [pod["metadata"]["name"] for pod in heads]}

    def freeze(self, instance_id: str, frozen: bool, unnoticed: float = 0.0) -> Json:
        """SIGSTOP (or SIGCONT) to every process on the node; Kubernetes hears nothing of it any more.

        It takes Kubernetes ``unnoticed`` seconds to say so: its node controller waits 40 s for a heartbeat.
        """
        instance = self.instance(instance_id)
        self.instances[instance_id] = replace(instance, frozen=frozen)
        self.store.get(NODE, "", instance.node_name)
        stopped = 0
        for pod in self.pods_on(instance):
            runtime = self.ray.runtimes.get(pod["metadata"]["uid"])
            below = processes.tree(top.pid for top in runtime.started) if runtime else []
            processes.send(below, signal.SIGSTOP if frozen else signal.SIGCONT)
            stopped += len(below)
        if frozen and unnoticed:
            self._background(self._notice(instance_id, unnoticed))
        else:
            self._show_heartbeat(instance_id)
        return {"instance_id": instance_id, "processes": stopped}

    async def _notice(self, instance_id: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if instance_id in self.instances:
            self._show_heartbeat(instance_id)

    def _show_heartbeat(self, instance_id: str) -> None:
        """Node and pods as Kubernetes shows them while the kubelet reports, and while it does not."""
        instance = self.instances[instance_id]
        node = self.store.get(NODE, "", instance.node_name)
        node["status"]["conditions"] = [_ready_condition(not instance.frozen, timestamp(self.clock()))]
        self.store.touch(node)
        for pod in self.pods_on(instance) if instance.frozen else []:
            for condition in pod["status"]["conditions"]:
                condition.update({"status": "False"} if condition["type"] == "Ready" else {})
            self.store.touch(pod)
        self.controller.wake()

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _replace(self, lost: Instance, spare: Instance, emit_events: bool, joins_after: float) -> None:
        config = self.config
        if emit_events:
            has_agent = GPUS[lost.instance_type] > 0
            troubled = [lost.instance_id] * 2 if has_agent else []
            health = [events.node_health(config, self._moment(), one) for one in (*troubled, STRANGER)]
            started_id = str(uuid.uuid4())
            started = events.replacement_started(config, self._moment(), lost.instance_id, lost.group, started_id)
            for event in (*health, started):
                self._background(self._send(event))
        await asyncio.sleep(joins_after)
        if spare.instance_id not in self.instances:
            return  # killed before it came
        self._join(spare)
        self.controller.wake()
        if emit_events:
            done = str(uuid.uuid4())
            await self._send(events.replacement_completed(config, self._moment(), spare.instance_id, spare.group, done))

    async def _send(self, event: Json) -> None:
        """To the cloud's own door for events of services. A cloud that does not answer loses the event, as real
        ones are lost now and then: it is logged."""
        problem = ""
        for attempt in range(SEND_TRIES):
            try:
                url = f"{self.config.cloud_url}/_local/events"
                async with self.http.post(url, json=event, timeout=SEND_TIMEOUT) as answer:
                    if answer.status < 300:
                        return
                    problem = f"{answer.status} {(await answer.text())[:200]}"
                    if answer.status < 500:
                        break
            except (aiohttp.ClientError, TimeoutError) as error:
                problem = repr(error)
            await asyncio.sleep(RETRY_SECONDS * 2**attempt)
        LOG.error("event %s could not be sent: %s", event["detail-type"], problem)

    def _moment(self) -> events.Moment:
        return events.Moment(self.clock(), str(uuid.uuid4()))

    def _new_instance(self, group: str, kind: str, logical_id: str) -> Instance:
        return Instance(f"i-0{secrets.token_hex(8)}", group, kind, self.clock(), logical_id, joined=False)

    def _join(self, instance: Instance) -> None:
        self.instances[instance.instance_id] = replace(instance, joined=True)
        self.store.add(NODE, _node(self.config, instance, timestamp(self.clock())))

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _ready_condition(ready: bool, now: str) -> Json:
    return {
        "type": "Ready",
        "status": "True" if ready else "Unknown",
        "reason": "KubeletReady" if ready else "NodeStatusUnknown",
        "message": "kubelet is posting ready status" if ready else "Kubelet stopped posting node status.",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }


def _node(config: StackConfig, instance: Instance, now: str) -> Json:
    """The Kubernetes node of an instance, with HyperPod's labels."""
    kind = instance.instance_type
    resources = {"cpu": str(CPUS[kind]), "memory": MEMORY[kind], "pods": "100"}
    if GPUS[kind]:
        resources["nvidia.com/gpu"] = str(GPUS[kind])
    return {
        "metadata": {
            "name": instance.node_name,
            "labels": {
                "kubernetes.io/hostname": instance.node_name,
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": kind,
                "topology.kubernetes.io/region": config.region,
                "sagemaker.amazonaws.com/cluster-name": config.hyperpod_cluster,
                "sagemaker.amazonaws.com/compute-type": "hyperpod",
                "sagemaker.amazonaws.com/instance-group-name": instance.group,
                "sagemaker.amazonaws.com/node-health-status": "Schedulable",
                "sagemaker.amazonaws.com/deep-health-check-status": "Passed",
            },
        },
        "spec": {
            "providerID": f"aws:///{config.region}a/sagemaker/cluster/{config.hyperpod_cluster}-{instance.instance_id}"
        },
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [_ready_condition(True, now)],
            "addresses": [{"type": "Hostname", "address": instance.node_name}],
        },
    }

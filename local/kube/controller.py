"""A KubeRay-like controller: RayClusters become pods, pods become Ray processes.

One loop owns everything. It sleeps until something changes, looks every ``STARTING_SECONDS`` while a pod is starting
and every ``IDLE_SECONDS`` otherwise (to see processes that ended).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from local.config import StackConfig
from local.kube import cluster_status, pods, processes
from local.kube.errors import Json
from local.kube.ray_pods import RayPods, Runtime
from local.kube.store import NODE, POD, RAY_CLUSTER, Store

STARTING_SECONDS = 0.2
IDLE_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 30.0

LOG = logging.getLogger("local.kube.controller")


class Controller:
    """Brings pods and processes to what the RayClusters in the store ask for."""

    def __init__(self, config: StackConfig, store: Store, ray: RayPods) -> None:
        self._config, self._store, self._ray = config, store, ray
        self._wake = asyncio.Event()
        self._endings: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, tuple[int, float]] = {}
        """By cluster uid: failed pods in a row, and when the next may be made (monotonic)."""

        self._refused: dict[str, str] = {}
        """By cluster uid: why its pods may not be made, as long as that is so."""

        self.refuses_pod: Callable[[Json], str | None] = lambda _: None
        """Why an admission policy of the namespace refuses a pod, where one does."""

        self.paused = False
        """While nodes are being lost: nothing is started or judged in between."""

        store.changed = self._wake.set

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled. An error of one cluster is logged and does not stop the others."""
        while True:
            self._wake.clear()
            starting = False
            processes.reap(self._ray.started)
            if not self.paused:
                for cluster in list(self._store.all(RAY_CLUSTER)):
                    try:
                        starting |= await self._reconcile(cluster)
                    except Exception:
                        LOG.exception("reconciling %s failed", cluster["metadata"]["name"])
                self._end_ownerless_pods()
            if starting:  # our own writes wake us too: look no more often than this
                await asyncio.sleep(STARTING_SECONDS)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_SECONDS):
                    await self._wake.wait()

    def pods_of(self, cluster: Json) -> list[Json]:
        namespace, uid = cluster["metadata"]["namespace"], cluster["metadata"]["uid"]
        return [pod for pod in self._store.all(POD, namespace) if pod["metadata"]["ownerReferences"][0]["uid"] == uid]

    def head_of(self, cluster: Json) -> Runtime | None:
        """The running head of a cluster, where there is one: the endpoint's way to the dashboard."""
        for pod in self.pods_of(cluster):
            if _is_head(pod) and "deletionTimestamp" not in pod["metadata"]:
                return self._ray.runtimes.get(pod["metadata"]["uid"])
        return None

    def log_text(self, pod: Json, limit: int) -> str:
        """The last ``limit`` bytes that the pod's main processes wrote. Reads a file: call it off the event loop."""
        try:
            content = self._ray.log_of(pod).read_bytes()
        except FileNotFoundError:
            return ""
        return content[-limit:].decode(errors="replace")

    async def lose(self, lost: list[Json]) -> None:
        """Pods whose node is gone: every process killed at once, then the objects removed."""
        self.paused = True
        try:
            left = await asyncio.gather(*(self._ray.end(pod["metadata"]["uid"], grace=0) for pod in lost))
            for pod, pids in zip(lost, left, strict=True):
                if pids:
                    LOG.error("processes %s of pod %s survived SIGKILL", pids, pod["metadata"]["name"])
                self._store.remove(POD, pod)
        finally:
            self.paused = False
            self._wake.set()

    def end_pod(self, pod: Json) -> None:
        """Delete a pod as the API does: a deletion timestamp, SIGTERM, SIGKILL at the deadline, then it is gone."""
        uid = pod["metadata"]["uid"]
        if uid in self._endings:
            return
        asked = pod["spec"].get("terminationGracePeriodSeconds", pods.DEFAULT_GRACE_SECONDS)
        grace = min(float(asked), pods.DEFAULT_GRACE_SECONDS)
        pod["metadata"].setdefault("deletionTimestamp", self._store.now())
        pod["metadata"]["deletionGracePeriodSeconds"] = int(asked)
        self._store.touch(pod)

        async def ending() -> None:
            left = await self._ray.end(uid, grace)
            if left:
                LOG.error("processes %s of pod %s survived SIGKILL", left, pod["metadata"]["name"])
            self._store.remove(POD, pod)
            del self._endings[uid]

        self._endings[uid] = asyncio.create_task(ending())

    def _end_ownerless_pods(self) -> None:
        owners = {cluster["metadata"]["uid"] for cluster in self._store.all(RAY_CLUSTER)}
        for pod in self._store.all(POD):
            if pod["metadata"]["ownerReferences"][0]["uid"] not in owners:
                self.end_pod(pod)

    async def _reconcile(self, cluster: Json) -> bool:
        """One round. True while something is starting."""
        mine = self.pods_of(cluster)
        if "deletionTimestamp" in cluster["metadata"]:
            for pod in mine:
                self.end_pod(pod)
            if not mine:
                self._store.remove(RAY_CLUSTER, cluster)
            return bool(mine)
        wanted = pods.slots(cluster)
        failure = self._judge(cluster, mine)
        assigned = self._assign(mine, wanted)
        failure = self._create_missing(cluster, wanted, set(assigned.values())) or failure
        for pod in self.pods_of(cluster):
            if "deletionTimestamp" not in pod["metadata"]:
                self._schedule(pod)
        failure = self._start_pods(cluster, wanted, assigned) or failure
        await self._check_ready(cluster)
        self._write_status(cluster, failure)
        return any(_is_starting(pod) for pod in self.pods_of(cluster))

    def _judge(self, cluster: Json, mine: list[Json]) -> str | None:
        """End pods whose processes ended, that never became Ready, or whose head is another one now."""
        head = next((pod for pod in mine if _is_head(pod)), None)
        head_uid = head["metadata"]["uid"] if head else None
        failure = None
        for pod in mine:
            runtime = self._ray.runtimes.get(pod["metadata"]["uid"])
            if runtime is None or "deletionTimestamp" in pod["metadata"]:
                continue
            if runtime.exit_code is not None:
                failure = f"pod {pod['metadata']['name']}: process ended with exit code {runtime.exit_code}"
            elif runtime.late and not cluster_status.ready(pod):
                failure = f"pod {pod['metadata']['name']}: not ready in time"
            elif runtime.head_uid is not None and runtime.head_uid != head_uid:
                self._store.record(pod, "Killing", "the head was replaced: workers start again with the new one")
                self.end_pod(pod)
                continue
            else:
                continue
            pod["status"].update(phase="Failed", reason="Error", message=failure)
            self._store.record(pod, "Failed", failure, warning=True)
            self._back_off(cluster["metadata"]["uid"])
            self.end_pod(pod)
        return failure

    def _assign(self, mine: list[Json], wanted: list[pods.Slot]) -> dict[str, int]:
        """Pod uid -> number of the slot it fills. A pod that fills none is ended."""
        taken: dict[str, int] = {}
        for pod in mine:
            number = pods.slot_of(pod, wanted, set(taken.values()))
            if number is None:
                self.end_pod(pod)
            else:
                taken[pod["metadata"]["uid"]] = number
        return taken

    def _create_missing(self, cluster: Json, wanted: list[pods.Slot], taken: set[int]) -> str | None:
        """Why a pod could not be made, where the API refuses it: the rest waits too, as KubeRay's round ends there."""
        uid = cluster["metadata"]["uid"]
        _, not_before = self._failures.get(uid, (0, 0.0))
        if time.monotonic() < not_before:
            return self._refused.get(uid)
        for number, slot in enumerate(wanted):
            if number not in taken:
                made = pods.pod_object(cluster, slot, secrets.token_hex(3))
                what = "Head" if slot.node_type == "head" else "Worker"
                if refused := self.refuses_pod(made):
                    self._refused[uid] = refused
                    self._back_off(uid)
                    self._store.record(
                        cluster, f"FailedToCreate{what}Pod", refused, warning=True, source="raycluster-controller"
                    )
                    return refused
                pod = self._store.add(POD, made)
                name = pod["metadata"]["name"]
                where = f"{cluster['metadata']['namespace']}/{name}"
                self._store.record(
                    cluster, f"Created{what}Pod", f"Created {what.lower()} Pod {where}", source="raycluster-controller"
                )
        self._refused.pop(uid, None)
        return None

    def _back_off(self, uid: str) -> None:
        count, _ = self._failures.get(uid, (0, 0.0))
        pause = min(2.0 ** min(count, 10), MAX_BACKOFF_SECONDS) if count else 0.0
        self._failures[uid] = (count + 1, time.monotonic() + pause)

    def _schedule(self, pod: Json) -> None:
        if pod["spec"].get("nodeName"):
            return
        held: dict[str, int] = {}
        for other in self._store.all(POD):
            name = other["spec"].get("nodeName", "")
            held[name] = held.get(name, 0) + pods.gpus(other)
        for node in self._store.all(NODE):
            name = node["metadata"]["name"]
            total = int(node["status"]["allocatable"].get("nvidia.com/gpu", "0"))
            if pods.fits(pod, node, total - held.get(name, 0)):
                pod["spec"]["nodeName"] = name
                self._set_condition(pod, "PodScheduled", True, "", "")
                self._store.record(pod, "Scheduled", f"Successfully assigned {pod['metadata']['name']} to {name}")
                return
        message = f"no node of type {pods.wanted_type(pod)} is healthy and has {pods.gpus(pod)} free GPUs"
        if self._set_condition(pod, "PodScheduled", False, "Unschedulable", message):
            self._store.record(pod, "FailedScheduling", message, warning=True, source="default-scheduler")

    def _start_pods(self, cluster: Json, wanted: list[pods.Slot], assigned: dict[str, int]) -> str | None:
        """Start what is scheduled: the head, and workers once its GCS is up (KubeRay's init container waits for it)."""
        mine = self.pods_of(cluster)
        head_pod = next((pod for pod in mine if _is_head(pod) and "deletionTimestamp" not in pod["metadata"]), None)
        head = self._ray.runtimes.get(head_pod["metadata"]["uid"]) if head_pod else None
        joinable = head_pod is not None and head is not None and self._ray.advance_head(head_pod, head)
        for pod in mine:
            uid = pod["metadata"]["uid"]
            may_start = pod["spec"].get("nodeName") and uid not in self._ray.runtimes and uid in assigned
            if not may_start or "deletionTimestamp" in pod["metadata"] or self._image_is_bad(pod):
                continue
            if not _is_head(pod) and not joinable:
                continue
            try:
                if _is_head(pod):
                    runtime = self._ray.start_head(pod, wanted[assigned[uid]])
                else:
                    assert head is not None and head_pod is not None, "joinable"
                    runtime = self._ray.start_worker(pod, wanted[assigned[uid]], head, head_pod["metadata"]["uid"])
            except OSError as error:
                return f"pod {pod['metadata']['name']} cannot be started: {error}"
            self._set_running(pod, runtime)
        return None

    async def _check_ready(self, cluster: Json) -> None:
        mine = [pod for pod in self.pods_of(cluster) if pod["metadata"]["uid"] in self._ray.runtimes]
        head = self.head_of(cluster)
        if head is None or not head.has_dashboard or all(map(cluster_status.ready, mine)):
            return
        alive = await self._ray.alive(head)
        for pod in mine:
            runtime = self._ray.runtimes.get(pod["metadata"]["uid"])
            if runtime is None or runtime.ip not in alive or runtime.exit_code is not None or self._is_frozen(pod):
                continue
            if not cluster_status.ready(pod):
                LOG.info("pod %s ready after %.1f s", pod["metadata"]["name"], time.monotonic() - runtime.since)
                self._failures.pop(cluster["metadata"]["uid"], None)
                pod["status"]["containerStatuses"][0].update(ready=True)
                self._set_condition(pod, "ContainersReady", True, "", "")
                self._set_condition(pod, "Ready", True, "", "")

    def _is_frozen(self, pod: Json) -> bool:
        node = self._store.find(NODE, "", pod["spec"].get("nodeName", ""))
        return node is None or any(c["type"] == "Ready" and c["status"] != "True" for c in node["status"]["conditions"])

    def _write_status(self, cluster: Json, failure: str | None) -> None:
        status = cluster_status.next_status(cluster, self.pods_of(cluster), failure, self._store.now())
        before = {name: value for name, value in cluster.get("status", {}).items() if name != "lastUpdateTime"}
        if status != before:
            cluster["status"] = {**status, "lastUpdateTime": self._store.now()}
            self._store.touch(cluster)

    def _image_is_bad(self, pod: Json) -> bool:
        """``bad_images.json``: a list of digests that no registry has, for tests of what follows from that."""
        image = pod["spec"]["containers"][0]["image"]
        bad = image.rpartition("@")[2] in _listed(self._config.state_dir / "bad_images.json")
        if bad and not cluster_status.waiting_reasons([pod]):
            message = f'Back-off pulling image "{image}": manifest unknown'
            waiting = {"waiting": {"reason": "ImagePullBackOff", "message": message}}
            pod["status"]["containerStatuses"] = [_container_status(pod, waiting, started=False)]
            self._set_condition(pod, "Ready", False, "ContainersNotReady", message)
            self._store.record(pod, "Failed", message, warning=True, source="kubelet")
        return bad

    def _set_running(self, pod: Json, runtime: Runtime) -> None:
        now = self._store.now()
        pod["status"].update(
            phase="Running", podIP=runtime.ip, podIPs=[{"ip": runtime.ip}], hostIP=runtime.ip, startTime=now
        )
        pod["status"]["containerStatuses"] = [_container_status(pod, {"running": {"startedAt": now}}, started=True)]
        message = "containers with unready status"
        for kind in ("Ready", "ContainersReady"):
            self._set_condition(pod, kind, False, "ContainersNotReady", message)

    def _set_condition(self, pod: Json, kind: str, true: bool, reason: str, message: str) -> bool:
        """True where that changed anything."""
        new = {"type": kind, "status": "True" if true else "False", "reason": reason, "message": message}
        others = [c for c in pod["status"]["conditions"] if c["type"] != kind]
        old: Json = next((c for c in pod["status"]["conditions"] if c["type"] == kind), {})
        if {name: old.get(name) for name in new} == new:
            return False
        pod["status"]["conditions"] = [*others, {**new, "lastTransitionTime": self._store.now()}]
        self._store.touch(pod)
        return True


def _is_head(pod: Json) -> bool:
    return bool(pod["metadata"]["labels"][pods.NODE_TYPE_LABEL] == "head")


def _is_starting(pod: Json) -> bool:
    """On a node, but not Ready yet (or not gone yet), and not waiting for something that only a person can change."""
    return (
        bool(pod["spec"].get("nodeName"))
        and not cluster_status.ready(pod)
        and not cluster_status.waiting_reasons([pod])
    )


def _container_status(pod: Json, state: Json, started: bool) -> Json:
    container = pod["spec"]["containers"][0]
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": container["image"] if started else "",
        "ready": False,
        "restartCount": 0,
        "started": started,
        "state": state,
    }


def _listed(path: Path) -> list[str]:
    try:
        return [str(one) for one in json.loads(path.read_text())]
    except FileNotFoundError:
        return []

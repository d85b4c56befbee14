"""A small Kueue: LocalQueues with a quota of GPUs, one Workload for each RayCluster that names a queue, suspension.

What it does as Kueue does: a labelled RayCluster is created suspended; it is admitted whole or not at all, by priority and
then by age; nobody is admitted before one of the same queue that stands before it; an evicted one loses every pod, the head
too, before its quota is free, and stands in line again. ``governed`` adds task governance's admission policy: no RayCluster
and no pod without the label.

What it leaves out: cohorts, borrowing, flavors, preemption by itself (``preempt`` of the admin port does it), waiting for
pods to be ready, admission checks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from local.kube import workloads
from local.kube.errors import BadRequest, Json, NotFound
from local.kube.store import POD, RAY_CLUSTER, Store
from local.kube.workloads import LOCAL_QUEUE, WORKLOAD

LOG = logging.getLogger("local.kube.kueue")


class Kueue:
    """Brings Workloads, and the suspension of RayClusters, to what the queues allow."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store, self._namespace = store, namespace
        self._wake = asyncio.Event()
        self.governed = False
        self.held: set[str] = set()
        """Queues that admit nobody for the time being."""

        others = store.changed

        def changed() -> None:
            others()
            self._wake.set()

        store.changed = changed

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._wake.clear()
            try:
                self.reconcile()
            except Exception:
                LOG.exception("a round of Kueue failed")
            await self._wake.wait()

    def admit_object(self, cluster: Json) -> None:
        """The webhooks, for a RayCluster that is being created. Raises :class:`errors.Forbidden`."""
        if self.governed:
            workloads.refuse_without_label({**cluster, "kind": "RayCluster"})
        if workloads.queue_of(cluster):
            cluster["spec"]["suspend"] = True

    def refuses_pod(self, pod: Json) -> str | None:
        """Why a pod may not be created, where it may not."""
        return workloads.denial({**pod, "kind": "Pod"}) if self.governed else None

    def queue(self, name: str, gpus: int | None) -> None:
        """Make a LocalQueue, change its quota, or remove it (None)."""
        there = self._store.find(LOCAL_QUEUE, self._namespace, name)
        if there is not None:
            self._store.remove(LOCAL_QUEUE, there)
        if gpus is not None:
            self._store.add(LOCAL_QUEUE, workloads.local_queue(name, self._namespace, gpus))
        self._wake.set()

    def preempt(self, raycluster: str, reason: str, message: str) -> Json:
        """Evict the Workload of a RayCluster, as Kueue does for a more important one. Raises :class:`NotFound`."""
        for item in self._store.all(WORKLOAD):
            if item["metadata"]["ownerReferences"][0]["name"] == raycluster and workloads.is_true(item, "Admitted"):
                now = self._store.now()
                workloads.with_condition(item, "Evicted", True, reason, message, now)
                if reason == "Preempted":
                    workloads.with_condition(item, "Preempted", True, "InClusterQueue", message, now)
                self._store.touch(item)
                return item
        raise NotFound(f'no admitted workload of RayCluster "{raycluster[:100]}"')

    def reconcile(self) -> None:
        """One round. Writes only what changes, so that it does not wake itself for ever."""
        clusters = {c["metadata"]["uid"]: c for c in self._store.all(RAY_CLUSTER) if workloads.queue_of(c)}
        for item in list(self._store.all(WORKLOAD)):
            if workloads.owner_uid(item) not in clusters:
                self._store.remove(WORKLOAD, item)
        owned = {workloads.owner_uid(item) for item in self._store.all(WORKLOAD)}
        for uid, cluster in clusters.items():
            if uid not in owned and "deletionTimestamp" not in cluster["metadata"]:
                self._add(cluster)
        for item in list(self._store.all(WORKLOAD)):
            self._evict(item, clusters[workloads.owner_uid(item)])
        waiting = [i for i in self._store.all(WORKLOAD) if not workloads.is_true(i, "QuotaReserved")]
        full: set[str] = set()
        for item in sorted(waiting, key=lambda i: -i["spec"]["priority"]):  # the store lists the oldest first
            self._admit(item, clusters[workloads.owner_uid(item)], full)

    def _add(self, cluster: Json) -> None:
        made = workloads.workload(cluster)
        if made is not None:
            self._store.add(WORKLOAD, made)

    def _evict(self, item: Json, cluster: Json) -> None:
        """An evicted one is suspended; its quota is free once no pod is left."""
        if not workloads.is_true(item, "Evicted"):
            return
        self._suspend(cluster, True)
        uid, now = cluster["metadata"]["uid"], self._store.now()
        pods = [p for p in self._store.all(POD) if workloads.owner_uid(p) == uid]
        if pods or not workloads.is_true(item, "QuotaReserved"):
            return
        evicted = workloads.said(item, "Evicted")
        workloads.with_condition(item, "QuotaReserved", False, "Pending", evicted["message"], now)
        workloads.with_condition(item, "Admitted", False, "NoReservation", "The workload has no reservation", now)
        workloads.with_condition(item, "Requeued", True, evicted["reason"], evicted["message"], now)
        self._store.touch(item)

    def _admit(self, item: Json, cluster: Json, full: set[str]) -> None:
        """One that waits. A queue whose first does not fit admits nobody behind it (StrictFIFO)."""
        name, now = str(item["spec"]["queueName"]), self._store.now()
        queue = self._store.find(LOCAL_QUEUE, self._namespace, name)
        if queue is None:
            self._say(item, "Inadmissible", f"LocalQueue {name} doesn't exist", now)
            return
        wanted, used = workloads.gpus_wanted(cluster), self._used(name)
        free = workloads.quota(queue) - used
        if name in self.held:
            self._say(item, "Inadmissible", f"LocalQueue {name} is inactive", now)
        elif wanted > workloads.quota(queue):
            why = f"request > maximum capacity ({wanted} > {workloads.quota(queue)})"
            self._say(item, "Pending", f"couldn't assign flavors to pod set gpu-workers: {why}", now)
            full.add(name)
        elif name in full or wanted > free:
            why = (
                f"insufficient unused quota for {workloads.GPU} in flavor default, {max(wanted - free, 0)} more needed"
            )
            self._say(item, "Pending", f"couldn't assign flavors to pod set gpu-workers: {why}", now)
            full.add(name)
        else:
            self._start(item, cluster, queue, now)

    def _start(self, item: Json, cluster: Json, queue: Json, now: str) -> None:
        where = f"Quota reserved in ClusterQueue {queue['spec']['clusterQueue']}"
        workloads.with_condition(item, "QuotaReserved", True, "QuotaReserved", where, now)
        workloads.with_condition(item, "Admitted", True, "Admitted", "The workload is admitted", now)
        for kind in ("Evicted", "Preempted"):
            if before := workloads.said(item, kind):
                told = f"Previously: {before['message'].removeprefix('Previously: ')}"
                workloads.with_condition(item, kind, False, "QuotaReserved", told, now)
        self._store.touch(item)
        self._suspend(cluster, False)

    def _used(self, name: str) -> int:
        clusters = {c["metadata"]["uid"]: c for c in self._store.all(RAY_CLUSTER)}
        held = [i for i in self._store.all(WORKLOAD) if workloads.is_true(i, "QuotaReserved")]
        mine = [i for i in held if i["spec"]["queueName"] == name and workloads.owner_uid(i) in clusters]
        return sum(workloads.gpus_wanted(clusters[workloads.owner_uid(i)]) for i in mine)

    def _say(self, item: Json, reason: str, message: str, now: str) -> None:
        if workloads.with_condition(item, "QuotaReserved", False, reason, message, now):
            self._store.touch(item)

    def _suspend(self, cluster: Json, suspended: bool) -> None:
        if bool(cluster["spec"].get("suspend")) is not suspended:
            cluster["spec"]["suspend"] = suspended
            cluster["metadata"]["generation"] += 1
            self._store.touch(cluster)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def admin_routes(kueue: Kueue) -> list[web.RouteDef]:
    """Control of the queues, for the admin port."""

    async def queue(request: web.Request) -> web.Response:
        body = await _body(request)
        gpus, held, governed = body.get("gpus"), body.get("held"), body.get("governed")
        name = str(body.get("name", ""))
        if name and ("gpus" in body):
            kueue.queue(name, None if gpus is None else int(gpus))
        if name and isinstance(held, bool):
            (kueue.held.add if held else kueue.held.discard)(name)
        if isinstance(governed, bool):
            kueue.governed = governed
        kueue.reconcile()
        return web.json_response({"name": name, "held": name in kueue.held, "governed": kueue.governed})

    async def preempt(request: web.Request) -> web.Response:
        body = await _body(request)
        reason = str(body.get("reason", "Preempted"))
        message = str(body.get("message", "Preempted to accommodate a workload of higher priority in the ClusterQueue"))
        return web.json_response(kueue.preempt(str(body.get("raycluster", "")), reason, message))

    return [web.post("/kueue/queue", queue), web.post("/kueue/preempt", preempt)]


def api_routes(lister: Callable[..., Handler], getter: Callable[..., Handler]) -> list[web.RouteDef]:
    """Workloads and LocalQueues in the Kubernetes API, to read."""
    routes = []
    for kind in (WORKLOAD, LOCAL_QUEUE):
        path = f"/apis/{kind.api_version}/namespaces/{{namespace}}/{kind.plural}"
        routes += [web.get(path, lister(kind)), web.get(path + "/{name}", getter(kind))]
    return routes


async def _body(request: web.Request) -> Json:
    try:
        body = await request.json()
    except ValueError:
        raise BadRequest("the body is not JSON") from None
    if not isinstance(body, dict):
        raise BadRequest("the body is not a JSON object")
    return body

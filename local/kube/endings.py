"""How pods end: told to, driven away from a node that does not answer, or taken out of the API by force.

A node that does not answer confirms nothing: what is deleted there stays in the API with its deletion timestamp, and its
processes as they are, until the node answers again, or is gone, or somebody deletes the pod by force.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime

from local.kube import pods
from local.kube.errors import Json
from local.kube.ray_pods import RayPods
from local.kube.store import NODE, POD, Store

LOG = logging.getLogger("local.kube.endings")


class Endings:
    """Every pod that is on its way out."""

    def __init__(self, store: Store, ray: RayPods) -> None:
        self._store, self._ray = store, ray
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ghosts: dict[str, str] = {}
        """Uid -> node of pods that were deleted by force while their node did not answer: their processes are still there."""

    def begin(self, pod: Json) -> None:
        """Delete a pod as the API does: a deletion timestamp, SIGTERM, SIGKILL at the deadline, then it is gone."""
        asked = pod["spec"].get("terminationGracePeriodSeconds", pods.DEFAULT_GRACE_SECONDS)
        if "deletionTimestamp" not in pod["metadata"]:
            pod["metadata"]["deletionTimestamp"] = self._store.now()
            pod["metadata"]["deletionGracePeriodSeconds"] = int(asked)
            self._store.touch(pod)
        if pod["metadata"]["uid"] not in self._tasks and self._confirms(pod):
            self._start(pod, min(float(asked), pods.DEFAULT_GRACE_SECONDS))

    def force(self, pod: Json) -> None:
        """Grace period 0: the API forgets the pod at once, whatever its node says."""
        uid = pod["metadata"]["uid"]
        self._store.remove(POD, pod)
        if uid in self._tasks:
            return
        if self._confirms(pod):
            self._start(pod, 0)
        else:
            self._ghosts[uid] = pod["spec"]["nodeName"]

    def evict(self, pod: Json, reason: str, message: str) -> None:
        """Take a pod away as Kubernetes does: the condition that says why, then the deletion."""
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        pod["status"]["conditions"] = [
            *(c for c in pod["status"]["conditions"] if c["type"] != "DisruptionTarget"),
            {**condition, "lastTransitionTime": self._store.now()},
        ]
        self._store.record(pod, "TaintManagerEviction", message, source="taint-eviction-controller")
        self.begin(pod)

    def settle(self) -> None:
        """One round: evictions that are due, and endings that a node can confirm now."""
        for pod in list(self._store.all(POD)):
            if "deletionTimestamp" in pod["metadata"]:
                self.begin(pod)
            elif self._unanswered_seconds(pod) > pods.tolerated_seconds(pod):
                self.evict(
                    pod, "DeletionByTaintManager", f"Taint manager: deleting due to NoExecute taint of {_node(pod)}"
                )
        for uid, name in list(self._ghosts.items()):
            node = self._store.find(NODE, "", name)
            if node is None or pods.answers(node):
                del self._ghosts[uid]
                self._tasks[uid] = asyncio.create_task(self._ending(uid, name, 0))

    def is_silent(self, pod: Json) -> bool:
        """On a node that is there and does not answer."""
        return not self._confirms(pod)

    def _confirms(self, pod: Json) -> bool:
        node = self._store.find(NODE, "", _node(pod))
        return node is None or pods.answers(node)

    def _unanswered_seconds(self, pod: Json) -> float:
        node = self._store.find(NODE, "", _node(pod))
        if node is None or pods.answers(node):
            return 0.0
        since = next(c["lastTransitionTime"] for c in node["status"]["conditions"] if c["type"] == "Ready")
        return (datetime.fromisoformat(self._store.now()) - datetime.fromisoformat(since)).total_seconds()

    def _start(self, pod: Json, grace: float) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        self._tasks[uid] = asyncio.create_task(self._ending(uid, name, grace, pod))

    async def _ending(self, uid: str, name: str, grace: float, pod: Json | None = None) -> None:
        left = await self._ray.end(uid, grace)
        if left:
            LOG.error("processes %s of %s survived SIGKILL", left, name)
        if pod is not None:
            self._store.remove(POD, pod)
        self._tasks.pop(uid, None)


def _node(pod: Json) -> str:
    return str(pod["spec"].get("nodeName", ""))

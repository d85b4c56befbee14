"""Which instance is behind an attempt's end. Nothing is blamed that a cause, an absence or a message does not point to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from nightshift.core.causes import POLICIES, EndCause
from nightshift.core.observation import Observation, PodView

KEPT_BLAMES: Final = 60
TIMES: Final = 2
"""An instance that is blamed so often gets no pod of the run any more."""

NODE_ENDS: Final = frozenset({"DeletionByTaintManager", "DeletionByPodGC", "NodeLost"})
"""Reasons of a disruption that are a node's own end, and no preemption of the run."""


def blamed_instance(cause: EndCause, seen: Observation, lost: str | None, text: str) -> str | None:
    """The instance that is gone, else one that HyperPod calls unhealthy, else the one that Ray's message names, by its
    address, its node or its pod; None for a cause that no node can have, and where nothing or too much is named."""
    if cause is EndCause.HEAD_LOST:
        return lost
    if not POLICIES[cause].by_node:
        return None
    if lost is not None:
        return lost
    hosts = set(seen.cluster.instances)
    troubled = sorted(seen.cluster.unhealthy_instances & hosts) or sorted(instances_that_end(seen))
    if troubled:
        return troubled[0]
    named = {p.instance_id for p in seen.cluster.pods if not p.is_head and p.instance_id and _names(text, p)}
    return named.pop() if len(named) == 1 else None


def taken_away(seen: Observation) -> PodView | None:
    """A pod that Kubernetes took away although its node was well: preempted, evicted, drained."""
    return next((p for p in seen.cluster.pods if p.disruption and not _node_ends(p)), None)


def instances_taken_from(seen: Observation) -> frozenset[str]:
    """Instances that host a pod which is being taken away; to be remembered, since the pod's object goes with it."""
    return frozenset(p.instance_id for p in seen.cluster.pods if p.instance_id and p.disruption and not _node_ends(p))


def out_of_memory(seen: Observation) -> PodView | None:
    """A pod that the kernel killed at its memory limit during the current attempt: a pod keeps its last end for ever."""
    began = seen.attempts[-1].started_at if seen.attempts else None
    killed = [p for p in seen.cluster.pods if p.ended and "OOMKilled" in p.ended]
    return next((p for p in killed if began is None or p.ended_at is None or p.ended_at >= began), None)


def after_blame(blamed: Sequence[str], node: str | None) -> tuple[tuple[str, ...], str | None]:
    """The new list of blames, and the instance that has just been blamed for the second time."""
    if node is None:
        return tuple(blamed), None
    now = (*blamed, node)[-KEPT_BLAMES:]
    return now, node if now.count(node) == TIMES else None


def instances_that_end(seen: Observation) -> set[str]:
    """Instances that host a pod which Kubernetes drops because its node is dead."""
    return {p.instance_id for p in seen.cluster.pods if p.instance_id and p.disruption and _node_ends(p)}


def _node_ends(pod: PodView) -> bool:
    return (pod.disruption or "").split(":", 1)[0] in NODE_ENDS


def _names(text: str, pod: PodView) -> bool:
    names = [n for n in (pod.ip, pod.name, pod.instance_id) if n]
    return any(re.search(rf"(?<![\w.]){re.escape(n)}(?![\w]|\.\d)", text) for n in names)

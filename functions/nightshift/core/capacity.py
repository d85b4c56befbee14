"""Whether a HyperPod cluster can hold a run's topology at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nightshift.contract.spec import InstanceGroup, Topology


@dataclass(frozen=True)
class GroupCapacity:
    """One instance group of the HyperPod cluster; ``target`` is the count it is meant to have."""

    name: str
    instance_type: str
    current: int
    target: int


@dataclass(frozen=True)
class HyperPodView:
    """Status and instance groups of the HyperPod cluster."""

    name: str
    status: str
    groups: tuple[GroupCapacity, ...]


USABLE = frozenset({"InService", "Updating", "SystemUpdating"})
"""With continuous provisioning a cluster stays InService while it scales, and updates leave other nodes working."""


def capacity_problems(topology: Topology, view: HyperPodView) -> Sequence[str]:
    """Reasons why the topology can never be placed there; empty when it can. Nodes that are being replaced right now
    count by their group's target: waiting for them is the cluster shift's work."""
    if view.status not in USABLE:
        return [f"HyperPod cluster {view.name} is {view.status}"]
    problems = []
    for role, wanted in _wanted(topology):
        have = sum(max(g.current, g.target) for g in view.groups if g.instance_type == wanted.instance_type)
        if have < wanted.count:
            problems.append(
                f"{role}: {wanted.count} x {wanted.instance_type} wanted, HyperPod cluster {view.name} is meant to have {have}"
            )
    return problems


def _wanted(topology: Topology) -> Sequence[tuple[str, InstanceGroup]]:
    return (("head", topology.head), ("workers", topology.workers))

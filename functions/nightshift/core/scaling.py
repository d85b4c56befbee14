"""How many nodes the instance groups of a pool should have: more before a run is provisioned, fewer once nobody needs them.

HyperPod chooses itself which instances it takes away when a group shrinks. So a group is only made smaller while not one of its
nodes is of use to anybody: no open run could be placed there, and no pod of anybody else runs there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Self

from pydantic import Field, TypeAdapter, model_validator

from nightshift.contract.base import Model
from nightshift.contract.spec import Topology
from nightshift.core.capacity import GroupCapacity, HyperPodView

MAX_CALLS = 120
"""UpdateCluster calls for one run, one a minute while HyperPod is busy: after that it waits for what there is, and its deadline
ends the wait."""

SETTLED = "InService"
"""A cluster in any other status is being changed by somebody; it is made smaller at another time."""


class GroupBounds(Model):
    """Nodes that an instance group keeps, and the most that it is raised to."""

    min: int = Field(0, ge=0, le=1_000)
    max: int = Field(ge=1, le=1_000)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise ValueError("min is above max")
        return self


class PoolScaling(Model):
    """The instance groups of a pool that Nightshift may scale. ``grace_minutes`` pass after the last need, before they shrink."""

    groups: dict[str, GroupBounds] = Field(min_length=1)
    grace_minutes: int = Field(30, ge=5, le=60 * 24 * 7)


_POOLS: TypeAdapter[dict[str, PoolScaling]] = TypeAdapter(dict[str, PoolScaling])


def read_scaling(text: str) -> dict[str, PoolScaling]:
    """Pool -> what may be scaled for it, from the JSON of the parameter ``PoolScaling``; empty: nothing is ever scaled. Raises
    ValueError; also for a group that two pools name, whose bounds would contradict each other."""
    pools = _POOLS.validate_json(text) if text.strip() else {}
    named = Counter(group for pool in pools.values() for group in pool.groups)
    twice = sorted(group for group, times in named.items() if times > 1)
    if twice:
        raise ValueError(f"instance groups of more than one pool: {', '.join(twice)}")
    return pools


def needed(topologies: Iterable[Topology]) -> Counter[str]:
    """Instance type -> nodes, of runs that hold their nodes at the same time."""
    found: Counter[str] = Counter()
    for one in topologies:
        found[one.head.instance_type] += one.head.count
        found[one.workers.instance_type] += one.workers.count
    return found


def could_be(view: HyperPodView, pool: PoolScaling | None) -> HyperPodView:
    """The cluster with every group as large as it may be made."""
    if pool is None:
        return view
    return replace(
        view,
        groups=tuple(
            replace(g, target=max(g.target, pool.groups[g.name].max)) if g.name in pool.groups else g
            for g in view.groups
        ),
    )


def raised(topology: Topology, others: Mapping[str, int], view: HyperPodView, pool: PoolScaling) -> dict[str, int]:
    """Group -> its new, larger target, so that the run's nodes and those of ``others`` (instance type -> nodes that other runs
    hold) are there together; only groups that grow, never above their maximum, and nothing that is not needed."""
    wanted: dict[str, int] = {}
    for kind, count in sorted(needed([topology]).items()):
        groups = [g for g in view.groups if g.instance_type == kind]
        lacking = count + others.get(kind, 0) - sum(g.target for g in groups)
        for group in sorted((g for g in groups if g.name in pool.groups), key=lambda g: g.name):
            more = min(lacking, pool.groups[group.name].max - group.target)
            if more > 0:
                wanted[group.name] = group.target + more
                lacking -= more
    return wanted


def coming(topology: Topology, view: HyperPodView, pool: PoolScaling) -> str:
    """``gpu-workers has 1 of 3 nodes`` of the groups that the run may wait for; empty where all are there."""
    types = needed([topology])
    late = [g for g in view.groups if g.name in pool.groups and g.instance_type in types and g.current < g.target]
    return ", ".join(f"{g.name} has {g.current} of {g.target} nodes" for g in sorted(late, key=lambda g: g.name))


def unused(
    view: HyperPodView, pools: Mapping[str, PoolScaling], wanted_types: Collection[str], occupied: Collection[str]
) -> dict[str, GroupCapacity]:
    """Groups of the pools that are larger than their minimum and that nobody needs. ``wanted_types``: instance types of every run
    that is not over, queued ones too; ``occupied``: groups with a pod of anybody on one of their nodes."""
    bounds = {name: bound for pool in pools.values() for name, bound in pool.groups.items()}
    return {
        g.name: g
        for g in view.groups
        if g.name in bounds
        and g.target > bounds[g.name].min
        and g.instance_type not in wanted_types
        and g.name not in occupied
    }


def lowered(
    free: Mapping[str, GroupCapacity],
    since: Mapping[str, datetime],
    view: HyperPodView,
    pools: Mapping[str, PoolScaling],
    now: datetime,
) -> dict[str, int]:
    """Group -> its new, smaller target: the minimum, of those of ``free`` that nobody has needed for their pool's grace.
    ``since``: from when on they were seen to be free. Nothing while HyperPod changes the cluster."""
    if view.status != SETTLED or any(g.current != g.target for g in view.groups):
        return {}
    return {
        name: bound.min
        for pool in pools.values()
        for name, bound in pool.groups.items()
        if name in free and name in since and now - since[name] >= timedelta(minutes=pool.grace_minutes)
    }


def told(view: HyperPodView, targets: Mapping[str, int]) -> str:
    """``cpu-head 0 -> 1, gpu-workers 1 -> 3``."""
    before = {g.name: g.target for g in view.groups}
    return ", ".join(f"{name} {before.get(name, 0)} -> {count}" for name, count in sorted(targets.items()))


# What UpdateCluster takes ------------------------------------------------------------------------------------------


RENAMED: Mapping[str, str] = {"MinCount": "MinInstanceCount"}
"""DescribeCluster's name -> UpdateCluster's."""

DESIRED = "Desired"
"""DescribeCluster has what is and what is meant to be side by side; UpdateCluster takes what is meant to be, without
the prefix."""


def group_request(described: Mapping[str, Any], shape: Mapping[str, Any], count: int) -> dict[str, Any]:
    """An instance group as DescribeCluster shows it -> the same group as UpdateCluster takes it, with ``count`` instances.
    Whatever can be said of it is said again: what is left out, the API may take away. ``shape``:
    names that UpdateCluster takes, nested.
    An image is left out, since naming one starts a software update."""
    kept = _kept({RENAMED.get(name, name): value for name, value in described.items()}, shape)
    return {**kept, "InstanceCount": count}


def _kept(value: Any, shape: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_kept(one, shape) for one in value]
    if not isinstance(value, Mapping) or not shape:
        return value
    meant = {name.removeprefix(DESIRED): one for name, one in value.items() if name.startswith(DESIRED)}
    known = {**value, **{name: one for name, one in meant.items() if name not in IMAGES}}
    return {name: _kept(one, shape[name]) for name, one in known.items() if name in shape and name not in IMAGES}


IMAGES = frozenset({"ImageId", "ImageReleaseVersion"})

"""How large instance groups should be: enough for the run and for others, never above the maximum; smaller only when nobody uses
them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.contract.spec import Topology
from nightshift.core.capacity import GroupCapacity, HyperPodView, capacity_problems
from nightshift.core.scaling import (
    GroupBounds,
    PoolScaling,
    coming,
    could_be,
    group_request,
    lowered,
    needed,
    raised,
    read_scaling,
    unused,
)
from tests.builders import NOW

TYPES = ("ml.r5d.16xlarge", "ml.g7e.12xlarge", "ml.g5.xlarge")
NAMES = ("head", "gpu-a", "gpu-b", "other")
COUNTS = st.integers(0, 6)
TOPOLOGIES = st.builds(
    lambda head, workers: Topology.model_validate(
        {
            "head": {"instance_type": TYPES[0], "count": head},
            "workers": {"instance_type": TYPES[1], "count": workers, "gpus": 2},
        }
    ),
    st.integers(1, 2),
    st.integers(1, 6),
)


@st.composite
def clusters(draw: st.DrawFn) -> HyperPodView:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True))
    groups = tuple(GroupCapacity(n, draw(st.sampled_from(TYPES)), draw(COUNTS), draw(COUNTS)) for n in names)
    return HyperPodView("hp", draw(st.sampled_from(["InService", "Updating"])), groups)


@st.composite
def pools(draw: st.DrawFn) -> PoolScaling:
    bounds = st.tuples(st.integers(0, 3), st.integers(1, 8)).map(lambda b: GroupBounds(min=min(b), max=max(b)))
    return PoolScaling(groups=draw(st.dictionaries(st.sampled_from(NAMES), bounds, min_size=1)), grace_minutes=30)


OTHERS = st.dictionaries(st.sampled_from(TYPES), st.integers(0, 4))


def total(view: HyperPodView, targets: dict[str, int], kind: str) -> int:
    return sum(targets.get(g.name, g.target) for g in view.groups if g.instance_type == kind)


@given(TOPOLOGIES, OTHERS, clusters(), pools())
def test_groups_only_grow_within_their_bounds_and_no_more_than_is_needed(
    topology: Topology, others: dict[str, int], view: HyperPodView, pool: PoolScaling
) -> None:
    targets = raised(topology, others, view, pool)
    before = {g.name: g for g in view.groups}
    for name, count in targets.items():
        assert before[name].target < count <= pool.groups[name].max
    for kind, count in needed([topology]).items():
        wanted, reached = count + others.get(kind, 0), total(view, targets, kind)
        if any(before[n].instance_type == kind for n in targets):
            assert reached <= wanted, "nothing that nobody needs"
        if reached < wanted:  # then there is no more room
            assert all(targets.get(g.name, g.target) >= pool.groups[g.name].max
                       for g in view.groups if g.instance_type == kind and g.name in pool.groups)  # fmt: skip


@given(TOPOLOGIES, OTHERS, clusters(), pools())
def test_asking_again_asks_for_nothing_and_what_could_be_is_what_is_reached(
    topology: Topology, others: dict[str, int], view: HyperPodView, pool: PoolScaling
) -> None:
    targets = raised(topology, others, view, pool)
    after = replace(view, groups=tuple(replace(g, target=targets.get(g.name, g.target)) for g in view.groups))
    assert raised(topology, others, after, pool) == {}
    alone = raised(topology, {}, view, pool)
    grown = replace(view, groups=tuple(replace(g, target=alone.get(g.name, g.target)) for g in view.groups))
    if not capacity_problems(topology, could_be(view, pool)):
        assert not capacity_problems(topology, replace(grown, groups=tuple(replace(g, current=g.target) for g in grown.groups))) \
            or any(g.current > g.target for g in view.groups)  # fmt: skip


@given(clusters(), pools(), st.sets(st.sampled_from(TYPES)), st.sets(st.sampled_from(NAMES)), st.integers(0, 90))
def test_no_group_shrinks_below_its_minimum_nor_one_that_anybody_uses_nor_before_its_grace(
    view: HyperPodView, pool: PoolScaling, types: set[str], occupied: set[str], minutes: int
) -> None:
    free = unused(view, {"p": pool}, types, occupied)
    since = dict.fromkeys(free, NOW - timedelta(minutes=minutes))
    targets = lowered(free, since, view, {"p": pool}, NOW)
    for group in view.groups:
        if group.name in targets:
            assert targets[group.name] == pool.groups[group.name].min < group.target
            assert group.instance_type not in types and group.name not in occupied
    changing = view.status != "InService" or any(g.current != g.target for g in view.groups)
    if changing or minutes < 30:
        assert not targets
    else:
        assert targets.keys() == free.keys()


def test_a_group_that_was_never_seen_to_be_free_does_not_shrink() -> None:
    view = HyperPodView("hp", "InService", (GroupCapacity("gpu-a", TYPES[1], 3, 3),))
    pool = PoolScaling(groups={"gpu-a": GroupBounds(min=0, max=3)})
    free = unused(view, {"p": pool}, (), ())
    assert lowered(free, {}, view, {"p": pool}, NOW) == {}
    assert lowered(free, {"gpu-a": NOW - timedelta(hours=1)}, view, {"p": pool}, NOW) == {"gpu-a": 0}


def test_what_is_waited_for_names_the_groups_and_their_nodes() -> None:
    groups = (
        GroupCapacity("head", TYPES[0], 0, 1),
        GroupCapacity("gpu-a", TYPES[1], 1, 3),
        GroupCapacity("other", TYPES[2], 0, 3),
    )
    pool = PoolScaling(groups={"head": GroupBounds(max=1), "gpu-a": GroupBounds(max=3), "other": GroupBounds(max=3)})
    view = HyperPodView("hp", "Updating", groups)
    assert coming(Topology(), view, pool) == "gpu-a has 1 of 3 nodes, head has 0 of 1 nodes"
    assert needed([Topology(), Topology()]) == Counter({TYPES[0]: 2, TYPES[1]: 6})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "Invalid JSON"),
        ('{"a": {"groups": {}}}', "groups"),
        ('{"a": {"groups": {"g": {"min": 3, "max": 1}}}}', "min is above max"),
        ('{"a": {"groups": {"g": {"max": 1}}}, "b": {"groups": {"g": {"max": 2}}}}', "more than one pool: g"),
        ('{"a": {"groups": {"g": {"max": 1}}, "grace": 3}}', "grace"),
    ],
)
def test_a_parameter_that_cannot_be_used_says_why(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_scaling(text)


def test_no_parameter_scales_nothing() -> None:
    assert read_scaling("") == read_scaling("  ") == {}


def test_a_group_is_told_again_as_it_is_meant_to_be_and_without_what_the_call_does_not_take() -> None:
    shape: dict[str, Any] = {
        "InstanceGroupName": {}, "InstanceCount": {}, "MinInstanceCount": {}, "ImageId": {},
        "KubernetesConfig": {"Labels": {}, "Taints": {"Key": {}}}, "LifeCycleConfig": {"SourceS3Uri": {}},
    }  # fmt: skip
    described = {
        "InstanceGroupName": "gpu", "CurrentCount": 1, "TargetCount": 2, "MinCount": 1, "Status": "InService",
        "DesiredImageId": "ami-1",
        "KubernetesConfig": {"CurrentLabels": {"a": "1"}, "DesiredLabels": {"a": "2"}, "DesiredTaints": [{"Key": "k", "New": 1}]},
        "LifeCycleConfig": {"SourceS3Uri": "s3://b/p"},
    }  # fmt: skip
    assert group_request(described, shape, 3) == {
        "InstanceGroupName": "gpu", "InstanceCount": 3, "MinInstanceCount": 1,
        "KubernetesConfig": {"Labels": {"a": "2"}, "Taints": [{"Key": "k"}]}, "LifeCycleConfig": {"SourceS3Uri": "s3://b/p"},
    }  # fmt: skip

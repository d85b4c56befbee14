"""Events are hints: only those that concern a run wake it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.core.events import node_hint, outcome_object
from nightshift.core.relevance import NodeHint, concerns
from nightshift.core.run import RunState, SignalKind
from tests.builders import run

HEALTH = {
    "detail-type": "SageMaker HyperPod Cluster Node Health Event",
    "detail": {"ClusterName": "hp", "InstanceId": "i-w3", "HealthSummary": {"HealthStatusReason": "NvidiaError"}},
}
CLUSTER = {
    "detail-type": "SageMaker HyperPod Cluster Event",
    "detail": {"EventDetails": {"ClusterName": "hp", "InstanceId": "i-new", "Description": "replacement completed"}},
}


def test_the_cluster_name_is_found_at_both_of_its_places() -> None:
    assert node_hint(HEALTH) == NodeHint(SignalKind.NODE_HEALTH, "hp", "i-w3", "NvidiaError")
    assert node_hint(CLUSTER) == NodeHint(SignalKind.CLUSTER_EVENT, "hp", "i-new", "replacement completed")


@pytest.mark.parametrize("detail", [None, [], "x", {}, {"EventDetails": 3}, {"ClusterName": 3}])
def test_an_event_of_another_shape_is_no_hint(detail: Any) -> None:
    assert node_hint({**HEALTH, "detail": detail}) is None


def test_an_event_concerns_only_the_run_whose_pods_the_instance_hosts() -> None:
    hint = NodeHint(SignalKind.NODE_HEALTH, "hp", "i-w3", "")
    assert concerns(run(), hint)
    assert not concerns(run(instances=("i-other",)), hint)
    assert not concerns(run(hyperpod_cluster="another"), hint)
    assert not concerns(run(state=RunState.SUCCEEDED), hint)


def test_a_run_that_waits_for_nodes_is_woken_by_an_instance_that_it_has_never_seen() -> None:
    arrived = NodeHint(SignalKind.CLUSTER_EVENT, "hp", "i-new", "")
    assert concerns(run(state=RunState.RECOVERING), arrived)
    assert not concerns(run(state=RunState.RUNNING), arrived)
    assert not concerns(run(state=RunState.RECOVERING), NodeHint(SignalKind.NODE_HEALTH, "hp", "i-new", ""))


def outcome_event(key: object) -> dict[str, Any]:
    return {"detail-type": "Object Created", "detail": {"bucket": {"name": "b"}, "object": {"key": key}}}


def test_an_outcome_object_names_its_run_and_attempt() -> None:
    assert outcome_object(outcome_event("runs/maze-1/attempts/12/outcome.json")) == ("maze-1", 12)


@pytest.mark.parametrize(
    "key",
    ["runs/maze-1/attempts/0/outcome.json", "runs/maze-1/outcome.json", "runs/A/attempts/1/outcome.json", 3, None],
)
def test_other_keys_are_no_outcomes(key: object) -> None:
    assert outcome_object(outcome_event(key)) is None


@given(
    st.recursive(st.none() | st.booleans() | st.text(max_size=5), lambda c: st.dictionaries(st.text(max_size=12), c))
)
def test_garbage_never_crashes_a_reader(detail: Any) -> None:
    for kind in ("Object Created", "SageMaker HyperPod Cluster Event", "?"):
        event = {"detail-type": kind, "detail": detail}
        node_hint(event)
        outcome_object(event)

"""Pure rules of the pretended HyperPod: status, selectors, events, SageMaker's shapes, merge patches."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.parsers import create_parser
from botocore.validate import validate_parameters
from hypothesis import given
from hypothesis import strategies as st

from local.config import new_config
from local.kube import hyperpod_events, pods, sagemaker
from local.kube.api import merged
from local.kube.cluster_status import next_status, quantity
from local.kube.errors import BadRequest
from local.kube.hyperpod import STRANGER, HyperPod
from local.kube.selectors import field_test, label_test
from local.kube.store import Store

Json = dict[str, Any]
NOW, LATER = "2026-11-30T12:00:00Z", "2026-11-30T12:05:00Z"


def cluster_with(manifest: Json) -> Json:
    manifest["metadata"].update(uid="u", generation=3)
    return manifest


def pods_of(cluster: Json, ready: int) -> list[Json]:
    """A ready head, and so many ready workers of all that are wanted."""
    made = []
    for number, slot in enumerate(pods.slots(cluster)):
        pod = pods.pod_object(cluster, slot, f"{number}")
        pod["status"]["phase"] = "Running"
        pod["status"]["conditions"] = [{"type": "Ready", "status": "True" if number <= ready else "False"}]
        made.append(pod)
    return made


def test_ready_is_said_once_all_pods_run_and_is_never_taken_back(support: ModuleType) -> None:
    cluster = cluster_with(support.manifest())
    cluster["status"] = next_status(cluster, pods_of(cluster, ready=2), None, NOW)
    assert "state" not in cluster["status"]
    assert cluster["status"]["readyWorkerReplicas"] == 2

    cluster["status"] = next_status(cluster, pods_of(cluster, ready=3), None, NOW)
    assert cluster["status"]["state"] == "ready"
    assert cluster["status"]["observedGeneration"] == 3

    cluster["status"] = next_status(cluster, [], None, LATER)
    conditions = {c["type"]: c for c in cluster["status"]["conditions"]}
    assert cluster["status"]["state"] == "ready", "not a health signal"
    assert conditions["RayClusterProvisioned"]["status"] == "True"
    assert conditions["RayClusterProvisioned"]["lastTransitionTime"] == NOW
    assert (conditions["HeadPodReady"]["status"], conditions["HeadPodReady"]["reason"]) == ("False", "HeadPodNotFound")
    assert conditions["HeadPodReady"]["lastTransitionTime"] == LATER
    assert "readyWorkerReplicas" not in cluster["status"], "0 is absent"
    assert "ReplicaFailure" not in conditions


def test_a_pod_that_cannot_be_made_is_a_replica_failure_until_it_can(support: ModuleType) -> None:
    cluster = cluster_with(support.manifest())
    failing = next_status(cluster, [], "no such program", NOW)
    assert "ReplicaFailure" in {c["type"] for c in failing["conditions"]}
    cluster["status"] = failing
    assert "ReplicaFailure" not in {c["type"] for c in next_status(cluster, [], None, NOW)["conditions"]}


@pytest.mark.parametrize(
    ("text", "value"), [("500m", 0.5), ("2", 2), (3, 3), ("64Gi", 64 * 2**30), ("1Ki", 1024), ("1.5k", 1500)]
)
def test_quantities(text: str | int, value: float) -> None:
    assert quantity(text) == value


LABELS = {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("", True),
        ("a=1", True),
        ("a==1,b=2", True),
        ("a!=1", False),
        ("c!=1", True),
        ("a in (0, 1)", True),
        ("a notin (0,1),b", False),
        ("c notin (1)", True),
        ("a in (2)", False),
        ("a", True),
        ("!a", False),
        ("!c", True),
        ("a=1,c", False),
    ],
)
def test_label_selectors(selector: str, selected: bool) -> None:
    assert label_test(selector)(LABELS) is selected


@pytest.mark.parametrize("selector", ["a in 1", "a=b=c", "a b"])
def test_a_selector_that_is_none_is_a_bad_request(selector: str) -> None:
    with pytest.raises(BadRequest):
        label_test(selector)


def test_field_selectors_know_only_the_fields_of_their_kind() -> None:
    pod = {"spec": {"nodeName": "n"}, "status": {}}
    allowed = frozenset({"spec.nodeName", "status.phase"})
    assert field_test("spec.nodeName=n,status.phase!=Failed", allowed)(pod)
    assert not field_test("spec.nodeName=m", allowed)(pod)
    with pytest.raises(BadRequest):
        field_test("spec.hostname=n", allowed)


json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from("abc"), json_values, max_size=3)


@given(objects, objects)
def test_a_merge_patch_is_idempotent_and_changes_nothing_in_place(old: Json, patch: Json) -> None:
    before, asked = repr(old), repr(patch)
    once = merged(old, patch)
    assert merged(once, patch) == once
    assert (repr(old), repr(patch)) == (before, asked)
    assert all(name not in once for name, value in patch.items() if value is None)


@pytest.fixture
def hyperpod(tmp_path: Path) -> HyperPod:
    config = new_config(tmp_path)
    nothing: Any = SimpleNamespace()
    return HyperPod(config, Store(lambda: datetime.now(UTC)), nothing, nothing, nothing)


SAGEMAKER = ServiceModel(Loader().load_service_model("sagemaker", "service-2"), "sagemaker")


def test_sagemakers_answers_have_botocores_shapes(hyperpod: HyperPod) -> None:
    one = next(iter(hyperpod.instances))
    calls: dict[str, Json] = {
        "DescribeCluster": {"ClusterName": "local-hyperpod"},
        "ListClusterNodes": {"ClusterName": hyperpod_events.cluster_arn(hyperpod.config), "MaxResults": 3},
        "DescribeClusterNode": {"ClusterName": "local-hyperpod", "NodeId": one},
    }
    for operation, body in calls.items():
        model = SAGEMAKER.operation_model(operation)
        validate_parameters(body, model.input_shape)
        answer = sagemaker.answer(hyperpod, operation, body)
        unknown = unknown_members(answer, model.output_shape)
        assert unknown == [], operation
        for name, member in model.output_shape.members.items():
            assert name in answer or name not in model.output_shape.required_members, f"{operation}.{name}: {member}"
        parser = create_parser("json")
        import json as encoder

        response = {"status_code": 200, "headers": {}, "body": encoder.dumps(answer).encode()}
        parsed = parser.parse(response, model.output_shape)
        assert parsed.keys() - {"ResponseMetadata"} == answer.keys()


def unknown_members(value: Any, shape: Any, path: str = "") -> list[str]:
    if shape.type_name == "structure":
        known = shape.members
        found = [f"{path}.{name}" for name in value if name not in known]
        return found + [u for n, v in value.items() if n in known for u in unknown_members(v, known[n], f"{path}.{n}")]
    if shape.type_name == "list":
        return [u for one in value for u in unknown_members(one, shape.member, f"{path}[]")]
    enum = getattr(shape, "enum", None)
    return [f"{path}: {value} is not one of {enum}"] if enum and value not in enum else []


def test_list_cluster_nodes_pages_through_every_node_once(hyperpod: HyperPod) -> None:
    seen, token = list[str](), {}
    for _ in range(10):
        body = {"ClusterName": "local-hyperpod", "MaxResults": 3, **token}
        page = sagemaker.answer(hyperpod, "ListClusterNodes", body)
        seen += [one["InstanceId"] for one in page["ClusterNodeSummaries"]]
        if "NextToken" not in page:
            break
        token = {"NextToken": page["NextToken"]}
    assert sorted(seen) == sorted(hyperpod.instances)


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("DescribeCluster", {"ClusterName": "another"}),
        ("DescribeClusterNode", {"ClusterName": "local-hyperpod", "NodeId": "i-00000000"}),
    ],
)
def test_what_is_not_there_is_resource_not_found(hyperpod: HyperPod, operation: str, body: Json) -> None:
    with pytest.raises(sagemaker.SageMakerError) as error:
        sagemaker.answer(hyperpod, operation, body)
    assert error.value.code == "ResourceNotFound"


def test_events_have_the_documented_shapes(hyperpod: HyperPod) -> None:
    config, moment = hyperpod.config, hyperpod_events.Moment(datetime(2026, 11, 30, 12, tzinfo=UTC), "id-1")
    health = hyperpod_events.node_health(config, moment, STRANGER)
    assert health["detail-type"] == "SageMaker HyperPod Cluster Node Health Event"
    assert health["detail"].keys() == {"ClusterName", "ClusterArn", "InstanceId", "Tags", "HealthSummary"}
    assert health["detail"]["HealthSummary"]["HealthStatus"] == "Unhealthy"
    assert (
        hyperpod_events.node_health(config, moment, STRANGER, healthy=True)["detail"]["HealthSummary"]["HealthStatus"]
        == "Healthy"
    )
    for event, words in (
        (hyperpod_events.replacement_started(config, moment, "i-1", "g", "e"), "is starting"),
        (hyperpod_events.replacement_completed(config, moment, "i-1", "g", "e"), "completed successfully"),
    ):
        detail = event["detail"]["EventDetails"]
        assert "ClusterName" not in event["detail"], "the name sits one level deeper in these"
        assert detail["EventId"] != event["id"]
        assert f"{words} as part of instance replacement in Cluster local-hyperpod and IG g" in detail["Description"]
        assert detail["EventTime"] == 1_796_040_000_000
        assert set(detail["EventDetails"]["EventMetadata"].values()) == {None}
    for event in (health,):
        assert event["resources"] == ["arn:aws:sagemaker:us-east-1:123456789012:cluster/local-hyperpod"]
        assert (event["source"], event["time"], event["version"]) == ("aws.sagemaker", "2026-11-30T12:00:00Z", "0")


def test_an_event_that_nobody_takes_is_given_up_and_logged(
    hyperpod: HyperPod, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import aiohttp

    async def send() -> None:
        async with aiohttp.ClientSession() as http:
            hyperpod.http = http
            await hyperpod._send({"detail-type": "x"})

    monkeypatch.setattr("local.kube.hyperpod.RETRY_SECONDS", 0.01)
    asyncio.run(send())
    assert "event x could not be sent" in caplog.text


@given(st.integers(0, 3), st.integers(0, 5))
def test_a_pod_fills_one_slot_of_its_own_group(missing: int, extra: int) -> None:
    template = {"spec": {"containers": [{"name": "ray", "image": "i", "resources": {}}]}}
    wanted = [pods.Slot("head", pods.HEAD_GROUP, 0, template, {})]
    wanted += [pods.Slot("worker", "g", n, template, {}) for n in range(3)]
    cluster = {"metadata": {"name": "c", "namespace": "n", "uid": "u"}}
    there = [pods.pod_object(cluster, slot, str(n)) for n, slot in enumerate(wanted[: 4 - missing])]
    there += [pods.pod_object(cluster, wanted[-1], f"x{n}") for n in range(extra)]
    taken = set[int]()
    homeless = 0
    for pod in there:
        number = pods.slot_of(pod, wanted, taken)
        if number is None:
            homeless += 1
        else:
            assert number not in taken
            taken.add(number)
    assert homeless == max(0, len(there) - 4 + (1 if missing == 4 else 0))

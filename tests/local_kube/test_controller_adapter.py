"""The controller's Kubernetes adapter against the local API. The pods find no node here, so nothing runs."""

from __future__ import annotations

import base64
import json
import time
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest
import requests
from lightkube.models.core_v1 import Event, ObjectReference, Pod
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.types import PatchType

from local.kube import pods as local_pods
from nightshift.adapters import kubernetes_views as views
from nightshift.adapters.kubernetes import EksCluster, KubernetesClusters
from nightshift.adapters.ray_dashboard import RayDashboards
from nightshift.contract.spec import RunSpec
from nightshift.core.errors import PermanentError, TransientError
from nightshift.core.raycluster import Placement
from tests.builders import spec

Stack = Any
PLACE = Placement(namespace="nightshift", service_account="nightshift-training", shared_claim="fsx-claim")
LONG = "a-run-with-a-name-as-long-as-it-may-be-1"
NOWHERE = {
    "head": {"instance_type": "ml.nowhere.large", "count": 1},
    "workers": {"instance_type": "ml.nowhere.xlarge", "count": 2, "gpus": 2},
}


def asked(run_id: str) -> RunSpec:
    return spec(run_id=run_id, topology=NOWHERE)


@pytest.fixture
def clusters(stack: Stack, support: ModuleType) -> KubernetesClusters:
    ca = base64.b64encode(stack.config.ca_file.read_bytes()).decode()
    return KubernetesClusters(EksCluster("local-eks", stack.config.kube_url, ca), support.token(), PLACE)


def until(look: Any) -> Any:
    for _ in range(100):
        if found := look():
            return found
        time.sleep(0.1)
    raise AssertionError("not within 10 s")


def test_rayclusters_are_found_by_their_runs_label_and_others_are_not(
    clusters: KubernetesClusters, stack: Stack, support: ModuleType
) -> None:
    other = support.manifest("somebodys")
    other["metadata"]["labels"] = {}
    for template in (other["spec"]["headGroupSpec"], *other["spec"]["workerGroupSpecs"]):
        template["template"]["spec"]["nodeSelector"] = {"node.kubernetes.io/instance-type": "ml.nowhere.large"}
    kube = support.client(stack.config)
    kube.create(support.RayCluster.from_dict(other))
    assert clusters.create(asked("orphan"), "somebody")
    assert not clusters.create(asked("orphan"), "somebody"), "it is there already"
    (found,) = [c for c in clusters.owned() if c.run_id != LONG]
    assert (found.name, found.run_id) == ("orphan", "orphan")
    assert timedelta(0) <= datetime.now(UTC) - found.created_at < timedelta(minutes=2)
    clusters.delete("orphan")
    clusters.delete("orphan")
    kube.delete(support.RayCluster, "somebodys")
    until(lambda: not clusters.owned())


def test_an_excluded_instance_is_written_into_every_template_once_and_nothing_else_changes(
    clusters: KubernetesClusters, stack: Stack, support: ModuleType
) -> None:
    kube, wanted = support.client(stack.config), asked("picky")
    clusters.create(wanted, "somebody")
    before = kube.get(support.RayCluster, "picky").to_dict()
    assert clusters.exclude(wanted, "somebody", ("i-2", "i-1"))
    assert not clusters.exclude(wanted, "somebody", ("i-1", "i-2")), "the same again"
    assert not clusters.exclude(wanted, "somebody", ())
    after = kube.get(support.RayCluster, "picky").to_dict()
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1
    groups = [after["spec"]["headGroupSpec"], *after["spec"]["workerGroupSpecs"]]
    assert all('["hyperpod-i-1", "hyperpod-i-2"]' in json.dumps(g["template"]["spec"].pop("affinity")) for g in groups)
    assert after["spec"] == before["spec"]
    clusters.delete("picky")


def test_a_write_of_somebody_else_in_between_is_not_overwritten_and_not_an_end(
    clusters: KubernetesClusters, stack: Stack, support: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube, wanted = support.client(stack.config), asked("busy")
    clusters.create(wanted, "somebody")
    find, writes = clusters._find, iter(range(1))

    def interrupted(name: str) -> Any:
        found = find(name)
        for _ in writes:
            kube.patch(support.RayCluster, name, {"metadata": {"labels": {"other": "one"}}}, patch_type=PatchType.MERGE)
        return found

    monkeypatch.setattr(clusters, "_find", interrupted)
    assert clusters.exclude(wanted, "somebody", ("i-1",))
    there = kube.get(support.RayCluster, "busy").to_dict()
    assert there["metadata"]["labels"]["other"] == "one"
    assert "hyperpod-i-1" in json.dumps(there["spec"])
    clusters.delete("busy")


def test_pods_are_deleted_by_age_and_place_and_their_records_hold_no_environment(clusters: KubernetesClusters) -> None:
    clusters.create(asked(LONG), "somebody")
    until(lambda: len(clusters.pod_records(LONG)) == 3)
    born = min(p.created_at for p in clusters.view(LONG).pods if p.created_at is not None)
    assert clusters.delete_pods(LONG, created_before=born) == 0
    assert clusters.delete_pods(LONG, frozenset({"i-elsewhere"})) == 0
    records = clusters.pod_records(LONG)
    assert {r["phase"] for r in records} == {"Pending"}
    assert "NIGHTSHIFT_SHARED" not in json.dumps(list(records))
    events = until(lambda: [e for e in clusters.event_records(LONG) if e["reason"] == "FailedScheduling"])
    assert all(e["about"].startswith("Pod/") for e in events)
    assert clusters.delete_pods(LONG) == 3
    clusters.delete(LONG)


def test_an_api_that_does_not_answer_is_worth_repeating_and_names_no_token(stack: Stack) -> None:
    ca = base64.b64encode(stack.config.ca_file.read_bytes()).decode()
    away = KubernetesClusters(EksCluster("local-eks", "https://localhost:9", ca), "very-secret-token", PLACE)
    for ask in (away.owned, lambda: away.delete_pods("x"), lambda: away.exclude(asked("x"), "me", ("i-1",))):
        with pytest.raises(TransientError) as refused:
            ask()
        assert "very-secret-token" not in str(refused.value)


def about(name: str) -> Event:
    return Event(metadata=ObjectMeta(name="e"), involvedObject=ObjectReference(kind="Pod", name=name))


@pytest.mark.parametrize("cluster", ["maze-1", LONG])
def test_an_event_is_about_a_cluster_by_its_pods_names_also_where_they_are_cut(cluster: str) -> None:
    for kind in (f"{cluster}-head", f"{cluster}-gpu-workers-worker"):
        assert views.is_about(about(f"{kind[-50:]}-x7k2p"), cluster)
        assert views.is_about(about(f"{kind}-x7k2p"[-63:]), cluster)
    assert views.is_about(about(cluster), cluster)
    for stranger in (f"{cluster}2", f"my-{cluster}-head-x7k2p", f"{cluster}-other-worker-x7k2p", "-head-x7k2p"):
        assert not views.is_about(about(stranger), cluster)


ENDS = {
    "ran out of memory": (
        {"containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]},
        ("OOMKilled, exit code 137", 137, None),
    ),
    "preempted": (
        {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]},
        (None, None, "PreemptionByScheduler: "),
    ),
    "evicted by the kubelet": (
        {"phase": "Failed", "reason": "Evicted", "message": "low on memory"},
        (None, None, "Evicted: low on memory"),
    ),
    "restarted once": (
        {
            "containerStatuses": [
                {"state": {"running": {}}, "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}}
            ]
        },
        ("Error, exit code 1", 1, None),
    ),
    "running": ({"containerStatuses": [{"state": {"running": {}}}]}, (None, None, None)),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_pods_end_is_read_from_its_status(end: str) -> None:
    status, expected = ENDS[end]
    for container in status.get("containerStatuses", []):
        container |= {"name": "ray", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    seen = views.pod_view(Pod.from_dict({"metadata": {"name": "p"}, "status": status}))
    assert (seen.ended, seen.exit_code, seen.disruption) == expected


def test_a_pod_is_placed_only_where_its_affinity_allows() -> None:
    expression = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    pod = {"spec": {"affinity": affinity, "containers": [{"resources": {}}]}}

    def node(name: str) -> dict[str, Any]:
        labels = {"kubernetes.io/hostname": name, "sagemaker.amazonaws.com/node-health-status": "Schedulable"}
        return {
            "metadata": {"labels": labels},
            "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }

    assert local_pods.fits(pod, node("n2"), 0)
    assert not local_pods.fits(pod, node("n1"), 0)
    expression["operator"] = "In"
    assert local_pods.fits(pod, node("n1"), 0)
    assert not local_pods.fits(pod, node("n2"), 0)


def test_an_address_of_a_dashboard_is_minted_for_the_creator_only_and_opens_one_session(
    clusters: KubernetesClusters, stack: Stack, support: ModuleType
) -> None:
    ca = base64.b64encode(stack.config.ca_file.read_bytes()).decode()
    eks = EksCluster("local-eks", stack.config.kube_url, ca)
    assert clusters.create(asked("seen"), "somebody")
    address = RayDashboards(eks, support.token(), "nightshift").address("seen")
    assert address.startswith(f"{stack.config.endpoint_url}/bearer-auth?token=")
    answers = [requests.get(address, verify=stack.config.ca_file, allow_redirects=False, timeout=10) for _ in range(2)]
    assert "ray_session" in answers[0].cookies and "ray_session" not in answers[1].cookies
    other = support.token(support.SAME_ROLE_OTHER_SESSION)
    for token, name in ((other, "seen"), (support.token(), "nobody")):
        with pytest.raises(PermanentError) as refused:
            RayDashboards(eks, token, "nightshift").address(name)
        assert "token=" not in str(refused.value)
    clusters.delete("seen")
    until(lambda: "seen" not in [c.name for c in clusters.owned()])

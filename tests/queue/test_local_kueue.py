"""The small Kueue of the local stack, without Ray: who is admitted, what an eviction does, what a governed namespace refuses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from local.kube import pods
from local.kube.cluster_status import next_status
from local.kube.errors import Forbidden, NotFound
from local.kube.kueue import Kueue
from local.kube.store import POD, RAY_CLUSTER, Store
from local.kube.workloads import LOCAL_QUEUE, WORKLOAD, is_true, said
from nightshift.core.observation import ClusterView
from nightshift.core.queueing import Standing, standing, workload_view
from nightshift.core.raycluster import Placement, raycluster_manifest
from tests.builders import spec

Json = dict[str, Any]
PLACE = Placement(namespace="nightshift", service_account="sa", shared_claim="claim")


class Cluster:
    """A store with a clock of its own, and its Kueue; pods are made and ended as KubeRay would, at once."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 30, tzinfo=UTC)
        self.store = Store(self._now)
        self.kueue = Kueue(self.store, "nightshift")

    def _now(self) -> datetime:
        self.time += timedelta(seconds=1)
        return self.time

    def create(self, name: str, **changes: Any) -> Json:
        made = raycluster_manifest(spec(run_id=name, **({"queue": "team"} | changes)), "me", PLACE)
        self.kueue.admit_object(made)
        return self.store.add(RAY_CLUSTER, made)

    def rounds(self, count: int = 3) -> None:
        for _ in range(count):
            self.kueue.reconcile()
            for cluster in list(self.store.all(RAY_CLUSTER)):
                self._kuberay(cluster)

    def _kuberay(self, cluster: Json) -> None:
        mine = [
            p for p in self.store.all(POD) if p["metadata"]["labels"]["ray.io/cluster"] == cluster["metadata"]["name"]
        ]
        wanted = pods.slots(cluster)
        for pod in mine if not wanted else []:
            self.store.remove(POD, pod)
        for number, slot in enumerate(wanted if not mine else []):
            self.store.add(POD, pods.pod_object(cluster, slot, str(number)))

    def workload(self, name: str) -> Json:
        (found,) = [w for w in self.store.all(WORKLOAD) if w["metadata"]["ownerReferences"][0]["name"] == name]
        return found

    def stands(self, name: str) -> Standing:
        """As Nightshift reads it."""
        return standing(ClusterView(exists=True, workload=workload_view(self.workload(name))))

    def pods(self, name: str) -> int:
        return sum(p["metadata"]["labels"]["ray.io/cluster"] == name for p in self.store.all(POD))


def test_a_labelled_cluster_is_born_suspended_and_runs_once_it_fits() -> None:
    world = Cluster()
    world.kueue.queue("team", 6)
    first, second = world.create("one"), world.create("two")
    assert first["spec"]["suspend"] and world.pods("one") == 0
    world.rounds()
    assert (world.stands("one"), world.stands("two")) == (Standing.ADMITTED, Standing.WAITING)
    assert (world.pods("one"), world.pods("two")) == (4, 0) and second["spec"]["suspend"]
    assert "6 more needed" in workload_view(world.workload("two")).message
    world.store.remove(RAY_CLUSTER, first)
    world.rounds()
    assert world.stands("two") is Standing.ADMITTED
    assert [w["metadata"]["ownerReferences"][0]["name"] for w in world.store.all(WORKLOAD)] == ["two"]


def test_a_round_without_a_change_writes_nothing() -> None:
    world = Cluster()
    world.kueue.queue("team", 6)
    world.create("one"), world.create("two"), world.create("three", queue="nowhere")
    world.rounds(5)
    before = world.store.version
    world.rounds(3)
    assert world.store.version == before


def test_an_urgent_one_is_admitted_before_older_ones_and_interrupts_nobody() -> None:
    world = Cluster()
    world.kueue.queue("team", 6)
    holder = world.create("one")
    world.rounds()
    world.create("two"), world.create("three", priority="urgent")
    world.rounds()
    assert world.stands("one") is Standing.ADMITTED
    world.store.remove(RAY_CLUSTER, holder)
    world.rounds()
    assert (world.stands("two"), world.stands("three")) == (Standing.WAITING, Standing.ADMITTED)


def test_preemption_takes_every_pod_before_it_gives_the_quota_back_and_the_next_admission_is_another() -> None:
    world = Cluster()
    world.kueue.queue("team", 6)
    world.create("one")
    world.rounds()
    before = workload_view(world.workload("one")).admitted_at
    world.kueue.held.add("team")
    world.kueue.preempt("one", "Preempted", "something more important")
    assert world.stands("one") is Standing.EVICTED and is_true(world.workload("one"), "QuotaReserved")
    world.kueue.reconcile()
    assert world.pods("one") == 4 and is_true(world.workload("one"), "QuotaReserved"), "its pods are still dying"
    world.rounds()
    assert world.pods("one") == 0 and not is_true(world.workload("one"), "QuotaReserved")
    seen = workload_view(world.workload("one"))
    assert (seen.evicted, seen.admitted_at) == ("Preempted", None) and "more important" in seen.message
    world.kueue.held.clear()
    world.rounds()
    again = workload_view(world.workload("one"))
    assert world.pods("one") == 4 and again.evicted is None
    assert before is not None and again.admitted_at is not None and again.admitted_at > before
    assert said(world.workload("one"), "Evicted")["message"].startswith("Previously: something")


@pytest.mark.parametrize(("gpus", "said_so"), [(None, "doesn't exist"), (4, "maximum capacity")])
def test_what_can_never_be_admitted_reads_so(gpus: int | None, said_so: str) -> None:
    world = Cluster()
    if gpus is not None:
        world.kueue.queue("team", gpus)
    world.create("one")
    world.rounds()
    assert world.stands("one") is Standing.REFUSED and said_so in workload_view(world.workload("one")).message
    world.kueue.queue("team", 6)
    world.rounds()
    assert world.stands("one") is Standing.ADMITTED


def test_a_governed_namespace_refuses_what_names_no_queue_and_pods_of_templates_that_do_not() -> None:
    world = Cluster()
    world.kueue.queue("team", 6)
    world.kueue.governed = True
    with pytest.raises(Forbidden, match="queue-name"):
        world.create("none", queue=None)
    made = world.create("one")
    pod = pods.pod_object(made, pods.Slot("head", "headgroup", 0, made["spec"]["headGroupSpec"]["template"], {}), "x")
    assert world.kueue.refuses_pod(pod) is None, "Nightshift labels its templates"
    del pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    refused = world.kueue.refuses_pod(pod)
    assert refused is not None and "hyperpod-task-governance-admission-policy" in refused
    world.kueue.governed = False
    assert world.kueue.refuses_pod(pod) is None


def test_a_cluster_without_a_queue_is_no_matter_of_kueue() -> None:
    world = Cluster()
    made = world.create("free", queue=None)
    world.rounds()
    assert not made["spec"].get("suspend") and world.pods("free") == 4 and not list(world.store.all(WORKLOAD))
    with pytest.raises(NotFound):
        world.kueue.preempt("free", "Preempted", "")


def test_an_unknown_priority_class_gets_no_workload() -> None:
    world = Cluster()
    world.kueue.queue("team", 6)
    made = raycluster_manifest(spec(run_id="one", queue="team"), "me", PLACE)
    made["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "unheard-of"
    world.store.add(RAY_CLUSTER, made)
    world.rounds()
    assert not list(world.store.all(WORKLOAD)) and list(world.store.all(LOCAL_QUEUE))


def test_the_status_of_a_suspended_cluster_says_so_and_forgets_that_it_was_ready() -> None:
    cluster = raycluster_manifest(spec(queue="team"), "me", PLACE)
    cluster["metadata"].update(uid="u", generation=2)
    cluster["status"] = {"state": "ready", "conditions": [{"type": "RayClusterProvisioned", "status": "True"}]}
    status = next_status(cluster, [], None, "2026-11-30T12:00:00Z")
    states = {c["type"]: c["status"] for c in status["conditions"]}
    assert status["state"] == "suspended" and "desiredWorkerReplicas" not in status
    assert (states["RayClusterSuspended"], states["RayClusterProvisioned"]) == ("True", "False")

"""The fence's eyes and means on real Ray processes: what still lives, what frees GPUs, what a lost head looks like, and
what is kept of it all. One RayCluster through all of it, in order."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import psutil
import pytest

from nightshift.adapters.kubernetes import EksCluster, KubernetesClusters
from nightshift.adapters.ray_jobs import RayJobs, write_kubeconfig
from nightshift.adapters.threads import at_once
from nightshift.core.decide import decide
from nightshift.core.decision import Verb
from nightshift.core.observation import JobState, Observation
from nightshift.core.raycluster import Placement, raycluster_manifest
from nightshift.core.run import Awaiting, RunState
from nightshift.steps.diagnostics import save_diagnostics
from nightshift.steps.ports import Ports
from tests.builders import attempt, run, spec

Stack = Any
NAME, OWNER = "fence", "somebody"
SPEC = {
    "run_id": NAME,
    "topology": {
        "head": {"instance_type": "ml.r5d.16xlarge", "count": 1},
        "workers": {"instance_type": "ml.g7e.12xlarge", "count": 2, "gpus": 2},
    },
}

JOB = '''
"""An actor with a node's GPUs and a placement group with the other node's; silent unless told otherwise."""
import os, sys, time, ray
from ray.util.placement_group import placement_group
ray.init(logging_level="ERROR")
@ray.remote(num_gpus=2, max_restarts=0)
class Player:
    def pid(self): return os.getpid()
    def stand_still(self): time.sleep(3600)
player = Player.remote()
group = placement_group([{"GPU": 2}])
ray.get(group.ready())
print("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI0000000", flush=True)
for n in range(int(sys.argv[1])):
    print(f"line {n} " + "x" * 200)
print("playing", ray.get(player.pid.remote()), flush=True)
player.stand_still.remote()
time.sleep(3600)
'''


def until(what: str, seconds: float, look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds:.0f} s: {what}; last: {look()!r}")


class Controller:
    """The controller's own adapters against the local stack, new for each invocation, as its Lambda makes them."""

    def __init__(self, stack: Stack, support: ModuleType) -> None:
        self.config, self._support = stack.config, support
        self.job = stack.config.state_dir / "job.py"
        self.job.write_text(JOB)

    @property
    def clusters(self) -> KubernetesClusters:
        return KubernetesClusters(self._eks, self._support.token(), PLACE)

    @property
    def jobs(self) -> RayJobs:
        write_kubeconfig(self._eks, self._support.token())
        return RayJobs(NAME, self.config.namespace)

    @property
    def _eks(self) -> EksCluster:
        ca = base64.b64encode(self.config.ca_file.read_bytes()).decode()
        return EksCluster("local-eks", self.config.kube_url, ca)

    def submit(self, job: str, lines: int = 3) -> int:
        """The pid of the job's actor, once it plays."""
        self.jobs.submit(NAME, job, f"python {self.job} {lines}", {})
        log = until(f"{job} plays", 90, lambda: (t := self.jobs.logs(job)) and "playing" in t and t)
        return int(log.rpartition("playing ")[2].split()[0])

    def fenced(self, job: str) -> Any:
        """The core's decision about the old attempt, with everything read afresh."""
        jobs = self.jobs
        seen = Observation(self.clusters.view(NAME), jobs.view(job), jobs.ray())
        on = run(run_id=NAME, state=RunState.RECOVERING, waiting_since=datetime.now(UTC))
        return decide(on, spec(), Awaiting.FENCE, seen, datetime.now(UTC))

    def whole(self) -> bool:
        view = self.clusters.view(NAME)
        return view.head_ready and view.ready_workers == 2 and (self.jobs.ray().gpus_of(view) or 0) == 4

    def pod_uids(self) -> set[str]:
        return {str(p["uid"]) for p in self.clusters.pod_records(NAME)}


PLACE = Placement(namespace="nightshift", service_account="nightshift-training", shared_claim="fsx-claim")


@pytest.fixture(scope="module")
def controller(stack: Stack, support: ModuleType) -> Iterator[Controller]:
    (stack.config.state_dir / "dashboard_modules.json").write_text(
        json.dumps(["JobHead", "NodeHead", "StateHead", "ReportHead"])
    )
    before = {name: os.environ.get(name) for name in ("KUBECONFIG", "REQUESTS_CA_BUNDLE")}
    os.environ["REQUESTS_CA_BUNDLE"] = str(stack.config.ca_file)
    made = Controller(stack, support)
    assert made.clusters.create(spec(**SPEC), OWNER)
    until("the RayCluster is whole", 240, made.whole)
    yield made
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


def test_a_stopped_job_is_over_only_when_no_process_of_its_actors_lives(controller: Controller) -> None:
    pid = controller.submit("fence-a1")
    frozen = psutil.Process(pid)
    assert controller.jobs.view("fence-a1").driver in controller.jobs.ray().drivers
    frozen.suspend()  # as one that hangs in a file system's call
    controller.jobs.stop("fence-a1")
    until("stopped", 30, lambda: controller.jobs.view("fence-a1").state is JobState.STOPPED)

    # Ray's books say that everything is free, while the process still holds its GPU
    books = until("no actor lives", 10, lambda: (r := controller.jobs.ray()).live_actors == 0 and r)
    assert frozen.is_running()
    assert books.placement_groups == 0
    assert sum(books.dying_by_ip.values()) == 1
    held = controller.fenced("fence-a1")
    assert held.verb is Verb.HOLD
    assert "processes of dead actors" in held.why

    # Ray's raylet kills it by itself, and only then the fence is over
    until("fence over", 40, lambda: controller.fenced("fence-a1").verb is Verb.READY)
    assert not frozen.is_running() or frozen.status() == psutil.STATUS_ZOMBIE
    assert controller.jobs.view("fence-a1").driver not in controller.jobs.ray().drivers


def test_the_diagnostics_of_a_job_that_stands_still_show_where_and_hide_its_secrets(controller: Controller) -> None:
    controller.submit("fence-a2", lines=30_000)  # 6 MB of log
    kept: dict[str, bytes] = {}

    class Bucket:
        def put(self, run_id: str, key: str, body: bytes, content_type: str) -> None:
            kept[key.rpartition("diagnostics/")[2]] = body

        def read_small(self, key: str) -> bytes | None:
            return None

    instances = controller.clusters.view(NAME).instances
    nothing: Any = None
    artifacts: Any = Bucket()
    jobs, clusters = controller.jobs, controller.clusters
    ports = Ports(
        runs=nothing, clusters=clusters, jobs=lambda _: jobs, hyperpod=nothing, artifacts=artifacts, stages=nothing,
        executions=nothing, now=nothing, sleep=time.sleep, remaining=lambda: 50.0, together=at_once,
    )  # fmt: skip
    the_run = run(run_id=NAME, raycluster=NAME, instances=instances)
    began = time.monotonic()
    save_diagnostics(ports, the_run, attempt(2, submission_id="fence-a2"))
    assert time.monotonic() - began < 30

    assert set(kept) == {f"{n}.log" for n in ("driver", "infra")} | {"stacks.txt"} | {
        f"{n}.json" for n in ("ray-state", "pods", "events", "nodes")
    }
    assert all(len(body) < 2**20 for body in kept.values())
    driver = kept["driver.log"].decode()
    assert len(driver) <= 64_000
    assert "line 29999" in driver
    assert "playing" in driver
    assert "stand_still" in kept["stacks.txt"].decode(), kept["stacks.txt"].decode()[:2_000]
    assert "raylet" in kept["infra.log"].decode()
    ray = json.loads(kept["ray-state.json"])
    assert {"nodes", "actors", "placement_groups", "jobs"} == set(ray)
    assert any(a["class_name"] == "Player" and a["state"] == "ALIVE" for a in ray["actors"])
    pods = json.loads(kept["pods.json"])
    assert {p["node"].removeprefix("hyperpod-") for p in pods} == set(instances)
    assert "env" not in pods[0]
    assert any(e["reason"] == "Scheduled" for e in json.loads(kept["events.json"]))
    labels = json.loads(kept["nodes.json"])[0]["labels"]
    assert labels["sagemaker.amazonaws.com/node-health-status"] == "Schedulable"
    assert not any(b"wJalrXUtnFEMI0000000" in body for body in kept.values())

    # A later call that finds nothing any more replaces nothing, and says within its seconds why
    short = controller.jobs.logs("fence-a999")
    assert short.startswith("no driver log: ")


def test_deleted_pods_end_an_attempt_that_ignores_everything_else(controller: Controller) -> None:
    """The job of the test before still plays."""
    assert controller.fenced("fence-a2").verb is Verb.HOLD
    began = datetime.now(UTC).replace(microsecond=0)
    before = controller.pod_uids()
    assert controller.clusters.delete_pods(NAME, created_before=began) == 3
    assert controller.clusters.delete_pods(NAME, created_before=began) == 0  # they are on their way

    # Ray is not needed to know when it is over: the head is new and knows nothing of the job
    level = run(
        run_id=NAME, state=RunState.RECOVERING, waiting_since=began, fence_level=1, fence_level_at=began
    )  # fmt: skip

    def over() -> bool:
        seen = Observation(controller.clusters.view(NAME))
        return decide(level, spec(), Awaiting.FENCE, seen, datetime.now(UTC)).verb is Verb.READY

    until("every old pod is gone", 30, over)
    assert not before & controller.pod_uids()
    until("whole again", 240, controller.whole)
    assert controller.clusters.delete_pods(NAME, created_before=began) == 0, "the new pods are not to be touched"
    assert controller.jobs.view("fence-a2").state is JobState.MISSING


def test_a_lost_head_is_found_by_looking_and_an_endpoint_without_one_proves_nothing(
    controller: Controller, stack: Stack
) -> None:
    controller.submit("fence-a3")
    stack.admin("/faults/kill-head", {"raycluster": NAME})
    away = controller.jobs
    assert away.view("fence-a3").state is JobState.UNREACHABLE  # 502, not JSON
    assert away.ray().gpus_by_ip is None
    assert away.logs("fence-a3").startswith("no driver log: ")
    away.stop("fence-a3")
    missing = until(
        "the new head does not know the job", 90, lambda: (v := controller.jobs.view("fence-a3")).state is JobState.MISSING and v
    )  # fmt: skip
    assert "does not exist" in missing.message
    until("fence over", 60, lambda: controller.fenced("fence-a3").verb is Verb.READY)


def test_a_frozen_host_holds_neither_the_fence_nor_its_place_for_ever(controller: Controller, stack: Stack) -> None:
    until("whole again", 240, controller.whole)
    pid = controller.submit("fence-a4")
    where = psutil.Process(pid).environ()["POD_NAME"]
    view = controller.clusters.view(NAME)
    frozen = next(p for p in view.pods if p.name == where)
    stack.admin("/faults/freeze-node", {"instance_id": frozen.instance_id})
    assert controller.clusters.view(NAME).silent_instances == {frozen.instance_id}
    controller.jobs.stop("fence-a4")
    until("fence over", 60, lambda: controller.fenced("fence-a4").verb is Verb.READY)
    assert psutil.Process(pid).status() == psutil.STATUS_STOPPED, "nobody can end it there"

    # Kubernetes drives the pod away after 30 s; nothing confirms that, and no other pod takes its place
    def going() -> Any:
        return next((p for p in controller.clusters.view(NAME).pods if p.name == where and p.terminating), None)

    evicted = until("evicted", 45, going)
    assert evicted.disruption.startswith("DeletionByTaintManager")
    seen = Observation(controller.clusters.view(NAME), ray=controller.jobs.ray())
    waiting = run(run_id=NAME, state=RunState.PROVISIONING, waiting_since=datetime.now(UTC))
    decision = decide(waiting, spec(**SPEC), Awaiting.CLUSTER, seen, datetime.now(UTC))
    assert decision.forget == {frozen.instance_id}
    assert controller.clusters.delete_pods(NAME, decision.forget, force=True) == 1
    until("whole on the spare node", 150, controller.whole)
    stack.admin("/faults/thaw-node", {"instance_id": frozen.instance_id})
    until("the frozen processes are gone", 20, lambda: not psutil.pid_exists(pid) or _zombie(pid))


def test_an_instance_is_excluded_from_a_running_raycluster_and_from_a_new_one(controller: Controller) -> None:
    wanted = spec(**SPEC)
    worker = next(p for p in controller.clusters.view(NAME).pods if not p.is_head)
    bad = str(worker.instance_id)
    assert controller.clusters.exclude(wanted, OWNER, (bad,))
    until("gone from it", 20, lambda: bad not in controller.clusters.view(NAME).instances)
    assert not controller.clusters.exclude(wanted, OWNER, (bad,))
    until("whole elsewhere", 150, controller.whole)
    assert bad not in controller.clusters.view(NAME).instances

    # Made anew, as the fence's last means does it: same name, other object, same exclusion
    old = controller.clusters.view(NAME).created_at
    time.sleep(1.1)
    began = datetime.now(UTC).replace(microsecond=0)
    controller.clusters.delete(NAME)
    controller.clusters.delete_pods(NAME, created_before=began, force=True)
    with suppress(AssertionError):
        until("created", 10, lambda: controller.clusters.create(wanted, OWNER, (bad,)))
    remade = controller.clusters.view(NAME)
    assert remade.created_at is not None
    assert old is not None
    assert remade.created_at >= began > old - timedelta(seconds=1)
    assert [c.name for c in controller.clusters.owned()] == [NAME]
    assert controller.clusters.owned()[0].run_id == NAME
    document = raycluster_manifest(wanted, OWNER, PLACE, (bad,))
    affinity = document["spec"]["workerGroupSpecs"][0]["template"]["spec"]["affinity"]
    assert f"hyperpod-{bad}" in json.dumps(affinity)
    until("scheduled", 20, lambda: len(controller.clusters.view(NAME).instances) == 3)
    assert bad not in controller.clusters.view(NAME).instances
    controller.clusters.delete(NAME)
    assert not controller.clusters.owned()
    assert not controller.clusters.exclude(wanted, OWNER, (bad,)), "there is none to change"


def _zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True

"""A RayCluster's life on real Ray, through the unchanged clients: a node dies in the middle of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from lightkube import ApiError
from lightkube.resources.core_v1 import Node, Pod
from lightkube.types import CascadeType

from local.kube import sessions

Stack = Any
Json = dict[str, Any]

JOB = '''
"""Two actors, one on each worker node (each takes all GPUs of its node); they play until told to stop."""
import os, pathlib, sys, time, ray
ray.init(logging_level="WARNING")
assert ray.get_runtime_context().get_accelerator_ids()["GPU"] == [], "the driver has no GPU"
shared = pathlib.Path(os.environ["NIGHTSHIFT_SHARED"])
assert os.environ["MODELS"] == str(shared / "models") and os.environ["NOT_SHARED"] == "/sharedness"
import nightshift.contract

@ray.remote(num_gpus=2, max_restarts=0)
class Player:
    def where(self):
        return os.environ["POD_NAME"]

players = [Player.remote() for _ in range(2)]
places = sorted(ray.get([player.where.remote() for player in players]))
assert len(set(places)) == 2, places
(shared / "places.txt").write_text(" ".join(places))
print("playing on", *places, flush=True)
while sys.argv[1] == "hold":
    ray.get([player.where.remote() for player in players])
    time.sleep(0.2)
'''


def until(what: str, seconds: float, look: Callable[[], Any]) -> Any:
    """The first truthy answer; AssertionError with ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:.0f} s: {what}; last: {look()!r}")


def session_folder(stack: Stack) -> Path:
    return sessions.folder(stack.config.state_dir)


def alive(pids: dict[int, float], folder: Path | None = None) -> list[str]:
    """Of the processes that were seen (pid -> creation time), and of all that name the session folder: who lives.

    A zombie is dead: it only waits to be asked for its exit code.
    """
    left = []
    for process in psutil.process_iter(["pid", "create_time", "cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        seen = pids.get(process.info["pid"]) == process.info["create_time"]
        named = folder is not None and str(folder) in line
        if (seen or named) and process.info["status"] != psutil.STATUS_ZOMBIE:
            left.append(f"{process.info['pid']} {line[:120]}")
    return left


def seen_processes(stack: Stack, part: str = "") -> dict[int, float]:
    """Ray's processes, of those whose description holds ``part``: pid -> creation time."""
    rows = [row for row in stack.admin("/processes") if not row["what"].startswith("local.kube")]
    pids = {row["pid"] for row in rows if part in row["what"]}
    return {pid: psutil.Process(pid).create_time() for pid in pids if psutil.pid_exists(pid)}


def write_kubeconfig(stack: Stack, support: ModuleType) -> Path:
    path = stack.config.state_dir / "kubeconfig"
    cluster = {"server": stack.config.kube_url, "certificate-authority": str(stack.config.ca_file)}
    document = {
        "current-context": "eks",
        "contexts": [{"name": "eks", "context": {"cluster": "eks", "user": "controller"}}],
        "clusters": [{"name": "eks", "cluster": cluster}],
        "users": [{"name": "controller", "user": {"token": support.token()}}],
    }
    path.write_text(json.dumps(document))
    return path


def pods_by_node(kube: Any, name: str) -> dict[str, Any]:
    return {pod.spec.nodeName: pod for pod in kube.list(Pod, labels={"ray.io/cluster": name})}


def test_a_node_dies_and_the_cluster_goes_on(
    stack: Stack, support: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.job_submission import JobStatus, JobSubmissionClient

    kube, config = support.client(stack.config), stack.config
    job = config.state_dir / "job.py"
    job.write_text(JOB)

    # Given a RayCluster of a head and two workers
    kube.create(support.RayCluster.from_dict(support.manifest("story", workers=2)))
    until("ready", 90, lambda: (kube.get(support.RayCluster, "story").status or {}).get("state") == "ready")
    cluster = kube.get(support.RayCluster, "story")
    assert {c["type"]: c["status"] for c in cluster.status["conditions"]} == {
        "HeadPodReady": "True",
        "RayClusterProvisioned": "True",
    }
    assert (cluster.status["readyWorkerReplicas"], cluster.status["desiredGPU"]) == (2, "4")
    assert cluster.status["observedGeneration"] == cluster.metadata.generation
    before = pods_by_node(kube, "story")
    assert len(before) == 3, "each pod on a node of its own"

    # When a job is submitted through the toolkit, it runs on both workers
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(stack, support)))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(config.ca_file))
    ray = JobSubmissionClient("sagemaker_ray://story/nightshift", verify=str(config.ca_file))
    on_head = {"entrypoint_num_cpus": 0, "entrypoint_resources": {"head": 0.001}}
    ray.submit_job(entrypoint=f"python {job} hold", submission_id="story-a1", **on_head)
    until("playing", 60, lambda: "playing on" in ray.get_job_logs("story-a1"))
    assert ray.get_job_status("story-a1") is JobStatus.RUNNING
    workers = {node: pod for node, pod in before.items() if pod.metadata.labels["ray.io/node-type"] == "worker"}
    places = (config.shared_dir / "places.txt").read_text().split()
    assert places == sorted(pod.metadata.name for pod in workers.values())
    rows = ray._do_request("GET", "/api/v0/nodes?limit=100").json()["data"]["result"]["result"]
    assert sum(row["resources_total"].get("GPU", 0) for row in rows if row["state"] == "ALIVE") == 4

    # And one of their nodes dies
    lost, kept = sorted(workers)
    doomed = seen_processes(stack, workers[lost].metadata.name)
    assert len(doomed) >= 4
    killed = stack.admin("/faults/kill-node", {"instance_id": lost.removeprefix("hyperpod-")})
    assert killed["pods"] == [workers[lost].metadata.name]
    assert alive(doomed) == []

    # Then the job fails, a new instance joins, and the cluster heals, without touching the other pods
    until("job failed", 40, lambda: ray.get_job_status("story-a1") is JobStatus.FAILED)
    names = {node.metadata.name for node in kube.list(Node)}
    assert lost not in names
    assert f"hyperpod-{killed['replacement']}" in names
    until("healed", 60, lambda: kube.get(support.RayCluster, "story").status.get("readyWorkerReplicas") == 2)
    after = pods_by_node(kube, "story")
    untouched = {node: pod.metadata.uid for node, pod in before.items() if node != lost}
    assert {node: pod.metadata.uid for node, pod in after.items() if node in untouched} == untouched
    assert kept in after
    assert len(after) == 3

    # And HyperPod has told the story: twice what happened, once something about a stranger, start and end
    until("events", 10, lambda: len(stack.sts.events) == 5)
    health = [e["detail"]["InstanceId"] for e in stack.sts.events if "Node Health" in e["detail-type"]]
    instance = lost.removeprefix("hyperpod-")
    assert (health.count(instance), len(health)) == (2, 3)
    told = [e["detail"]["EventDetails"] for e in stack.sts.events if e["detail-type"].endswith("Cluster Event")]
    assert {e["InstanceId"] for e in told} == {instance, killed["replacement"]}

    # A second job on the healed cluster succeeds, its log is streamed; a third one is stopped
    ray.submit_job(entrypoint=f"python {job} once", submission_id="story-a2", **on_head)

    async def tail() -> str:
        return "".join([lines async for lines in ray.tail_job_logs("story-a2")])

    assert "playing on" in asyncio.run(asyncio.wait_for(tail(), 60))
    until("succeeded", 10, lambda: ray.get_job_status("story-a2") is JobStatus.SUCCEEDED)
    ray.submit_job(entrypoint="sleep 60", submission_id="story-a3", **on_head)
    until("running", 20, lambda: ray.get_job_status("story-a3") is JobStatus.RUNNING)
    assert ray.stop_job("story-a3")
    until("stopped", 20, lambda: ray.get_job_status("story-a3") is JobStatus.STOPPED)

    # When it is deleted, nothing stays
    seen = seen_processes(stack)
    assert len(seen) >= 12
    kube.delete(support.RayCluster, "story", cascade=CascadeType.FOREGROUND)
    deleting = kube.get(support.RayCluster, "story").metadata
    assert deleting.deletionTimestamp is not None
    assert deleting.finalizers == ["foregroundDeletion"]

    def gone() -> bool:
        try:
            kube.get(support.RayCluster, "story")
        except ApiError as error:
            return error.status.code == 404
        return False

    until("gone", 20, gone)
    assert not list(kube.list(Pod))
    assert alive(seen, session_folder(stack)) == []
    assert [file.name for file in session_folder(stack).iterdir()] == ["owner"]
    assert [row["what"] for row in stack.admin("/processes")] == ["local.kube: guard", "local.kube"]


ENDINGS = {"told to end": ("guard", signal.SIGTERM), "guard killed": ("guard", signal.SIGKILL)}
ENDINGS["server killed"] = ("server", signal.SIGKILL)


@pytest.mark.parametrize("how", ENDINGS)
def test_nothing_outlives_the_process(
    how: str, tmp_path: Path, support: ModuleType, start_stack: Callable[..., Any]
) -> None:
    whom, number = ENDINGS[how]
    with start_stack(tmp_path, support) as stack:
        support.client(stack.config).create(support.RayCluster.from_dict(support.manifest("short", workers=1)))
        until("Ray processes", 40, lambda: len(stack.admin("/processes")) >= 7)
        pids = {row["what"]: row["pid"] for row in stack.admin("/processes")}
        server = psutil.Process(pids["local.kube"])
        seen = {**seen_processes(stack), server.pid: server.create_time()}
        os.kill(stack.process.pid if whom == "guard" else server.pid, number)
        assert stack.process.wait(5) == {"told to end": 0, "guard killed": -signal.SIGKILL, "server killed": 1}[how]
        until("all ended", 10, lambda: not alive(seen, session_folder(stack)))
        until("folder gone", 5, lambda: not session_folder(stack).exists())


def test_nothing_outlives_the_parent(tmp_path: Path, support: ModuleType) -> None:
    config = support.new_config(tmp_path)
    path = config.save()
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys; p = subprocess.Popen([sys.executable, '-m', 'local.kube', sys.argv[1]]);"
            "print(p.pid, flush=True); p.wait()",
            str(path),
        ],
        cwd=support.REPOSITORY,
        env={**os.environ, "PYTHONPATH": f"functions{os.pathsep}."},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    assert parent.stdout.readline().strip() == "READY"
    parent.kill()
    parent.wait()
    until("ended", 10, lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)

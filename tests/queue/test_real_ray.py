"""One run on real Ray pods under the local Kueue: admitted late, preempted in mid-run, and back again.

Kubernetes API, pods, Ray and the endpoint are the local stack's; steps, adapters, table and bucket are the real ones. The
job is played by a script that holds the GPUs, and its progress by the test."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from nightshift.adapters.kubernetes import EksCluster, KubernetesClusters
from nightshift.adapters.ray_jobs import RayJobs, write_kubeconfig
from nightshift.core.causes import EndCause
from nightshift.core.observation import JobState, JobView, RayView
from nightshift.core.raycluster import Placement
from nightshift.core.run import Awaiting, Run, RunState
from nightshift.steps.look import HOLD_RESERVE, look
from nightshift.steps.ports import Ports
from nightshift.steps.requests import LookRequest, Reply
from nightshift.steps.transitions import admit, provision, submit
from tests.builders import IMAGE, progress
from tests.local_kube import support
from tests.local_kube.conftest import Stack, running
from tests.steps.test_run import KEYS
from tests.steps.world import BUCKET, World, step

HOLDER = '''
"""One actor that holds both GPUs of the worker until it is taken away."""
import time, ray
ray.init(logging_level="WARNING")

@ray.remote(num_gpus=2, max_restarts=0)
class Holder:
    def hold(self):
        return True

holder = Holder.remote()
assert ray.get(holder.hold.remote())
print("holding", flush=True)
while True:
    time.sleep(0.5)
'''


@dataclass
class HoldingJobs:
    """Ray's jobs as they are; only what is submitted is the script."""

    real: RayJobs
    script: Path

    def submit(self, run_id: str, submission_id: str, entrypoint: str, metadata: dict[str, str]) -> None:
        assert "training_job run" in entrypoint
        self.real.submit(run_id, submission_id, f"python {self.script}", metadata)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@dataclass
class Scene:
    """A run, its world and its stack."""

    world: World
    stack: Stack
    ports: Ports
    deadline: float = 0.0

    def queue(self, **changes: Any) -> None:
        self.stack.admin("/kueue/queue", {"name": "team", **changes})

    def look(self, awaiting: Awaiting, token: str, seconds: float) -> Reply | None:
        """One look that may hold for so long."""
        self.deadline = time.monotonic() + seconds + HOLD_RESERVE
        request = LookRequest(
            step="look",
            run_id="maze-1",
            k=1,
            awaiting=awaiting,
            shift_name="maze-1-r1-s1",
            shift_started=datetime.now(UTC),
            token=token,
        )
        return look(self.ports, request, 60)

    def until(self, awaiting: Awaiting, decision: str, seconds: float) -> float:
        """Looks, held as the shift holds them, until the wait ends so; how long it took."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            reply = self.look(awaiting, f"token-{time.monotonic()}", 5)
            if reply is not None and reply.decision == decision:
                return time.monotonic() - began
            assert reply is None or reply.decision == "look", reply
            time.sleep(0.2)
        raise AssertionError(f"not {decision} within {seconds:.0f} s: {self.job(1)} {self.ray()} {self.view()}")

    def run(self) -> Run:
        return self.world.run()

    def view(self) -> Any:
        return self.ports.clusters.view("maze-1")

    def job(self, n: int) -> JobView:
        found: JobView = self.ports.jobs("maze-1").view(f"maze-1-a{n}")
        return found

    def ray(self) -> RayView:
        return self.ports.jobs("maze-1").ray()

    def holds(self, n: int) -> None:
        submit(self.ports, step("submit"), BUCKET)
        for _ in range(600):
            if "holding" in self.ports.jobs("maze-1").logs(f"maze-1-a{n}"):
                break
            time.sleep(0.2)
        assert self.job(n).state is JobState.RUNNING
        self.world.put(KEYS.progress(n), progress(attempt=n, step=20 + n, at=datetime.now(UTC)))
        assert self.look(Awaiting.ATTEMPT, f"token-of-a{n}", 5) is None
        assert self.run().state is RunState.RUNNING


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """As for the others; the local stack's own addresses are left to it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws(config={"core": {"passthrough": {"urls": [r"https?://(localhost|127\.).*"]}}}):
        yield World(boto3.Session(region_name="us-east-1"))


@pytest.fixture
def scene(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with running(tmp_path, support) as stack:  # type: ignore[arg-type]
        config = stack.config
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(config.ca_file))
        monkeypatch.setenv("KUBECONFIG", "")  # written below, and taken back with this
        eks = EksCluster("local-eks", config.kube_url, base64.b64encode(config.ca_file.read_bytes()).decode())
        place = Placement(namespace=config.namespace, service_account="sa", shared_claim="claim")
        script = tmp_path / "holder.py"
        script.write_text(HOLDER)
        token = support.token()
        write_kubeconfig(eks, token)
        built: list[Scene] = []
        ports = replace(
            world.ports,
            clusters=KubernetesClusters(eks, token, place),
            jobs=lambda name: HoldingJobs(RayJobs(name, config.namespace), script),
            now=lambda: datetime.now(UTC),
            sleep=time.sleep,
            remaining=lambda: built[0].deadline - time.monotonic(),
        )
        world.ports = ports
        built.append(Scene(world, stack, ports))
        yield built[0]


def test_a_run_is_admitted_late_preempted_and_back(scene: Scene) -> None:
    scene.queue(gpus=2, held=True, governed=True)
    workers = {"instance_type": "ml.g7e.12xlarge", "count": 1, "gpus": 2}
    scene.world.ask(queue="team", image=IMAGE, topology={"workers": workers})
    admit(scene.ports, step("admit"))
    assert scene.look(Awaiting.LEASE, "token-lease", 1) is not None
    provision(scene.ports, step("provision"))
    waits = scene.look(Awaiting.CLUSTER, "token-waits", 2)
    assert waits is not None and waits.decision == "look"
    assert "LocalQueue team is inactive" in scene.run().waiting_for
    view = scene.view()
    assert view.suspended and view.pods == () and view.workload is not None and not view.workload.admitted

    scene.queue(held=False)
    up = scene.until(Awaiting.CLUSTER, "ready", 180)
    first = scene.run().admitted_at
    assert first is not None and scene.run().leased_at == first and scene.run().waiting_for == ""
    scene.holds(1)

    scene.queue(held=True)
    scene.stack.admin("/kueue/preempt", {"raycluster": "maze-1", "message": "something more important"})
    noticed = scene.until(Awaiting.ATTEMPT, "recover", 60)
    fenced = scene.until(Awaiting.FENCE, "ready", 60)
    (ended,) = scene.world.runs.attempts("maze-1")
    assert ended.end_cause is EndCause.PREEMPTED and "something more important" in ended.message
    assert scene.run().recoveries_without_progress == 0
    provision(scene.ports, step("provision"))
    waits = scene.look(Awaiting.CLUSTER, "token-again", 1)
    assert waits is not None and waits.decision == "look"
    assert scene.view().pods == () and scene.run().waiting_for != ""

    scene.queue(held=False)
    back = scene.until(Awaiting.CLUSTER, "ready", 180)
    second = scene.run().admitted_at
    assert second is not None and second > first
    assert sum((scene.ray().gpus_by_ip or {}).values()) == 2, "nothing of the old attempt holds a GPU"
    scene.holds(2)
    assert scene.world.runs.attempts("maze-1")[-1].floor == 20
    print(f"\nadmitted to ready {up:.1f} s; noticed {noticed:.1f} s; fenced {fenced:.1f} s; back to ready {back:.1f} s")

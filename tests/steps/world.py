"""A small world for steps: DynamoDB, S3 and the adapters are real (moto); the rest is played.

What it leaves out: Kubernetes and Ray answer at once and never with garbage; tokens are only remembered; time moves only by
``sleep`` and ``later``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import boto3
from samtranslator.yaml_helper import yaml_parse

from nightshift.adapters.artifacts import S3Artifacts
from nightshift.adapters.run_store import DynamoRunStore
from nightshift.contract.events import StageEvent
from nightshift.contract.spec import RunSpec
from nightshift.core.capacity import GroupCapacity, HyperPodView
from nightshift.core.observation import ClusterView, JobState, JobView, OwnedCluster, RayView
from nightshift.core.reconcile import ExecutionState, ExecutionStatus
from nightshift.core.run import Awaiting, Run
from nightshift.steps.intake import Deployment, Intake, request_run
from nightshift.steps.look import look
from nightshift.steps.ports import Ports
from nightshift.steps.requests import LookRequest, Reply, StepRequest
from tests.builders import NOW, cluster, ray, spec_json

TEMPLATE = Path(__file__).resolve().parents[2] / "template.yaml"
SESSION = boto3.Session("testing", "testing", region_name="us-east-1")
"""Shared by all tests: reading the services' models is most of what a client costs, and a session reads them once."""

BUCKET = "artifacts"
HYPERPOD = HyperPodView(
    "hp",
    "InService",
    (GroupCapacity("head", "ml.r5d.16xlarge", 1, 1), GroupCapacity("gpu", "ml.g7e.12xlarge", 3, 3)),
)


@lru_cache(maxsize=1)
def _declared_table() -> dict[str, Any]:
    resources = yaml_parse(TEMPLATE.read_text())["Resources"].values()
    (declared,) = [r["Properties"] for r in resources if r["Type"] == "AWS::DynamoDB::Table"]
    return dict(declared)


def create_table(session: boto3.Session) -> Any:
    """The table exactly as template.yaml declares its keys and indexes."""
    declared = _declared_table()
    kept = ("AttributeDefinitions", "KeySchema", "GlobalSecondaryIndexes", "BillingMode")
    return session.resource("dynamodb").create_table(TableName="runs", **{k: declared[k] for k in kept})


@dataclass
class Executions:
    """Remembers what was started and answered; a token can be made stale. What was started runs, unless ``ended`` has it."""

    started: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    ended: dict[str, ExecutionStatus] = field(default_factory=dict)
    answered: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    stale: set[str] = field(default_factory=set)

    def start(self, name: str, payload: dict[str, Any]) -> None:
        if name not in [n for n, _ in self.started]:
            self.started.append((name, payload))

    def status(self, name: str) -> ExecutionStatus | None:
        running = ExecutionStatus(ExecutionState.RUNNING) if name in [n for n, _ in self.started] else None
        return self.ended.get(name, running)

    def answer(self, token: str, payload: dict[str, Any]) -> bool:
        if token in self.stale:
            return False
        self.answered.append((token, payload))
        return True


@dataclass
class Stages:
    events: list[StageEvent] = field(default_factory=list)
    refusing: bool = False

    def emit(self, event: StageEvent) -> bool:
        if not self.refusing:
            self.events.append(event)
        return not self.refusing


@dataclass
class Clusters:
    """RayClusters that appear at once; ``current`` is what a view shows."""

    current: ClusterView = field(default_factory=lambda: ClusterView(exists=False))
    created: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    doomed: list[tuple[frozenset[str], bool]] = field(default_factory=list)
    labelled: list[OwnedCluster] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)
    busy: dict[str, list[str]] = field(default_factory=dict)

    def occupied(self) -> dict[str, list[str]]:
        return self.busy

    def create(self, spec: RunSpec, owner: str, excluded: Sequence[str] = ()) -> bool:
        if self.current.exists:
            return False
        self.excluded = list(excluded)
        self.created.append(spec.run_id)
        self.current = cluster()
        return True

    def view(self, name: str) -> ClusterView:
        return self.current

    def delete(self, name: str) -> None:
        self.deleted.append(name)
        self.current = ClusterView(exists=False)
        self.labelled = [c for c in self.labelled if c.name != name]

    def exclude(self, spec: RunSpec, owner: str, excluded: Sequence[str]) -> bool:
        news = sorted(excluded) != sorted(self.excluded)
        self.excluded = list(excluded)
        return news and self.current.exists

    def owned(self) -> list[OwnedCluster]:
        return list(self.labelled)

    def delete_pods(
        self,
        name: str,
        instances: frozenset[str] | None = None,
        created_before: datetime | None = None,
        force: bool = False,
    ) -> int:
        going = [p for p in self.current.pods if created_before is None or (p.created_at or NOW) < created_before]
        self.doomed.append((frozenset(p.name for p in going), force))
        return len(going)

    def pod_records(self, name: str) -> list[dict[str, Any]]:
        return [{"name": p.name} for p in self.current.pods]

    def event_records(self, name: str) -> list[dict[str, Any]]:
        return [{"about": f"RayCluster/{name}"}]

    def node_records(self, instances: frozenset[str]) -> list[dict[str, Any]]:
        return [{"name": i} for i in sorted(instances)]


@dataclass
class Jobs:
    """Ray jobs by submission id. ``submits`` counts what really reached Ray."""

    states: dict[str, JobView] = field(default_factory=dict)
    submits: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    actors: int | None = 0

    def submit(self, run_id: str, submission_id: str, entrypoint: str, metadata: dict[str, str]) -> None:
        if submission_id not in self.states:
            self.submits.append(submission_id)
            self.states[submission_id] = JobView(JobState.PENDING)

    def view(self, submission_id: str) -> JobView:
        return self.states.get(submission_id, JobView(JobState.MISSING))

    def ray(self) -> RayView:
        return ray("i-w1", "i-w2", "i-w3", "i-new", actors=self.actors)

    def stop(self, submission_id: str) -> None:
        self.stopped.append(submission_id)

    def logs(self, submission_id: str) -> str:
        return f"log of {submission_id}"

    def records(self) -> dict[str, Any]:
        return {"jobs": sorted(self.states)}

    def infra_logs(self, seconds: float) -> str:
        return "raylet.err: quiet"

    def stacks(self, seconds: float) -> str:
        return "main thread: sleeping"


@dataclass
class HyperPod:
    """Targets change at once, nodes only by ``settle``."""

    current: HyperPodView = field(default_factory=lambda: HYPERPOD)
    calls: list[dict[str, int]] = field(default_factory=list)
    refusing: str = ""

    def view(self) -> HyperPodView:
        return self.current

    def replace(self, instances: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(instances, "")

    def resize(self, targets: Mapping[str, int]) -> str:
        self.calls.append(dict(targets))
        if self.refusing:
            return self.refusing
        groups = tuple(replace(g, target=targets.get(g.name, g.target)) for g in self.current.groups)
        self.current = replace(self.current, groups=groups)
        return ""

    def settle(self) -> None:
        """The nodes that were asked for are there, or gone."""
        self.current = replace(self.current, groups=tuple(replace(g, current=g.target) for g in self.current.groups))


class World:
    """Ports over one account, and short names for what tests do again and again."""

    def __init__(self, session: boto3.Session) -> None:
        self.time = NOW
        self.slept = 0.0
        self.executions, self.stages, self.clusters = Executions(), Stages(), Clusters()
        self.jobs, self.hyperpod = Jobs(), HyperPod()
        self.s3 = session.client("s3")
        self.s3.create_bucket(Bucket=BUCKET)
        self.table = create_table(session)
        self.runs = DynamoRunStore(self.table)
        self.ports = Ports(
            runs=self.runs,
            clusters=self.clusters,
            jobs=lambda _: self.jobs,
            hyperpod=self.hyperpod,
            artifacts=S3Artifacts(self.s3, BUCKET),
            stages=self.stages,
            executions=self.executions,
            now=self.now,
            sleep=self.sleep,
            remaining=lambda: 40.0,
        )

    def now(self) -> datetime:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.later(seconds)

    def later(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)

    def ask(self, owner: str = "team", **changes: Any) -> Intake:
        return request_run(self.ports, Deployment("hp", "ns"), spec_json(**changes), owner)

    def run(self, run_id: str = "maze-1") -> Run:
        found = self.runs.get(run_id)
        assert found is not None
        return found

    def put(self, key: str, document: Any) -> None:
        self.s3.put_object(Bucket=BUCKET, Key=key, Body=document.to_json().encode())

    def look(self, awaiting: Awaiting, token: str = "token-1", k: int = 1, run_id: str = "maze-1") -> Reply | None:
        request = LookRequest(
            step="look",
            run_id=run_id,
            k=k,
            awaiting=awaiting,
            shift_name=f"{run_id}-r1-s1",
            shift_started=NOW,
            token=token,
        )
        return look(self.ports, request, 60)

    def with_remaining(self, seconds: float) -> None:
        self.ports = replace(self.ports, remaining=lambda: seconds)


def step(name: Any, run_id: str = "maze-1", k: int = 1, **more: Any) -> StepRequest:
    return StepRequest(step=name, run_id=run_id, k=k, **more)

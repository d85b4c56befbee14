"""The shipped controller handler over a played Kubernetes and Ray. What they show is one item of the table, which the test
writes; table, bucket, events, tokens and executions are the local cloud's. No sleep takes time here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from nightshift.contract.spec import RunSpec
from nightshift.core.capacity import GroupCapacity, HyperPodView
from nightshift.core.history import BOUNDS
from nightshift.core.observation import ClusterView, JobState, JobView, OwnedCluster, PodView, RayView
from nightshift.core.run import Signal, SignalKind
from nightshift.handlers import controller, wiring
from nightshift.handlers.settings import StepSettings
from nightshift.steps.ports import Ports

INSTANCES = ("i-head", "i-w1", "i-w2", "i-w3")
SETTINGS = (
    ("SHIFT_LOOKS", "looks", BOUNDS.looks),
    ("PARENT_EVENTS", "events", BOUNDS.parent_events),
    ("LOOK_SECONDS_ATTEMPT", "interval", 60),
)
"""Environment variable, its name in a run's item, and what is usual. An environment serves many runs."""
REAL = wiring.DynamoRunStore


class Played:
    """The item of one run: ``cluster`` (ready, starting or gone), ``job`` (a JobState), ``storm``, ``looks``, ``events`` and
    ``interval``; ``submits`` is counted here."""

    def __init__(self, table: Any, run_id: str) -> None:
        self._table, self._key = table, {"pk": f"WORLD#{run_id}", "sk": "WORLD"}

    def read(self) -> dict[str, Any]:
        return dict(self._table.get_item(Key=self._key, ConsistentRead=True).get("Item", {}))

    def write(self, **values: Any) -> None:
        names = {f"#{n}": n for n in values}
        self._table.update_item(
            Key=self._key,
            UpdateExpression="SET " + ", ".join(f"#{n} = :{n}" for n in values),
            ExpressionAttributeNames=names,
            ExpressionAttributeValues={f":{n}": v for n, v in values.items()},
        )

    def submitted(self) -> None:
        self._table.update_item(
            Key=self._key, UpdateExpression="ADD submits :one", ExpressionAttributeValues={":one": 1}
        )


class Clusters:
    def __init__(self, played: Played) -> None:
        self._played = played

    def create(self, spec: RunSpec, owner: str, excluded: Sequence[str] = ()) -> bool:
        created = self._played.read().get("cluster", "gone") == "gone"
        if created:
            self._played.write(cluster=self._played.read().get("comes", "starting"))
        return created

    def view(self, name: str) -> ClusterView:
        state = self._played.read().get("cluster", "gone")
        if state == "gone":
            return ClusterView(exists=False)
        if state == "starting":
            return ClusterView(exists=True, desired_workers=3)
        pods = tuple(PodView(f"pod-{i}", i == "i-head", ready=True, instance_id=i, ip=f"ip-{i}") for i in INSTANCES)
        return ClusterView(exists=True, head_ready=True, ready_workers=3, desired_workers=3, current=True, pods=pods)

    def delete(self, name: str) -> None:
        self._played.write(cluster="gone")

    def delete_pods(self, name: str, *_: Any, **__: Any) -> int:
        return 0

    def exclude(self, spec: RunSpec, owner: str, excluded: Sequence[str]) -> bool:
        return False

    def owned(self) -> Sequence[OwnedCluster]:
        return []

    def occupied(self) -> Mapping[str, Sequence[str]]:
        return {}

    def pod_records(self, name: str) -> Sequence[Mapping[str, Any]]:
        return []

    def event_records(self, name: str) -> Sequence[Mapping[str, Any]]:
        return []

    def node_records(self, instances: frozenset[str]) -> Sequence[Mapping[str, Any]]:
        return []


class Jobs:
    def __init__(self, played: Played) -> None:
        self._played = played

    def submit(self, run_id: str, submission_id: str, entrypoint: str, metadata: dict[str, str]) -> None:
        self._played.submitted()
        self._played.write(job="running", submission=submission_id)

    def view(self, submission_id: str) -> JobView:
        return JobView(JobState(self._played.read().get("job", "missing")))

    def ray(self) -> RayView:
        return RayView({f"ip-{i}": 2 for i in INSTANCES if i != "i-head"}, 0)

    def stop(self, submission_id: str) -> None:
        self._played.write(job="stopped")

    def logs(self, submission_id: str) -> str:
        return "log"

    def records(self) -> Mapping[str, Any]:
        return {}

    def infra_logs(self, seconds: float) -> str:
        return "log"

    def stacks(self, seconds: float) -> str:
        return "stacks"


class HyperPod:
    def view(self) -> HyperPodView:
        groups = (
            GroupCapacity("head", "ml.r5d.16xlarge", 1, 1),
            GroupCapacity("gpu", "ml.g7e.12xlarge", 3, 3),
        )
        return HyperPodView("hp", "InService", groups)

    def replace(self, instances: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(instances, "")

    def resize(self, targets: Mapping[str, int]) -> str:
        return "nothing is scaled here"


class Stormy(REAL):
    """A signal comes during each look, between its observation and its wish to nap."""

    def signals_since(self, run_id: str, counter: int) -> Any:
        found = super().signals_since(run_id, counter)
        self.bump(run_id, Signal(kind=SignalKind.CLUSTER_STATE, at=datetime.now(UTC)))
        return found


def ports_for(settings: StepSettings, remaining: Callable[[], float], arn: str | None, run_id: str) -> Ports:
    plain = wiring.store_ports(settings, remaining, arn)
    table = wiring.table(settings.table)
    played = Played(table, run_id)
    storm = bool(played.read().get("storm"))
    return replace(
        plain,
        runs=Stormy(table) if storm else REAL(table),
        clusters=Clusters(played),
        jobs=lambda _: Jobs(played),
        hyperpod=HyperPod(),
        sleep=lambda _: None,
        remaining=lambda: 5.0,  # no look holds: each is one observation
    )


def handler(event: dict[str, Any], context: Any) -> Any:
    run_id = str(event["run_id"])
    item = Played(wiring.table(os.environ["TABLE_NAME"]), run_id).read()
    for variable, name, usual in SETTINGS:
        os.environ[variable] = str(int(item.get(name, usual)))
    controller.controller_ports = lambda settings, remaining, arn: ports_for(settings, remaining, arn, run_id)
    return controller.handler(event, context)

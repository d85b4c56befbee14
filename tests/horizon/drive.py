"""Drives a run through its waits in the local cloud: real steps, table, bucket, tokens, executions."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any

import boto3
import pytest

from nightshift.adapters.artifacts import S3Artifacts
from nightshift.adapters.run_store import DynamoRunStore
from nightshift.adapters.workflow import EventBridgeStages, StepFunctions
from nightshift.contract.evals import EvalSet
from nightshift.contract.job import FileDigest, OutcomeCause
from nightshift.contract.layout import RunKeys
from nightshift.core.run import Awaiting, Run, RunState, Signal, SignalKind
from nightshift.steps.intake import Deployment, request_run
from nightshift.steps.ports import Ports
from nightshift.steps.signals import wake
from tests.builders import export, outcome, progress, spec_json, summary
from tests.horizon.app import Played
from tests.horizon.histories import events_of
from tests.local_cloud.support import Cloud

NOBODY: Any = None
LONG_NAP, SHORT_NAP = 60, 2
"""Seconds. A short nap is longer on a busy machine: it must not end before its look has registered its token."""

PATIENCE = 240.0
"""Seconds until something that must happen is missed: a busy machine may take that long."""
BUDGETS = {"wall_hours": 8_760, "max_recoveries_without_progress": 3, "node_wait_minutes": 1_440, "ask_hours": 24}


class Stack:
    """The deployed machines as a user of the account sees them."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud, out = cloud, cloud.outputs
        resource = boto3.resource(
            "dynamodb",
            endpoint_url=cloud.config.cloud_url,
            region_name=cloud.config.region,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        self.table, self.bucket, self.s3 = resource.Table(out["TableName"]), out["BucketName"], cloud.client("s3")
        self.states = cloud.client("stepfunctions")
        self.ports = Ports(
            runs=DynamoRunStore(self.table),
            clusters=NOBODY,
            jobs=NOBODY,
            hyperpod=NOBODY,
            artifacts=S3Artifacts(self.s3, self.bucket),
            stages=EventBridgeStages(cloud.client("events")),
            executions=StepFunctions(self.states, out["TrainingRunArn"]),
            now=lambda: datetime.now(UTC),
            sleep=lambda _: None,
            remaining=lambda: 60.0,
        )

    def executions(self, machine: str, prefix: str) -> list[tuple[str, str, str]]:
        """(name, ARN, status) of the machine's executions whose names begin so, oldest first."""
        found: list[dict[str, Any]] = []
        page: dict[str, Any] = {}
        while True:
            answer = self.states.list_executions(stateMachineArn=self.cloud.outputs[machine], **page)
            found += answer["executions"]
            if not answer.get("nextToken"):
                break
            page = {"nextToken": answer["nextToken"]}
        mine = [e for e in found if e["name"].startswith(prefix)]
        return [(e["name"], e["executionArn"], e["status"]) for e in sorted(mine, key=lambda e: e["startDate"])]

    def history(self, arn: str) -> list[dict[str, Any]]:
        return events_of(self.states, arn)


class Driven:
    """One run. ``looks``, ``events`` and ``interval`` are its bounds and its nap."""

    def __init__(self, stack: Stack, run_id: str, **played: Any) -> None:
        self.stack, self.run_id, self.pool = stack, run_id, f"p-{run_id}"
        self.keys, self.played = RunKeys(run_id), Played(stack.table, run_id)
        self.played.write(**{"storm": False, "comes": "ready", "interval": LONG_NAP, **played})
        self.steps, self.woken_token = 0, None

    def ask(self, held: bool = False, **changes: Any) -> None:
        if held:
            self.stack.table.put_item(Item={"pk": f"POOL#{self.pool}", "sk": "LEASE", "version": 1, "run_id": "other"})
        raw = spec_json(run_id=self.run_id, pool=self.pool, budgets=BUDGETS, **changes)
        raw["budgets"] = {**BUDGETS, "gpu_hours": 1_000_000}
        result = request_run(self.stack.ports, Deployment("hp", "ns"), raw, "team")
        assert result.run is not None, result.errors

    def run(self) -> Run:
        found = self.stack.ports.runs.get(self.run_id)
        assert found is not None
        return found

    def until(self, what: Callable[[Run], bool], seconds: float = PATIENCE) -> Run:
        deadline = time.monotonic() + seconds
        while True:
            run = self.run()
            if what(run):
                return run
            if time.monotonic() > deadline:
                pytest.fail(f"{self.run_id} is {run.state} ({run.sentence}) at look {run.look_seq} after {seconds} s")
            time.sleep(0.05)

    def item(self) -> dict[str, Any]:
        key = {"pk": f"RUN#{self.run_id}", "sk": "RUN"}
        return dict(self.stack.table.get_item(Key=key, ConsistentRead=True)["Item"])

    def token(self, seconds: float = PATIENCE) -> str:
        """The registered token, another one than was woken last: the run naps."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            item = self.item()
            if item.get("token", self.woken_token) != self.woken_token:
                return str(item["token"])
            time.sleep(0.02)
        return str(pytest.fail(f"{self.run_id} did not nap within {seconds} s"))

    def wake(self) -> None:
        self.woken_token = self.item().get("token")
        wake(self.stack.ports, self.run_id, Signal(kind=SignalKind.CLUSTER_STATE, at=datetime.now(UTC)))

    # ways to look ------------------------------------------------------------------------------------------------

    def looks_more(self, count: int, seconds: float) -> None:
        begun = self.run().look_seq
        self.until(lambda run: run.look_seq >= begun + count, seconds)

    def timed_out(self, count: int) -> None:
        """Naps that their timeout ends. A nap's length comes with the answer of the look before it, which has it from the
        nap before: so two are woken."""
        begun = time.monotonic()
        self.woken(2)
        self.token()
        nap = max(SHORT_NAP, ceil(2 * (time.monotonic() - begun)))
        self.played.write(interval=nap)
        self.woken(2)
        self.looks_more(count + 2, PATIENCE + 3.0 * nap * count)
        self.played.write(interval=LONG_NAP)
        self.woken(2)

    def woken(self, count: int) -> None:
        for _ in range(count):
            self.token()
            self.wake()

    def answered(self, count: int) -> None:
        """Looks that a signal overtakes, each of which answers its own token."""
        self.token()
        self.played.write(storm=True)
        self.wake()
        self.looks_more(count, PATIENCE + 2.0 * count)
        self.played.write(storm=False)
        self.token()

    # what happens to it -------------------------------------------------------------------------------------------

    def free_the_pool(self) -> None:
        self.stack.table.delete_item(Key={"pk": f"POOL#{self.pool}", "sk": "LEASE"})
        self.wake()

    def napping_for_its_cluster(self) -> None:
        """The cluster has been waited for so long that looks nap."""
        self.until(lambda run: run.state is RunState.PROVISIONING and run.waiting_since is not None)
        self.until(lambda _: self.played.read().get("cluster") == "starting")
        self.stack.ports.runs.update(self.run(), waiting_since=datetime.now(UTC) - timedelta(minutes=10))
        self.token()

    def cluster_ready(self) -> None:
        self.played.write(cluster="ready", comes="ready")
        self.wake()

    def attempt(self, n: int) -> None:
        """Attempt ``n`` runs and its look naps."""
        self.until(lambda run: run.state is RunState.RUNNING and run.attempt == n)
        self.token()

    def put(self, key: str, body: bytes) -> None:
        self.stack.s3.put_object(Bucket=self.stack.bucket, Key=key, Body=body)

    def document(self, key: str, document: Any) -> None:
        self.put(key, document.model_copy(update={"run_id": self.run_id}).to_json().encode())

    def loses(self, n: int, cause: OutcomeCause = OutcomeCause.WORKER_LOST) -> None:
        """Attempt ``n`` ends, after it had verified a new step."""
        self.steps += 1
        now = datetime.now(UTC)
        steps = {"step": self.steps + 1, "saved_step": self.steps, "resumed_step": self.steps - 1, "at": now}
        self.document(self.keys.progress(n), progress(attempt=n, **steps))
        ended = {"message": "a worker died", "exit_code": 75, **steps}
        self.document(self.keys.outcome(n), outcome(cause, attempt=n, **ended))
        self.played.write(job="failed")
        self.wake()

    def asks_in_its_fence(self, n: int) -> None:
        """Attempt ``n`` ends for something that a person is asked about: the next one waits for the answer."""
        self.loses(n, OutcomeCause.STORAGE_FULL)
        self.until(lambda run: run.state is RunState.RECOVERING and run.question is not None)

    def succeeds(self, n: int) -> None:
        """Attempt ``n`` ends with everything that proves a success."""
        rows = b"rows"
        self.put(self.keys.eval_rows(n, 400, EvalSet.FIXED), rows)
        told = summary(400, 62, n).model_copy(update={"rows_sha256": hashlib.sha256(rows).hexdigest()})
        self.document(self.keys.eval_summary(n, 400, EvalSet.FIXED), told)
        files = {}
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            self.put(f"{self.keys.export(n, 400)}{name}", name.encode())
            files[name] = FileDigest(sha256=hashlib.sha256(name.encode()).hexdigest(), size=len(name))
        self.document(self.keys.export_record(n, 400), export(400, n, files=files))
        at = {"at": datetime.now(UTC), "resumed_step": self.steps}
        self.document(self.keys.outcome(n), outcome(attempt=n, **at))
        self.played.write(job="succeeded")
        self.wake()

    def over(self, seconds: float = PATIENCE) -> Run:
        """Once the record is final and no execution is under way: the last states come after the last write."""
        run, deadline = self.until(lambda run: run.state.is_final, seconds), time.monotonic() + seconds
        while any(status == "RUNNING" for _, _, status in self.stack.executions("TrainingRunArn", f"{self.run_id}-r")):
            assert time.monotonic() < deadline, f"{self.run_id}: an execution goes on"
            time.sleep(0.1)
        return run

    # what it left -------------------------------------------------------------------------------------------------

    def parents(self) -> list[tuple[str, list[dict[str, Any]]]]:
        return [
            (n, self.stack.history(arn)) for n, arn, _ in self.stack.executions("TrainingRunArn", f"{self.run_id}-r")
        ]

    def shifts(self, awaiting: Awaiting | None = None) -> list[list[dict[str, Any]]]:
        found = [self.stack.history(arn) for _, arn, _ in self.stack.executions("ShiftArn", f"{self.run_id}-r")]
        return [h for h in found if awaiting is None or awaits(h) == awaiting.value]


def awaits(history: list[dict[str, Any]]) -> str:
    """What a shift waited for."""
    return str(json.loads(history[0]["executionStartedEventDetails"]["input"])["awaiting"])

"""The reconciler on the whole local stack, by its own schedule: what a console did to a run while nobody was told.

The nodes are gone before the run is asked for, so its RayCluster waits and no Ray process is started."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import local.stack
from local.stack import Stack
from local.story.request import demo_request
from nightshift.core.reconcile import END_GRACE
from nightshift.handlers.settings import ControllerSettings
from nightshift.handlers.wiring import Controller
from tests.local_cloud.support import eventually

pytestmark = pytest.mark.needs_python312

SPEED = 100.0
PERIOD = 300 / SPEED


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """A stack whose nodes do not come back, and whose clock is fast."""
    real, changes = local.stack.new_config, {"schedule_speed": SPEED, "spare_joins_after": 3_600.0}
    monkeypatch.setattr(local.stack, "new_config", lambda folder: real(folder).model_copy(update=changes))
    with Stack(print, logs_to=tmp_path / "logs") as running:
        for name, value in running.config.aws_env.items():
            monkeypatch.setenv(name, value)
        for node in running.hyperpod.nodes():
            running.hyperpod.kill_node(node["instance_id"])
        yield running
    assert running.left_over == []


def rayclusters(stack: Stack) -> list[str]:
    """As the controller role sees them."""
    config = stack.config
    settings = ControllerSettings.model_validate(
        {
            "TABLE_NAME": stack.outputs["TableName"],
            "BUCKET_NAME": config.bucket,
            "AWS_REGION": config.region,
            "CONTROLLER_ROLE_ARN": stack.outputs["ControllerRoleArn"],
            "CONTROLLER_SESSION_NAME": "nightshift-controller",
            "EKS_CLUSTER_NAME": config.eks_cluster,
            "HYPERPOD_CLUSTER_NAME": config.hyperpod_cluster,
            "NAMESPACE": config.namespace,
            "SERVICE_ACCOUNT": "nightshift-job",
            "SHARED_CLAIM_NAME": "nightshift-shared",
        }
    )
    return [one.name for one in Controller(settings).clusters.owned()]


def leases(stack: Stack) -> list[Any]:
    return [i for i in stack.account.items(stack.outputs["TableName"]) if i["sk"] == {"S": "LEASE"}]


def metrics(stack: Stack) -> list[dict[str, Any]]:
    """What the function wrote in CloudWatch's embedded format: values and dimensions, oldest first."""
    (log,) = stack.config.log_dir.glob("lambda-*Reconciler*.log")
    lines = [json.loads(line) for line in log.read_text().splitlines() if '"CloudWatchMetrics"' in line]
    wanted = [{n for one in line["_aws"]["CloudWatchMetrics"] for n in names(one)} for line in lines]
    return [{n: _plain(line[n]) for n in names_ if n in line} for line, names_ in zip(lines, wanted, strict=True)]


def names(metric: dict[str, Any]) -> list[str]:
    return [*(n for group in metric["Dimensions"] for n in group), *(one["Name"] for one in metric["Metrics"])]


def _plain(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


def silence_the_finisher(stack: Stack) -> None:
    """Its event is lost: nothing is delivered by its rule any more."""
    events = stack.account.client("events")
    (rule,) = [r["Name"] for r in events.list_rules()["Rules"] if "FinisherFunctionExecutionEnded" in r["Name"]]
    events.disable_rule(Name=rule)


def test_a_run_whose_execution_is_stopped_unseen_is_ended_by_the_next_pass(stack: Stack) -> None:
    spec = demo_request().spec
    run_id = spec["run_id"]
    stack.account.put_start(spec)
    eventually(lambda: rayclusters(stack) == [run_id], 90)
    assert len(leases(stack)) == 1
    silence_the_finisher(stack)
    (execution,) = stack.account.executions(stack.outputs["TrainingRunArn"])
    stack.account.states.stop_execution(executionArn=execution["executionArn"], cause="stopped from a console")
    stopped = time.monotonic()

    def ended() -> bool:
        status, view = stack.account.api("GET", f"/runs/{run_id}")
        return status == 200 and view["state"] == "failed"

    eventually(ended, END_GRACE.total_seconds() + 60)
    seconds = time.monotonic() - stopped
    print(f"the run ended {seconds:.1f} s after its execution; grace {END_GRACE.seconds} s, period {PERIOD:g} s")
    assert seconds >= END_GRACE.total_seconds(), "the finisher comes first"
    assert leases(stack) == []
    # A step that was under way when the record became final deletes what it had just created.
    eventually(lambda: rayclusters(stack) == [], 10)
    eventually(lambda: any("failed" in str(message).lower() for message in stack.slack), 20)
    _, view = stack.account.api("GET", f"/runs/{run_id}")
    assert "ABORTED" in view["sentence"] and "stopped from a console" in view["sentence"]
    assert [line["what"] for line in view["audit"] if line["actor"] == "reconciler"] == ["ends the run"]
    assert [line["what"] for line in view["audit"]].count("final message sent") == 1
    measured = metrics(stack)
    assert {"ReconcilerAlarms": 0, "ReconcilerLeft": 0, "OldestLookAgeSeconds": 0.0}.items() <= measured[-1].items()
    # Once for the alarm, which watches the sum, and once for the dashboard, which shows the kinds.
    repairs = [(m.get("kind"), m["ReconcilerRepairs"]) for m in measured if "ReconcilerRepairs" in m]
    assert repairs == [(None, 1), ("finish_run", 1)]
    assert not any("run_id" in m for m in measured)

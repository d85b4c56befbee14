"""The life of the project's own stack: created, updated, deleted; what is kept, and that nothing else is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local.cloud.deploy import delete, deploy
from local.config import REPOSITORY
from tests.local_cloud.support import Cloud, eventually, probe_config, start

PROJECT = REPOSITORY / "template.yaml"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """An empty account that judges permissions. Functions are deployed, and their processes end at once: none is called."""
    changes = {"functions_python": Path(shutil.which("false") or "/bin/false"), "enforces_iam": True}
    config = probe_config(tmp_path_factory.mktemp("life")).model_copy(update={**changes, "stack_name": "nightshift"})
    child = start(config)
    try:
        yield Cloud(config)
    finally:
        child.stop()


def given(own: Cloud, **more: str) -> dict[str, str]:
    cluster = {"HyperPodClusterName": own.config.hyperpod_cluster, "EksClusterName": own.config.eks_cluster}
    return {**cluster, "BucketName": own.config.bucket, "NightlySchedule": "rate(10 days)", **more}


def there(own: Cloud) -> dict[str, list[Any]]:
    """Everything of the account that could run, be called, or cost."""
    return {
        "functions": own.client("lambda").list_functions()["Functions"],
        "machines": own.client("stepfunctions").list_state_machines()["stateMachines"],
        "rules": own.client("events").list_rules()["Rules"],
        "schedules": own.client("scheduler").list_schedules()["Schedules"],
        "queues": own.client("sqs").list_queues().get("QueueUrls", []),
        "log groups": own.client("logs").describe_log_groups()["logGroups"],
    }


def test_the_stack_is_created_updated_and_deleted_and_only_what_is_retained_stays(own: Cloud) -> None:
    outputs = deploy(own.config, PROJECT, given(own))
    assert all(there(own).values()), there(own)
    own.client("s3").put_object(Bucket=outputs["BucketName"], Key="runs/kept/manifest.json", Body=b"{}")
    item = {"pk": {"S": "RUN#kept"}, "sk": {"S": "RUN"}}
    own.client("dynamodb").put_item(TableName=outputs["TableName"], Item=item)

    again = deploy(own.config, PROJECT, given(own, LookSecondsAttempt="120"))
    assert again == outputs, "an update replaces nothing"
    function = own.client("lambda").get_function_configuration(FunctionName=outputs["ControllerFunctionName"])
    assert str(function["Environment"]["Variables"]["LOOK_SECONDS_ATTEMPT"]) == "120"
    assert own.client("dynamodb").get_item(TableName=outputs["TableName"], Key=item)["Item"] == item

    controller = outputs["ControllerRoleArn"].rpartition("/")[2]
    delete(own.config)
    assert {what: found for what, found in there(own).items() if found} == {}
    assert [role["RoleName"] for role in own.client("iam").list_roles()["Roles"]] == [controller]
    kept = own.client("s3").get_object(Bucket=outputs["BucketName"], Key="runs/kept/manifest.json")["Body"].read()
    assert json.loads(kept) == {}
    assert own.client("dynamodb").get_item(TableName=outputs["TableName"], Key=item)["Item"] == item
    eventually(lambda: len(own.local("GET", "/_local/processes")[1]) == 1, 10)
    assert own.local("GET", "/_local/outputs") == (200, {})


def test_an_execution_of_a_machine_that_is_deleted_ends(own: Cloud) -> None:
    machine = own.machine({"Wait": {"Type": "Wait", "Seconds": 600, "End": True}})
    url, queue = own.queue()
    own.rule({"source": ["aws.states"], "detail": {"status": ["ABORTED"]}}, queue)
    execution = machine.start()
    eventually(lambda: own.client("stepfunctions").describe_execution(executionArn=execution)["status"] == "RUNNING")
    own.client("stepfunctions").delete_state_machine(stateMachineArn=machine.arn)
    events = own.messages(url)
    assert [one["detail"]["executionArn"] for one in events] == [execution]

"""Deployment of SAM templates, and the life of the process itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from local.cloud import patches
from local.cloud.deploy import DeployError, deploy
from local.cloud.sam import TemplateError, translate
from local.cloud.schedule import filled
from local.config import REPOSITORY
from tests.local_cloud.support import TEMPLATE, Cloud, eventually, probe_config, start

PROJECT = REPOSITORY / "template.yaml"
API = "http://127.0.0.1:1/_api"
FUNCTIONS = ("Api", "Dashboard", "Intake", "Controller", "Signal", "Finisher", "Reconciler", "Notifier")


def written(folder: Path, resources: dict[str, Any], **more: Any) -> Path:
    path = folder / "template.yaml"
    head = {"AWSTemplateFormatVersion": "2010-09-09", "Transform": "AWS::Serverless-2016-10-31"}
    path.write_text(yaml.safe_dump({**head, "Resources": resources, **more}))
    return path


def test_a_type_that_nothing_here_knows_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    path = written(tmp_path, {"Cache": {"Type": "AWS::ElastiCache::CacheCluster"}})
    with pytest.raises(TemplateError, match=r"Cache \(AWS::ElastiCache::CacheCluster\).*DROPPED"):
        translate(path, {}, "us-east-1", API)


def test_a_reference_to_a_dropped_resource_is_an_error(tmp_path: Path) -> None:
    entry = {"Type": "AWS::EKS::AccessEntry", "Properties": {"ClusterName": "c", "PrincipalArn": "a"}}
    queue = {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": {"Fn::Sub": "q-${Entry}"}}}
    with pytest.raises(TemplateError, match="Queue refers to Entry"):
        translate(written(tmp_path, {"Entry": entry, "Queue": queue}), {}, "us-east-1", API)


def test_an_unknown_parameter_is_refused(cloud: Cloud) -> None:
    with pytest.raises(DeployError, match="no parameters Nope"):
        deploy(cloud.config, TEMPLATE, {"Nope": "1"})


def test_a_second_deployment_updates_in_place(cloud: Cloud) -> None:
    before, _ = cloud.invoke({"op": "environment"})
    try:
        again = deploy(cloud.config, TEMPLATE, {"Greeting": "good evening"})
        assert again == cloud.outputs
        after, _ = cloud.invoke({"op": "environment"})
        assert after["variables"]["GREETING"] == "good evening" and after["pid"] != before["pid"]
    finally:
        deploy(cloud.config, TEMPLATE, {})
    assert deploy(cloud.config, TEMPLATE, {}) == cloud.outputs
    (schedule,) = cloud.client("scheduler").list_schedules()["Schedules"]
    assert schedule["State"] == "ENABLED"


def test_an_update_of_a_table_which_moto_cannot_update_keeps_it_and_what_refers_to_it(
    cloud: Cloud, tmp_path: Path
) -> None:
    folder = shutil.copytree(TEMPLATE.parent, tmp_path / "changed")
    changed = folder / TEMPLATE.name
    line = "BillingMode: PAY_PER_REQUEST"
    assert line in changed.read_text()
    changed.write_text(changed.read_text().replace(line, f"{line}\n      SSESpecification: {{SSEEnabled: true}}", 1))
    try:
        assert deploy(cloud.config, changed, {}) == cloud.outputs
        assert cloud.client("dynamodb").describe_table(TableName=cloud.outputs["TableName"])["Table"]
    finally:
        deploy(cloud.config, TEMPLATE, {})


def test_outputs_are_served_and_the_apis_address_is_the_local_one(cloud: Cloud) -> None:
    assert cloud.local("GET", "/_local/outputs") == (200, cloud.outputs)
    assert cloud.outputs["ApiUrl"] == f"{cloud.config.cloud_url}/_api"
    assert not any(name.startswith("Local") for name in cloud.outputs)


def test_indexes_of_the_table_are_as_the_template_says(cloud: Cloud) -> None:
    table = cloud.client("dynamodb").describe_table(TableName=cloud.outputs["TableName"])["Table"]
    assert [one["IndexName"] for one in table["GlobalSecondaryIndexes"]] == ["by_owner"]


def test_a_wrong_moto_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert version("moto") == patches.MOTO_VERSION
    monkeypatch.setattr(patches, "version", lambda _: "5.3.0")
    with pytest.raises(patches.WrongMotoVersionError, match=r"found 5\.3\.0"):
        patches.apply()


@pytest.mark.needs_python312
def test_the_projects_own_template_deploys_its_functions_start_and_a_signal_ends_them_all(tmp_path: Path) -> None:
    functions = REPOSITORY / ".venv-functions/bin/python"
    changes = {"functions_python": functions, "stack_name": "nightshift", "schedule_speed": 1.0}
    config = probe_config(tmp_path / "own").model_copy(update=changes)
    child = start(config)
    try:
        secrets = Cloud(config).client("secretsmanager")
        secret = secrets.create_secret(Name="slack", SecretString=json.dumps({"webhook_url": config.slack_url}))
        outputs = deploy(
            config,
            PROJECT,
            {
                "HyperPodClusterName": config.hyperpod_cluster,
                "EksClusterName": config.eks_cluster,
                "BucketName": config.bucket,
                "SlackSecretArn": secret["ARN"],
                "NightlySchedule": "rate(10 days)",
            },
        )
        own = Cloud(config)
        own.outputs = outputs
        assert outputs["BucketName"] == config.bucket
        for name in FUNCTIONS:
            answer, _ = own.invoke({}, FunctionName=outputs[f"{name}FunctionName"])
            assert "errorType" not in (answer or {}) or not answer["errorType"].startswith("Runtime.")
        _starts_a_run_by_the_clock(own)
        machine = own.client("stepfunctions").describe_state_machine(stateMachineArn=outputs["TrainingRunArn"])
        assert outputs["ShiftArn"] in machine["definition"] and "${" not in machine["definition"]
        table = own.client("dynamodb").describe_table(TableName=outputs["TableName"])["Table"]
        names = {one["IndexName"] for one in table["GlobalSecondaryIndexes"]}
        assert names == {"by_cluster", "by_created", "by_next_look", "by_owner", "by_pool"}
        pids = [one["pid"] for one in own.local("GET", "/_local/processes")[1]]
        assert len(pids) > len(FUNCTIONS) and child.process.pid in pids
    finally:
        begun = time.monotonic()
        status = child.stop(signal.SIGINT)
    assert status == 0 and time.monotonic() - begun < 5
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids), 3)


def _starts_a_run_by_the_clock(own: Cloud) -> None:
    """What the nightly schedule hands over, given to the function twice as the clock would: one run, and no second one."""
    [schedule] = own.client("scheduler").list_schedules()["Schedules"]
    target = own.client("scheduler").get_schedule(Name=schedule["Name"])["Target"]
    assert target["Arn"].endswith(own.outputs["IntakeFunctionName"])
    spec = yaml.safe_load((REPOSITORY / "examples/demo.yaml").read_text())
    spec |= {"run_id": "nightly-{date}", "image": f"local@sha256:{'0' * 64}"}
    spec["task"]["code"] = {"kind": "git", "sha": "0" * 40}
    body = yaml.safe_dump(spec).encode()
    own.client("s3").put_object(Bucket=own.config.bucket, Key="schedules/nightly.yaml", Body=body)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    event = json.loads(filled(target, schedule["Arn"], now)["Input"])
    answers = [own.invoke(event, FunctionName=own.outputs["IntakeFunctionName"])[0] for _ in range(2)]
    assert [(one["created"], one["errors"]) for one in answers] == [(True, []), (False, [])]
    assert {one["run_id"] for one in answers} == {f"nightly-{now[:10].replace('-', '')}"}


def test_a_function_process_does_not_outlive_a_cloud_that_was_killed(tmp_path: Path) -> None:
    config = probe_config(tmp_path / "killed")
    child = start(config)
    own = Cloud(config)
    own.outputs = deploy(config, TEMPLATE, {})
    own.invoke({"op": "echo", "value": 1})
    _, listed = own.local("GET", "/_local/processes")
    child.process.kill()
    child.process.wait(5)
    eventually(lambda: not any(psutil.pid_exists(one["pid"]) for one in listed), 5)


def test_a_port_in_use_is_a_failure_that_leaves_nothing(cloud: Cloud, tmp_path: Path) -> None:
    config = probe_config(tmp_path / "taken").model_copy(update={"cloud_port": cloud.config.cloud_port})
    done = subprocess.run(
        [sys.executable, "-m", "local.cloud", str(config.save())],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": f"functions{os.pathsep}."},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode != 0 and b"READY" not in done.stdout
    assert cloud.invoke({"op": "echo", "value": 1}) == (1, None)


def test_the_interpreter_keeps_one_client_for_each_service() -> None:
    code = (
        "from local.cloud.patches import clients\n"
        "from moto.stepfunctions.parser.asl.component.state.exec.state_task import lambda_eval_utils as user\n"
        "clients.install()\n"
        "one, two = (user.boto_client_for('us-east-1', 'lambda') for _ in range(2))\n"
        "assert one is two and one.meta.endpoint_url.startswith('http://127.0.0.1:'), one.meta.endpoint_url\n"
        "assert one is not user.boto_client_for('us-east-1', 'sqs')\n"
    )
    path = f"functions{os.pathsep}."
    subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": path}, check=True, timeout=60
    )

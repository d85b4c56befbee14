"""Deploys a SAM template into the running local cloud, as ``sam deploy`` would: create, or update what has changed."""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from local.cloud.http_api import API_PREFIX
from local.cloud.sam import ON_FAILURE, POD_IDENTITY, SCHEDULE, SCHEDULE_PARTS, Translation, translate
from local.config import StackConfig

LOG = logging.getLogger(__name__)
logging.getLogger("samtranslator.metrics").setLevel(logging.ERROR)

Outputs = dict[str, str]
GOOD = {"CREATE_COMPLETE", "UPDATE_COMPLETE"}
SECONDS = 60


class DeployError(RuntimeError):
    """The stack did not come up; the message says which resource and why."""


def deploy(
    config: StackConfig, template_path: Path, parameters: Mapping[str, str], python: Path | None = None
) -> Outputs:
    """Deploy, start one environment of each function in the background, and return the stack's outputs.

    A second call updates. ``python`` runs these functions in place of the configuration's. Raises TemplateError for what
    would be lost here, and DeployError.
    """
    translation = translate(template_path, parameters, config.region, config.cloud_url + API_PREFIX)
    for name, kind, reason in translation.dropped:
        LOG.info("not deployed here: %s (%s): %s", name, kind, reason)
    stacks = _client(config, "cloudformation")
    outputs = _bring_up(stacks, config.stack_name, translation, parameters)
    names = {
        item["LogicalResourceId"]: item["PhysicalResourceId"]
        for item in stacks.describe_stack_resources(StackName=config.stack_name)["StackResources"]
        if item.get("ResourceType") == "AWS::Lambda::Function"  # moto lists what a condition left out, without a type
    }
    shown = {k: v for k, v in outputs.items() if not k.startswith((ON_FAILURE, SCHEDULE, POD_IDENTITY))}
    roles = [value.split("\n") for name, value in outputs.items() if name.startswith(POD_IDENTITY)]
    (config.state_dir / "pod_identities.json").write_text(json.dumps(roles))
    for name, value in outputs.items():
        if name.startswith(SCHEDULE):
            _schedule(_client(config, "scheduler"), dict(zip(SCHEDULE_PARTS, value.split("\n", 5), strict=True)))
    _tell(
        config,
        "/_local/deployment",
        {
            "functions": list(_functions(translation, names, outputs, python or config.functions_python)),
            "routes": [
                {"method": one.method, "path": one.path, "function": names[one.function], "iam": one.iam}
                for one in translation.routes
            ],
            "outputs": shown,
        },
    )
    return shown


def delete(config: StackConfig) -> None:
    """Delete the stack as ``sam delete`` would: what the template retains stays, everything else ends. Raises DeployError."""
    stacks, scheduler = _client(config, "cloudformation"), _client(config, "scheduler")
    (stack,) = stacks.describe_stacks(StackName=config.stack_name)["Stacks"]
    for output in stack.get("Outputs", []):
        if output["OutputKey"].startswith(SCHEDULE):
            scheduler.delete_schedule(Name=output["OutputValue"].split("\n", 1)[0])
    try:
        stacks.delete_stack(StackName=config.stack_name)
    except ClientError as error:
        raise DeployError(f"stack {config.stack_name}: {error.response['Error'].get('Message', error)}") from error
    _tell(config, "/_local/deletion", {})


def _schedule(scheduler: Any, parts: Mapping[str, str]) -> None:
    """Create a schedule, or give it what the template says now."""
    target = {"Arn": parts["function"], "RoleArn": parts["role"], "Input": parts["input"]}
    if parts["dead_letters"]:
        target["DeadLetterConfig"] = {"Arn": parts["dead_letters"]}
    wanted = {
        "Name": parts["name"],
        "ScheduleExpression": parts["expression"],
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "State": "ENABLED",  # AWS's default, also of an update; moto knows it at the creation alone
        "Target": target,
    }
    try:
        scheduler.create_schedule(**wanted)
    except scheduler.exceptions.ConflictException:
        scheduler.update_schedule(**wanted)


def _functions(
    translation: Translation, names: Mapping[str, str], outputs: Mapping[str, str], python: Path
) -> Iterator[dict[str, Any]]:
    for logical, name in names.items():
        yield {
            "name": name,
            "code": str(translation.code[logical]),
            "python": str(python),
            "retries": translation.retries.get(logical, 2),
            "on_failure_arn": outputs.get(f"{ON_FAILURE}{logical}"),
        }


def _bring_up(stacks: Any, stack_name: str, translation: Translation, parameters: Mapping[str, str]) -> Outputs:
    unknown = set(parameters) - translation.defaults.keys()
    if unknown:
        raise DeployError(f"the template has no parameters {', '.join(sorted(unknown))}")
    # moto keeps the value of the last deployment for what is left out.
    given = {name: value for name, value in {**translation.defaults, **parameters}.items() if value is not None}
    request = {
        "StackName": stack_name,
        "TemplateBody": json.dumps(translation.template),
        "Capabilities": ["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"],
        "Parameters": [{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()],
    }
    try:
        if _exists(stacks, stack_name):
            stacks.update_stack(**request)
        else:
            stacks.create_stack(**request)
    except ClientError as error:
        if "No updates are to be performed" not in str(error):
            raise DeployError(f"stack {stack_name}: {error.response['Error'].get('Message', error)}") from error
    stack = stacks.describe_stacks(StackName=stack_name)["Stacks"][0]
    if stack["StackStatus"] not in GOOD:
        reason = stack.get("StackStatusReason", "see the log of local.cloud")
        raise DeployError(f"stack {stack_name} is {stack['StackStatus']}: {reason}")
    return {item["OutputKey"]: item["OutputValue"] for item in stack.get("Outputs", [])}


def _exists(stacks: Any, stack_name: str) -> bool:
    try:
        stacks.describe_stacks(StackName=stack_name)
    except ClientError:
        return False
    return True


def _client(config: StackConfig, service: str) -> Any:
    return boto3.client(
        service,
        endpoint_url=config.cloud_url,
        region_name=config.region,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(read_timeout=SECONDS, retries={"max_attempts": 0}),
    )


def _tell(config: StackConfig, path: str, document: Mapping[str, Any]) -> None:
    request = urllib.request.Request(
        config.cloud_url + path, json.dumps(document).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        answer.read()

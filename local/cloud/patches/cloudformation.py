"""Fault: state machines that CloudFormation creates go to the backend that does not execute anything.

Fault: CloudFormation drops a bucket's NotificationConfiguration, so that EventBridge stays off.

Fault: a machine is created whatever its role may do. AWS refuses one that starts executions with ``.sync`` if its role
may not manage the rule that tells of their end, and one with logging if its role may not deliver logs.

Fault: an update of a resource whose type moto cannot update, a table for one, loses it for the stack: what refers to it then
refers to nothing. Here it stays as it is.
"""

from __future__ import annotations

import json
from typing import Any

import moto.cloudformation.parsing as parsing
import moto.stepfunctions.models as machines
from moto.core.exceptions import ServiceException
from moto.s3.models import FakeBucket
from moto.stepfunctions.parser.models import stepfunctions_parser_backends

from local.cloud.patches.permissions import Permit
from local.cloud.patches.swap import swap

MANAGED_RULE = "StepFunctionsGetEventsForStepFunctionsExecutionRule"
RULE_ACTIONS = ("events:PutTargets", "events:PutRule", "events:DescribeRule")
LOG_ACTIONS = tuple(
    f"logs:{name}"
    for name in (
        "CreateLogDelivery",
        "GetLogDelivery",
        "UpdateLogDelivery",
        "DeleteLogDelivery",
        "ListLogDeliveries",
        "PutResourcePolicy",
        "DescribeResourcePolicies",
        "DescribeLogGroups",
    )
)

_PERMITS: list[Permit] = []


class AccessDeniedException(ServiceException):
    code = "AccessDeniedException"


def on_machine_creation(permit: Permit) -> None:
    """Have ``permit`` asked for what the role of a new machine must be allowed to do."""
    _PERMITS.append(permit)


def install() -> None:
    swap(machines, "stepfunctions_backends", stepfunctions_parser_backends)
    _ask_before_creation()
    _keep_what_cannot_be_updated()
    _keep_event_bridge("create_from_cloudformation_json", 1)
    _keep_event_bridge("update_from_cloudformation_json", 2)


def _keep_what_cannot_be_updated() -> None:
    original = parsing.parse_and_update_resource

    def update(logical_id: str, resource_json: Any, resources_map: Any, account_id: str, region_name: str) -> Any:
        before = resources_map[logical_id]
        return original(logical_id, resource_json, resources_map, account_id, region_name) or before

    swap(parsing, "parse_and_update_resource", update)


def _ask_before_creation() -> None:
    original = machines.StateMachine.create_from_cloudformation_json.__func__  # type: ignore[attr-defined]

    def create(cls: Any, name: str, template: dict[str, Any], account: str, region: str, **more: Any) -> Any:
        properties = template["Properties"]
        role = properties["RoleArn"]
        for permit in _PERMITS:
            if ".sync" in json.dumps(properties["DefinitionString"]):
                rule = f"arn:aws:events:{region}:{account}:rule/{MANAGED_RULE}"
                _ask(permit, role, RULE_ACTIONS, rule, f"'{role}' is not authorized to create managed-rule.")
            if "LoggingConfiguration" in properties:
                text = "The state machine IAM Role is not authorized to access the Log Destination"
                _ask(permit, role, LOG_ACTIONS, "*", text)
        return original(cls, name, template, account, region, **more)

    swap(machines.StateMachine, "create_from_cloudformation_json", classmethod(create))


def _ask(permit: Permit, role: str, actions: tuple[str, ...], resource: str, refusal: str) -> None:
    for action in actions:
        try:
            permit(role, action, resource)
        except Exception as problem:
            raise AccessDeniedException(f"{refusal} ({problem})") from problem


def _keep_event_bridge(name: str, template_position: int) -> None:
    original = getattr(FakeBucket, name).__func__

    def build(cls: Any, *args: Any, **kwargs: Any) -> Any:
        bucket = original(cls, *args, **kwargs)
        template = kwargs.get("cloudformation_json") or args[template_position]
        if _wants_event_bridge(template.get("Properties", {})):
            bucket.set_notification_configuration({"EventBridgeConfiguration": {}})
        return bucket

    setattr(FakeBucket, name, classmethod(build))


def _wants_event_bridge(properties: dict[str, Any]) -> bool:
    wanted = properties.get("NotificationConfiguration", {}).get("EventBridgeConfiguration")
    return wanted is not None and str(wanted.get("EventBridgeEnabled", True)).lower() == "true"

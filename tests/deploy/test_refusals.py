"""What AWS refuses only when a stack is deployed, where no validator of a template looks."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

import pytest

from local.cloud.patches.cloudformation import LOG_ACTIONS, MANAGED_RULE, RULE_ACTIONS
from tests.deploy.repository import MACHINES, machine, resources, states, template, translated

Json = dict[str, Any]
ROOM = 100
"""Concurrent executions that AWS wants left for everything that reserves none; a new account may have 10 in all."""


def referenced(part: Any) -> Iterator[str]:
    """Every logical id in a piece of template, also inside of texts that are substituted."""
    if isinstance(part, list):
        for one in part:
            yield from referenced(one)
    elif isinstance(part, dict):
        if isinstance(part.get("Ref"), str):
            yield part["Ref"]
        if "Fn::GetAtt" in part:
            target = part["Fn::GetAtt"]
            yield target.split(".")[0] if isinstance(target, str) else target[0]
        if "Fn::Sub" in part:
            text = part["Fn::Sub"] if isinstance(part["Fn::Sub"], str) else part["Fn::Sub"][0]
            yield from re.findall(r"\$\{(\w+)[}.]", text)
        for one in part.values():
            yield from referenced(one)


def order(found: Json) -> list[str]:
    """The order in which CloudFormation could make the resources. Raises CycleError."""
    graph = {
        name: {one for one in [*referenced(resource), *_list(resource.get("DependsOn", []))] if one in found}
        for name, resource in found.items()
    }
    return list(TopologicalSorter(graph).static_order())


def _list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def test_no_resource_waits_for_itself() -> None:
    assert set(order(translated()["Resources"])) == set(translated()["Resources"])


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        # Each would be the plain way to write it, and each is written by name for this reason.
        ("ControllerRole", {"Fn::GetAtt": ["ControllerFunctionRole", "Arn"]}),
        ("ControllerFunctionRole", {"Ref": "Shift"}),
        ("TrainingRunRole", {"Ref": "TrainingRun"}),
    ],
)
def test_a_role_that_names_what_needs_it_is_a_cycle(name: str, wanted: Json) -> None:
    found = copy.deepcopy(translated()["Resources"])
    found[name]["Properties"]["Description"] = wanted
    with pytest.raises(CycleError):
        order(found)


def granted(role: str, resource: Any) -> set[str]:
    """Actions that a role may do on exactly this resource."""
    policies = resources("AWS::IAM::Role")[role]["Policies"]
    statements = [one for policy in policies for one in policy["PolicyDocument"]["Statement"]]
    return {action for one in statements if one["Resource"] == resource for action in _list(one["Action"])}


def role_of(name: str) -> str:
    role: str = resources("AWS::StepFunctions::StateMachine")[name]["RoleArn"]["Fn::GetAtt"][0]
    return role


def test_a_machine_that_waits_for_its_children_may_manage_the_rule_that_tells_of_their_end() -> None:
    waiting = {
        path.name
        for path in MACHINES
        if any(".sync" in str(state.get("Resource")) for state in states(machine(path)).values())
    }
    assert waiting == {"training_run.asl.json"}
    rule = {"Fn::Sub": f"arn:${{AWS::Partition}}:events:${{AWS::Region}}:${{AWS::AccountId}}:rule/{MANAGED_RULE}"}
    assert granted(role_of("TrainingRun"), rule) == set(RULE_ACTIONS)


def test_a_machine_that_logs_may_deliver_logs() -> None:
    logging = [
        name for name, one in resources("AWS::StepFunctions::StateMachine").items() if "LoggingConfiguration" in one
    ]
    assert sorted(logging) == ["Shift", "TrainingRun"]
    assert all(granted(role_of(name), "*") == set(LOG_ACTIONS) for name in logging)


def test_concurrency_is_reserved_only_where_somebody_asks_for_it() -> None:
    functions = resources("AWS::Lambda::Function")
    reserved = {
        name: one["ReservedConcurrentExecutions"]
        for name, one in functions.items()
        if "ReservedConcurrentExecutions" in one
    }
    assert reserved == {
        "ControllerFunction": {
            "Fn::If": ["ConcurrencyIsKept", {"Ref": "ControllerConcurrency"}, {"Ref": "AWS::NoValue"}]
        }
    }
    parameter = template()["Parameters"]["ControllerConcurrency"]
    assert parameter["Default"] == 0
    assert parameter["MaxValue"] <= 1_000 - ROOM, "of the 1,000 that an account has by default"


def test_a_callback_is_asked_only_of_integrations_that_have_one() -> None:
    # dynamodb:updateItem.waitForTaskToken is taken at creation and fails when it runs; of lambda:invoke it is known to work.
    asked = {
        state["Resource"]
        for path in MACHINES
        for state in states(machine(path)).values()
        if ".waitForTaskToken" in str(state.get("Resource"))
    }
    assert asked == {"arn:aws:states:::lambda:invoke.waitForTaskToken"}

"""The project's SAM template as CloudFormation that moto can deploy, and what the data plane must know beside it.

Nothing is lost silently: a type that moto does not know is dropped only if it is in ``DROPPED``, with a reason; any
other is an error, and so is a reference to a dropped resource that nothing here replaces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator
from samtranslator.yaml_helper import yaml_parse

DROPPED = {
    "AWS::ApiGatewayV2::Api": "its routes are served by the local HTTP API",
    "AWS::ApiGatewayV2::Stage": "the local HTTP API has the stage $default only, and does not throttle",
    "AWS::CloudWatch::Alarm": "nothing here watches metrics",
    "AWS::CloudWatch::Dashboard": "nobody looks at metrics here",
    "AWS::EKS::AccessEntry": "the local Kubernetes API reads who may come from access_entries.json",
    "AWS::EKS::PodIdentityAssociation": "the local Kubernetes reads the roles of pods from pod_identities.json",
    "AWS::Lambda::EventInvokeConfig": "retries and destinations are carried out by the local data plane",
    "AWS::Lambda::Permission": "nobody but this stack's own triggers can call a function here",
    "AWS::S3::BucketPolicy": "its only statement demands TLS, which is not used on the loopback interface",
    "AWS::SQS::QueuePolicy": "queues here take messages from the data plane without a policy",
}

KNOWN = {
    "AWS::DynamoDB::Table",
    "AWS::Events::Rule",
    "AWS::IAM::ManagedPolicy",
    "AWS::IAM::Policy",
    "AWS::IAM::Role",
    "AWS::KMS::Alias",
    "AWS::KMS::Key",
    "AWS::Lambda::Function",
    "AWS::Lambda::LayerVersion",
    "AWS::Logs::LogGroup",
    "AWS::S3::Bucket",
    "AWS::SNS::Topic",
    "AWS::SQS::Queue",
    "AWS::SSM::Parameter",
    "AWS::StepFunctions::StateMachine",
}
"""Types that moto deploys from CloudFormation and that this project may use."""

API_OUTPUT = re.compile(r"\$\{(\w+)\}\.execute-api\.[^/]*(/.*)?$")
UNUSED_CODE = "pass"
"""Functions run from their folders. moto reads this as text at create and as base64 at update: it must be both."""

ON_FAILURE = "LocalOnFailure"
"""Prefix of outputs that are added so that CloudFormation resolves a destination; they are taken out again."""

SCHEDULE = "LocalSchedule"
"""Prefix of outputs that hold a schedule as JSON's parts, one a line: moto's CloudFormation knows no schedules, its API does."""

POD_IDENTITY = "LocalPodIdentity"
"""Prefix of outputs that hold an EKS Pod Identity association: namespace, service account and role, one a line."""

SCHEDULE_PARTS = ("name", "expression", "function", "role", "dead_letters", "input")


class TemplateError(ValueError):
    """The template has something that would be lost here; the message names the resource and what to do."""


@dataclass(frozen=True)
class Route:
    """``function`` is a logical id; ``path`` may have parameters in braces."""

    method: str
    path: str
    function: str
    iam: bool


@dataclass(frozen=True)
class Translation:
    """``code``: folder of each function, by logical id. ``dropped``: (logical id, type, reason)."""

    template: dict[str, Any]
    code: dict[str, Path]
    routes: tuple[Route, ...]
    retries: dict[str, int]
    dropped: tuple[tuple[str, str, str], ...] = field(default=())

    @property
    def defaults(self) -> dict[str, str | None]:
        """Default of each parameter, None where it has none."""
        declared = self.template.get("Parameters", {}).items()
        return {name: str(one["Default"]) if "Default" in one else None for name, one in declared}


def translate(path: Path, parameters: Mapping[str, str], region: str, api_url: str) -> Translation:
    """Read, translate and check a template. Raises TemplateError, and SAM's InvalidDocumentException."""
    source = yaml_parse(path.read_text(encoding="utf-8"))
    code = _take_local_paths(source, path.parent.resolve())
    session = boto3.Session(region_name=region)
    template = Translator({}, Parser(), boto_session=session).translate(source, dict(parameters))
    resources = template["Resources"]
    _take_schedules(resources, template)
    _take_pod_identities(resources, template)
    _refuse_unknown(resources)
    routes = tuple(_routes(resources))
    retries = _take_invoke_configs(resources, template)
    dropped = tuple(
        (name, resource["Type"], DROPPED[resource["Type"]])
        for name, resource in list(resources.items())
        if resource["Type"] in DROPPED
    )
    for name, _, _ in dropped:
        del resources[name]
    _replace_api_outputs(template, {name for name, kind, _ in dropped if kind == "AWS::ApiGatewayV2::Api"}, api_url)
    for resource in resources.values():
        _prepare(resource)
    _refuse_dangling(template, {name for name, _, _ in dropped})
    return Translation(template, code, routes, retries, dropped)


def _take_local_paths(source: dict[str, Any], base: Path) -> dict[str, Path]:
    """Replace what ``sam package`` would upload; folder of each function by logical id."""
    shared = source.get("Globals", {}).get("Function", {}).pop("CodeUri", None)
    code = {}
    for name, resource in source["Resources"].items():
        properties = resource.setdefault("Properties", {})
        if resource["Type"] == "AWS::Serverless::Function":
            code[name] = (base / properties.get("CodeUri", shared or ".")).resolve()
            properties["CodeUri"] = f"s3://local/{name}"
        elif resource["Type"] == "AWS::Serverless::StateMachine" and isinstance(properties.get("DefinitionUri"), str):
            definition = base / properties.pop("DefinitionUri")
            properties["Definition"] = json.loads(definition.read_text(encoding="utf-8"))
    return code


def _refuse_unknown(resources: Mapping[str, Any]) -> None:
    unknown = sorted(
        f"{name} ({resource['Type']})"
        for name, resource in resources.items()
        if resource["Type"] not in KNOWN and resource["Type"] not in DROPPED
    )
    if unknown:
        raise TemplateError(
            f"moto cannot deploy {', '.join(unknown)}: add the type to DROPPED in local/cloud/sam.py with the reason"
            " why the local stack can do without it, or teach the local cloud to serve it"
        )


def _routes(resources: Mapping[str, Any]) -> Iterator[Route]:
    for resource in resources.values():
        if resource["Type"] != "AWS::ApiGatewayV2::Api":
            continue
        body = resource["Properties"]["Body"]
        schemes = body.get("components", {}).get("securitySchemes", {})
        signed = {name for name, one in schemes.items() if one.get("x-amazon-apigateway-authtype") == "awsSigv4"}
        for path, methods in body["paths"].items():
            for method, operation in methods.items():
                uri = operation["x-amazon-apigateway-integration"]["uri"]["Fn::Sub"]
                function = uri.split("functions/${")[1].split(".Arn}")[0]
                required = {name for one in operation.get("security", []) for name in one} - {"NONE"}
                if required - signed:
                    raise TemplateError(f"route {method} {path}: only AWS_IAM authorizers are served here")
                yield Route(method.upper(), path, function, bool(required))


def _take_invoke_configs(resources: dict[str, Any], template: dict[str, Any]) -> dict[str, int]:
    """Retries by function; destinations become outputs, which CloudFormation resolves."""
    retries = {}
    for resource in list(resources.values()):
        if resource["Type"] == "AWS::Lambda::EventInvokeConfig":
            properties = resource["Properties"]
            function = properties["FunctionName"]["Ref"]
            retries[function] = int(properties.get("MaximumRetryAttempts", 2))
            destination = properties.get("DestinationConfig", {}).get("OnFailure", {}).get("Destination")
            if destination is not None:
                template.setdefault("Outputs", {})[f"{ON_FAILURE}{function}"] = {"Value": destination}
    return retries


def _take_schedules(resources: dict[str, Any], template: dict[str, Any]) -> None:
    """Schedules become outputs, which CloudFormation resolves, if their condition holds; the deployment makes them."""
    for name, resource in list(resources.items()):
        if resource["Type"] != "AWS::Scheduler::Schedule":
            continue
        properties = resources.pop(name)["Properties"]
        target = properties["Target"]
        dead_letters = target.get("DeadLetterConfig", {}).get("Arn", "")
        parts = [properties["Name"], properties["ScheduleExpression"], target["Arn"], target["RoleArn"], dead_letters]
        output = {"Value": {"Fn::Join": ["\n", [*parts, target["Input"]]]}}
        if "Condition" in resource:
            output["Condition"] = resource["Condition"]
        template.setdefault("Outputs", {})[f"{SCHEDULE}{name}"] = output


def _take_pod_identities(resources: Mapping[str, Any], template: dict[str, Any]) -> None:
    """Pod Identity associations become outputs, which CloudFormation resolves."""
    for name, resource in resources.items():
        if resource["Type"] == "AWS::EKS::PodIdentityAssociation":
            parts = [resource["Properties"][part] for part in ("Namespace", "ServiceAccount", "RoleArn")]
            template.setdefault("Outputs", {})[f"{POD_IDENTITY}{name}"] = {"Value": {"Fn::Join": ["\n", parts]}}


def _replace_api_outputs(template: dict[str, Any], apis: set[str], api_url: str) -> None:
    for output in template.get("Outputs", {}).values():
        value = output["Value"]
        text = value.get("Fn::Sub") if isinstance(value, dict) else None
        match = API_OUTPUT.search(text) if isinstance(text, str) else None
        if match and match[1] in apis:
            output["Value"] = api_url + (match[2] or "").rstrip("/")


def _prepare(resource: dict[str, Any]) -> None:
    properties = resource.get("Properties", {})
    if resource["Type"] == "AWS::Lambda::Function":
        properties["Code"] = {"ZipFile": UNUSED_CODE}
    elif resource["Type"] == "AWS::IAM::Role":
        # moto makes a policy of AWS::NoValue, and fails. Permissions are not judged here: the policy stays.
        properties["Policies"] = [
            one["Fn::If"][1] if "Fn::If" in one else one for one in properties.get("Policies", [])
        ]
    elif resource["Type"] == "AWS::StepFunctions::StateMachine":
        text = properties["DefinitionString"]
        joined = text["Fn::Join"][0].join(text["Fn::Join"][1]) if isinstance(text, dict) else text
        properties["DefinitionString"] = {"Fn::Sub": [joined, properties.pop("DefinitionSubstitutions", {})]}


def _refuse_dangling(template: Mapping[str, Any], dropped: set[str]) -> None:
    wanted = {(where, name) for where, name in _references(template) if name in dropped}
    if wanted:
        lines = ", ".join(f"{where} refers to {name}" for where, name in sorted(wanted))
        raise TemplateError(f"{lines}, which the local stack drops: see DROPPED in local/cloud/sam.py")


def _references(template: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for section in ("Resources", "Outputs"):
        for name, part in template.get(section, {}).items():
            found: list[str] = []
            _walk(part, found.append)
            yield from ((name, one) for one in found)
            yield from ((name, one) for one in _as_list(part.get("DependsOn")))


def _as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


def _walk(part: Any, found: Callable[[str], None]) -> None:
    if isinstance(part, list):
        for one in part:
            _walk(one, found)
    elif isinstance(part, dict):
        if isinstance(part.get("Ref"), str):
            found(part["Ref"])
        if "Fn::GetAtt" in part:
            target = part["Fn::GetAtt"]
            found(target.split(".")[0] if isinstance(target, str) else target[0])
        if "Fn::Sub" in part:
            text = part["Fn::Sub"] if isinstance(part["Fn::Sub"], str) else part["Fn::Sub"][0]
            for one in re.findall(r"\$\{(\w+)[}.]", text):
                found(one)
        for one in part.values():
            _walk(one, found)

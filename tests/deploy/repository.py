"""The repository's own files as the deploy tests read them."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import boto3
from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator
from samtranslator.yaml_helper import yaml_parse

ROOT = Path(__file__).resolve().parent.parent.parent
MACHINES = sorted((ROOT / "statemachine").glob("*.asl.json"))
REQUIRED_PARAMETERS = {"HyperPodClusterName": "hyperpod", "EksClusterName": "eks"}

Json = dict[str, Any]


@cache
def template() -> Json:
    """template.yaml, with short forms (``!Ref``) as CloudFormation's long ones."""
    parsed: Json = yaml_parse((ROOT / "template.yaml").read_text())
    return parsed


@cache
def translated() -> Json:
    """The CloudFormation template that ``sam deploy`` makes of it: code and definitions lie in S3 by then."""
    source = yaml_parse((ROOT / "template.yaml").read_text())
    source["Globals"]["Function"]["CodeUri"] = "s3://artifacts/functions.zip"
    for name, resource in source["Resources"].items():
        if resource["Type"] == "AWS::Serverless::StateMachine":
            resource["Properties"]["DefinitionUri"] = f"s3://artifacts/{name}.json"
    session = boto3.Session(region_name="us-east-1")
    result: Json = Translator({}, Parser(), boto_session=session).translate(source, dict(REQUIRED_PARAMETERS))
    return result


def resources(kind: str) -> dict[str, Json]:
    """Logical id -> properties of the translated resources of one type."""
    found = translated()["Resources"]
    return {name: one.get("Properties", {}) for name, one in found.items() if one["Type"] == kind}


def machine(path: Path) -> Json:
    definition: Json = json.loads(path.read_text())
    return definition


def states(definition: Json) -> dict[str, Json]:
    """Every state, also those inside Parallel and Map states."""
    found: dict[str, Json] = {}
    for name, state in definition["States"].items():
        found[name] = state
        for inner in [*state.get("Branches", []), *([state["ItemProcessor"]] if "ItemProcessor" in state else [])]:
            found |= states(inner)
    return found


def tool(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a tool of the repository's environments; its output is for the assertion's message."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"AWS_DEFAULT_REGION": "us-east-1", "SAM_CLI_TELEMETRY": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

"""The shipped state machines, table and bucket in the local cloud, with the shipped controller handler over a played
cluster: what a run needs of template.yaml, and nothing that would only be started."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samtranslator.yaml_helper import yaml_parse

REPOSITORY = Path(__file__).resolve().parents[2]
WANTED = ("ControllerFunction", "TrainingRun", "Shift", "Table", "Bucket")
PARAMETERS = {"EksClusterName": "eks", "HyperPodClusterName": "hp"}


def _names(part: Any) -> Iterator[str]:
    """Every logical name that a part of the template mentions."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "Ref":
                yield value
            elif key == "Fn::GetAtt":
                yield value.split(".")[0] if isinstance(value, str) else value[0]
            elif key == "Fn::Sub":
                yield from re.findall(r"\$\{(\w+)", value if isinstance(value, str) else value[0])
            yield from _names(value)
    elif isinstance(part, list):
        for one in part:
            yield from _names(one)


def written(folder: Path) -> Path:
    """The template's file."""
    template = yaml_parse((REPOSITORY / "template.yaml").read_text())
    resources = template["Resources"]
    keep = [*WANTED, *(n for n in _names(template["Globals"]) if n in resources)]
    for name in keep:  # grows while it is read
        resources[name].get("Properties", {}).pop("Events", None)
        resources[name].get("Properties", {}).pop("EventInvokeConfig", None)
        keep += [n for n in dict.fromkeys(_names(resources[name])) if n in resources and n not in keep]
    template["Resources"] = {name: resources[name] for name in keep}
    function = template["Resources"]["ControllerFunction"]["Properties"]
    function |= {"Handler": "entry.handler", "CodeUri": str(REPOSITORY / "tests" / "horizon")}
    for name in ("TrainingRun", "Shift"):
        machine = template["Resources"][name]["Properties"]
        machine["DefinitionUri"] = str(REPOSITORY / machine["DefinitionUri"])
    template["Outputs"] = {
        "TableName": {"Value": {"Ref": "Table"}},
        "BucketName": {"Value": {"Ref": "Bucket"}},
        "TrainingRunArn": {"Value": {"Ref": "TrainingRun"}},
        "ShiftArn": {"Value": {"Ref": "Shift"}},
    }
    path = folder / "template.yaml"
    path.write_text(json.dumps(template))
    return path

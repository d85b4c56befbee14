"""Prints what is installed beside it, with licences, as a CycloneDX 1.6 document: the bill of materials of the image."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from typing import Any

MAX_NAME = 200
"""Characters of a licence's name: some packages put the whole licence there."""


def licences(package: Distribution) -> list[dict[str, Any]]:
    """By what says it best: an SPDX expression, the classifiers, the free text. Empty where the package says nothing."""
    about = package.metadata
    if expression := about.get("License-Expression"):
        return [{"expression": expression}]
    classified = [one.split(" :: ")[-1] for one in about.get_all("Classifier") or [] if one.startswith("License :: ")]
    text = (about.get("License") or "").strip()
    named = [one for one in classified if one != "OSI Approved"] or ([text.splitlines()[0][:MAX_NAME]] if text else [])
    return [{"license": {"name": name}} for name in named]


def component(package: Distribution) -> dict[str, Any]:
    """One package; ``purl`` names it for whoever looks up its vulnerabilities."""
    name, version = package.metadata["Name"], package.version
    canonical = re.sub(r"[-_.]+", "-", name).lower()
    found: dict[str, Any] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{canonical}@{version.replace('+', '%2B')}",
    }
    if told := licences(package):
        found["licenses"] = told
    return found


def document(packages: Iterable[Distribution]) -> dict[str, Any]:
    """Every package once, by name; the same packages give the same document."""
    by_name = {one.metadata["Name"].lower(): component(one) for one in packages if one.metadata["Name"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": "nightshift"}},
        "components": [by_name[name] for name in sorted(by_name)],
    }


if __name__ == "__main__":
    json.dump(document(distributions()), sys.stdout, indent=1)
    sys.stdout.write("\n")

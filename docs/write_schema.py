"""Writes runspec.schema.json from the RunSpec model: ``make schema``. A test fails where the two differ."""

from __future__ import annotations

import json
from pathlib import Path

from nightshift.contract.spec import RunSpec

PATH = Path(__file__).with_name("runspec.schema.json")


def schema_text() -> str:
    """The schema of what a person writes: fields with defaults are not required."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **RunSpec.model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(schema_text())
    print(f"written: {PATH.name}")

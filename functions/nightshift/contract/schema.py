"""The JSON schema of RunSpec as people and their editors read it: in the repository, and beside the runs in the bucket."""

from __future__ import annotations

import json
from typing import Final

from nightshift.contract.spec import RunSpec

SCHEMA_KEY: Final = "schema/runspec.json"
SCHEMA_TYPE: Final = "application/schema+json"


def schema_text() -> str:
    """The schema of what a person writes: fields with defaults are not required."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **RunSpec.model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"

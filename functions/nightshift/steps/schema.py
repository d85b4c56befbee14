"""The schema of a run spec in the bucket, always that of the code which reads the specs."""

from __future__ import annotations

from nightshift.contract.schema import SCHEMA_KEY, SCHEMA_TYPE, schema_text
from nightshift.steps.ports import Artifacts


def publish_schema(artifacts: Artifacts) -> bool:
    """Write it where other bytes or none lie there; False where nothing was to do."""
    body = schema_text().encode()
    if artifacts.read_small(SCHEMA_KEY) == body:
        return False
    artifacts.put("schema", SCHEMA_KEY, body, SCHEMA_TYPE)
    return True

"""The schema in the bucket is that of the code which reads the specs."""

from __future__ import annotations

import json

import jsonschema

from nightshift.contract.schema import SCHEMA_KEY, schema_text
from nightshift.steps.schema import publish_schema
from tests.builders import spec_json
from tests.steps.world import BUCKET, World


def stored(world: World) -> bytes:
    body: bytes = world.s3.get_object(Bucket=BUCKET, Key=SCHEMA_KEY)["Body"].read()
    return body


def test_it_is_written_once_and_again_where_something_else_lies_there(world: World) -> None:
    assert [publish_schema(world.ports.artifacts) for _ in range(2)] == [True, False]
    world.s3.put_object(Bucket=BUCKET, Key=SCHEMA_KEY, Body=b"of an older version")
    assert publish_schema(world.ports.artifacts)
    assert stored(world) == schema_text().encode()


def test_an_editor_that_has_only_the_bucket_can_check_a_spec_with_it(world: World) -> None:
    publish_schema(world.ports.artifacts)
    schema = json.loads(stored(world))
    jsonschema.validate(spec_json(), schema)
    refused = jsonschema.Draft202012Validator(schema).is_valid(spec_json(run_id="Not valid"))
    assert not refused

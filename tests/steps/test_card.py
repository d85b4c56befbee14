"""What the job knows of an adapter is in the card that is published with it."""

from __future__ import annotations

from nightshift.contract.job import ExportRecord
from nightshift.contract.layout import RunKeys
from nightshift.core.run import Awaiting
from nightshift.steps.publish import publish
from tests.steps.test_run import finish_attempt, put_results
from tests.steps.test_signals import running
from tests.steps.world import BUCKET, World, step

KEYS = RunKeys("maze-1")


def test_the_card_has_the_base_models_licence_the_weights_digest_and_the_picture(world: World) -> None:
    running(world)
    put_results(world, 1, {0: 28})
    finish_attempt(world, attempt=1)
    key = KEYS.export_record(1, 400)
    record = ExportRecord.from_json(world.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
    world.put(key, record.model_copy(update={"base_licence": "apache-2.0"}))
    world.s3.put_object(Bucket=BUCKET, Key=KEYS.curve_png, Body=b"a picture")
    assert (ended := world.look(Awaiting.ATTEMPT, "token-9")) is not None and ended.decision == "succeeded"

    publish(world.ports, step("publish"))

    card = world.s3.get_object(Bucket=BUCKET, Key=f"{KEYS.adapter('best')}README.md")["Body"].read().decode()
    assert "\nlicense: apache-2.0\n" in card
    assert record.files["adapter_model.safetensors"].sha256 in card
    assert "](../../curve.png)" in card

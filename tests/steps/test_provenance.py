"""What a publication says about where its base model came from."""

from __future__ import annotations

import pytest

from nightshift.contract.job import OutcomeCause
from nightshift.contract.layout import RunKeys
from nightshift.contract.publication import Provenance
from nightshift.core.observation import JobState, JobView
from nightshift.core.run import Awaiting
from nightshift.steps.publish import publish
from tests.builders import outcome
from tests.steps.test_run import put_results
from tests.steps.test_signals import running
from tests.steps.world import BUCKET, World, step

KEYS = RunKeys("maze-1")
COMMIT = f"hf://owner/name@{'a' * 40}"


@pytest.mark.parametrize(
    ("source", "resolved", "told"),
    [
        ("hf://owner/name@main", COMMIT, COMMIT),
        ("hf://owner/name@main", None, "hf://owner/name@main"),
        ("/shared/models/mine", COMMIT, "/shared/models/mine"),
    ],
)
def test_a_branch_of_the_hub_is_published_as_the_commit_that_was_trained(
    world: World, source: str, resolved: str | None, told: str
) -> None:
    running(world, model={"source": source})
    put_results(world, 1, {0: 28, 400: 62})
    world.put(KEYS.outcome(1), outcome(OutcomeCause.FINISHED, model=resolved))
    world.jobs.states["maze-1-a1"] = JobView(JobState.SUCCEEDED)
    assert world.look(Awaiting.ATTEMPT, "token-2") is not None
    publish(world.ports, step("publish"))
    stored = world.s3.get_object(Bucket=BUCKET, Key=KEYS.provenance)["Body"].read()
    assert Provenance.from_json(stored).model == told

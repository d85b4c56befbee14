"""After a way back: what becomes of a run that has met something which only the newer release knows (docs/upgrading.md)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from nightshift.contract.api import Retry
from nightshift.contract.events import Stage
from nightshift.contract.layout import RunKeys
from nightshift.core.causes import EndCause
from nightshift.core.errors import PermanentError
from nightshift.core.reconcile import ExecutionState, ExecutionStatus
from nightshift.core.run import Awaiting, RunState
from nightshift.steps.ending import abandon, finish_for, notify, release, teardown
from nightshift.steps.publish import publish
from nightshift.steps.reconcile import reconcile
from nightshift.steps.requests import Fault
from nightshift.steps.retry import retry
from tests.steps.test_run import put_results
from tests.steps.test_signals import running
from tests.steps.world import BUCKET, World, step

KEYS = RunKeys("maze-1")


def test_a_run_whose_spec_names_a_later_field_ends_keeps_what_it_has_and_goes_on_after_the_next_upgrade(
    world: World,
) -> None:
    running(world)
    put_results(world, 1, {0: 28, 20: 40})
    known = world.s3.get_object(Bucket=BUCKET, Key=KEYS.spec)["Body"].read()
    later = json.dumps(json.loads(known) | {"a_later_field": 1}).encode()
    world.s3.put_object(Bucket=BUCKET, Key=KEYS.spec, Body=later)

    with pytest.raises(PermanentError, match="a_later_field") as refused:
        world.look(Awaiting.ATTEMPT, "token-2")
    fault = Fault(Error="PermanentError", Cause=str(refused.value))  # what the machines make of it
    abandon(world.ports, step("abandon", error=fault))
    with pytest.raises(PermanentError, match="a_later_field"):
        publish(world.ports, step("publish"))
    for ending in (abandon, teardown, release, notify):
        ending(world.ports, step(ending.__name__, error=fault))

    run = world.run()
    assert (run.state, run.cause) == (RunState.FAILED, EndCause.CONTROLLER_FAULT) and "a_later_field" in run.sentence
    assert world.runs.lease_holder("default") is None and not world.clusters.current.exists
    assert [one.stage for one in world.stages.events][-1] is Stage.FAILED
    kept = world.s3.list_objects_v2(Bucket=BUCKET, Prefix=KEYS.evals)["Contents"]
    assert len(kept) == 4, "rows and summaries of both evals"

    world.s3.put_object(Bucket=BUCKET, Key=KEYS.spec, Body=known)  # to a release that knows the field it is readable
    retry(world.ports, "maze-1", Retry(), "team")
    assert (world.run().state.is_final, world.run().k, world.run().verified_step) == (False, 2, run.verified_step)


def test_of_a_run_whose_record_has_a_later_word_nothing_is_decided_and_the_next_upgrade_ends_it(world: World) -> None:
    running(world)
    put_results(world, 1, {0: 28, 20: 40})
    key = {"pk": "RUN#maze-1", "sk": "RUN"}
    world.table.put_item(Item=world.table.get_item(Key=key)["Item"] | {"cause": "a_later_cause"})

    for call in (
        lambda: world.look(Awaiting.ATTEMPT, "token-2"),
        lambda: abandon(world.ports, step("abandon")),
        lambda: teardown(world.ports, step("teardown")),
        lambda: finish_for(world.ports, "maze-1", 1, "FAILED", "its execution"),
    ):
        with pytest.raises(PermanentError, match="cause"):
            call()
    world.executions.ended["maze-1-r1"] = ExecutionStatus(ExecutionState.FAILED, world.now())
    world.later(3600)
    reconcile(replace(world.ports, remaining=lambda: 240.0))

    there = world.table.get_item(Key=key)["Item"]
    assert (there["state"], there["cause"]) == ("running", "a_later_cause")
    assert world.clusters.deleted == [] and world.jobs.stopped == []
    assert world.runs.lease_holder("default") == "maze-1"

    world.table.put_item(Item={name: value for name, value in there.items() if name != "cause"})  # now it is readable
    reconcile(replace(world.ports, remaining=lambda: 240.0))
    assert (world.run().state, world.run().cause) == (RunState.FAILED, EndCause.CONTROLLER_FAULT)
    assert world.runs.lease_holder("default") is None and not world.clusters.current.exists
    retry(world.ports, "maze-1", Retry(), "team")
    assert not world.run().state.is_final

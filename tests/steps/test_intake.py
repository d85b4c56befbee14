"""A start request: once, or refused with every reason."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from nightshift.contract.events import RequestAnswer, ScheduledStart, Stage
from nightshift.contract.upgrades import spec_file
from nightshift.core.requests import MAX_SPEC_BYTES
from nightshift.core.run import RunState
from nightshift.steps.intake import Deployment, DroppedFile, Intake, request_of_file, request_of_schedule
from nightshift.steps.transitions import admit
from nightshift.steps.view import view_run
from tests.builders import NOW, spec, spec_json
from tests.steps.world import World, step

HERE = Deployment("hp", "ns")
FIXTURES = Path(__file__).parent.parent / "fixtures"


def test_a_valid_request_becomes_a_run_with_a_spec_and_one_execution(world: World) -> None:
    asked = world.ask()
    assert asked.created and asked.run is not None
    assert world.executions.started == [("maze-1-r1", {"version": 1, "run_id": "maze-1", "k": 1})]
    assert world.ports.artifacts.spec("maze-1").run_id == "maze-1"
    assert world.stages.events == []


def test_the_bucket_gets_a_spec_that_the_first_release_reads_and_gives_back_one_that_it_wrote(world: World) -> None:
    world.ask()
    place = {"Bucket": "artifacts", "Key": "runs/maze-1/spec.json"}
    assert world.s3.get_object(**place)["Body"].read() == spec_file(spec())
    world.s3.put_object(**place, Body=(FIXTURES / "base" / "spec.json").read_bytes())
    assert world.ports.artifacts.spec("maze-1") == spec()


def test_a_second_identical_request_is_the_same_run(world: World) -> None:
    world.ask()
    again = world.ask(owner="somebody else")
    assert not again.created and again.run is not None and again.run.owner == "team"
    assert len(world.executions.started) == 1


def test_an_identical_request_finishes_what_a_dead_intake_left_half_done(world: World) -> None:
    first = world.ask()
    world.executions.started.clear()
    world.s3.delete_object(Bucket="artifacts", Key="runs/maze-1/spec.json")
    again = world.ask()
    assert first.created and not again.created
    assert len(world.executions.started) == 1
    assert world.ports.artifacts.spec("maze-1").run_id == "maze-1"


def test_another_request_with_a_used_id_is_refused_and_changes_nothing(world: World) -> None:
    world.ask()
    other = world.ask(training={"max_turns": 16})
    assert other.run is None and other.conflict
    assert [e.field for e in other.errors] == ["run_id"]
    assert world.ports.artifacts.spec("maze-1").training.max_turns == 15
    assert world.run().state is RunState.ADMITTED
    assert [e.stage for e in world.stages.events] == [Stage.REJECTED]


def test_an_invalid_request_starts_nothing_is_recorded_and_said_once(world: World) -> None:
    for _ in range(2):
        refused = world.ask(surprise=1, training={"train_batch_size": 25})
        assert refused.run is None and not refused.conflict
    assert world.executions.started == []
    assert world.runs.get("maze-1") is None
    (said,) = world.stages.events
    assert {e.field for e in said.errors} == {"surprise"}
    shown = view_run(world.ports, "maze-1", "artifacts")
    assert shown is not None and shown.state == "rejected" and [e.field for e in shown.errors] == ["surprise"]


def test_a_request_without_a_usable_id_is_recorded_all_the_same(world: World) -> None:
    refused = world.ask(run_id="Not / valid")
    assert [e.field for e in refused.errors] == ["run_id"]
    assert world.stages.events[0].run_id == "Not---valid"


def test_nobody_ever_asked_is_no_view(world: World) -> None:
    assert view_run(world.ports, "unknown", "artifacts") is None


# ------------------------------------------------------------------ a file dropped under requests/
def drop(world: World, name: str, body: bytes, size: int | None = None) -> Intake | None:
    world.s3.put_object(Bucket="artifacts", Key=name, Body=body)
    found = DroppedFile(name, len(body) if size is None else size, "111122223333", "192.0.2.10")
    return request_of_file(world.ports, HERE, found)


def answer(world: World, key: str) -> RequestAnswer:
    return RequestAnswer.from_json(world.s3.get_object(Bucket="artifacts", Key=key)["Body"].read())


def keys(world: World) -> set[str]:
    return {one["Key"] for one in world.s3.list_objects_v2(Bucket="artifacts").get("Contents", [])}


@pytest.mark.parametrize(("name", "written"), [("maze.yaml", yaml.safe_dump), ("maze.json", json.dumps)])
def test_a_dropped_spec_is_a_run_and_says_so_beside_but_never_there(world: World, name: str, written: Any) -> None:
    asked = drop(world, f"requests/{name}", written(spec_json()).encode())
    assert asked is not None and asked.created and asked.run is not None
    assert asked.run.owner == "111122223333"
    assert world.executions.started == [("maze-1-r1", {"version": 1, "run_id": "maze-1", "k": 1})]
    (line,) = world.runs.audit_trail("maze-1", 10)
    assert f"dropped as requests/{name} from 192.0.2.10" in line.detail
    assert answer(world, f"answers/{name}.json") == RequestAnswer(
        request=f"requests/{name}", run_id="maze-1", created=True
    )
    assert {key for key in keys(world) if key.startswith("requests/")} == {f"requests/{name}"}


def test_a_file_whose_event_comes_twice_and_a_copy_of_it_are_one_run(world: World) -> None:
    body = json.dumps(spec_json()).encode()
    for name in ("requests/a.json", "requests/a.json", "requests/copy.json"):
        drop(world, name, body)
    assert len(world.executions.started) == 1
    assert answer(world, "answers/copy.json.json").created is False


def test_a_spec_that_is_overwritten_or_deleted_before_its_event_comes_is_a_run_all_the_same(world: World) -> None:
    world.s3.put_bucket_versioning(Bucket="artifacts", VersioningConfiguration={"Status": "Enabled"})
    place, dropped = {"Bucket": "artifacts", "Key": "requests/maze.json"}, []
    for run_id in ("maze-1", "maze-2"):
        body = json.dumps(spec_json(run_id=run_id)).encode()
        version = world.s3.put_object(**place, Body=body)["VersionId"]
        dropped.append(DroppedFile("requests/maze.json", len(body), "111122223333", "192.0.2.10", version))
    world.s3.delete_object(**place)
    taken = [request_of_file(world.ports, HERE, one) for one in (*dropped, dropped[0])]
    assert [(one.run.run_id, one.created) for one in taken if one and one.run] == [
        ("maze-1", True), ("maze-2", True), ("maze-1", False),
    ]  # fmt: skip
    gone = request_of_file(world.ports, HERE, replace(dropped[0], version="none-such"))
    assert gone is not None and "not there any more" in gone.errors[0].problem


def test_a_repeat_leaves_the_answer_that_says_what_was_begun_and_a_changed_file_has_its_own(world: World) -> None:
    began, key = json.dumps(spec_json()).encode(), "answers/maze.json.json"
    for _ in range(3):
        drop(world, "requests/maze.json", began)
        assert answer(world, key) == RequestAnswer(request="requests/maze.json", run_id="maze-1", created=True)
    drop(world, "requests/maze.json", json.dumps(spec_json(notify="all")).encode())
    assert [e.field for e in answer(world, key).errors] == ["run_id"]
    drop(world, "requests/maze.json", began)
    assert answer(world, key) == RequestAnswer(request="requests/maze.json", run_id="maze-1", created=False)


@pytest.mark.parametrize(
    ("name", "body", "field", "shown"),
    [
        ("bad.yaml", b"a: [1", "file", "bad"),
        ("bad.txt", b"run_id: maze-1", "file", "bad.txt"),
        ("bad.yaml", yaml.safe_dump(spec_json(surprise=1)).encode(), "surprise", "maze-1"),
    ],
)
def test_a_bad_file_is_told_by_field_in_three_places(
    world: World, name: str, body: bytes, field: str, shown: str
) -> None:
    for _ in range(2):  # S3 may tell of it twice
        asked = drop(world, f"requests/{name}", body)
        assert asked is not None and asked.run is None
    (said,) = world.stages.events
    assert (said.stage, said.run_id, [e.field for e in said.errors]) == (Stage.REJECTED, shown, [field])
    assert [e.field for e in answer(world, f"answers/{name}.json").errors] == [field]
    view = view_run(world.ports, shown, "artifacts")
    assert view is not None and [e.field for e in view.errors] == [field]
    assert world.executions.started == []


def test_a_large_file_is_not_even_read_and_one_that_is_gone_is_told(world: World) -> None:
    large = drop(world, "requests/large.json", b"{}", size=MAX_SPEC_BYTES + 1)
    assert large is not None and "it has 100,001 bytes" in large.errors[0].problem
    gone = request_of_file(world.ports, HERE, DroppedFile("requests/gone.json", 10, "1", ""))
    assert gone is not None and "not there any more" in gone.errors[0].problem


def test_a_folders_marker_asks_for_nothing(world: World) -> None:
    assert drop(world, "requests/team/", b"") is None
    assert world.stages.events == [] and keys(world) == {"requests/team/"}


# ------------------------------------------------------------------ a schedule
ARN = "arn:aws:scheduler:us-east-1:111122223333:schedule/default/nightshift-nightly"


def nightly(world: World, at: datetime = NOW, **changes: Any) -> Intake:
    uri = "s3://artifacts/schedules/nightly.yaml"
    body = yaml.safe_dump(spec_json(run_id="nightly-{date}")).encode()
    world.s3.put_object(Bucket="artifacts", Key="schedules/nightly.yaml", Body=body)
    start = ScheduledStart(**({"scheduled_time": at, "schedule": ARN, "spec_uri": uri} | changes))
    return request_of_schedule(world.ports, HERE, start, "artifacts")


def test_a_scheduled_time_is_one_run_however_often_it_comes_and_the_next_night_another(world: World) -> None:
    first, again = nightly(world), nightly(world)
    assert first.created and not again.created
    assert first.run is not None and first.run.owner == "schedule nightshift-nightly"
    world.later(24 * 3_600)
    other = nightly(world, NOW + timedelta(days=1))
    assert other.created and other.run is not None
    assert [name for name, _ in world.executions.started] == ["nightly-20261130-r1", "nightly-20261201-r1"]


def test_a_start_that_comes_too_late_is_dropped_recorded_and_said_once(world: World) -> None:
    world.later(3_601)
    for _ in range(2):
        assert nightly(world).run is None
    assert world.executions.started == []
    (said,) = world.stages.events
    assert (said.run_id, [e.field for e in said.errors]) == ("nightly-20261130", ["scheduled_time"])
    view = view_run(world.ports, "nightly-20261130", "artifacts")
    assert view is not None and view.state == "rejected"


def test_a_late_repeat_of_a_start_that_began_a_run_refuses_nothing(world: World) -> None:
    nightly(world)
    world.later(7_200)
    again = nightly(world)
    assert again.run is not None and not again.created and world.stages.events == []


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("s3://somebody-else/schedules/nightly.yaml", "must be below s3://artifacts/schedules/"),
        ("s3://artifacts/requests/nightly.yaml", "must be below s3://artifacts/schedules/"),
        ("s3://artifacts/runs/maze-1/spec.json", "must be below s3://artifacts/schedules/"),
        ("s3://artifacts/schedules/", "must be below s3://artifacts/schedules/"),
        ("s3://artifacts/schedules/none.yaml", "not there any more"),
    ],
)
def test_an_address_that_cannot_be_read_is_a_refused_request(world: World, uri: str, says: str) -> None:
    for key in ("requests/nightly.yaml", "runs/maze-1/spec.json", "schedules/"):  # there is something to read
        world.s3.put_object(Bucket="artifacts", Key=key, Body=yaml.safe_dump(spec_json(run_id="n-{date}")).encode())
    asked = nightly(world, spec_uri=uri)
    assert world.executions.started == []
    assert [e.field for e in asked.errors] == ["spec_uri"] and says in asked.errors[0].problem
    assert [e.stage for e in world.stages.events] == [Stage.REJECTED]


def test_a_schedule_may_carry_its_spec_itself(world: World) -> None:
    asked = nightly(world, spec_uri=None, spec=spec_json(run_id="hourly-{date}-{time}"))
    assert asked.run is not None and asked.run.run_id == "hourly-20261130-0300"


# ------------------------------------------------------------------ many at once
def test_a_hundred_starts_for_one_pool_are_a_hundred_queued_runs_in_their_order(world: World) -> None:
    """Ten in each second, as they come from a script; the later ones are admitted first, as executions may be."""
    ids = [f"burst-{n}" for n in range(100)]
    for n, run_id in enumerate(ids):
        world.time = NOW + timedelta(milliseconds=100 * n)
        assert world.ask(run_id=run_id).created
    assert [name for name, _ in world.executions.started] == [f"{run_id}-r1" for run_id in ids]
    for run_id in reversed(ids):
        assert admit(world.ports, step("admit", run_id)).decision == "queued"
    taken = []
    while (first := world.runs.next_in_line("default")) is not None:
        run = world.run(first)
        assert world.runs.take_lease(run, world.now())
        taken.append(first)
        world.runs.finish(world.run(first), RunState.CANCELLED, ended_at=world.now())
    assert taken == ids

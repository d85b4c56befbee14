"""Bad events at the handlers, called as Lambda calls them: each is answered, wakes nobody and starts nothing."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from nightshift.contract.layout import RunKeys
from nightshift.contract.spec import RunSpec
from nightshift.core.admission import check_spec
from nightshift.core.errors import NightshiftError, PermanentError
from nightshift.core.run import Awaiting, RunState
from nightshift.handlers import controller, finisher, intake, notifier, signals, wiring
from nightshift.steps.intake import Deployment, request_run
from nightshift.steps.signals import receive
from tests.builders import outcome, spec_json
from tests.garbage.conftest import Context
from tests.garbage.strategies import VALUES, mutated
from tests.steps.test_signals import running
from tests.steps.world import BUCKET, World

EVENTS = Path(__file__).resolve().parents[2] / "events"
HYPERPOD = [
    json.loads((EVENTS / f"{name}.json").read_text()) for name in ("node-health", "cluster-event", "cluster-state")
]
OUTCOME = json.loads((EVENTS / "outcome.json").read_text())
STAGE = json.loads((EVENTS / "stage.json").read_text())
DROPPED = json.loads((EVENTS / "dropped-spec.json").read_text())
SCHEDULED = json.loads((EVENTS / "scheduled-start.json").read_text())
START = json.loads((EVENTS / "start-request.json").read_text())
EXECUTION = json.loads((EVENTS / "execution.json").read_text())


def about(event: dict[str, Any], **detail: Any) -> dict[str, Any]:
    changed = copy.deepcopy(event)
    changed["detail"] |= detail
    return changed


@pytest.mark.parametrize(
    "event", [*HYPERPOD, OUTCOME], ids=["node-health", "cluster-event", "cluster-state", "outcome"]
)
def test_no_event_breaks_the_receiver_of_signals(world: World, event: dict[str, Any]) -> None:
    running(world)

    @settings(max_examples=40, deadline=None)
    @given(st.one_of(mutated(event), VALUES))
    def received(found: Any) -> None:
        assert receive(world.ports, found) in ([], ["maze-1"])

    received()


def test_an_outcome_of_an_older_attempt_or_of_nobody_wakes_nobody(world: World) -> None:
    running(world)
    before = world.run().signal_counter
    for key in (
        "runs/maze-1/attempts/2/outcome.json",
        "runs/nobody/attempts/1/outcome.json",
        f"{RunKeys('maze-1').outcome(1)}\n",
    ):
        event = about(OUTCOME, object={"key": key})
        assert signals.handler(event, Context()) == {"woken": []}
    assert world.run().signal_counter == before


def test_an_outcome_event_before_a_bad_outcome_wakes_and_ends_nothing(world: World) -> None:
    """One walk: garbage is written, its event comes, the look is woken, reads, and goes back to sleep."""
    running(world)
    world.s3.put_object(Bucket="artifacts", Key=RunKeys("maze-1").outcome(1), Body=b"\x00garbage")
    world.later(30)
    counter = world.run().signal_counter
    receive(world.ports, about(OUTCOME, object={"key": RunKeys("maze-1").outcome(1)}))
    assert world.run().signal_counter == counter + 1 and world.executions.answered[-1][0] == "token-1"
    assert world.look(Awaiting.ATTEMPT, "token-2") is None
    world.put(RunKeys("maze-1").outcome(1), outcome(run_id="maze-2"))
    assert world.look(Awaiting.ATTEMPT, "token-3") is None
    assert world.run().state is RunState.RUNNING and world.run().attempt == 1


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"detail": None},
        {"detail": []},
        {"detail": {"name": "maze-1-r1"}},
        about(EXECUTION, name="maze-1-r1", status="RUNNING"),
        about(EXECUTION, name="maze-1-r1", status="SUCCEEDED"),
        about(EXECUTION, name="maze-1-r1", status=["FAILED"]),
        about(EXECUTION, name="maze-1-r1\n"),
        about(EXECUTION, name={"maze-1": "r1"}),
        about(EXECUTION, name="../maze-1-r1"),
    ],
)
def test_a_bad_status_event_ends_no_run(world: World, event: dict[str, Any]) -> None:
    running(world)
    assert finisher.handler(event, Context()) == {"run_id": None, "did": False}
    assert world.run().verdict is None and world.run().state is RunState.RUNNING


@pytest.mark.parametrize("event", [{}, {"detail": {}}, START | {"time": "soon"}, START | {"detail": ["spec"]}])
def test_what_is_no_event_of_eventbridge_starts_nothing_and_is_not_repeated(
    world: World, event: dict[str, Any]
) -> None:
    answer = intake.handler(event, Context())
    assert answer["run_id"] is None and answer["errors"]
    assert world.executions.started == []


@pytest.mark.parametrize("event", [DROPPED, SCHEDULED], ids=["dropped-spec", "scheduled-start"])
def test_no_file_and_no_schedule_breaks_the_intake(world: World, event: dict[str, Any]) -> None:
    """Whatever stands in the event and in the file that it names: an answer, never an error that Lambda repeats."""

    @settings(max_examples=25, deadline=None)
    @given(mutated(event), st.binary(max_size=40))
    def asked(found: Any, body: bytes) -> None:
        for key in ("requests/maze-demo.yaml", "schedules/nightly.yaml"):
            world.s3.put_object(Bucket=BUCKET, Key=key, Body=body)
        answer = intake.handler(found, Context())
        assert (answer["run_id"] is None) and set(answer) == {"run_id", "created", "errors"}

    asked()


def test_each_shape_of_event_that_asks_for_a_run_makes_one_however_often_it_comes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: set[str] = set()
    monkeypatch.setattr(wiring.StepFunctions, "start", lambda self, name, payload: started.add(name))
    world.s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    put = {"Bucket": BUCKET, "Key": "requests/maze-demo.yaml"}
    version = world.s3.put_object(**put, Body=json.dumps(spec_json(run_id="dropped")))["VersionId"]
    world.s3.put_object(**put, Body=b"a: [")  # before the first event comes
    dropped = about(DROPPED, object=DROPPED["detail"]["object"] | {"version-id": version})
    world.s3.put_object(Bucket=BUCKET, Key="schedules/nightly.yaml", Body=json.dumps(spec_json(run_id="n-{date}")))
    now = datetime.now(UTC).replace(microsecond=0)
    uri = f"s3://{BUCKET}/schedules/nightly.yaml"
    start = SCHEDULED | {"scheduled_time": now.isoformat().replace("+00:00", "Z"), "spec_uri": uri}
    for created in (True, False):
        for event in (about(START, spec=spec_json(run_id="event")), dropped, start):
            answer = intake.handler(event, Context())
            assert (answer["created"], answer["errors"]) == (created, [])
    assert started == {"event-r1", "dropped-r1", f"n-{now:%Y%m%d}-r1"}


def test_a_request_with_more_errors_than_a_message_takes_is_refused_recorded_and_said(world: World) -> None:
    raw = spec_json(training={"skyrl": {"overrides": {f"trainer.nothing_{n}": 1 for n in range(60)}}})
    answer = intake.handler(about(START, spec=raw), Context())
    assert len(answer["errors"]) == 50 and "has no such key" in answer["errors"][0]["problem"]
    assert [len(one.errors) for one in world.runs.rejections("maze-1")] == [50]


def test_a_fault_of_ours_while_a_request_is_taken_is_repeated_and_not_called_a_bad_event(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(*_: Any) -> None:
        RunSpec.model_validate({})

    monkeypatch.setattr(intake, "request_run", faulty)
    with pytest.raises(ValidationError):
        intake.handler(about(START, spec=spec_json()), Context())


def test_a_request_for_a_newer_contract_is_refused_as_such(world: World) -> None:
    answer = intake.handler(about(START, spec=spec_json(version=2)), Context())
    (error,) = answer["errors"]
    assert error["field"] == "version" and "may be newer" in error["problem"]


def test_no_start_request_breaks_the_intake(world: World) -> None:
    """Refused by field, or a run whose spec can be read back; never an error that Lambda repeats."""

    @settings(max_examples=50, deadline=None)
    @given(mutated(spec_json()))
    def asked(raw: dict[str, Any]) -> None:
        found = request_run(world.ports, Deployment("hp", "ns"), raw, "team")
        assert (found.run is None) == bool(found.errors)
        if found.run is not None:
            assert world.ports.artifacts.spec(found.run.run_id).run_id == found.run.run_id

    asked()


@settings(max_examples=150, deadline=None)
@given(mutated(spec_json()))
def test_every_request_is_a_spec_that_can_be_written_and_read_or_a_list_of_fields(raw: dict[str, Any]) -> None:
    found = check_spec(raw)
    if isinstance(found, RunSpec):
        assert RunSpec.model_validate_json(found.model_dump_json()) == found
    else:
        assert found and all(e.field and e.problem for e in found)


@settings(max_examples=150, deadline=None)
@given(mutated(STAGE))
def test_a_bad_stage_event_is_named_by_its_run_and_its_fields(event: dict[str, Any]) -> None:
    try:
        notifier.stage_event(event)
    except NightshiftError as refused:
        assert "no valid stage event: wrong fields: " in str(refused) and len(str(refused)) < 2_500


def test_a_stage_event_of_a_newer_contract_is_named_as_such() -> None:
    with pytest.raises(NightshiftError, match=r"detail\.version \(of a newer contract"):
        notifier.stage_event(about(STAGE, version=2))


def test_the_controller_names_the_spec_that_ends_its_run(world: World) -> None:
    """One walk through the function that Step Functions calls: the step fails for good, and Abandon tells why."""
    world.ask()
    world.s3.put_object(Bucket="artifacts", Key=RunKeys("maze-1").spec, Body=b'{"version": 2}')
    call = {"version": 1, "run_id": "maze-1", "k": 1}
    with pytest.raises(
        PermanentError, match=r"s3://artifacts/runs/maze-1/spec\.json cannot be used: .* version 2 "
    ) as end:
        controller.handler({**call, "step": "admit"}, Context())
    error = {"Error": "PermanentError", "Cause": json.dumps({"errorMessage": str(end.value)})}
    assert controller.handler({**call, "step": "abandon", "error": error}, Context())["decision"] == "failed"
    assert "spec.json cannot be used" in world.run().sentence
    deep = {"Error": "PermanentError", "Cause": "[" * 30_000}
    assert controller.handler({**call, "step": "abandon", "error": deep}, Context())["decision"] == "failed"

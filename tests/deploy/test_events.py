"""The sample events match exactly the rule that they are for."""

from __future__ import annotations

import fnmatch
import json
from typing import Any

import pytest

from local.cloud.schedule import rate_seconds
from nightshift.contract.events import ScheduledStart, Stage, StageEvent, StartRequest
from nightshift.contract.spec import RunSpec
from nightshift.core.admission import check_spec
from nightshift.core.events import node_hint, outcome_object
from nightshift.core.requests import MAX_START_AGE
from tests.deploy.repository import ROOT, resources, template, translated

HERE = {
    "Bucket": "nightshift-artifacts",
    "TrainingRun": "arn:aws:states:us-east-1:111122223333:stateMachine:nightshift-training-run",
}
RULE_OF = {
    "start-request": "IntakeFunctionStartRequest",
    "dropped-spec": "IntakeFunctionDropped",
    "node-health": "SignalFunctionHyperPod",
    "cluster-event": "SignalFunctionHyperPod",
    "cluster-state": "SignalFunctionHyperPod",
    "outcome": "SignalFunctionOutcome",
    "execution": "FinisherFunctionExecutionEnded",
    "stage": "NotifierFunctionStage",
    "clock": "ReconcilerFunctionClock",
    "morning": "NotifierFunctionMorning",
}
NO_RULE = {"scheduled-start"}
"""What EventBridge Scheduler hands to a function itself."""


def event(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((ROOT / "events" / f"{name}.json").read_text())
    return loaded


def matches(pattern: Any, value: Any) -> bool:
    """EventBridge's rules for what the template uses: fields, lists of literals, references and wildcards."""
    if isinstance(pattern, dict):
        return isinstance(value, dict) and all(
            name in value and matches(one, value[name]) for name, one in pattern.items()
        )
    return any(_allows(one, value) for one in pattern)


def _allows(allowed: Any, value: Any) -> bool:
    if not isinstance(allowed, dict):
        return bool(allowed == value)
    [(kind, operand)] = allowed.items()
    if kind == "Ref":
        return bool(HERE[operand] == value)
    if kind == "prefix":
        return isinstance(value, str) and value.startswith(operand)
    assert kind == "wildcard", f"teach this test the operator {kind}"
    return isinstance(value, str) and fnmatch.fnmatchcase(value, operand)


def rules_for(sample: dict[str, Any]) -> list[str]:
    return [name for name, one in resources("AWS::Events::Rule").items() if _rule_matches(name, one, sample)]


def _rule_matches(name: str, rule: dict[str, Any], sample: dict[str, Any]) -> bool:
    """A rule by the clock has no pattern: only its own scheduled event comes from it, and names it."""
    if "EventPattern" in rule:
        return matches(rule["EventPattern"], sample)
    return sample["source"] == "aws.events" and any(one.endswith(name) for one in sample["resources"])


def changed(sample: dict[str, Any], *path: str, to: Any) -> dict[str, Any]:
    if not path:
        return to  # type: ignore[no-any-return]
    return sample | {path[0]: changed(sample[path[0]], *path[1:], to=to)}


def test_there_is_a_sample_for_every_rule_and_a_rule_for_every_sample() -> None:
    assert {path.stem for path in (ROOT / "events").glob("*.json")} == set(RULE_OF) | NO_RULE
    assert set(resources("AWS::Events::Rule")) == set(RULE_OF.values())


@pytest.mark.parametrize("name", RULE_OF)
def test_a_sample_reaches_its_own_rule_and_no_other(name: str) -> None:
    assert rules_for(event(name)) == [RULE_OF[name]]


@pytest.mark.parametrize("name", ["node-health", "cluster-event", "cluster-state"])
def test_a_hyperpod_event_may_be_played_by_hand(name: str) -> None:
    # PutEvents refuses a source that begins with aws.
    assert rules_for(event(name) | {"source": "nightshift.test"}) == ["SignalFunctionHyperPod"]


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(event("node-health") | {"source": "somebody.else"}, id="a node event from a stranger"),
        pytest.param(event("start-request") | {"source": "nightshift.test"}, id="a start request from the test source"),
        pytest.param(
            changed(event("outcome"), "detail", "object", "key", to="runs/maze-demo/attempts/1/progress.json"),
            id="progress, which comes with every step",
        ),
        pytest.param(
            changed(event("outcome"), "detail", "object", "key", to="schedules/outcome.json"), id="an object elsewhere"
        ),
        pytest.param(
            changed(event("dropped-spec"), "detail", "object", "key", to="answers/maze-demo.yaml.json"),
            id="the answer to a dropped spec",
        ),
        pytest.param(
            changed(event("dropped-spec"), "detail-type", to="Object Deleted"), id="a spec that is taken away"
        ),
        pytest.param(changed(event("outcome"), "detail", "bucket", "name", to="other"), id="another bucket"),
        pytest.param(changed(event("execution"), "detail", "status", to="SUCCEEDED"), id="an execution that went well"),
        pytest.param(changed(event("execution"), "detail", "status", to="RUNNING"), id="an execution that begins"),
        pytest.param(
            changed(
                event("execution"), "detail", "stateMachineArn", to=HERE["TrainingRun"].replace("training-run", "shift")
            ),
            id="a shift, whose parent sees to it",
        ),
    ],
)
def test_what_is_not_meant_reaches_no_rule(sample: dict[str, Any]) -> None:
    assert rules_for(sample) == []


@pytest.mark.parametrize("status", ["FAILED", "TIMED_OUT", "ABORTED"])
def test_every_bad_end_of_an_execution_reaches_the_finisher(status: str) -> None:
    assert rules_for(changed(event("execution"), "detail", "status", to=status)) == ["FinisherFunctionExecutionEnded"]


def test_the_reconciler_runs_at_a_rate_and_the_notifier_every_morning_after_its_night() -> None:
    clocks = {n: one for n, one in resources("AWS::Events::Rule").items() if "ScheduleExpression" in one}
    assert set(clocks) == {"ReconcilerFunctionClock", "NotifierFunctionMorning"}
    # Some minutes after the hour: what was folded in the last second of the night is in the table by then.
    assert clocks["NotifierFunctionMorning"]["ScheduleExpression"] == {"Fn::Sub": "cron(5 ${NightEnds} * * ? *)"}
    expression = clocks["ReconcilerFunctionClock"]["ScheduleExpression"]["Fn::Sub"]
    parameter = template()["Parameters"]["ReconcileMinutes"]
    for minutes in (parameter["MinValue"], parameter["Default"], parameter["MaxValue"]):
        assert rate_seconds(expression.replace("${ReconcileMinutes}", str(minutes))) == minutes * 60


def test_the_samples_are_what_the_code_reads() -> None:
    assert isinstance(check_spec(StartRequest.model_validate(event("start-request")["detail"]).spec), RunSpec)
    assert StageEvent.model_validate(event("stage")["detail"]).run_id == "maze-demo"
    assert ScheduledStart.model_validate(event("scheduled-start")).spec_uri is not None
    assert outcome_object(event("outcome")) == ("maze-demo", 1)
    for name in ("node-health", "cluster-event"):
        hint = node_hint(event(name))
        assert hint is not None
        assert (hint.cluster, hint.instance_id) == ("training", "i-0391f86fa0fe0d465")
    assert json.loads(event("execution")["detail"]["input"])["run_id"] == "maze-demo"


def test_the_schedule_hands_over_what_the_code_reads_and_gives_up_when_the_code_would() -> None:
    [schedule] = resources("AWS::Scheduler::Schedule").values()
    target = schedule["Target"]
    text = target["Input"]["Fn::Sub"]
    for name, value in {
        "<aws.scheduler.scheduled-time>": "2026-11-30T22:00:00Z",
        "<aws.scheduler.schedule-arn>": event("scheduled-start")["schedule"],
        "${Bucket}": HERE["Bucket"],
        "${NightlySpecKey}": template()["Parameters"]["NightlySpecKey"]["Default"],
    }.items():
        assert name in text
        text = text.replace(name, value)
    assert json.loads(text) == event("scheduled-start")
    assert target["RetryPolicy"]["MaximumEventAgeInSeconds"] == MAX_START_AGE.total_seconds() == 3_600
    assert target["DeadLetterConfig"] == {"Arn": {"Fn::GetAtt": ["Undelivered", "Arn"]}}
    assert translated()["Resources"]["Nightly"]["Condition"] == "NightlyIsOn"


@pytest.mark.parametrize("stage", Stage)
def test_there_is_a_sample_of_every_stage_that_reaches_the_notifier_alone_and_is_what_the_model_writes(
    stage: Stage,
) -> None:
    sample = json.loads((ROOT / "events" / "stages" / f"{stage.replace('_', '-')}.json").read_text())
    read = StageEvent.model_validate(sample["detail"])
    assert read.stage is stage
    assert json.loads(read.to_json()) == sample["detail"], "no field is missing, renamed or unknown"
    assert rules_for(sample) == ["NotifierFunctionStage"]


def test_there_is_no_sample_of_a_stage_that_is_none() -> None:
    assert len(list((ROOT / "events" / "stages").iterdir())) == len(Stage)

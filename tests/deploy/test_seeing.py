"""What people see of a deployment: metrics that the code really emits, alarms about them, a page that says what to do, and a
dashboard that is what its script makes."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nightshift.contract.job import OutcomeCause
from nightshift.core.measures import Metric
from nightshift.core.run import RunState
from nightshift.handlers import notifier, observability, reconciler
from nightshift.steps.ending import release, teardown
from nightshift.steps.publish import publish, verify
from nightshift.steps.transitions import submit
from tests.deploy.repository import ROOT, resources, template, translated
from tests.steps.conftest import world
from tests.steps.test_recover import fails
from tests.steps.test_signals import running
from tests.steps.world import BUCKET, World, step

__all__ = ["world"]
ALARMS = resources("AWS::CloudWatch::Alarm")
FUNCTIONS = resources("AWS::Lambda::Function")
OF_THE_STACK = {"Ref": "AWS::StackName"}
Json = dict[str, Any]


def emitted(text: str) -> Iterator[tuple[str, str, frozenset[str], Json]]:
    """(namespace, name, names of its dimensions, the document) of every metric in a function's output."""
    for line in text.splitlines():
        if '"_aws"' not in line:
            continue
        document = json.loads(line)
        for directive in document["_aws"]["CloudWatchMetrics"]:
            for dimensions in directive["Dimensions"]:
                for metric in directive["Metrics"]:
                    yield directive["Namespace"], metric["Name"], frozenset(dimensions), document


def sums(text: str) -> dict[str, list[float]]:
    """Name -> values, of what alarms watch: with no dimension but the deployment's."""
    found: dict[str, list[float]] = {}
    for _, name, dimensions, document in emitted(text):
        if dimensions == {"service"}:
            value = document[name]
            found.setdefault(name, []).extend(value if isinstance(value, list) else [value])
    return found


@pytest.fixture
def measuring(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Measures go where the functions send them."""
    world.ports = replace(world.ports, measure=observability.measure)
    values = {
        "TABLE_NAME": "runs", "BUCKET_NAME": BUCKET, "AWS_REGION": "us-east-1", "CONTROLLER_ROLE_ARN": "role",
        "CONTROLLER_SESSION_NAME": "name", "EKS_CLUSTER_NAME": "eks", "HYPERPOD_CLUSTER_NAME": "hp", "NAMESPACE": "ns",
        "SERVICE_ACCOUNT": "account", "SHARED_CLAIM_NAME": "claim", "TRAINING_RUN_ARN": "arn",
        "POWERTOOLS_TRACE_DISABLED": "true",
    }  # fmt: skip
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return world


CONTEXT = SimpleNamespace(
    function_name="f", memory_limit_in_mb=128, invoked_function_arn="arn", aws_request_id="r",
    get_remaining_time_in_millis=lambda: 240_000,
)  # fmt: skip


def a_pass(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = replace(world.ports, remaining=lambda: 240.0)
    monkeypatch.setattr(reconciler, "controller_ports", lambda *_: ports)
    reconciler.handler({}, CONTEXT)  # type: ignore[arg-type]


def to_its_end(world: World) -> None:
    """A run whose NCCL fails three times at the same saved step, and which is given up for it."""
    running(world)
    world.ask()  # the same again
    submit(world.ports, step("submit"), BUCKET)  # a late repeat
    for attempt in (1, 2):
        assert fails(world, attempt, OutcomeCause.NCCL_FAILURE) == "recover"
        submit(world.ports, step("submit"), BUCKET)
    assert fails(world, 3, OutcomeCause.NCCL_FAILURE) == "failed"
    for done in (publish, verify, teardown, release, release):
        done(world.ports, step(done.__name__))
    assert world.run().state is RunState.FAILED


def test_a_run_is_counted_once_whatever_is_repeated(measuring: World, capsys: pytest.CaptureFixture[str]) -> None:
    to_its_end(measuring)
    found = sums(capsys.readouterr().out)
    assert found["RunsStarted"] == [1] and found["RunsEnded"] == [1]
    assert found["Attempts"] == [1, 1, 1]
    assert found["Recoveries"] == [1, 1] and found["RecoveriesFailed"] == [1]
    assert found["QueueWaitSeconds"] == [0]
    # Each attempt had come to step 25 or less, and the next began where the checkpoint before was.
    assert len(found["StepsLost"]) == 2 and all(0 <= lost <= 25 for lost in found["StepsLost"])
    assert len(found["RecoverySeconds"]) == 2 and all(60 <= seconds <= 300 for seconds in found["RecoverySeconds"])
    run = measuring.run()
    assert run.dollars_per_hour is not None and run.ended_at is not None and run.leased_at is not None
    hours = (run.ended_at - run.leased_at).total_seconds() / 3_600
    assert found["Dollars"] == [pytest.approx(hours * run.dollars_per_hour, abs=0.01)]


def test_no_metric_names_a_run_and_every_dimension_is_of_a_closed_set(
    measuring: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    to_its_end(measuring)
    a_pass(measuring, monkeypatch)
    found = list(emitted(capsys.readouterr().out))
    assert {dimension for _, _, dimensions, _ in found for dimension in dimensions} <= {
        "service", "state", "cause", "kind", "stage",
    }  # fmt: skip
    assert not [document for *_, document in found if "maze-1" in json.dumps(document)]


def test_every_alarm_watches_something_that_is_emitted_with_exactly_its_dimensions(
    measuring: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    to_its_end(measuring)
    measuring.ask(run_id="maze-2")
    measuring.executions.started.clear()  # its execution was never started: something to repair
    measuring.later(3_600)
    a_pass(measuring, monkeypatch)
    with pytest.raises(notifier.BadStageEvent):
        notifier.handler({"detail": {"run_id": "maze-1"}}, CONTEXT)  # type: ignore[arg-type]
    found = list(emitted(capsys.readouterr().out))
    known = {(namespace, name, dimensions) for namespace, name, dimensions, _ in found}
    watched = {
        (one["Namespace"], one["MetricName"], frozenset(d["Name"] for d in one["Dimensions"]))
        for one in ALARMS.values()
        if one.get("Namespace") == observability.NAMESPACE
    }
    assert len(watched) == 7
    assert watched - known == set()
    # The dimension's value is the stack's name, there as here.
    assert {document["service"] for *_, document in found} == {observability.DEPLOYMENT}
    assert all(one["Environment"]["Variables"]["POWERTOOLS_SERVICE_NAME"] == OF_THE_STACK for one in FUNCTIONS.values())
    ours = [one for one in ALARMS.values() if one.get("Namespace") == observability.NAMESPACE]
    assert all(one["Dimensions"] == [{"Name": "service", "Value": OF_THE_STACK}] for one in ours)


def test_every_metric_has_a_place_on_the_dashboard() -> None:
    text = (ROOT / "docs/dashboard.json").read_text()
    assert [one.value for one in Metric if f'"{one.value}"' not in text.replace('\\"', '"')] == []


def test_silence_of_what_watches_is_an_alarm_and_silence_of_what_happens_is_none() -> None:
    silent = {name for name, one in ALARMS.items() if one["TreatMissingData"] == "breaching"}
    assert silent == {"LookAlarm", "ReconcilerAlarm"}
    longest = template()["Parameters"]["ReconcileMinutes"]["MaxValue"] * 60
    assert all(ALARMS[name]["Period"] > longest for name in silent), "each period holds a pass of the reconciler"


def test_an_alarm_is_told_to_the_topic_that_was_given() -> None:
    told = {"Fn::If": ["AlarmsAreTold", [{"Ref": "AlarmTopicArn"}], {"Ref": "AWS::NoValue"}]}
    assert {name for name, one in ALARMS.items() if one["AlarmActions"] != told} == set()


def test_each_alarm_has_its_section_which_says_what_it_means_what_to_look_at_and_what_to_do() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    chapter = page.split("\n## Alarms\n")[1].split("\n## ")[0]
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", chapter, re.MULTILINE | re.DOTALL))
    assert set(sections) == set(ALARMS)
    for name, text in sections.items():
        for part in ("**Means**: ", "**Look at**: ", "**Do**: "):
            assert len(re.findall(re.escape(part) + r"\S.{20,}", text)) == 1, f"{name}: {part}"
        # What it watches, and from when on, is told as the template has it.
        watched = [ALARMS[name].get("MetricName")] if "MetricName" in ALARMS[name] else metrics_of(ALARMS[name])
        assert all(f"`{one}`" in text for one in watched), name


def metrics_of(alarm: Json) -> list[str]:
    return sorted({one["MetricStat"]["Metric"]["MetricName"] for one in alarm["Metrics"] if "MetricStat" in one})


def test_the_alarm_about_errors_watches_every_function() -> None:
    watched = {
        one["MetricStat"]["Metric"]["Dimensions"][0]["Value"]["Ref"]
        for one in ALARMS["ErrorsAlarm"]["Metrics"]
        if "MetricStat" in one
    }
    assert watched == set(FUNCTIONS)


def test_everything_is_traced() -> None:
    assert {one["TracingConfig"]["Mode"] for one in FUNCTIONS.values()} == {"Active"}
    machines = resources("AWS::StepFunctions::StateMachine")
    assert {one["TracingConfiguration"]["Enabled"] for one in machines.values()} == {True}


# the dashboard ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def script() -> ModuleType:
    where = importlib.util.spec_from_file_location("write_dashboard", ROOT / "docs/write_dashboard.py")
    assert where is not None and where.loader is not None
    module = importlib.util.module_from_spec(where)
    where.loader.exec_module(module)
    return module


def test_the_dashboard_is_what_its_script_makes(script: ModuleType) -> None:
    text = (ROOT / "template.yaml").read_text()
    why = "run make dashboard"
    assert (ROOT / "docs/dashboard.json").read_text() == script.body(), why
    assert script.in_template(text) == text, why
    [dashboard] = resources("AWS::CloudWatch::Dashboard").values()
    assert json.loads(dashboard["DashboardBody"]["Fn::Sub"]) == json.loads(script.body())


def test_the_dashboard_names_only_what_the_stack_has_and_shows_every_alarm(script: ModuleType) -> None:
    named = set(re.findall(r"\$\{([A-Za-z]\w*)[.}]", script.body()))
    assert named <= set(translated()["Resources"])
    unconditional = {name for name in ALARMS if "Condition" not in translated()["Resources"][name]}
    assert set(script.ALARMS) == unconditional, "what a condition leaves out cannot be named"
    assert {f"{name}Function" for name in script.FUNCTIONS} == set(FUNCTIONS)


def test_the_dashboard_shows_metrics_that_are_emitted(script: ModuleType) -> None:
    code = "".join(path.read_text() for path in (ROOT / "functions").rglob("*.py"))
    shown = {
        one[1]
        for widget in script.widgets()
        for one in widget["properties"].get("metrics", [])
        if one[0] == observability.NAMESPACE
    }
    assert shown and [name for name in shown if f'"{name}"' not in code] == []
    assert all(x["x"] + x["width"] <= 24 for x in script.placed())

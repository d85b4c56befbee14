"""State machines, handlers and models fit together: what one sends, the other takes; what one answers, the other routes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from nightshift.core.decision import Verb
from nightshift.core.run import Awaiting, RunState
from nightshift.steps.look import VERDICTS
from nightshift.steps.requests import LookRequest, Reply, StepName, StepRequest

MACHINES = Path(__file__).resolve().parents[2] / "statemachine"
PARENT = json.loads((MACHINES / "training_run.asl.json").read_text())["States"]
SHIFT = json.loads((MACHINES / "shift.asl.json").read_text())["States"]
STEP_NAMES = set(StepName.__args__)  # type: ignore[attr-defined]


def payloads() -> dict[str, dict[str, Any]]:
    found = {n: s["Arguments"]["Payload"] for n, s in PARENT.items() if "lambda:invoke" in s.get("Resource", "")}
    return found | {"Look": SHIFT["Look"]["Arguments"]["Payload"]}


def routes(choice: dict[str, Any]) -> dict[str, str]:
    """decision -> next state of a Choice on $decision."""
    found = {}
    for rule in choice["Choices"]:
        match = re.fullmatch(r"\{% \$decision = '(\w+)' %\}", rule["Condition"])
        assert match, rule
        found[match[1]] = rule["Next"]
    return found


CHOICES = {n: s for n, s in PARENT.items() if s["Type"] == "Choice"}


def test_every_step_is_called_by_the_machines_and_every_call_names_a_step() -> None:
    assert {p["step"] for p in payloads().values()} == STEP_NAMES


@pytest.mark.parametrize("state", payloads())
def test_a_payload_has_exactly_the_fields_that_its_model_reads(state: str) -> None:
    payload = payloads()[state]
    model = LookRequest if payload["step"] == "look" else StepRequest
    optional = {"error"}
    assert set(payload) - optional == set(model.model_fields) - optional


def test_every_answer_field_that_a_machine_reads_is_in_the_reply() -> None:
    read = re.findall(r"\$states\.result\.(?:Payload\.|Output\.)?(\w+)", json.dumps([PARENT, SHIFT]))
    assert set(read) <= set(Reply.model_fields)
    assert {"decision", "shift", "interval"} <= set(read)


def test_every_wait_awaits_something_that_a_look_knows() -> None:
    waits = [s for s in PARENT.values() if "startExecution" in s.get("Resource", "")]
    assert {w["Arguments"]["Input"]["awaiting"] for w in waits} == {a.value for a in Awaiting}


@pytest.mark.parametrize("name", CHOICES)
def test_every_routed_decision_can_be_made(name: str) -> None:
    answers = {v.value for v in Verb} | {s.value for s in VERDICTS.values()} | {"stale", "again"}
    assert set(routes(CHOICES[name])) <= answers


@pytest.mark.parametrize("wait", ["LeaseDecision", "ClusterDecision", "AttemptDecision", "FenceDecision"])
def test_a_verdict_reached_in_a_wait_leads_to_publication(wait: str) -> None:
    choice = CHOICES[wait]
    taken = routes(choice)
    for verdict in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED):
        assert taken.get(verdict.value, choice["Default"]) == "Publish"
    assert taken["stale"] == "Stale"
    assert taken["again"] == wait.replace("Decision", "").join(["Await", ""])


def test_only_a_recovery_passes_the_fence_and_every_recovery_does() -> None:
    into = {n for n, c in CHOICES.items() for d, t in routes(c).items() if t == "AwaitFence" and d == "recover"}
    assert into == {"AttemptDecision", "Submitted"}
    assert routes(CHOICES["AttemptDecision"])["recover"] == "AwaitFence"


def test_every_task_has_a_deadline_and_a_way_out() -> None:
    for name, state in [*PARENT.items(), *SHIFT.items()]:
        if state["Type"] != "Task":
            continue
        assert "TimeoutSeconds" in state, name
        assert state["Catch"], name


def test_publication_is_never_repeated_for_ever() -> None:
    for name in ("Publish", "Verify"):
        assert [c["Next"] for c in PARENT[name]["Catch"]] == ["Stale", "PublishFailed"]
    assert PARENT["PublishFailed"]["Next"] == "Teardown"


def test_a_nap_is_never_retried_by_its_timeout() -> None:
    retried = {e for r in SHIFT["Look"]["Retry"] for e in r["ErrorEquals"]}
    assert not retried & {"States.ALL", "States.Timeout", "States.TaskFailed"}
    assert [c["Next"] for c in SHIFT["Look"]["Catch"]] == ["Look"]

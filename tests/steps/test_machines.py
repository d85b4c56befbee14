"""State machines, handlers and models fit together: what one sends, the other takes; what one answers, the other routes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from nightshift.core.decision import Verb
from nightshift.core.history import LOOK_RETRIES, SHIFT_RETRIES, STEP_RETRIES
from nightshift.core.run import Awaiting, RunState
from nightshift.steps.look import AGAIN, KNOWS_SUCCESSORS, SUCCESSOR, VERDICTS
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
    answers = {v.value for v in Verb} | {s.value for s in VERDICTS.values()} | {"stale", AGAIN, SUCCESSOR}
    states = {s.value for s in RunState} if name == "Admitted" else set()
    assert set(routes(CHOICES[name])) <= answers | states


@pytest.mark.parametrize("wait", ["LeaseDecision", "ClusterDecision", "AttemptDecision", "FenceDecision"])
def test_a_verdict_reached_in_a_wait_leads_to_publication(wait: str) -> None:
    choice = CHOICES[wait]
    taken = routes(choice)
    for verdict in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED):
        assert taken.get(verdict.value, choice["Default"]) == "Publish"
    assert taken["stale"] == "Stale"
    assert taken[AGAIN] == wait.replace("Decision", "").join(["Await", ""])
    assert taken[SUCCESSOR] == "Successor"


def test_every_shift_is_told_that_its_parent_knows_successors() -> None:
    waits = [s for s in PARENT.values() if "startExecution" in s.get("Resource", "")]
    assert {w["Arguments"]["Input"]["version"] for w in waits} == {KNOWS_SUCCESSORS}
    assert SHIFT["Begin"]["Assign"]["parent"] == "{% $states.input.version %}"


def test_an_execution_begins_at_any_state_of_a_run() -> None:
    begins = routes(CHOICES["Admitted"])
    found = {state: begins.get(state.value, CHOICES["Admitted"]["Default"]) for state in RunState}
    assert found == {
        RunState.ADMITTED: "AwaitLease",  # never answered: admit queues it
        RunState.QUEUED: "AwaitLease",
        RunState.PROVISIONING: "Provision",
        RunState.RUNNING: "AwaitAttempt",
        RunState.RECOVERING: "AwaitFence",
        RunState.PUBLISHING: "Publish",
        RunState.TEARDOWN: "Teardown",
        RunState.SUCCEEDED: "Notify",
        RunState.FAILED: "Notify",
        RunState.CANCELLED: "Notify",
        RunState.REJECTED: "AwaitLease",  # has no execution
    }


def after(name: str) -> set[str]:
    """The states that may follow a state."""
    state = PARENT[name]
    nexts = {state.get("Next"), state.get("Default")} | {c["Next"] for c in state.get("Choices", [])}
    return {n for n in nexts | {c["Next"] for c in state.get("Catch", [])} if n}


def test_every_circle_of_the_parent_passes_a_choice_that_may_lead_to_the_successor() -> None:
    """Only there is its history's length looked at: a circle without one could go round until the history is full."""
    ways_out = {name for name, choice in CHOICES.items() if SUCCESSOR in routes(choice)}
    left = {name: after(name) - ways_out - {"Successor"} for name in PARENT if name not in ways_out | {"Successor"}}
    while ends := [name for name, nexts in left.items() if not nexts & set(left)]:
        for name in ends:
            del left[name]
    assert left == {}


def test_a_successor_is_told_by_each_look_that_its_circle_passes() -> None:
    assert {n for n, c in CHOICES.items() if SUCCESSOR in routes(c)} == {
        "LeaseDecision", "ClusterDecision", "AttemptDecision", "FenceDecision", "ReleaseDecision",
    }  # fmt: skip
    assert [c["Next"] for c in PARENT["Successor"]["Catch"]] == ["Stale", "Admit"]
    assert PARENT[PARENT["Successor"]["Next"]]["Type"] == "Succeed", "no finisher is called for it"


def test_the_bounds_of_histories_count_the_retries_that_the_machines_have() -> None:
    def tries(state: dict[str, Any]) -> int:
        return sum(r["MaxAttempts"] for r in state["Retry"])

    assert tries(SHIFT["Look"]) == LOOK_RETRIES
    for state in PARENT.values():
        if state["Type"] == "Task":
            waits = "startExecution" in state["Resource"]
            assert tries(state) == (SHIFT_RETRIES if waits else STEP_RETRIES)


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

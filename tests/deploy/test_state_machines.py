"""Rules for the state machines that no validator knows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.repository import MACHINES, machine, states, template

ALLOWED_RESOURCES = {
    "arn:aws:states:::lambda:invoke",
    "arn:aws:states:::lambda:invoke.waitForTaskToken",
    "arn:aws:states:::states:startExecution",
    "arn:aws:states:::states:startExecution.sync:2",
}
"""A callback of an optimised integration that does not have one (dynamodb:updateItem) is accepted when a machine is
created and fails when it runs: so the resources are a list of what was run."""

TOKEN = re.compile(
    r"""\s*(?:
        \$[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*         # a variable and its fields
      | '[^'\\]*' | "[^"\\]*"                     # text
      | -?\d+(?:\.\d+)?                           # a number
      | \btrue\b | \bfalse\b | \bnull\b
      | != | <= | >= | = | < | > | &              # comparison, concatenation
      | \band\b | \bor\b
    )\s*""",
    re.VERBOSE,
)


def only_looks_and_compares(expression: str) -> bool:
    """True for field access, literals, comparison and concatenation; false for anything that computes."""
    position = 0
    while position < len(expression):
        match = TOKEN.match(expression, position)
        if match is None:
            return False
        position = match.end()
    return bool(expression.strip())


def expressions(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        for one in part.values():
            yield from expressions(one)
    elif isinstance(part, list):
        for one in part:
            yield from expressions(one)
    elif isinstance(part, str) and part.startswith("{%"):
        assert part.endswith("%}"), part
        yield part[2:-2].strip()


def tasks(path: Path) -> dict[str, dict[str, Any]]:
    return {name: state for name, state in states(machine(path)).items() if state["Type"] == "Task"}


each_machine = pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.name)


def test_the_two_state_machines_are_there() -> None:
    assert [path.name for path in MACHINES] == ["shift.asl.json", "training_run.asl.json"]


@each_machine
def test_tasks_use_only_integrations_that_exist(path: Path) -> None:
    used = {state["Resource"] for state in tasks(path).values()}
    assert used
    assert used <= ALLOWED_RESOURCES


@each_machine
def test_expressions_look_and_compare_and_never_compute(path: Path) -> None:
    definition = machine(path)
    assert definition["QueryLanguage"] == "JSONata"
    found = list(expressions(definition))
    assert found
    assert [one for one in found if not only_looks_and_compares(one)] == []


@pytest.mark.parametrize(
    "expression",
    ["$count($runs)", "$a + 1", "$x ? 1 : 2", "$runs[0]", "$a ~> $b", "{'a': 1}", "", "$states.input.run_id & ~1"],
)
def test_an_expression_that_computes_is_noticed(expression: str) -> None:
    assert not only_looks_and_compares(expression)


@pytest.mark.parametrize(
    "expression",
    ["$a", "$states.input.run_id", "$decision = 'stale'", "$states.context.Execution.Name & '-s' & $shift"],
)
def test_an_expression_that_only_looks_is_left_alone(expression: str) -> None:
    assert only_looks_and_compares(expression)


@each_machine
def test_every_task_has_a_time_limit(path: Path) -> None:
    # A callback has no default limit: a lost token once hung a run elsewhere for 31 days.
    assert tasks(path)
    assert [name for name, state in tasks(path).items() if "TimeoutSeconds" not in state] == []


@each_machine
def test_no_retry_of_a_nap_repeats_its_timeout(path: Path) -> None:
    naps = {n: s for n, s in tasks(path).items() if s["Resource"].endswith(".waitForTaskToken")}
    repeated = {
        name: error
        for name, state in naps.items()
        for retry in state.get("Retry", [])
        for error in retry["ErrorEquals"]
        if error in ("States.ALL", "States.Timeout", "States.TaskFailed")
    }
    assert repeated == {}
    assert all(any("States.Timeout" in c["ErrorEquals"] for c in state["Catch"]) for state in naps.values())


@each_machine
def test_every_child_execution_is_named_and_its_name_changes_with_a_retry(path: Path) -> None:
    # A retry under the name of the child that failed would be refused.
    for name, state in tasks(path).items():
        if "startExecution" in state["Resource"]:
            assert "$states.context.State.RetryCount" in state["Arguments"]["Name"], name


@each_machine
def test_every_placeholder_is_substituted_and_every_substitution_used(path: Path) -> None:
    wanted = set(re.findall(r"\$\{(\w+)\}", path.read_text()))
    given = [
        set(one["Properties"]["DefinitionSubstitutions"])
        for one in template()["Resources"].values()
        if one["Type"] == "AWS::Serverless::StateMachine"
        and one["Properties"]["DefinitionUri"] == f"statemachine/{path.name}"
    ]
    assert given == [wanted]


def test_a_shift_ends_by_itself_before_its_parent_gives_it_up() -> None:
    # The parent's timeout does not stop the child.
    shift, parent = (machine(path) for path in MACHINES)
    for name, state in states(parent).items():
        if state.get("Resource", "").endswith("startExecution.sync:2"):
            assert state["TimeoutSeconds"] > shift["TimeoutSeconds"], name

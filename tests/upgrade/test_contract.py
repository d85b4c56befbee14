"""What one release stores, sends and waits for, the next takes up; and the one before again, after a way back.

Both sides run their own code in a process of its own. A run of days meets an upgrade in every state that it has: its execution
keeps the definitions with which it began, while its next look, event, shift and page are the other release's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from samtranslator.yaml_helper import yaml_parse

from local.config import REPOSITORY
from tests.upgrade.previous import NEWER_WORDS, Release

TOLD = Path(__file__).with_name("told.py")
SAMPLE = {
    "$run_id": "maze-1", "$k": 1, "$awaiting": "attempt", "$parent": 2, "$interval": 60,
    "$error": {"Error": "States.Timeout", "Cause": "{}"},
    "$states.context.Execution.Name": "maze-1-r1-s1-0", "$states.context.Execution.StartTime": "2026-11-30T03:00:00Z",
    "$states.context.State.EnteredTime": "2026-11-30T03:00:00Z", "$states.context.State.RetryCount": 0,
    "$states.context.Task.Token": "token",
}  # fmt: skip
"""What a state machine puts in the place of an expression."""

AWS_ERRORS = re.compile(r"(States|Lambda|Sandbox|Runtime)\.")

KEPT = {
    "AWS::DynamoDB::Table": ("TableName", "KeySchema"),
    "AWS::S3::Bucket": ("BucketName",),
    "AWS::SQS::Queue": ("QueueName", "FifoQueue"),
    "AWS::Serverless::StateMachine": ("Name", "Type"),
}
"""What an update would replace by an empty one, or by one that running executions do not know."""


class Side:
    """One release: what it says of itself and writes, and how it reads what the other one wrote."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.first: dict[str, Any] = release.run(TOLD, {"specs": specs()})
        self.then: dict[str, Any] = {}

    @property
    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = self.first["told"]
        return found

    def read_all(self, other: Side) -> None:
        sent = [filled(s["Arguments"]["Payload"]) for _, s in tasks(other.release) if "lambda:invoke" in s["Resource"]]
        payloads = {"StepRequest": sent, "LookRequest": [one for one in sent if one["step"] == "look"]}
        self.sent = dict(other.first["written"]) | payloads
        files = [one.get("file") for one in other.first["specs"]]
        self.then = self.release.run(TOLD, {"documents": self.sent, "specs": files})


@pytest.fixture(scope="module")
def sides(previous: Release, present: Release) -> tuple[Side, Side]:
    old, new = Side(previous), Side(present)
    old.read_all(new)
    new.read_all(old)
    return old, new


@pytest.fixture(scope="module", params=["upgrade", "way back"])
def pair(request: pytest.FixtureRequest, sides: tuple[Side, Side]) -> tuple[Side, Side]:
    """(the release that was there before, the release that takes over)."""
    old, new = sides
    return (old, new) if request.param == "upgrade" else (new, old)


def specs() -> list[dict[str, Any]]:
    examples = [yaml.safe_load(path.read_text()) for path in sorted((REPOSITORY / "examples").glob("*.yaml"))]
    return [json.loads((REPOSITORY / "tests/fixtures/base/spec.json").read_text()), *examples]


def tasks(release: Release) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every task of both machines: what a running execution may still do."""
    for machine in ("training_run", "shift"):
        states = release.machine(machine)["States"]
        yield from ((name, state) for name, state in states.items() if state["Type"] == "Task")


def filled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: filled(one) for name, one in value.items()}
    if isinstance(value, str) and value.startswith("{%"):
        return SAMPLE[value[2:-2].strip()]
    return value


def routes(choice: dict[str, Any], decision: str) -> str:
    found = [one["Next"] for one in choice["Choices"] if f"= '{decision}'" in one["Condition"]]
    return str(found[0] if found else choice["Default"])


def waits(release: Release) -> list[dict[str, Any]]:
    return [dict(s["Arguments"]["Input"]) for _, s in tasks(release) if "startExecution" in s["Resource"]]


def test_what_a_running_execution_sends_is_what_the_functions_take(pair: tuple[Side, Side]) -> None:
    _, after = pair
    taken = {kind: after.then["read"][kind] for kind in ("StepRequest", "LookRequest")}
    assert len(taken["StepRequest"]) > 10 and taken["LookRequest"]
    assert [one["refused"] for many in taken.values() for one in many if "refused" in one] == []


def test_a_decision_leads_a_running_execution_to_where_it_leads_a_new_one(pair: tuple[Side, Side]) -> None:
    """A decision for which the older machine has no way ends the run there: it is told only to parents of a version that
    know it (``KNOWS_SUCCESSORS``)."""
    before, after = pair
    gates, known = after.told["parents_version"], {one["version"] for one in waits(before.release)}
    theirs, ours = (one.release.machine("training_run")["States"] for one in pair)
    choices = {name: state for name, state in theirs.items() if state["Type"] == "Choice"}
    assert choices, "the parent routes by decisions"
    for name, choice in choices.items():
        for decision in after.told["decisions"]:
            if min(known) >= gates.get(decision, 0):
                assert routes(choice, decision) == routes(ours[name], decision), f"{name}: {decision}"


def test_what_a_running_execution_reads_of_an_answer_is_in_it(pair: tuple[Side, Side]) -> None:
    before, after = pair
    text = json.dumps([before.release.machine("training_run"), before.release.machine("shift")])
    read = set(re.findall(r"\$states\.(?:result|input)\.(?:Payload\.|Output\.)?(\w+)", text))
    given = {name for one in waits(before.release) for name in one}
    assert {"decision", "shift", "interval"} <= read
    assert read - given - set(after.told["reply"]) == set()


def test_a_parent_that_goes_on_starts_shifts_of_the_other_release(pair: tuple[Side, Side]) -> None:
    """JSONata that reads what is not there fails its execution: whatever a shift reads of its input, every parent sends."""
    before, after = pair
    begin = json.dumps(after.release.machine("shift")["States"]["Begin"])
    wanted = set(re.findall(r"\$states\.input\.(\w+)", begin))
    assert wanted >= {"run_id", "k", "awaiting"}
    for sent in waits(before.release):
        assert wanted <= set(sent)


def test_an_error_that_a_running_execution_waits_for_still_has_its_name(pair: tuple[Side, Side]) -> None:
    before, after = pair
    named = {e for _, s in tasks(before.release) for one in [*s["Retry"], *s["Catch"]] for e in one["ErrorEquals"]}
    own = {one for one in named if not AWS_ERRORS.match(one)}
    assert {"StaleExecution", "TransientError"} <= own
    assert own <= set(after.told["errors"])


def test_every_document_that_one_release_writes_is_read_by_the_other_with_everything_in_it(
    pair: tuple[Side, Side],
) -> None:
    before, after = pair
    assert {"Run", "Attempt", "Signal", "Progress", "Outcome", "Control", "StageEvent", "Manifest"} <= set(after.sent)
    wrong: set[str] = set()
    for name, many in after.then["read"].items():
        newer = NEWER_WORDS.get(name, frozenset()) if before.release.root == REPOSITORY else frozenset()
        for sent, one in zip(after.sent[name], many, strict=True):
            if "refused" not in one:
                wrong |= {f"{name}: {path}" for path in _lost(sent, one["read"])}
            elif not newer & {value for value in sent.values() if isinstance(value, str)}:
                wrong.add(f"{name}: {one['refused']}")
    assert sorted(wrong) == [], "a word that came later: see NEWER_WORDS"


def _lost(sent: dict[str, Any], read: dict[str, Any], above: str = "") -> Iterator[str]:
    """What both releases know, and only one of them says."""
    for name in sent.keys() & read.keys():
        if isinstance(sent[name], dict) and isinstance(read[name], dict):
            yield from _lost(sent[name], read[name], f"{above}{name}.")
        elif sent[name] != read[name]:
            yield f"{above}{name} was {sent[name]!r} and is {read[name]!r}"


def test_a_spec_is_the_same_request_in_both_releases_and_each_reads_what_the_other_has_stored(
    sides: tuple[Side, Side],
) -> None:
    """One that names a field that came later is refused by the older release, and so told, not read as something else."""
    old, new = sides
    older = set(new.told["later"]) - set(old.told["later"])
    pairs = list(zip(old.first["specs"], new.first["specs"], strict=True))
    assert all("digest" in two for _, two in pairs)
    both = [number for number, (one, _) in enumerate(pairs) if "digest" in one]
    assert both, "at least one example uses nothing new"
    assert {field for one, _ in pairs for field in one.get("refused", [])} <= older

    for number in both:
        digests = {side["specs"][number]["digest"] for one in sides for side in (one.first, one.then)}
        assert len(digests) == 1, specs()[number]["run_id"]


def test_an_update_replaces_nothing_that_a_run_lives_in(previous: Release, present: Release) -> None:
    theirs, ours = (yaml_parse(one.template.read_text())["Resources"] for one in (previous, present))
    seen = 0
    for name, resource in theirs.items():
        for one in KEPT.get(resource["Type"], ()):
            seen += 1
            there = ours[name]["Properties"] if name in ours else None
            assert there is not None, f"{name} would be deleted"
            assert there.get(one) == resource["Properties"].get(one), f"{name}.{one} would replace it"
    assert seen > 5


def test_a_table_gets_at_most_one_index_more_in_one_update(previous: Release, present: Release) -> None:
    """DynamoDB makes or deletes one index in one update; CloudFormation refuses the whole deployment otherwise."""
    theirs, ours = (yaml_parse(one.template.read_text())["Resources"] for one in (previous, present))
    for name, resource in theirs.items():
        if resource["Type"] == "AWS::DynamoDB::Table":
            old, new = (
                {i["IndexName"]: i for i in one[name]["Properties"].get("GlobalSecondaryIndexes", [])}
                for one in (theirs, ours)
            )
            assert len(old.keys() ^ new.keys()) <= 1
            assert all(old[one] == new[one] for one in old.keys() & new.keys()), "an index that is there is not changed"

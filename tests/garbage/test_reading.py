"""Whatever lies where a document should: a reader answers with the document, or says what is wrong, and nothing else."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from boto3.dynamodb.types import TypeSerializer
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.contract import Control, EvalSummary, ExportRecord, Manifest, Model, Outcome, Progress, RunSpec
from nightshift.contract.control import ControlCommand
from nightshift.contract.reading import Reading, Unreadable, read_document
from tests.builders import NOW, export, outcome, progress, spec, summary
from tests.garbage.strategies import stored

GUARD = {"floor": 20, "pointer_before": 20, "resumed_step": 20, "checked": [20], "quarantined": ["x"], "notes": ["n"]}
VALID: dict[type[Model], dict[str, Any]] = {
    Progress: json.loads(
        progress(reward=0.5, success=0.4, step_seconds=60.0, eta_seconds=3e4, resumed_step=0).to_json()
    ),
    Outcome: json.loads(outcome(evals=[summary(400, 62)], final_export=export(400), guard=GUARD).to_json()),
    Control: json.loads(
        Control(run_id="maze-1", seq=1, command=ControlCommand.CHECKPOINT_NOW, reason="r", at=NOW).to_json()
    ),
    EvalSummary: json.loads(summary(400, 62).to_json()),
    ExportRecord: json.loads(export(400).to_json()),
    Manifest: json.loads(
        Manifest(
            run_id="maze-1",
            state="succeeded",
            attempts=[],
            final=summary(400, 62),
            curve=[summary(400, 62)],
            adapters={"best": 400},
            gpu_hours=1.5,
            objects={},
            at=NOW,
        ).to_json()
    ),
    RunSpec: json.loads(spec().model_dump_json()),
}


def _numbers(value: Any) -> Any:
    """As the run store stores them."""
    if isinstance(value, dict):
        return {k: _numbers(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_numbers(v) for v in value]
    return Decimal(repr(value)) if isinstance(value, float) else value


@pytest.mark.parametrize("kind", VALID, ids=[k.__name__ for k in VALID])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_bytes_are_the_document_or_a_bounded_reason(kind: type[Model], data: st.DataObject) -> None:
    body = data.draw(stored(VALID[kind]))
    try:
        reading: Reading[Model] = read_document(kind, body)
    except Unreadable as problem:
        assert 0 < len(str(problem)) <= 1_000
        return
    again = reading.document.model_dump_json(exclude_none=True)
    assert read_document(kind, again).document == reading.document, "what is believed can be written and read again"
    if kind is not RunSpec:  # the table never holds one
        TypeSerializer().serialize(_numbers(json.loads(again)))


@pytest.mark.parametrize("kind", VALID, ids=[k.__name__ for k in VALID])
def test_a_document_of_a_newer_version_is_named_as_such(kind: type[Model]) -> None:
    with pytest.raises(Unreadable, match=rf"a {kind.__name__} of version 2 .*newer than what reads it") as refused:
        read_document(kind, json.dumps(VALID[kind] | {"version": 2, "shape": {"quite": "other"}}))
    assert refused.value.newer


@pytest.mark.parametrize(
    ("kind", "changes"),
    [(Progress, {"phase": "dreaming"}), (Outcome, {"cause": "solar_flare"}), (Control, {"command": "sing"})],
)
def test_an_unknown_member_is_named_as_a_newer_writers(kind: type[Model], changes: dict[str, str]) -> None:
    ((field, value),) = changes.items()
    with pytest.raises(Unreadable, match=rf"{field}: .*may be newer") as refused:
        read_document(kind, json.dumps(VALID[kind] | changes))
    assert refused.value.newer and value not in str(refused.value)


def test_unknown_fields_are_named_and_ignored_in_a_report_and_refused_in_a_spec() -> None:
    reading = read_document(Progress, json.dumps(VALID[Progress] | {"mood": "good"}))
    assert reading.unknown == ("mood",) and reading.document.step == 25
    with pytest.raises(Unreadable, match=r"mood: .*may be newer"):
        read_document(RunSpec, json.dumps(VALID[RunSpec] | {"mood": "good"}))


@pytest.mark.parametrize("missing", ["step", "at"])
def test_a_document_that_lacks_something_is_not_called_newer(missing: str) -> None:
    with pytest.raises(Unreadable, match=f"{missing}: Field required") as refused:
        read_document(Progress, json.dumps({k: v for k, v in VALID[Progress].items() if k != missing}))
    assert not refused.value.newer


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"at": "2026-11-30T03:00:00"}, "at has no time zone"),
        ({"at": "9999-12-31T23:59:59Z"}, "at is in the year 9999"),
        ({"step": 10**30}, "step is 1000"),
        ({"eta_seconds": 1e200}, "eta_seconds is 1e"),
    ],
)
def test_what_the_types_allow_and_no_reader_can_use_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(Unreadable, match=told):
        read_document(Progress, json.dumps(VALID[Progress] | changes))

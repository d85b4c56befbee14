"""A file's bytes become plain JSON of bounded size or a reason; a scheduled time becomes one run's id."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.contract.spec import RunSpec
from nightshift.core.admission import check_spec, request_digest
from nightshift.core.requests import (
    MAX_SPEC_BYTES,
    MAX_START_AGE,
    answer_key,
    ending_problem,
    read_request,
    request_name,
    scheduled_request,
    stem,
    too_late,
)
from tests.builders import NOW, spec_json

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
"""Less than a kilobyte that stands for ten thousand million values."""


def refusal(body: bytes | str) -> str:
    found = read_request(body if isinstance(body, bytes) else body.encode())
    assert isinstance(found, list), found
    (error,) = found
    assert error.field == "file"
    return error.problem


def test_yaml_and_json_are_the_same_request() -> None:
    as_yaml = read_request(yaml.safe_dump(spec_json()).encode())
    as_json = read_request(json.dumps(spec_json()).encode())
    assert as_yaml == as_json == spec_json()
    assert isinstance(check_spec(spec_json()), RunSpec)


def test_a_part_may_be_written_once_and_used_twice() -> None:
    text = "eval: &seeds {kind: seeds, start: 0, stop: 64}\nholdout: *seeds\n"
    found = read_request(text.encode())
    assert isinstance(found, dict) and found["holdout"] == found["eval"] == {"kind": "seeds", "start": 0, "stop": 64}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (LAUGHS, "with its aliases it holds more than 20,000 values"),
        ("a: &a [*a]", "contains itself"),
        ("a: " + "[" * 40_000, "nested too deeply"),
        ("a: " + "1:" * 30_000 + "1", "a number or date of 60,001 characters"),
        (b"a" * (MAX_SPEC_BYTES + 1), "more than"),
        (b"", "it is empty"),
        (b"\x00\xff\xfe", "neither YAML nor JSON"),
        ("run_id: one\nrun_id: two", "'run_id' is given twice (line 2)"),
        ("a: !!python/object/apply:os.system [id]", "could not determine a constructor"),
        ("a: 2026-13-45", "cannot be read"),
        ("- run_id", "its top must be a mapping"),
        ("a: 1\n--- \nb: 2", "but found another document"),
        ("base: &b {x: 1}\na: {<<: *b}", "<< is not read"),
        ("? [1, 2]\n: 3", "unhashable"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_no_request_is_refused_with_its_reason(body: bytes | str, says: str) -> None:
    assert says in refusal(body)


WORD = "hunter2-hunter2"


@pytest.mark.parametrize(
    "text",
    [
        "password: *W", "password: !!W x", "password: 'W", "password: %W", "password: @W", "pw: W: b", "pw: &W! x", "!W!x a",
        "!<W a", "x: !!int W", "x: !!float W", "x: !!bool W", "x: !!timestamp W", "a: 1\nW\nb: 2", "pw: 'W'x W", 'x: "W',
        "x: !!int \"it's 'W\"", "x: !!float \"it's W\"",
    ],
)  # fmt: skip
def test_nothing_of_a_file_that_cannot_be_read_is_repeated_but_where_it_is_wrong(text: str) -> None:
    body = text.replace("W", WORD)
    assert WORD in body and WORD[:7] not in refusal(body)


def test_a_parser_still_says_what_it_expected_and_where() -> None:
    assert "expected ',' or ']', but got '<stream end>' (line 1, column 6)" in refusal("a: [1")


YAML_ISH = st.text(alphabet="ab1:-[]{},&*!<>|?'\"# \n.%@\\\t", max_size=60)


@settings(max_examples=300, deadline=None)
@given(YAML_ISH.map(str.encode) | st.binary(max_size=60))
def test_whatever_the_bytes_are_they_become_plain_json_or_a_reason(body: bytes) -> None:
    found = read_request(body)
    if isinstance(found, dict):
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        assert len(request_digest(found)) == 64
    else:
        assert [e.field for e in found] == ["file"] and found[0].problem


def test_a_scheduled_time_names_its_run_in_utc_whatever_zone_it_is_written_in() -> None:
    berlin = datetime(2026, 11, 30, 0, 30, tzinfo=timezone(timedelta(hours=1)))
    for at in (berlin, datetime(2026, 11, 29, 23, 30, tzinfo=UTC)):
        found = scheduled_request({"run_id": "nightly-{date}-{time}", "pool": "p"}, at)
        assert found == {"run_id": "nightly-20261129-2330", "pool": "p"}


@pytest.mark.parametrize("raw", [{"run_id": "nightly"}, {}, {"run_id": 7}, {"run_id": "n-{day}"}])
def test_a_scheduled_spec_whose_id_never_changes_is_refused(raw: dict[str, Any]) -> None:
    found = scheduled_request(raw, NOW)
    assert isinstance(found, list) and [e.field for e in found] == ["run_id"] and "nightly-{date}" in found[0].problem


def test_a_start_is_in_time_for_exactly_an_hour() -> None:
    assert too_late(NOW, NOW + MAX_START_AGE) is None
    assert too_late(NOW, NOW - timedelta(minutes=1)) is None, "a clock that is a little ahead"
    late = too_late(NOW, NOW + MAX_START_AGE + timedelta(seconds=1))
    assert late is not None and late.field == "scheduled_time" and "of 2026-11-30 03:00 UTC" in late.problem


def test_a_files_name_says_what_it_is_and_where_its_answer_goes() -> None:
    assert request_name("requests/team/maze-7.yaml") == "team/maze-7.yaml"
    assert [request_name(key) for key in ("requests/", "requests/team/", "runs/x.yaml", "")] == [None] * 4
    assert answer_key("team/maze-7.yaml") == "answers/team/maze-7.yaml.json"
    assert answer_key("x" * 1_020) is None, "S3 takes no key of that length"
    assert [stem(name) for name in ("team/maze-7.YAML", "maze.v2.json", ".yml", "a/b.txt")] == [
        "maze-7", "maze.v2", "unnamed", "b.txt",
    ]  # fmt: skip
    assert ending_problem("maze.YML") is None and ending_problem("maze.txt") is not None

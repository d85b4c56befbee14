"""Start requests that must start nothing, on the stack that has told the story."""

from __future__ import annotations

import copy
import json
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
import yaml

from local.stack import Stack
from tests.story.support import Played, eventually, executions, items

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("unknown-field", {"training.learning_speed": 1}, "training.learning_speed"),
    ("batch-sizes", {"training.train_batch_size": 32, "training.policy_mini_batch_size": 16}, "policy_mini_batch_size"),
    ("Bad_Id", {}, "run_id"),
    ("too-high", {"training.max_turns": 15, "target": {"success": 0.95}}, "target.success"),
]


def changed(spec: dict[str, Any], run_id: str, changes: dict[str, Any]) -> dict[str, Any]:
    """A copy of the spec under another id, with dotted paths replaced."""
    new = copy.deepcopy(spec)
    new["run_id"] = run_id
    for path, value in changes.items():
        *above, last = path.split(".")
        place = new
        for name in above:
            place = place[name]
        place[last] = value
    return new


def rejections(stack: Stack, run_id: str) -> list[dict[str, Any]]:
    return items(stack, run_id, "REJECTED#")


def told(stack: Stack, run_id: str) -> list[str]:
    return [one.text for one in stack.slack if one.headline.startswith(f"{run_id} was not started")]


def about(stack: Stack, run_id: str) -> list[str]:
    return [one.headline for one in stack.slack if one.headline.startswith(f"{run_id} ")]


@pytest.mark.parametrize(("run_id", "changes", "field"), BAD, ids=[one[0] for one in BAD])
def test_an_invalid_start_event_starts_nothing_and_says_why_by_field(
    played: Played, run_id: str, changes: dict[str, Any], field: str
) -> None:
    stack, before = played.stack, executions(played.stack)
    spec = changed(played.request.spec, run_id, changes)

    stack.account.put_start(spec)
    stack.account.put_start(spec)

    assert eventually(lambda: len(told(stack, run_id)) == 1)
    (record,) = rejections(stack, run_id)
    assert record["state"] == "rejected"
    assert any(field in error["field"] for error in record["errors"]), record["errors"]
    assert field in told(stack, run_id)[0]
    status, view = stack.account.api("GET", f"/runs/{run_id}")
    assert (status, view["state"], view["attempts"]) == (200, "rejected", [])
    assert [error["field"] for error in view["errors"]] == [error["field"] for error in record["errors"]]
    time.sleep(1)
    assert len(told(stack, run_id)) == 1, "a repeated request is the same refusal"
    assert executions(stack) == before
    assert stack.hyperpod.pods() == []


def test_every_error_is_named_at_once_and_the_api_answers_with_the_same(played: Played) -> None:
    spec = changed(played.request.spec, "Two_Errors", {"training.learning_speed": 1, "training.clip": 7})
    status, problem = played.stack.account.api("POST", "/runs", {"version": 1, "spec": spec})
    assert status == 422
    assert {error["field"] for error in problem["errors"]} == {"run_id", "training.learning_speed", "training.clip"}


def test_the_same_request_again_is_the_same_run_and_starts_nothing(played: Played) -> None:
    stack, before = played.stack, executions(played.stack)
    heard = about(stack, played.request.run_id)
    status, document = stack.account.api("POST", "/runs", {"version": 1, "spec": played.request.spec})
    assert (status, document["run_id"], document["created"]) == (200, played.request.run_id, False)
    stack.account.put_start(played.request.spec)
    time.sleep(2)
    assert executions(stack) == before
    assert about(stack, played.request.run_id) == heard
    assert rejections(stack, played.request.run_id) == []


def test_a_file_dropped_under_requests_is_taken_like_any_other_request(played: Played) -> None:
    stack, before = played.stack, executions(played.stack)
    bad = yaml.safe_dump(changed(played.request.spec, "dropped-bad", {"training.clip": 7}))
    stack.account.write("requests/again.yaml", yaml.safe_dump(played.request.spec).encode())
    stack.account.write("requests/team/bad.yml", bad.encode())
    answers = ("answers/again.yaml.json", "answers/team/bad.yml.json")
    assert eventually(lambda: all(stack.account.read(key) is not None for key in answers))
    again, refused = (json.loads(stack.account.read(key) or b"") for key in answers)
    assert (again["run_id"], again["created"], again["errors"]) == (played.request.run_id, False, [])
    assert [error["field"] for error in refused["errors"]] == ["training.clip"] and "run_id" not in refused
    assert eventually(lambda: len(told(stack, "dropped-bad")) == 1)
    assert executions(stack) == before
    assert stack.account.list_keys("requests/") == ["requests/again.yaml", "requests/team/bad.yml"]


def test_the_same_id_with_other_content_is_refused_and_the_run_stays_as_it_is(played: Played) -> None:
    stack, before = played.stack, executions(played.stack)
    run_id = played.request.run_id
    spec = changed(played.request.spec, run_id, {"training.seed": 12345})
    _, run = stack.account.api("GET", f"/runs/{run_id}")

    status, problem = stack.account.api("POST", "/runs", {"version": 1, "spec": spec})

    assert status == 409, problem
    assert eventually(lambda: len(rejections(stack, run_id)) == 1)
    assert executions(stack) == before
    _, after = stack.account.api("GET", f"/runs/{run_id}")
    assert (after["state"], after["attempts"]) == (run["state"], run["attempts"])


def test_an_unsigned_call_of_the_api_is_refused(played: Played) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{played.stack.account.api_url}/runs/{played.request.run_id}", timeout=10)
    assert refused.value.code == 403

"""Whatever is sent, the answer is a problem of its own kind, which names fields and repeats no value."""

from __future__ import annotations

import base64
import json
from itertools import product
from typing import Any

import pytest

from nightshift.core.capacity import GroupCapacity, HyperPodView
from nightshift.core.errors import TransientError
from nightshift.handlers.http import MAX_BODY
from tests.api.support import ME, Http
from tests.builders import spec_json

HUSH = "AKIA" + "ABCDEFGHIJKLMNOP"
STARTING = ("/runs", "/runs/plan")


STEERING = ("/runs/maze-1/cancel", "/runs/maze-1/answer", "/runs/maze-1/retry")
NO_REQUESTS = (
    "", "{", "[]", "null", "1", '"text"', "{}", '{"spec": []}', '{"spec": null}', '{"spec": {"a": NaN}}', "\x00",
    '{"spec": {"run_id": "\\ud800"}}', "[" * 10_000, '{"spec": {}, "version": 2}', '{"go_on": 1}', '{"mode": "later"}',
    '{"budgets": {"wall_hours": "many"}}', '{"budget": {}}', '{"image": "latest"}',
)  # fmt: skip


# Of each kind many are sent to one account: an account of its own for each costs more than all of its requests.


def test_a_body_of_a_megabyte_is_refused_before_it_is_read(http: Http) -> None:
    http.start("maze-1")
    for address, raw in product(
        (*STARTING, *STEERING), ("x" * 1_000_000, json.dumps({"spec": {"run_id": "a" * MAX_BODY}}))
    ):
        said = http.say("POST", address, raw=raw)
        assert (said.status, said.problem) == (413, "too-large"), address


def test_what_is_no_request_of_a_route_is_a_bad_request(http: Http) -> None:
    http.start("maze-1")
    for address, raw in product((*STARTING, *STEERING), NO_REQUESTS):
        said = http.say("POST", address, raw=raw)
        if address.endswith(("cancel", "retry")) and raw in ("", "{}"):  # what is not said has a meaning there
            assert said.status == (202 if address.endswith("cancel") else 409)
            continue
        assert (said.status, said.problem) == (400, "bad-request"), (address, raw)
        assert said.body["instance"] == address


def test_bytes_that_api_gateway_encodes_are_read_like_text_or_refused(http: Http) -> None:
    good = base64.b64encode(json.dumps({"spec": spec_json()}).encode()).decode()
    assert http.say("POST", "/runs", raw=good, isBase64Encoded=True).status == 201
    for raw in (base64.b64encode(b"\xff\xfe{}").decode(), "no base64!"):
        said = http.say("POST", "/runs", raw=raw, isBase64Encoded=True)
        assert (said.status, said.problem) == (400, "bad-request")


def test_every_wrong_field_of_a_spec_is_named_with_the_same_words_by_a_plan(http: Http) -> None:
    wrong = spec_json(image="latest", budgets={"wall_hours": -1}, surprise=1)
    started, planned = (http.post(address, {"spec": wrong}) for address in STARTING)
    assert (started.status, started.problem, planned.status) == (422, "invalid-spec", 422)
    assert {e["field"] for e in started.body["errors"]} == {"image", "budgets.wall_hours", "surprise"}
    assert planned.body["errors"] == started.body["errors"]


LEAKS: tuple[dict[str, Any], ...] = (
    {"task": spec_json()["task"] | {"config": {"key": HUSH}}},
    {"surprise": HUSH},
    {"run_id": HUSH},
    {HUSH: 1},
    {"task": spec_json()["task"] | {"config": {"api_key": "correct horse battery"}}},
)


def test_a_secret_in_a_spec_is_refused_by_its_field_and_never_repeated(
    http: Http, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    for address, where in product(STARTING, LEAKS):
        said = http.post(address, {"spec": spec_json(**where)})
        assert (said.status, said.problem) == (422, "invalid-spec") and said.body["errors"], where
        kept = json.dumps(http.world.table.scan()["Items"], default=str) + str(http.world.stages.events)
        for text in (json.dumps(said.body), kept, caplog.text, *capsys.readouterr()):
            assert HUSH not in text and "battery" not in text, where


def test_a_run_that_nobody_asked_for_is_not_found_whatever_is_wanted_of_it(http: Http) -> None:
    names = ("nobody", "a" * 41, "..", "UPPER", "%00")
    for name in names:
        for rest in ("", "/events", "/artifacts"):
            assert http.get(f"/runs/{name}{rest}").status == 404, name
        for rest, body in (("cancel", None), ("answer", {"go_on": True}), ("retry", None), ("dashboard", None)):
            assert http.post(f"/runs/{name}/{rest}", body).status == 404, name
    assert http.get("/nowhere").problem == "no-such-route"
    assert http.say("DELETE", "/runs/nobody").problem == "no-such-route"


def test_a_used_id_with_other_content_is_taken_for_a_plan_as_for_a_start(http: Http) -> None:
    http.start("maze-1")
    for address in STARTING:
        said = http.post(address, {"spec": spec_json(notify="all")})
        assert (said.status, said.problem) == (409, "run-id-taken")
        assert [e["field"] for e in said.body["errors"]] == ["run_id"]


def test_a_plan_says_what_would_be_and_leaves_nothing(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    before = http.world.table.scan()["Count"]
    body = {"spec": spec_json(budgets={"dollars": 500})}
    plan = http.post("/runs/plan", body).body
    assert (plan["exists"], plan["owner"], plan["capacity"], plan["capacity_known"]) == (False, ME, [], True)
    assert plan["rollouts"] == {
        "gpus": 6, "per_step": 192, "per_gpu": 32.0, "updates_per_step": 2, "evals": 41, "eval_items": 64,
        "checkpoints": 20, "max_rollback_steps": 20,
    }  # fmt: skip
    costs = plan["forecast"]
    assert costs["most_dollars"] == 500 and costs["dollars_per_hour"] == pytest.approx(3 * 10.3576 + 5.5296, abs=1e-3)
    assert plan["ceiling"] == pytest.approx(50 / 64) and (plan["holder"], plan["waiting"]) == (None, 0)
    assert plan["spec"]["training"]["total_steps"] == 400, "with every default"
    assert http.world.table.scan()["Count"] == before and not http.world.executions.started
    assert "Contents" not in http.world.s3.list_objects_v2(Bucket="artifacts")
    small = HyperPodView("hp", "InService", (GroupCapacity("gpu", "ml.g7e.12xlarge", 1, 1),))
    http.world.hyperpod.current = small
    assert len(http.post("/runs/plan", body).body["capacity"]) == 2

    def silent() -> HyperPodView:
        raise TransientError("of HyperPod", "no answer")

    monkeypatch.setattr(http.world.hyperpod, "view", silent)
    unknown = http.post("/runs/plan", body).body
    assert (unknown["capacity"], unknown["capacity_known"]) == ([], False)
    http.start("maze-1", budgets={"dollars": 500})
    again = http.post("/runs/plan", body).body
    assert (again["exists"], again["state"]) == (True, "admitted")


def test_a_fault_of_the_code_is_a_problem_too_and_tells_no_value(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        raise KeyError("the innermost secret")

    monkeypatch.setattr(http.world.runs, "get", broken)
    said = http.get("/runs/maze-1")
    assert (said.status, said.problem) == (500, "internal")
    assert "KeyError" in said.body["detail"] and "innermost" not in json.dumps(said.body)

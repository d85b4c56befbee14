"""The Slack receiver: what Slack takes and refuses, over https."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from typing import Any

import pytest

from local.cloud.slack import problem
from tests.local_cloud.support import Cloud


def section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


def header(text: str) -> dict[str, Any]:
    return {"type": "header", "text": {"type": "plain_text", "text": text}}


def post(cloud: Cloud, body: bytes) -> tuple[int, str, dict[str, str]]:
    trust = ssl.create_default_context(cafile=str(cloud.config.ca_file))
    request = urllib.request.Request(cloud.config.slack_url, body, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=5, context=trust) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)


def received(cloud: Cloud) -> list[Any]:
    path = cloud.config.state_dir / "slack.jsonl"
    return [json.loads(line)["payload"] for line in path.read_text().splitlines()] if path.exists() else []


def test_a_good_message_is_taken_and_kept(cloud: Cloud) -> None:
    message = {"text": "done", "blocks": [header("h" * 150), section("s" * 3_000)]}
    assert post(cloud, json.dumps(message).encode())[:2] == (200, "ok")
    assert received(cloud)[-1] == message


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({"text": "t", "blocks": [section("s" * 3_001)]}, "invalid_blocks"),
        ({"text": "t", "blocks": [header("h" * 151)]}, "invalid_blocks"),
        ({"text": "t", "blocks": [section("")]}, "invalid_blocks"),
        ({"text": "t", "blocks": [section("s")] * 51}, "invalid_blocks"),
        ({"text": "t", "blocks": [{"text": "no type"}]}, "invalid_blocks"),
        ({"text": "t" * 40_001}, "msg_too_long"),
        ({}, "no_text"),
        ([], "invalid_payload"),
    ],
)
def test_what_slack_refuses_is_refused(payload: Any, code: str) -> None:
    assert problem(payload) == code


def test_a_refused_message_is_a_400_and_is_not_kept(cloud: Cloud) -> None:
    before = len(received(cloud))
    assert post(cloud, json.dumps({"text": "t", "blocks": [section("s" * 3_001)]}).encode())[:2] == (
        400,
        "invalid_blocks",
    )
    assert post(cloud, b"no json")[:2] == (400, "invalid_payload")
    assert len(received(cloud)) == before


def test_it_can_be_told_to_fail_the_next_message_only(cloud: Cloud) -> None:
    before = len(received(cloud))
    cloud.local("POST", "/_local/slack/next", {"status": 429, "headers": {"Retry-After": "1"}})
    status, _, headers = post(cloud, b'{"text": "first"}')
    assert status == 429 and headers["Retry-After"] == "1" and len(received(cloud)) == before
    assert post(cloud, b'{"text": "second"}')[0] == 200

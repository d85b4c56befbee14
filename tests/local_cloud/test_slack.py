"""The Slack receiver: what Slack takes and refuses, over https."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from typing import Any

import pytest

from local.cloud.slack import BOT_TOKEN, CHANNEL, problem
from nightshift.adapters.notifications import SlackBot
from nightshift.steps.notify import Picture, Result
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


def received(cloud: Cloud, what: str = "payload") -> list[Any]:
    path = cloud.config.state_dir / "slack.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line[what] for line in lines if what in line]


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


def test_a_bot_has_one_thread_and_its_picture_in_it(cloud: Cloud) -> None:
    allowed, api = [f"localhost:{cloud.config.slack_port}"], f"https://localhost:{cloud.config.slack_port}/api"
    bot = SlackBot(BOT_TOKEN, CHANNEL, allowed, api=api, ca_file=str(cloud.config.ca_file))
    first = bot.send({"text": "started"}, repeat_unknown=False, seconds=5)
    assert first.thread is not None
    bot.send({"text": "finished"}, repeat_unknown=False, seconds=5, thread=first.thread, broadcast=True)
    shown = bot.attach(Picture("curve.png", "curve", b"PNG"), first.thread, seconds=9)
    one, two = received(cloud)[-2:]
    assert (one.get("thread_ts"), two["thread_ts"], two["reply_broadcast"]) == (None, first.thread.ts, True)
    assert shown.result is Result.DELIVERED
    assert received(cloud, "file")[-1]["thread_ts"] == first.thread.ts


def test_a_bot_without_the_right_token_or_channel_is_told_so(cloud: Cloud) -> None:
    allowed, api = [f"localhost:{cloud.config.slack_port}"], f"https://localhost:{cloud.config.slack_port}/api"
    for token, channel, error in (("xoxb-other", CHANNEL, "invalid_auth"), (BOT_TOKEN, "C0OTHER", "channel_not_found")):
        bot = SlackBot(token, channel, allowed, api=api, ca_file=str(cloud.config.ca_file))
        done = bot.send({"text": "t"}, repeat_unknown=False, seconds=5)
        assert done.result is Result.REJECTED and error in done.reason

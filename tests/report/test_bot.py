"""The bot against a real https server: Slack's Web API answers 200 also where it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nightshift.adapters.notifications import SlackBot
from nightshift.adapters.posting import WebhookRefused
from nightshift.steps.notify import Delivery, Result, Thread
from tests.report.support import Answer, Receiver, receiver

THREAD = Thread("C012345", "1.1")


def send(to: Receiver, *, repeat_unknown: bool = False, thread: Thread | None = None) -> Delivery:
    bot = SlackBot(
        "xoxb-verysecret", "C012345", to.allowed, api=f"https://localhost:{to.port}/api/", ca_file=str(to.ca_file),
        post_seconds=3, sleep=lambda _: None,
    )  # fmt: skip
    delivery = bot.send({"text": "hello"}, repeat_unknown=repeat_unknown, seconds=20, thread=thread)
    assert "verysecret" not in repr(bot) + repr(delivery)
    return delivery


def refusal(error: str) -> Answer:
    return Answer(body=json.dumps({"ok": False, "error": error}))


def test_the_first_message_begins_a_thread_and_the_next_is_in_it(tmp_path: Path) -> None:
    with receiver(tmp_path, Answer(body=json.dumps({"ok": True, "channel": "C012345", "ts": "1.1"}))) as slack:
        first, second = send(slack), send(slack, thread=THREAD)

    assert first.thread == second.thread == THREAD
    assert [json.loads(body).get("thread_ts") for _, body in slack.posts] == [None, "1.1"]
    assert slack.posts[0][0] == "/api/chat.postMessage"


@pytest.mark.parametrize("error", ["ratelimited", "service_unavailable"])
def test_what_slack_did_not_take_is_sent_again(tmp_path: Path, error: str) -> None:
    with receiver(tmp_path, refusal(error), Answer(body='{"ok": true}')) as slack:
        delivery = send(slack)

    assert (delivery.result, len(slack.posts)) == (Result.DELIVERED, 2)


@pytest.mark.parametrize("answer", [refusal("internal_error"), refusal("fatal_error"), Answer(body="<html>")])
def test_what_slack_may_have_taken_is_sent_again_only_where_that_is_wanted(tmp_path: Path, answer: Answer) -> None:
    with receiver(tmp_path, answer) as slack:
        once, twice = send(slack), send(slack, repeat_unknown=True)

    assert (once.result, once.posts, twice.result, twice.posts) == (Result.UNKNOWN, 1, Result.UNKNOWN, 2)


@pytest.mark.parametrize("error", ["not_in_channel", "invalid_auth", "channel_not_found", "x" * 5_000])
def test_what_slack_will_never_take_is_told_by_slacks_own_word(tmp_path: Path, error: str) -> None:
    with receiver(tmp_path, refusal(error)) as slack:
        delivery = send(slack, repeat_unknown=True)

    assert (delivery.result, len(slack.posts)) == (Result.REJECTED, 1)
    assert error[:60] in delivery.reason and len(delivery.reason) < 300


GONE = ["cannot_reply_to_message", "thread_not_found", "channel_not_found", "is_archived", "not_in_channel"]


@pytest.mark.parametrize("error", GONE)
def test_a_thread_that_is_gone_is_followed_by_a_new_one(tmp_path: Path, error: str) -> None:
    begun = Answer(body=json.dumps({"ok": True, "channel": "C012345", "ts": "2.2"}))
    with receiver(tmp_path, refusal(error), begun) as slack:
        delivery = send(slack, thread=THREAD)

    assert (delivery.result, delivery.thread) == (Result.DELIVERED, Thread("C012345", "2.2"))
    assert "thread_ts" not in json.loads(slack.posts[1][1])


@pytest.mark.parametrize("error", GONE)
def test_a_channel_that_is_not_there_is_tried_once_more_without_the_thread_and_no_further(
    tmp_path: Path, error: str
) -> None:
    with receiver(tmp_path, refusal(error)) as slack:
        delivery = send(slack, repeat_unknown=True, thread=THREAD)

    assert (delivery.result, len(slack.posts)) == (Result.REJECTED, 2) and error in delivery.reason
    assert [json.loads(body).get("thread_ts") for _, body in slack.posts] == ["1.1", None]


def test_a_thread_of_another_channel_is_not_used(tmp_path: Path) -> None:
    begun = Answer(body=json.dumps({"ok": True, "channel": "C012345", "ts": "2.2"}))
    with receiver(tmp_path, begun) as slack:
        delivery = send(slack, thread=Thread("C0OLD", "1.1"))

    [(_, body)] = slack.posts
    said = json.loads(body)
    assert (said["channel"], said.get("thread_ts"), delivery.thread) == ("C012345", None, Thread("C012345", "2.2"))


def test_a_bot_at_a_host_that_is_not_allowed_is_refused_with_its_sentence() -> None:
    with pytest.raises(WebhookRefused, match=r"slack\.com:443 is not one of SLACK_ALLOWED_HOSTS \(hooks\.slack\.com\)"):
        SlackBot("xoxb-verysecret", "C1", ["hooks.slack.com"])

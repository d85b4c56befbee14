"""The webhook against a real https server: what is repeated, what is not, and what never appears in a text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from local.config import free_ports
from nightshift.adapters.notifications import SlackWebhook
from nightshift.adapters.posting import MAX_POSTS, Address, NoAnswer, Poster, WebhookRefused
from nightshift.steps.notify import Delivery, Result
from tests.report.support import Answer, Receiver, Stopwatch, receiver

PAYLOAD = {"text": "28 → 62 of 64 & more"}
SECRET = "verysecret"


class Clock:
    """Sleeps at once and remembers; its time moves by what was slept."""

    def __init__(self) -> None:
        self.naps: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)

    def __call__(self) -> float:
        return sum(self.naps)


def send(
    to: Receiver, *, repeat_unknown: bool = False, seconds: float = 20, post_seconds: float = 3, trusted: bool = True
) -> tuple[Delivery, Clock]:
    clock = Clock()
    webhook = SlackWebhook(
        to.url, to.allowed, ca_file=str(to.ca_file) if trusted else None, post_seconds=post_seconds,
        sleep=clock.sleep, monotonic=clock,
    )  # fmt: skip
    delivery = webhook.send(PAYLOAD, repeat_unknown=repeat_unknown, seconds=seconds)
    for text in (repr(delivery), repr(webhook), str(webhook)):
        assert SECRET not in text and "/services" not in text
    return delivery, clock


def test_a_message_arrives_once_as_json_at_the_secret_path(tmp_path: Path) -> None:
    with receiver(tmp_path) as slack:
        delivery, _ = send(slack)

    assert delivery.result is Result.DELIVERED and delivery.posts == 1
    [(path, body)] = slack.posts
    assert path == f"/services/T0/B0/{SECRET}" and json.loads(body) == PAYLOAD


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_was_not_accepted_is_sent_again_until_it_is(tmp_path: Path, status: int) -> None:
    with receiver(tmp_path, Answer(status), Answer(status), Answer(200)) as slack:
        delivery, clock = send(slack)

    assert (delivery.result, delivery.posts, len(slack.posts)) == (Result.DELIVERED, 3, 3)
    assert clock.naps == [0.5, 1.0]


def test_slacks_wish_to_wait_is_followed(tmp_path: Path) -> None:
    with receiver(tmp_path, Answer(429, {"Retry-After": "7"}), Answer(200)) as slack:
        delivery, clock = send(slack)

    assert delivery.result is Result.DELIVERED
    assert clock.naps == [7.0]


def test_a_wait_longer_than_the_budget_is_not_begun_but_handed_on(tmp_path: Path) -> None:
    with receiver(tmp_path, Answer(429, {"Retry-After": "30"})) as slack:
        delivery, clock = send(slack, seconds=20)

    assert (delivery.result, delivery.retry_after, clock.naps, len(slack.posts)) == (Result.REFUSED, 30.0, [], 1)


@pytest.mark.parametrize("wish", ["-5", "soon", "Mon, 30 Nov 2026 01:00:00 GMT", "9" * 50])
def test_a_wish_to_wait_that_is_no_number_counts_as_none(tmp_path: Path, wish: str) -> None:
    with receiver(tmp_path, Answer(429, {"Retry-After": wish}), Answer(200)) as slack:
        _, clock = send(slack)

    assert clock.naps == [0.5]


def test_refusals_end_with_the_budget_of_posts(tmp_path: Path) -> None:
    with receiver(tmp_path, Answer(503)) as slack:
        delivery, _ = send(slack, seconds=1_000)

    assert (delivery.result, delivery.posts, len(slack.posts)) == (Result.REFUSED, MAX_POSTS, MAX_POSTS)


@pytest.mark.parametrize(("status", "word"), [(400, "invalid_blocks"), (403, "action_prohibited"), (404, "no_service")])
def test_a_rejection_is_final_and_carries_slacks_own_word_bounded(tmp_path: Path, status: int, word: str) -> None:
    with receiver(tmp_path, Answer(status, body=word + "\x1b[2J" + "x" * 5_000)) as slack:
        delivery, _ = send(slack, repeat_unknown=True)

    assert (delivery.result, len(slack.posts)) == (Result.REJECTED, 1)
    assert str(status) in delivery.reason and word in delivery.reason
    assert len(delivery.reason) < 300 and "\x1b" not in delivery.reason


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with receiver(tmp_path, Answer(307, {"Location": "https://elsewhere.example/"})) as slack:
        delivery, _ = send(slack)

    assert (delivery.result, len(slack.posts)) == (Result.REJECTED, 1)


SILENCES = {"slow": Answer(200, delay=30), "trickling": Answer(trickle=True), "hung up": Answer(None)}


@pytest.mark.parametrize("silence", SILENCES.values(), ids=SILENCES.keys())
def test_without_an_answer_nothing_is_known_and_nothing_is_sent_again(tmp_path: Path, silence: Answer) -> None:
    with receiver(tmp_path, silence, Answer(200)) as slack, Stopwatch() as watch:
        delivery, _ = send(slack, post_seconds=1.0)

    assert (delivery.result, delivery.posts, len(slack.posts)) == (Result.UNKNOWN, 1, 1)
    assert watch.seconds < 4


def test_of_a_final_stage_an_unanswered_message_is_sent_once_more(tmp_path: Path) -> None:
    with receiver(tmp_path, Answer(None), Answer(200)) as slack:
        delivery, _ = send(slack, repeat_unknown=True)

    assert (delivery.result, len(slack.posts)) == (Result.DELIVERED, 2)


def test_of_a_final_stage_unanswered_messages_have_a_budget_too(tmp_path: Path) -> None:
    with receiver(tmp_path, Answer(None)) as slack:
        delivery, _ = send(slack, repeat_unknown=True)

    assert (delivery.result, len(slack.posts)) == (Result.UNKNOWN, 2)


def test_a_refusal_after_silence_does_not_prove_that_nothing_arrived(tmp_path: Path) -> None:
    with receiver(tmp_path, Answer(None), Answer(503)) as slack:
        delivery, _ = send(slack, repeat_unknown=True)

    assert delivery.result is Result.UNKNOWN


def test_a_refused_connection_is_known_not_to_deliver(tmp_path: Path) -> None:
    with receiver(tmp_path) as slack:
        ca_file = slack.ca_file
    [port] = free_ports(1)
    delivery, clock = send(Receiver(port, ca_file, []))

    assert (delivery.result, delivery.posts) == (Result.REFUSED, MAX_POSTS)
    assert "ConnectionRefusedError" in delivery.reason and len(clock.naps) == MAX_POSTS - 1


def test_nothing_is_sent_to_a_server_whose_certificate_is_not_trusted(tmp_path: Path) -> None:
    with receiver(tmp_path) as slack:
        delivery, _ = send(slack, trusted=False)

    assert delivery.result is Result.REFUSED and "certificate is not trusted" in delivery.reason
    assert slack.posts == []


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.slack.com/services/verysecret",
        "https://hooks.slack.com:8443/services/verysecret",
        "https://evil.example/services/verysecret",
        "https://hooks.slack.com.evil.example/services/verysecret",
        "https://hooks.slack.com@evil.example/services/verysecret",
        "https://user:verysecret@hooks.slack.com/services/x",
        "https://hooks.slack.com:verysecret/services",
        "https://[::1/services/verysecret",
        "T0/B0/verysecret",
        "",
    ],
)
def test_only_allowed_addresses_are_taken_and_a_refusal_never_prints_the_secret(url: str) -> None:
    with pytest.raises(WebhookRefused) as refusal:
        SlackWebhook(url, ["hooks.slack.com"])

    assert SECRET not in str(refusal.value) and refusal.value.__cause__ is None
    assert "https" in str(refusal.value) or "SLACK_ALLOWED_HOSTS" in str(refusal.value)


@pytest.mark.parametrize(
    ("target", "header"),
    [
        ("/", "Bearer verysecret\n"),
        ("/", "Bearer verysecret\u200b"),
        ("/verysecret ", "x"),
        ("/verysecret/\u00e4", "x"),
    ],
)
def test_a_post_that_cannot_be_written_is_told_by_its_kind_only_and_nothing_has_left(
    tmp_path: Path, target: str, header: str
) -> None:
    with receiver(tmp_path) as slack:
        poster = Poster(ca_file=str(slack.ca_file))
        said = poster.post(Address("localhost", slack.port, target), b"{}", {"Authorization": header}, 3)

    assert isinstance(said, NoAnswer) and not said.had_left
    assert SECRET not in repr(said) and re.search(r"\((ValueError|UnicodeEncodeError|InvalidURL)\)", said.reason)
    assert slack.posts == []


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://hooks.slack.com/services/x", ["hooks.slack.com"]),
        ("https://HOOKS.slack.com:443/services/x", [" Hooks.Slack.com "]),
        ("https://localhost:8443/services/x", ["hooks.slack.com", "localhost:8443"]),
    ],
)
def test_an_allowed_host_without_a_port_means_443(url: str, allowed: list[str]) -> None:
    assert repr(SlackWebhook(url, allowed)).startswith("SlackWebhook(")

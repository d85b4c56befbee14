"""Messages: within Slack's limits and escaped, whatever comes in; and they say what a person needs."""

from __future__ import annotations

import html
import json
import re

import pytest
from hypothesis import given, settings

from nightshift.contract.events import FieldError, Stage, StageEvent
from nightshift.report.mrkdwn import esc
from nightshift.report.slack import blocks
from nightshift.report.words import clean
from tests.report.support import ATTEMPTS, CURVE, HOSTILE, STAGE_EVENTS, evaluated, event

LINK = re.compile(r"<https?://[^|<>\s\"`]+\|[^<>|]*>")
ENTITY = re.compile(r"&(?!amp;|lt;|gt;)")


def texts(payload: dict) -> list[tuple[str, str]]:
    """(kind of block, text) of every block."""
    found = []
    for block in payload["blocks"]:
        holders = block["elements"] if block["type"] == "context" else [block["text"]]
        found += [(block["type"], one["text"]) for one in holders]
    return found


def said(stage: Stage, **changes: object) -> str:
    return "\n".join(text for _, text in texts(blocks(event(stage, **changes))))


@settings(max_examples=60, deadline=None)
@given(STAGE_EVENTS)
def test_any_event_gives_a_payload_within_slacks_limits_in_which_nothing_from_outside_links_or_mentions(
    one: StageEvent,
) -> None:
    payload = blocks(one)

    json.dumps(payload).encode()
    assert len(payload["blocks"]) <= 50
    assert 0 < len(payload["text"]) <= 3_000
    for kind, text in [*texts(payload), ("text", payload["text"])]:
        assert 0 < len(text) <= (150 if kind == "header" else 3_000)
        bare = LINK.sub("", text)
        assert "<" not in bare and ">" not in bare
        assert not ENTITY.search(text)
        assert all(c.isprintable() or c == "\n" for c in text)


@settings(max_examples=40, deadline=None)
@given(STAGE_EVENTS)
def test_every_error_of_a_refused_request_is_named_by_its_field(one: StageEvent) -> None:
    refused = one.model_copy(update={"stage": Stage.REJECTED})

    shown = html.unescape("\n".join(text for _, text in texts(blocks(refused))))

    for error in refused.errors:
        assert clean(error.field.replace("`", "ʼ"))[:25] in shown
        assert clean(error.problem)[:60].strip() in shown


@given(HOSTILE)
def test_a_bound_counts_escaped_characters_and_never_cuts_an_escape(text: str) -> None:
    for limit in (1, 7, 150):
        short = esc(text, limit)
        assert len(short) <= limit
        assert not ENTITY.search(short)
        assert html.unescape(short).rstrip("…").rstrip() in clean(text)


def test_a_finished_run_says_from_where_to_where_at_what_cost_and_where_to_look() -> None:
    message = said(
        Stage.FINISHED, baseline=CURVE[0], final=CURVE[-1], holdout_baseline=evaluated(193, 500),
        holdout_final=evaluated(462, 500), curve=[0.4375, 0.6, 1.0], attempts=ATTEMPTS, gpu_hours=17.96,
        links={"Report": "https://example.com/r?a=1&b=2", "Files": "s3://bucket/runs/maze-demo/"},
    )  # fmt: skip

    for part in (
        "43.8% → 96.9%", "28 of 64", "62 of 64", "193 of 500", "462 of 500", "89.3% to 99.1%", "▄▅█", "a node was lost",
        "i-0a1b2c", "from step 20", "6.70 GPU-hours", "11.3 GPU-hours", "18.0 GPU-hours",
        "<https://example.com/r?a=1&amp;b=2|Report>", "`s3://bucket/runs/maze-demo/`",
    ):  # fmt: skip
        assert part in message
    assert "node_lost" not in message


def test_a_recovery_says_why_and_that_nobody_has_to_get_up() -> None:
    message = said(Stage.RECOVERING, attempt=1, step=41, total_steps=160, cause="node_lost", node="i-0a1b2c")

    assert "Attempt 1 at step 41 of 160: a node was lost (`i-0a1b2c`)" in message
    assert "Nothing for you to do" in message
    assert "What to do" not in message


def test_a_failure_with_a_sentence_says_that_and_adds_no_second_advice() -> None:
    message = said(Stage.FAILED, cause="storage_full", sentence="The disk is full. Make room & start again.")

    assert "The disk is full. Make room &amp; start again." in message
    assert "What to do" not in message


def test_a_failure_without_a_sentence_still_says_why_and_what_to_do() -> None:
    message = said(Stage.FAILED, cause="storage_full", step=7, total_steps=10)

    assert "It ended at step 7 of 10: the shared storage was full." in message
    assert "*What to do:*" in message and "`nightshift status maze-demo`" in message


def test_a_refused_request_says_that_nothing_runs_and_counts_what_to_correct() -> None:
    errors = [FieldError(field=f"training.f{i}", problem="too <big>") for i in range(50)]
    payload = blocks(event(Stage.REJECTED, errors=errors))

    assert "Nothing was started" in texts(payload)[1][1]
    assert "50 things to correct" in payload["text"]
    assert all(f"`training.f{i}`: too &lt;big&gt;" in "\n".join(t for _, t in texts(payload)) for i in range(50))


@pytest.mark.parametrize(
    "address", ["javascript:alert(1)", "https://h/a|b", "https://h/ >x", "https://", "//h/x", "http://[::1"]
)
def test_only_whole_web_addresses_become_links(address: str) -> None:
    message = said(Stage.STARTED, links={"Report": address})

    assert "|Report>" not in message
    assert "Report: `" in message

"""Messages: within Slack's limits and escaped, whatever comes in; and they say what a person needs."""

from __future__ import annotations

import html
import json
import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.contract.events import BudgetUse, FieldError, Stage, StageEvent
from nightshift.report.mrkdwn import code_block, esc
from nightshift.report.night import night_blocks
from nightshift.report.slack import blocks
from nightshift.report.words import clean
from tests.report.messages import KEPT, all_messages
from tests.report.support import ATTEMPTS, CURVE, HOSTILE, NOW, STAGE_EVENTS, evaluated, event

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
    _holds_within_slacks_limits(blocks(one))


def _holds_within_slacks_limits(payload: dict) -> None:
    json.dumps(payload).encode()
    assert len(payload["blocks"]) <= 50
    assert 0 < len(payload["text"]) <= 3_000
    for kind, text in [*texts(payload), ("text", payload["text"])]:
        assert 0 < len(text) <= (150 if kind == "header" else 3_000)
        bare = LINK.sub("", text)
        assert "<" not in bare and ">" not in bare
        assert not ENTITY.search(text)
        assert all(c.isprintable() or c == "\n" for c in text)


@settings(max_examples=20, deadline=None)
@given(st.lists(STAGE_EVENTS, min_size=1, max_size=4).map(lambda some: some * 20))
def test_so_does_any_night(events: list[StageEvent]) -> None:
    _holds_within_slacks_limits(night_blocks(events))


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


def test_every_message_reads_as_it_was_last_read_by_a_person() -> None:
    """messages.txt is what ``python -m tests.report.messages --write`` made of the sample events: read it when it changes."""
    assert all_messages() == KEPT.read_text()


def test_the_first_eval_and_the_target_say_how_many_of_how_many() -> None:
    first = said(Stage.FIRST_EVAL, step=0, baseline=evaluated(28), target=0.95)
    assert "before training: 43.8%" in first and "28 of 64" in first and "The target is 95.0%." in first
    reached = said(Stage.TARGET_REACHED, step=260, total_steps=400, final=evaluated(61, step=260), target=0.95)
    assert "reached its target: 95.3%" in reached and "61 of 64" in reached and "step 260 of 400" in reached


@pytest.mark.parametrize(
    ("name", "used", "limit", "shown"),
    [
        ("wall_hours", 268.8, 336, "268.8 of 336 wall hours"),
        ("gpu_hours", 4_000, 5_000, "4,000.0 of 5,000 GPU-hours"),
        ("dollars", 8_000.5, 10_000, "$8,000.50 of $10,000"),
    ],
)
def test_a_limit_that_is_near_says_what_then_happens(name: Any, used: float, limit: float, shown: str) -> None:
    message = said(Stage.BUDGET, step=290, total_steps=400, budget=BudgetUse(name=name, used=used, limit=limit))

    assert f"*{shown}* are used at step 290 of 400" in message
    assert "has used 80% of its" in message and "ends by itself and publishes what it has" in message


def test_a_failure_shows_the_jobs_last_lines_and_how_to_go_on() -> None:
    message = said(Stage.FAILED, step=131, sentence="It broke.", attempts=ATTEMPTS, log_tail="  at <x>\n`rm` & more")

    assert "```\n  at &lt;x&gt;\nʼrmʼ &amp; more\n```" in message
    assert "Step 50 is saved: `nightshift retry maze-demo` goes on from there" in message


def test_of_a_log_that_is_too_long_the_end_is_shown() -> None:
    lines = [f"line {n} {'<' * 60}" for n in range(30)]
    shown = code_block("\n".join(lines), 2_900)

    assert len(shown) <= 2_900 and shown.endswith(f"line 29 {'&lt;' * 60}\n```") and "line 0 " not in shown


def test_an_asking_run_says_how_long_it_waits() -> None:
    message = said(Stage.ASKING, sentence="Make room.", until=NOW + timedelta(hours=24))

    assert "until *2026-12-01 01:02 UTC* (in 24 h)" in message and "`nightshift answer maze-demo --go-on`" in message


def test_a_night_is_told_run_by_run_with_a_line_for_each_recovery() -> None:
    def one(stage: Stage, run_id: str, minute: int, **more: Any) -> StageEvent:
        return event(stage, run_id=run_id, key=f"{stage}-{minute}", at=NOW + timedelta(minutes=minute), **more)

    lost: dict[str, Any] = {"cause": "node_lost", "node": "i-1"}
    payload = night_blocks(
        [
            one(Stage.RECOVERED, "maze-a", 5, seconds=240.0, step=20, **lost),
            one(Stage.RECOVERING, "maze-a", 1, **lost),
            one(Stage.RECOVERED, "maze-b", 9, seconds=60.0, step=3, cause="hung"),
            one(Stage.RECOVERING, "maze-a", 30, cause="preempted"),
        ]
    )
    shown = "\n".join(text for _, text in texts(payload))
    assert payload["text"] == "Last night: 3 recoveries in 2 runs: maze-a, maze-b"
    assert "*maze-a*\n• 01:07 UTC: a node was lost (`i-1`); trains again from step 20 after 4 min" in shown
    assert "• 01:32 UTC: was preempted or evicted; it was not training again before the night ended" in shown
    assert "*maze-b*\n• 01:11 UTC: stood still; trains again from step 3 after 1 min" in shown


def test_of_a_bad_night_the_newest_recoveries_are_shown_and_the_others_counted() -> None:
    events = [event(Stage.RECOVERED, key=f"r{n}", at=NOW + timedelta(minutes=n), step=n) for n in range(200)]
    shown = "\n".join(text for _, text in texts(night_blocks(events)))

    assert "200 recoveries" in shown and "140 earlier ones" in shown
    assert "from step 199" in shown and "from step 139" not in shown


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

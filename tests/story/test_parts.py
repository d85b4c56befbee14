"""The parts of the story that need no stack: screen, Slack text, histories, driver detection, bounds."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from local import proctree
from local.memory import MemorySampler
from local.story.demo import verdict_words
from local.story.history import ShiftHistory, poll_cost
from local.story.recovery import Recovery, is_driver, started_at
from local.story.request import demo_request
from local.story.screen import ProgressLine, Screen
from local.story.slack import read_messages
from local.story.summary import Measured, broken_claims, numbers, summary
from local.story.watch import milestones, one_line
from nightshift.contract import EvalSet, EvalSummary, Manifest, Phase, Progress
from nightshift.contract.publication import AttemptLine

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def evaluated(solved: int, of: int, step: int = 0, eval_set: EvalSet = EvalSet.FIXED) -> EvalSummary:
    return EvalSummary(
        run_id="r", attempt=1, step=step, eval_set=eval_set, solved=solved, of=of, low=0, high=1, avg_score=0,
        pass_at_1=0, rows_sha256="0" * 64, at=NOW,
    )  # fmt: skip


def manifest(resumed: int = 16, final: int = 64, state: str = "succeeded") -> Manifest:
    first = AttemptLine(n=1, started_at=NOW, end_cause="node_replaced", signal="s", node="i-1", last_saved_step=16)
    second = AttemptLine(n=2, started_at=NOW, end_cause="finished", resumed_step=resumed, last_saved_step=32)
    return Manifest(
        run_id="r", state=state, attempts=[first, second], baseline=evaluated(28, 64), final=evaluated(final, 64, 32),
        best=None, holdout_baseline=evaluated(193, 500), holdout_final=evaluated(460, 500), curve=[], adapters={},
        gpu_hours=0.1, objects={}, at=NOW,
    )  # fmt: skip


def measured(**changes: Any) -> Measured:
    good: dict[str, Any] = {
        "demo": 100.0, "kill_to_running": 9.0, "kill_to_first_step": 15.0, "peak_memory_mib": 4000,
        "memory_samples": 50, "events_per_poll": 6, "looks": 20, "processes_seen": 40, "left_over": [],
        "cpu_seconds": 150.0,
        "cpu_of_others": 10.0,
    }  # fmt: skip
    return Measured(**{**good, **changes})


def not_ok(document: Manifest, seen: Measured) -> list[str]:
    return [row.name for row in numbers(document, seen) if row.ok is False]


def test_when_every_promise_is_kept_no_number_is_out_of_bounds() -> None:
    assert not_ok(manifest(), measured()) == []
    assert broken_claims(manifest(), verified=True) == []


@pytest.mark.parametrize(
    ("document", "seen", "name"),
    [
        (manifest(), measured(demo=150.1), "whole demo"),
        (manifest(), measured(peak_memory_mib=6145), "memory of the whole stack (PSS, peak)"),
        (manifest(), measured(peak_memory_mib=0), "memory of the whole stack (PSS, peak)"),
        (manifest(), measured(kill_to_running=15.1), "node kill -> attempt 2 RUNNING"),
        (manifest(), measured(kill_to_running=None), "node kill -> attempt 2 RUNNING"),
        (manifest(resumed=12), measured(), "attempt 2 resumed at step"),
        (manifest(final=60), measured(), "solved after training"),
        (manifest(), measured(events_per_poll=8), "history events of one poll"),
        (manifest(), measured(left_over=["17 ray"]), "processes left"),
    ],
)
def test_each_number_that_is_out_of_bounds_is_said_to_be(document: Manifest, seen: Measured, name: str) -> None:
    assert not_ok(document, seen) == [name]


def test_a_run_that_failed_or_was_not_verified_breaks_a_claim() -> None:
    assert len(broken_claims(manifest(state="failed"), verified=True)) == 1
    assert len(broken_claims(manifest(), verified=False)) == 1


def test_the_summary_has_the_shape_that_its_readers_expect() -> None:
    document = summary("r", manifest(), measured(kill_to_running=9.04))
    assert document["attempts"][0] == {
        "n": 1, "end_cause": "node_replaced", "signal": "s", "resumed_step": None, "last_saved_step": 16, "node": "i-1",
    }  # fmt: skip
    assert document["baseline"] == {"solved": 28, "of": 64}
    assert document["holdout"] == {"baseline": 193, "final": 460, "of": 500}
    assert document["seconds"] == {"demo": 100.0, "kill_to_running": 9.0, "kill_to_first_step": 15.0}
    assert (document["peak_memory_mib"], document["events_per_poll"]) == (4000, 6)


def test_without_a_terminal_the_screen_prints_plain_lines_with_all_columns() -> None:
    out = io.StringIO()
    with Screen(out) as screen:
        screen.line("look", "recover: [a node] was lost " + "x" * 200, "hyperpod_node_health", at=12.34)
        screen.progress(ProgressLine(1, "train", 3, 32, 0.5, 20.0))
        screen.table(("what", "measured"), [("a [b]", "NOT OK")])
    text = out.getvalue()
    assert "\x1b" not in text
    assert "   12.3 s  look       recover: [a node] was lost xxx" in text
    assert text.splitlines()[0].endswith("   <- hyperpod_node_health"), "a long line is not folded"
    assert "a [b]" in text and "NOT OK" in text


def test_plain_progress_is_not_repeated_for_every_phase() -> None:
    out = io.StringIO()
    with Screen(out) as screen:
        for phase in ("generate", "train", "eval"):
            screen.progress(ProgressLine(1, phase, 3, 32))
    assert out.getvalue().count("step 3/32") <= 1


def test_slack_blocks_become_readable_text_and_a_half_written_line_is_left(tmp_path: Path) -> None:
    payload = {
        "text": "Run r finished: 28 &gt; 4",
        "blocks": [
            {"type": "header", "text": {"type": "plain_text", "text": "finished"}},
            {"type": "section", "text": {"type": "mrkdwn", "text": "see <https://x/y|report> &amp; more"}},
            {"type": "section", "fields": [{"type": "mrkdwn", "text": "*GPU-hours*\n`0.1` of 2*3*4"}]},
            {"type": "context", "elements": [{"type": "mrkdwn", "text": "▁▅█"}]},
        ],
    }
    path = tmp_path / "slack.jsonl"
    path.write_text(json.dumps({"at": "now", "payload": payload}) + "\n" + '{"at": "la')
    (message,) = read_messages(path)
    assert message.text == "finished\nsee report (https://x/y) & more\n  GPU-hours 0.1 of 2*3*4\n▁▅█"
    assert message.headline == "Run r finished: 28 > 4"
    assert read_messages(tmp_path / "none.jsonl") == []


def history(*types: str) -> ShiftHistory:
    entered = {"type": "TaskStateEntered", "stateEnteredEventDetails": {"name": "Look"}}
    return ShiftHistory("s", "attempt", [entered if kind == "enter" else {"type": kind} for kind in types])


def test_a_poll_is_counted_from_one_look_to_the_next_and_only_where_the_timeout_ended_it() -> None:
    nap = ("enter", "TaskScheduled", "TaskStarted", "TaskSubmitted", "TaskTimedOut", "TaskStateExited")
    woken = ("enter", "TaskScheduled", "TaskStarted", "TaskSubmitted", "TaskSucceeded", "TaskStateExited")
    cost = poll_cost([history("ExecutionStarted", *nap, *nap, *woken, "ChoiceStateEntered")])
    assert (cost.events_per_poll, cost.polls, cost.looks) == (6, 2, 3)
    assert poll_cost([history(*woken)]).events_per_poll is None


def test_only_the_driver_of_the_attempt_itself_is_taken_for_it() -> None:
    command = "python -m training_job run --bucket b --run-id r --attempt {} --floor 0"
    assert is_driver(command.format(2), 2)
    assert not is_driver(command.format(1), 2)
    assert not is_driver(command.format(21), 2)
    assert not is_driver("python -m training_job verify --bucket b --attempt 2", 2)


def test_a_recovery_is_measured_from_the_process_table_and_from_the_progress() -> None:
    before = time.time()
    code = "import time; time.sleep(30)"
    driver = subprocess.Popen([sys.executable, "-c", code, "training_job", "run", "--attempt", "2"])
    try:
        process = proctree.look_up(driver.pid)
        assert process is not None
        assert abs(started_at(process) - before) < 1.0
        recovery = Recovery(attempt=2, killed_at=before - 5)
        deadline = time.monotonic() + 5
        while recovery.running_at is None and time.monotonic() < deadline:
            recovery.look([process], None)  # the command line is python's own only after its exec
        assert recovery.to_running == pytest.approx(5, abs=1.0)
        assert recovery.to_first_step is None
        for step in (16, 17):
            at = datetime.fromtimestamp(before + step, UTC)
            recovery.look([], Progress(run_id="r", attempt=2, phase=Phase.TRAIN, step=step, total_steps=32,
                                       resumed_step=16, saved_step=16, at=at))  # fmt: skip
        assert recovery.to_first_step == pytest.approx(22, abs=0.01), "the step that it resumed at is not a new one"
    finally:
        driver.kill()
        driver.wait()


def test_memory_is_the_sum_of_what_each_process_holds_for_itself() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", "x = bytearray(64 << 20); print('up', flush=True); import time; time.sleep(30)"],
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline()
        alone = MemorySampler(list).sample()
        mine = [one for one in proctree.descendants(os.getpid()) if one.pid == holder.pid]
        both = MemorySampler(lambda: mine).sample()
        assert 64 << 20 <= both - alone < 160 << 20
    finally:
        holder.kill()
        holder.communicate()


def test_the_demo_asks_for_the_example_with_digest_and_commit_filled_in() -> None:
    request = demo_request()
    assert request.run_id == "demo-maze"
    assert len(request.spec["image"].partition("@sha256:")[2]) == 64
    assert len(request.spec["task"]["code"]["sha"]) == 40


def at_step(step: int, **fields: Any) -> Progress:
    return Progress(run_id="r", attempt=2, phase=Phase.TRAIN, step=step, total_steps=32, at=NOW, **fields)


def test_milestones_are_told_once_and_a_resumed_step_is_not_told_as_a_new_checkpoint() -> None:
    first = at_step(0, saved_step=16)  # the floor, before the guard has spoken
    resumed = at_step(16, saved_step=16, resumed_step=16)
    later = at_step(21, saved_step=20, resumed_step=16, success=0.5)
    assert milestones(None, first, 4) == []
    assert milestones(first, resumed, 4) == ["attempt 2 resumes at step 16"]
    assert milestones(resumed, later, 4) == [
        "checkpoint of step 20 is saved and verified",
        "eval at step 20: 50.0% of the fixed set solved",
    ]
    assert milestones(later, at_step(22, saved_step=20, resumed_step=16, success=0.5), 4) == []


def test_text_from_outside_takes_one_line_and_keeps_its_first_and_last_words() -> None:
    shown = one_line("first\n" + "x " * 500 + "\r\n last")
    assert "\n" not in shown and len(shown) < 240
    assert shown.startswith("first x") and shown.endswith("x last")
    assert one_line("a  b\tc") == "a b c"


def test_a_verification_is_told_in_words_and_a_bad_one_word_for_word() -> None:
    good = json.dumps({"ok": True, "objects": 9, "adapters": {"best": 4, "final": 8}, "solved": 3, "of": 4})
    assert verdict_words(0, good) == (
        "9 objects with the right digests, adapters loaded: best (step 4), final (step 8); "
        "the eval repeated to the same rows, 3 of 4 solved"
    )
    assert verdict_words(65, good).startswith("NOT OK, exit code 65")
    assert "it said nothing" in verdict_words(0, "it said nothing")
    assert "NOT OK" in verdict_words(0, '{"ok": false}')

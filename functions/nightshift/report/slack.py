"""Stages of a run as Slack messages (Block Kit, with a text that stands alone for notifications and screen readers).

Plain words for somebody on a phone at night: what happened, what happens next, and what there is to do, if anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nightshift.contract.evals import EvalSummary
from nightshift.contract.events import Stage, StageEvent
from nightshift.report.mrkdwn import code, context, esc, header, links, sections
from nightshift.report.text import attempt_sentence, count, result_words, sparkline
from nightshift.report.words import cause_words, duration, hours, moment, percent, plural, spend_words

_TEXT_LIMIT = 1_000
_SENTENCE_LIMIT = 1_500


@dataclass(frozen=True)
class _Message:
    """``title`` is plain and not escaped; each list of ``parts`` is a paragraph of escaped lines."""

    title: str
    summary: str = ""
    parts: list[list[str]] = field(default_factory=list)


def blocks(event: StageEvent) -> dict[str, Any]:
    """The payload of one webhook post. Every outside text is escaped, then bounded to Slack's limits."""
    message = _MESSAGES[event.stage](event)
    body = [block for part in message.parts for block in sections(part)]
    foot = context(
        [
            f"run {code(event.run_id, 60)}",
            f"asked for by {esc(event.owner, 200)}" if event.owner else "",
        ]
    )
    text = esc(message.title, 200) + (f": {message.summary}" if message.summary else "")
    return {
        "text": text if len(text) <= _TEXT_LIMIT else esc(message.title, 200),
        "blocks": [header(message.title), *body, *sections(links(event.links)), *foot],
    }


def _sentence(event: StageEvent) -> str:
    return esc(event.sentence, _SENTENCE_LIMIT)


def _steps(event: StageEvent) -> str:
    """``step 20 of 400``; empty where the step is not known."""
    if event.step is None:
        return ""
    return f"step {event.step:,}" + (f" of {event.total_steps:,}" if event.total_steps else "")


def _attempt(event: StageEvent) -> str:
    return f"Attempt {event.attempt}" if event.attempt else "The attempt"


def _rejected(event: StageEvent) -> _Message:
    number = len(event.errors)
    what = f"{plural(number, 'thing')} to correct" if number else "it is not a valid request"
    lines = [f"• {code(one.field, 160)}: {esc(one.problem, 400)}" for one in event.errors]
    return _Message(
        title=f"{event.run_id} was not started",
        summary=what,
        parts=[
            ["Nothing was started. Please correct this and send it again:" if lines else "Nothing was started."],
            lines,
            [_sentence(event)],
        ],
    )


def _queued(event: StageEvent) -> _Message:
    said = _sentence(event) or "It starts by itself when its pool is free."
    return _Message(title=f"{event.run_id} is waiting", summary=said, parts=[[said]])


def _started(event: StageEvent) -> _Message:
    goal = f"{event.total_steps:,} steps to train." if event.total_steps else ""
    said = " ".join(one for one in (_sentence(event), goal) if one) or "It is running now."
    return _Message(title=f"{event.run_id} started", summary=said, parts=[[said]])


def _recovering(event: StageEvent) -> _Message:
    node = f" ({code(event.node, 80)})" if event.node else ""
    at = f" at {_steps(event)}" if event.step is not None else ""
    what = f"{_attempt(event)}{at}: {esc(cause_words(event.cause, 'it ended early'), 200)}{node}."
    next_up = "It goes on by itself from the last saved step as soon as the cluster is ready. Nothing for you to do."
    return _Message(
        title=f"{event.run_id} is recovering",
        summary=f"{what} Nothing for you to do.",
        parts=[[what, _sentence(event), next_up]],
    )


def _recovered(event: StageEvent) -> _Message:
    at = f" from {_steps(event)}" if event.step is not None else ""
    took = f", {duration(event.seconds)} after the decision to go on" if event.seconds is not None else ""
    what = f"{_attempt(event)} trains again{at}{took}."
    return _Message(title=f"{event.run_id} is training again", summary=what, parts=[[what, _sentence(event)]])


def _asking(event: StageEvent) -> _Message:
    until = f"The run waits for an answer until *{moment(event.until)}*, and then it ends." if event.until else ""
    how = f"Answer with {code(f'POST /runs/{event.run_id}/answer', 120)}: go on, or give up."
    said = _sentence(event) or f"{_attempt(event)}: {esc(cause_words(event.cause, 'something is missing'), 200)}."
    return _Message(title=f"{event.run_id} asks what to do", summary=said, parts=[[said, until, how]])


def _result_line(label: str, baseline: EvalSummary | None, final: EvalSummary | None) -> str:
    if baseline and final:
        return f"*{label}:* {result_words(baseline)} → *{result_words(final)}*"
    only = final or baseline
    return f"*{label}:* {result_words(only)}, {'final' if final else 'before training'}" if only else ""


def _results(event: StageEvent) -> list[str]:
    lines = [
        _result_line("Fixed set", event.baseline, event.final),
        _result_line("Hold-out", event.holdout_baseline, event.holdout_final),
    ]
    bars = sparkline(event.curve)
    if bars:
        lines.append(f"`{bars}` success on the fixed set while it trained, from 0% to 100%")
    return [line for line in lines if line]


def _costs(event: StageEvent) -> list[str]:
    lines = [f"• {esc(attempt_sentence(one), 900)}" for one in event.attempts]
    if event.gpu_hours is not None:
        lines.append(f"*{hours(event.gpu_hours)} GPU-hours* in all")
    if event.spend is not None:
        lines.append(esc(spend_words(event.spend), 300))
    return lines


def _finished(event: StageEvent) -> _Message:
    title, summary = f"{event.run_id} finished", _sentence(event)
    if event.baseline and event.final:
        title += f": {percent(event.baseline.success)} → {percent(event.final.success)}"
        summary = f"{count(event.baseline)} → {count(event.final)} solved"
    return _Message(title=title, summary=summary, parts=[[_sentence(event)], _results(event), _costs(event)])


def _failed(event: StageEvent) -> _Message:
    at = f" at {_steps(event)}" if event.step is not None else ""
    said = _sentence(event) or f"It ended{at}: {esc(cause_words(event.cause, 'the cause is not known'), 200)}."
    todo = (
        f"*What to do:* look at the report or at {code(f'nightshift status {event.run_id}', 120)} for the last error."
    )
    return _Message(
        title=f"{event.run_id} failed",
        summary=said,
        parts=[[said], [] if event.sentence else [todo], _results(event), _costs(event)],
    )


def _cancelled(event: StageEvent) -> _Message:
    at = f" at {_steps(event)}" if event.step is not None else ""
    said = _sentence(event) or f"It was stopped on request{at}. What it had published is kept."
    return _Message(title=f"{event.run_id} was cancelled", summary=said, parts=[[said], _results(event), _costs(event)])


_MESSAGES: dict[Stage, Callable[[StageEvent], _Message]] = {
    Stage.REJECTED: _rejected,
    Stage.QUEUED: _queued,
    Stage.STARTED: _started,
    Stage.RECOVERING: _recovering,
    Stage.RECOVERED: _recovered,
    Stage.ASKING: _asking,
    Stage.FINISHED: _finished,
    Stage.FAILED: _failed,
    Stage.CANCELLED: _cancelled,
}

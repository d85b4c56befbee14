"""Stages of a run as Slack messages (Block Kit, with a text that stands alone for notifications and screen readers).

Plain words for somebody on a phone at night: what happened, what happens next, and what there is to do, if anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nightshift.contract.evals import EvalSummary
from nightshift.contract.events import Stage, StageEvent
from nightshift.contract.rehearsal import is_rehearsal
from nightshift.report.mrkdwn import code, code_block, context, esc, header, links, sections
from nightshift.report.text import attempt_sentence, best_sentence, count, result_words, sparkline
from nightshift.report.words import between, cause_words, dollars, duration, hours, percent, plural, spend_words, utc

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
            "a rehearsal: its results say nothing" if is_rehearsal(event.run_id) else "",
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
    said = _sentence(event) or "It waits for its pool."
    return _Message(
        title=f"{event.run_id} is waiting",
        summary=said,
        parts=[[said, "It starts by itself. Nothing for you to do."]],
    )


def _started(event: StageEvent) -> _Message:
    goal = f"{event.total_steps:,} steps to train." if event.total_steps else ""
    said = " ".join(one for one in (_sentence(event), goal) if one) or "It is running now."
    return _Message(title=f"{event.run_id} started", summary=said, parts=[[said]])


def _target_line(event: StageEvent) -> str:
    return f"The target is {percent(event.target)}." if event.target is not None else ""


def _first_eval(event: StageEvent) -> _Message:
    first = event.baseline
    when = f"at step {event.step:,}" if event.step else "before training"
    if first is None:
        return _Message(title=f"{event.run_id} has its first eval", parts=[[_sentence(event), _target_line(event)]])
    said = f"*{result_words(first)}* on the fixed set."
    return _Message(
        title=f"{event.run_id} {when}: {percent(first.success)}",
        summary=f"{count(first)} solved",
        parts=[[said, _target_line(event), _sentence(event)]],
    )


def _target_reached(event: StageEvent) -> _Message:
    title, summary = f"{event.run_id} reached its target", _sentence(event)
    if event.final is not None:
        title += f": {percent(event.final.success)}"
        summary = f"{count(event.final)} solved"
    at = f"It was held at {_steps(event)}." if event.step is not None else ""
    return _Message(
        title=title,
        summary=summary,
        parts=[_results(event), [" ".join(one for one in (_target_line(event), at, _sentence(event)) if one)]],
    )


_BUDGETS = {"wall_hours": "wall hours", "gpu_hours": "GPU-hours", "dollars": "dollars"}


def _budget(event: StageEvent) -> _Message:
    use = event.budget
    if use is None:
        return _Message(title=f"{event.run_id} is near a limit", parts=[[_sentence(event)]])
    money = use.name == "dollars"
    used, limit = (dollars(use.used), dollars(use.limit)) if money else (f"{use.used:,.1f}", f"{use.limit:,g}")
    said = f"*{used} of {limit}{'' if money else f' {_BUDGETS[use.name]}'}* are used{_at(event)}."
    then = "At the limit the run ends by itself and publishes what it has; its checkpoints are kept. "
    how = f"{code(f'nightshift retry {event.run_id} --raise {use.name}=NUMBER', 150)} then goes on from there."
    return _Message(
        title=f"{event.run_id} has used {use.used / use.limit:.0%} of its {_BUDGETS[use.name]}",
        summary=f"{used} of {limit}{_at(event)}",
        parts=[[said, _sentence(event), then + how]],
    )


def _at(event: StageEvent) -> str:
    return f" at {_steps(event)}" if event.step is not None else ""


def _recovering(event: StageEvent) -> _Message:
    node = f" ({code(event.node, 80)})" if event.node else ""
    at = f" at {_steps(event)}" if event.step is not None else ""
    what = f"{_attempt(event)}{at}: {esc(cause_words(event.cause, 'it ended early'), 200)}{node}."
    next_up = _sentence(event) or "It goes on by itself from the last saved step as soon as the cluster is ready."
    return _Message(
        title=f"{event.run_id} is recovering",
        summary=f"{what} Nothing for you to do.",
        parts=[[what, f"{next_up} Nothing for you to do."]],
    )


def _recovered(event: StageEvent) -> _Message:
    at = f" from {_steps(event)}" if event.step is not None else ""
    took = f", {duration(event.seconds)} after the decision to go on" if event.seconds is not None else ""
    node = f" ({code(event.node, 80)})" if event.node else ""
    why = f"What had happened: {esc(cause_words(event.cause), 200)}{node}." if event.cause else ""
    what = f"{_attempt(event)} trains again{at}{took}."
    return _Message(title=f"{event.run_id} is training again", summary=what, parts=[[what, why, _sentence(event)]])


def _asking(event: StageEvent) -> _Message:
    until = ""
    if event.until is not None:
        left = duration(between(event.at, event.until).total_seconds())
        until = (
            f"The run waits for an answer until *{utc(event.until):%Y-%m-%d %H:%M} UTC* (in {left}), and then it ends."
        )
    how = f"Answer with {code(f'nightshift answer {event.run_id} --go-on', 120)} or {code('--give-up', 20)}."
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
        best_sentence(event.best, event.holdout_best) if event.best is not None else "",
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
    look = code(f"nightshift status {event.run_id}", 120)
    more = f"{look} shows its attempts and its trail."
    if not event.sentence:
        more = f"*What to do:* look at the report or at {look} for the last error."
    log = code_block(event.log_tail, 2_900)
    return _Message(
        title=f"{event.run_id} failed{at}",
        summary=said,
        parts=[
            [said, _go_on(event, " once the cause is gone"), more],
            ["*The job's last lines:*", log] if log else [],
            _results(event),
            _costs(event),
        ],
    )


def _go_on(event: StageEvent, when: str = "") -> str:
    """How a run that ended goes on; empty where it has saved nothing."""
    saved = max((one.last_saved_step for one in event.attempts), default=0)
    if not saved:
        return ""
    how = code(f"nightshift retry {event.run_id}", 120)
    return f"Step {saved:,} is saved: {how} goes on from there{when}."


def _cancelled(event: StageEvent) -> _Message:
    at = f" at {_steps(event)}" if event.step is not None else ""
    said = _sentence(event) or f"It was stopped on request{at}. What it had published is kept."
    return _Message(
        title=f"{event.run_id} was cancelled",
        summary=said,
        parts=[[said, _go_on(event)], _results(event), _costs(event)],
    )


_MESSAGES: dict[Stage, Callable[[StageEvent], _Message]] = {
    Stage.REJECTED: _rejected,
    Stage.QUEUED: _queued,
    Stage.STARTED: _started,
    Stage.FIRST_EVAL: _first_eval,
    Stage.RECOVERING: _recovering,
    Stage.RECOVERED: _recovered,
    Stage.ASKING: _asking,
    Stage.TARGET_REACHED: _target_reached,
    Stage.BUDGET: _budget,
    Stage.FINISHED: _finished,
    Stage.FAILED: _failed,
    Stage.CANCELLED: _cancelled,
}

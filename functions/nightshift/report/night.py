"""What happened in a night, as one Slack message: a line for each recovery, run by run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from nightshift.contract.events import Stage, StageEvent
from nightshift.report.mrkdwn import code, esc, header, sections
from nightshift.report.words import cause_words, duration, plural, utc

MAX_LINES = 60
"""Of all runs together; each is shorter than 400 characters."""

MAX_RUNS = 30


def night_blocks(events: Sequence[StageEvent]) -> dict[str, Any]:
    """The payload of one message about recoveries (stages recovering and recovered), oldest first within each run."""
    by_run: dict[str, list[StageEvent]] = {}
    for event in sorted(events, key=lambda one: (utc(one.at), one.stage is Stage.RECOVERED)):
        by_run.setdefault(event.run_id, []).append(event)
    told = {run_id: _lines(mine) for run_id, mine in by_run.items()}
    recoveries = sum(map(len, told.values()))
    title = f"Last night: {'one recovery' if recoveries == 1 else f'{recoveries:,} recoveries'}"
    where = f"{plural(len(told), 'run')}: {', '.join(esc(one, 60) for one in list(told)[:5])}"
    lines, room = [], MAX_LINES
    for run_id, mine in list(told.items())[:MAX_RUNS]:
        shown = mine[-max(1, room) :] if room > 0 else []
        lines += [f"*{esc(run_id, 60)}*", *_left_out(len(mine) - len(shown)), *shown]
        room -= len(shown)
    if len(told) > MAX_RUNS:
        lines.append(f"and {plural(len(told) - MAX_RUNS, 'run')} more")
    closing = "Nothing for you to do. Several on the same node: have it looked at."
    return {
        "text": f"{title} in {where}",
        "blocks": [header(title), *sections(lines), *sections([closing])],
    }


def _left_out(count: int) -> list[str]:
    return [f"• {count:,} earlier ones"] if count > 0 else []


def _lines(events: Sequence[StageEvent]) -> list[str]:
    """A recovery that began and was followed by its attempt is one line; so is one of which only the end is known."""
    lines: list[str] = []
    begun: StageEvent | None = None
    for event in events:
        if event.stage is Stage.RECOVERED:
            lines.append(_line(event, back_at=event.at))
            begun = None
            continue
        if begun is not None:
            lines.append(_line(begun, None))
        begun = event
    return [*lines, _line(begun, None)] if begun is not None else lines


def _line(event: StageEvent, back_at: datetime | None) -> str:
    node = f" ({code(event.node, 80)})" if event.node else ""
    cause = esc(cause_words(event.cause, "it ended early"), 200)
    step = f" from step {event.step:,}" if event.step is not None else ""
    if back_at is None:
        return f"• {utc(event.at):%H:%M} UTC: {cause}{node}; it was not training again before the night ended"
    took = f" after {duration(event.seconds)}" if event.seconds is not None else ""
    return f"• {utc(event.at):%H:%M} UTC: {cause}{node}; trains again{step}{took}"

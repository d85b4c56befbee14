"""Every message as a person reads it, from the sample events: ``python -m tests.report.messages`` prints them, ``--write`` keeps
them in messages.txt, which a test compares."""

from __future__ import annotations

import html
import json
import sys
from pathlib import Path
from typing import Any

from nightshift.contract.events import Stage, StageEvent
from nightshift.report.night import night_blocks
from nightshift.report.slack import blocks

HERE = Path(__file__).parent
KEPT = HERE / "messages.txt"
SAMPLES = HERE.parents[1] / "events" / "stages"


def sample(stage: Stage) -> dict[str, Any]:
    """The event as EventBridge delivers it."""
    loaded: dict[str, Any] = json.loads((SAMPLES / f"{stage.replace('_', '-')}.json").read_text())
    return loaded


def stage_event(stage: Stage) -> StageEvent:
    return StageEvent.model_validate(sample(stage)["detail"])


def as_text(payload: dict[str, Any]) -> str:
    """A payload's blocks in their order, one below the other."""
    parts = []
    for block in payload["blocks"]:
        holders = block["elements"] if block["type"] == "context" else [block["text"]]
        text = "\n".join(html.unescape(one["text"]) for one in holders)
        parts.append(f"# {text}" if block["type"] == "header" else f"({text})" if block["type"] == "context" else text)
    return f"notification: {html.unescape(payload['text'])}\n\n" + "\n\n".join(parts)


def all_messages() -> str:
    shown = {stage.value: blocks(stage_event(stage)) for stage in Stage}
    shown["the night"] = night_blocks([stage_event(Stage.RECOVERING), stage_event(Stage.RECOVERED)])
    return "\n\n".join(f"======== {name}\n{as_text(payload)}" for name, payload in shown.items()) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        KEPT.write_text(all_messages())
    else:
        print(all_messages())

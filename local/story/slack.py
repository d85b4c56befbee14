"""Slack messages as plain text: what a person would have read in the channel."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LINK = re.compile(r"<([^|<>]+)\|([^<>]+)>")
_MARKS = re.compile(r"(?<!\w)([*`])(\S(?:.*?\S)?)\1(?!\w)")
_ENTITIES = (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&"))


@dataclass(frozen=True)
class SlackMessage:
    """One message as the receiver took it down. ``at`` is the receiver's time, as it wrote it."""

    at: str
    payload: dict[str, Any]

    @property
    def text(self) -> str:
        """All texts of the message, block by block."""
        lines = [line for block in self.payload.get("blocks", []) for line in _block(block)]
        return "\n".join(lines or [_readable(str(self.payload.get("text", "")))])

    @property
    def headline(self) -> str:
        """The text that a phone's notification shows."""
        shown = _readable(str(self.payload.get("text") or self.text))
        return shown.splitlines()[0] if shown else ""


def read_messages(path: Path) -> list[SlackMessage]:
    """All messages that the receiver appended so far; a line that is still being written is left for the next time."""
    if not path.exists():
        return []
    whole = path.read_text().rpartition("\n")[0]
    documents = (json.loads(line) for line in whole.splitlines() if line.strip())
    return [SlackMessage(str(one["at"]), one["payload"]) for one in documents if "payload" in one]


def _block(block: dict[str, Any]) -> Iterator[str]:
    kind = block.get("type")
    if kind == "divider":
        yield "-" * 40
    if isinstance(block.get("text"), dict):
        yield _readable(block["text"].get("text", ""))
    for field in block.get("fields", []):
        yield "  " + _readable(field.get("text", "")).replace("\n", " ")
    for element in block.get("elements", []):
        yield from _element(element)


def _element(element: dict[str, Any]) -> Iterator[str]:
    text = element.get("text")
    if isinstance(text, dict):
        text = text.get("text", "")
    if isinstance(text, str):
        url = element.get("url")
        yield _readable(text) + (f": {url}" if url else "")


def _readable(text: str) -> str:
    text = _MARKS.sub(r"\2", _LINK.sub(r"\2 (\1)", text))
    for entity, character in _ENTITIES:
        text = text.replace(entity, character)
    return text

"""Text for Slack: escaping, bounds, and the blocks that messages are made of.

Limits are Slack's: 50 blocks a message, 150 characters a header, 3,000 a section; counted after escaping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from nightshift.report.words import ELLIPSIS, clean

HEADER_LIMIT = 150
SECTION_LIMIT = 3_000
MAX_BLOCKS = 50
MAX_LINKS = 10

_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def esc(text: str, limit: int) -> str:
    """Outside text as one line in which nothing links or mentions, at most ``limit`` characters after escaping.

    An escape is never cut in two; what was left out is marked by an ellipsis.
    """
    pieces = [_ESCAPES.get(char, char) for char in clean(text)]
    if sum(map(len, pieces)) <= limit:
        return "".join(pieces)
    kept: list[str] = []
    room = limit - len(ELLIPSIS)
    for piece in pieces:
        if len(piece) > room:
            break
        kept.append(piece)
        room -= len(piece)
    return "".join(kept).rstrip() + ELLIPSIS


def code(text: str, limit: int) -> str:
    """Outside text in code marks, at most ``limit`` characters with them."""
    return f"`{esc(text.replace('`', 'ʼ'), limit - 2) or ' '}`"


def code_block(text: str, limit: int) -> str:
    """Outside text as lines in a code block, at most ``limit`` characters with its marks: where it is longer, its end. Empty for
    text without words."""
    kept: list[str] = []
    room = limit - 8
    for line in reversed(text.splitlines()):
        indent = " " * min(20, len(line) - len(line.lstrip(" ")))
        shown = (indent + esc(line.replace("`", "ʼ"), 400)).rstrip()
        room -= len(shown) + 1
        if room < 0:
            break
        kept.append(shown)
    inside = "\n".join(reversed(kept)).strip("\n")
    return f"```\n{inside}\n```" if inside.strip() else ""


def link(label: str, address: str) -> str:
    """A link where the address is one that a browser opens; else the address as text."""
    name = esc(label, 100) or "link"
    url = clean(address)
    plain = url == address and not set(url) & set('|<>"` ')
    if plain and len(url) <= 2_000 and _is_web(url):
        return f"<{url.replace('&', '&amp;')}|{name.replace('|', '/')}>"
    return f"{name}: {code(url, 600)}"


def _is_web(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("https", "http") and bool(parts.hostname)


def links(addresses: Mapping[str, str]) -> list[str]:
    """One line a link, the first ``MAX_LINKS`` of them."""
    lines = [link(label, address) for label, address in list(addresses.items())[:MAX_LINKS]]
    if len(addresses) > MAX_LINKS:
        lines.append(f"and {len(addresses) - MAX_LINKS} more")
    return lines


def header(text: str) -> dict[str, Any]:
    """``text`` is not escaped yet."""
    return {"type": "header", "text": {"type": "plain_text", "text": esc(text, HEADER_LIMIT), "emoji": False}}


def sections(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Escaped lines, each shorter than a section, packed into as few sections as hold them."""
    packed: list[str] = []
    for line in filter(None, lines):
        if packed and len(packed[-1]) + 1 + len(line) <= SECTION_LIMIT:
            packed[-1] += "\n" + line
        else:
            packed.append(line)
    return [{"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}} for text in packed]


def context(parts: Iterable[str]) -> list[dict[str, Any]]:
    """One small line of escaped parts; nothing where there are none."""
    text = " · ".join(part for part in parts if part)
    return [{"type": "context", "elements": [{"type": "mrkdwn", "text": text, "verbatim": True}]}] if text else []

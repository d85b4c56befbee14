"""Reading what a model wrote, for both of VisGym's recipes. Any text may arrive here; nothing raises.

``sft``: ``<observation>``, ``<justification>`` and ``<action>`` with a Python tuple. ``instruct``: whatever the model thinks, and
at last ``<action>`` with a word.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Final

MAX_TEXT: Final = 20_000
"""Characters of a reply that are read; a task's action is far shorter."""
MAX_TUPLE: Final = 500

_TAGS: Final = tuple(
    re.compile(rf"<{tag}>(.*?)</{tag}>", re.DOTALL) for tag in ("observation", "justification", "action")
)
_TUPLE: Final = re.compile(r"""\(\s*(?:(['"])(\w{1,40})\1|(\w{1,40}))\s*,""")
_WORD: Final = re.compile(r"<action>\s*(\w{1,40})\s*</action>", re.IGNORECASE)

WORDS: Final = {
    "right": "('move', 0)",
    "up": "('move', 1)",
    "left": "('move', 2)",
    "down": "('move', 3)",
    "stop": "('stop', 'stop')",
}
"""Keyword of the ``instruct`` recipe -> the tuple that VisGym's mazes understand."""


@dataclass(frozen=True)
class Reply:
    """``action`` is a tuple of two as VisGym's ``step`` takes it, written out; None where there is none."""

    action: str | None
    well_formed: bool


def read_tuple(text: str) -> Reply:
    """The first tuple of a name and a value. Well-formed is a reply whose three tags all hold something."""
    text = text[:MAX_TEXT]
    well_formed = all((found := tag.search(text)) is not None and found[1].strip() for tag in _TAGS)
    return Reply(_first_tuple(text), well_formed)


def read_word(text: str) -> Reply:
    """The last action that is one of ``WORDS``' tags; models think aloud before it."""
    found = _WORD.findall(text[:MAX_TEXT])
    action = WORDS.get(found[-1].lower()) if found else None
    return Reply(action, action is not None)


def _first_tuple(text: str) -> str | None:
    for match in _TUPLE.finditer(text):
        written = _up_to_its_end(text[match.start() : match.start() + MAX_TUPLE])
        if written is None:
            continue
        if match[3] is not None and not match[3].isdecimal():  # a name without its quotes
            written = written.replace(match[3], repr(match[3]), 1)
        if _is_pair(written):
            return written
    return None


def _up_to_its_end(text: str) -> str | None:
    """From the opening parenthesis to the one that closes it; what stands in quotes does not count."""
    depth, quote, skip = 0, "", False
    for at, sign in enumerate(text):
        if skip:
            skip = False
        elif quote:
            skip = sign == "\\"
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
            if depth == 0:
                return text[: at + 1]
    return None


def _is_pair(written: str) -> bool:
    try:
        value = ast.literal_eval(written)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)

"""Reading what a model wrote: VisGym's SFT recipe, ``<observation>``, ``<justification>`` and a tuple in ``<action>``.

Any text may arrive here. Whatever it is, the answer is a ``Reply``; nothing raises.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from training_job.tasks.mazes.maze import Action

MAX_TEXT: Final = 20_000
"""Characters that are read of a reply; an action behind them is not found."""

_TAGS: Final = tuple(re.compile(rf"<{tag}>([^<]*)</{tag}>") for tag in ("observation", "justification", "action"))
_TUPLE: Final = re.compile(
    r"""\(\s*(?P<q>['"])(?P<name>\w{1,32})(?P=q)\s*,\s*(?:(?P<number>-?\d{1,9})|(?P<p>['"])(?P<word>\w{0,32})(?P=p))\s*,?\s*\)"""
)
_EXAMPLE: Final = (
    "Please respond with exactly one action as a Python tuple: "
    "('move', 0), ('move', 1), ('move', 2), ('move', 3) or ('stop', 'stop')."
)


@dataclass(frozen=True)
class Reply:
    """``action`` is None where the turn is wasted; then ``problem`` says why, in words for the model."""

    action: Action | None
    well_formed: bool
    problem: str = ""


def _action_of(name: str, number: str | None, word: str | None) -> Action | None:
    if name == "move" and number is not None and 0 <= int(number) <= 3:
        return Action(int(number))
    if (name, word) == ("stop", "stop"):
        return Action.STOP
    return None


@lru_cache(maxsize=4_000)
def read_reply(text: str) -> Reply:
    """The action of a reply, and whether all three tags are there with something in them.

    The action tag is searched first and then the whole text, as VisGym's SFT recipe does: a reply without tags still
    acts, it only earns nothing for its format.
    """
    text = text[:MAX_TEXT]
    found = [pattern.search(text) for pattern in _TAGS]
    well_formed = all(match is not None and match.group(1).strip() for match in found)
    tagged = found[-1].group(1) if found[-1] is not None else ""
    match = _TUPLE.search(tagged) or _TUPLE.search(text)
    if match is None:
        return Reply(None, well_formed, f"No action tuple was found in your response. {_EXAMPLE}")
    action = _action_of(match["name"], match["number"], match["word"])
    if action is None:
        return Reply(None, well_formed, f"{match[0]} is not an action of this maze. {_EXAMPLE}")
    return Reply(action, well_formed)


def write_reply(action: Action) -> str:
    """The text with which the maze policies say an action."""
    if action is Action.STOP:
        return (
            "<observation>The blue dot is on the red target.</observation>"
            "<justification>The target is reached, so I stop.</justification>"
            "<action>('stop', 'stop')</action>"
        )
    way = action.name.lower()
    return (
        "<observation>The blue dot is on its way to the red target.</observation>"
        f"<justification>The way leads {way}.</justification>"
        f"<action>('move', {int(action)})</action>"
    )

"""What Step Functions' own histories say about the run: how many events one poll costs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from local.account import Account

_LOOK = "Look"


@dataclass(frozen=True)
class ShiftHistory:
    """One shift: what it waited for, and its events, oldest first."""

    name: str
    awaiting: str
    events: Sequence[dict[str, Any]]

    @property
    def looks(self) -> int:
        """How often the state Look was entered."""
        return len(_entries(self.events))

    @property
    def timeout_polls(self) -> list[int]:
        """Events from one look to the next, for each look that ended by its timeout."""
        entries = _entries(self.events)
        return [end - begin for begin, end in pairwise(entries) if _timed_out(self.events[begin:end])]


@dataclass(frozen=True)
class PollCost:
    """``events_per_poll`` is None where nothing was ever waited for as long as an interval."""

    events_per_poll: int | None
    polls: int
    looks: int
    shifts: int


def shift_histories(account: Account, shift_machine: str) -> list[ShiftHistory]:
    """All shifts of the account, oldest first."""
    found = []
    for execution in account.executions(shift_machine):
        events = account.history(execution["executionArn"])
        given = json.loads(events[0]["executionStartedEventDetails"]["input"])
        found.append(ShiftHistory(execution["name"], given["awaiting"], events))
    return found


def poll_cost(shifts: Sequence[ShiftHistory]) -> PollCost:
    """The dearest timeout poll of all these shifts, which run one machine; every look counts as a look."""
    polls = [poll for shift in shifts for poll in shift.timeout_polls]
    return PollCost(max(polls, default=None), len(polls), sum(shift.looks for shift in shifts), len(shifts))


def _entries(events: Sequence[dict[str, Any]]) -> list[int]:
    return [
        index
        for index, event in enumerate(events)
        if event["type"] == "TaskStateEntered" and event["stateEnteredEventDetails"]["name"] == _LOOK
    ]


def _timed_out(events: Sequence[dict[str, Any]]) -> bool:
    return any(event["type"] == "TaskTimedOut" for event in events)

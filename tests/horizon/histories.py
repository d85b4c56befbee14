"""What real execution histories hold, state by state."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Visit:
    """One visit of a state: its events, from its entry to the next state's entry, or to the end."""

    state: str
    types: tuple[str, ...]

    @property
    def events(self) -> int:
        return len(self.types)


def events_of(client: Any, execution_arn: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    page: dict[str, Any] = {}
    while True:
        answer = client.get_execution_history(executionArn=execution_arn, maxResults=1_000, **page)
        found += answer["events"]
        if not answer.get("nextToken"):
            return found
        page = {"nextToken": answer["nextToken"]}


def visits(events: list[dict[str, Any]]) -> list[Visit]:
    """The visits in their order. What is before the first, the beginning of the execution, counts as one of ``begin``."""
    found: list[Visit] = []
    name, types = "begin", list[str]()
    for event in events:
        if "stateEnteredEventDetails" in event:
            found.append(Visit(name, tuple(types)))
            name, types = event["stateEnteredEventDetails"]["name"], []
        types.append(event["type"])
    return [*found, Visit(name, tuple(types))]


def looks(shift: list[dict[str, Any]]) -> Counter[tuple[str, int]]:
    """How often a look of each kind had how many events: a nap that its timeout ended, or a look that was answered, by
    itself or by a signal, with the choice after it."""
    seen: Counter[tuple[str, int]] = Counter()
    found = visits(shift)
    for at, visit in enumerate(found):
        if visit.state != "Look":
            continue
        after = found[at + 1] if at + 1 < len(found) else None
        if "TaskTimedOut" in visit.types:
            seen["timed out", visit.events] += 1
        elif after is not None and after.state == "Decided":
            seen["answered", visit.events + after.events] += 1
    return seen

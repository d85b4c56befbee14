"""Fault: rules deliver to neither Lambda nor Step Functions, and to SQS without Input and InputPath; one such target
breaks the delivery to those behind it. Here Lambda, Step Functions and SQS targets go to the data plane
(``local.cloud.delivery``); other targets stay with moto.

Fault: a rule's State is ignored, and a rule that has only a schedule matches every event.

Fault: PutEvents takes sources that begin with ``aws.``; AWS answers NotAuthorizedForSourceException for such an entry.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from moto.events.models import EventsBackend, Rule

from local.cloud.patches.swap import swap

Delivery = Callable[[Any, dict[str, Any], dict[str, Any]], None]
"""Takes a rule (moto's), one of its targets, and the event as AWS would write it; must not block."""

OWN_SERVICES = {"lambda", "states", "sqs"}
_DELIVERIES: list[Delivery] = []


def on_match(delivery: Delivery) -> None:
    _DELIVERIES.append(delivery)


def install() -> None:
    original_send: Any = Rule.send_to_targets

    def send(self: Any, original_event: dict[str, Any], transform_input: bool = True) -> None:
        if self.state != "ENABLED" or self.event_pattern.dump() is None:
            return
        event = as_sent(original_event)
        if not self.event_pattern.matches_event(event):
            return
        others = copy.copy(self)
        others.targets = []
        for target in self.targets:
            if target["Arn"].split(":")[2] in OWN_SERVICES:
                for delivery in _DELIVERIES:
                    delivery(self, target, copy.deepcopy(event))
            else:
                others.targets.append(target)
        if others.targets:
            original_send(others, original_event, transform_input)

    swap(Rule, "send_to_targets", send)
    _refuse_aws_sources()


def as_sent(event: dict[str, Any]) -> dict[str, Any]:
    """The event with its time as text, and without moto's own field."""
    sent = {key: value for key, value in event.items() if key != "ingestion-time"}
    if not isinstance(sent.get("time"), str):
        sent["time"] = datetime.fromtimestamp(float(sent["time"]), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return sent


def _refuse_aws_sources() -> None:
    original = EventsBackend.put_events

    def put_events(self: Any, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        allowed = [event for event in events if not str(event.get("Source", "")).startswith("aws.")]
        answers = iter(original(self, allowed) if len(events) <= 10 else original(self, events))
        refusal = {
            "ErrorCode": "NotAuthorizedForSourceException",
            "ErrorMessage": "Not authorized for the source.",
        }
        return [next(answers) if event in allowed else dict(refusal) for event in events]

    swap(EventsBackend, "put_events", put_events)

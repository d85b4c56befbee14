"""EventBridge's data plane: brings a matched event to its target, in the form that the rule asks for."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from local.cloud.patches.permissions import Permit

LOG = logging.getLogger(__name__)

WORKERS = 4
RETRY_SECONDS = (0.2, 1.0)
"""Pauses before another try; AWS goes on for 24 hours."""

_PLACEHOLDER = re.compile(r"<([^<>]+)>")
_STEP = re.compile(r"[^.\[\]'\"]+")

Send = Callable[[str, str, str], None]
"""Takes the target's ARN, the input as text, and a name that is the same for each try."""

ACTIONS = {"lambda": "lambda:InvokeFunction", "states": "states:StartExecution", "sqs": "sqs:SendMessage"}


class Deliveries:
    """``senders`` by the service in a target's ARN (``lambda``, ``states``, ``sqs``). ``permit`` is asked for each
    delivery to a target that names a role."""

    def __init__(self, senders: dict[str, Send], permit: Permit = lambda *_: None) -> None:
        self._senders, self._permit = senders, permit
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="eventbridge")

    def accept(self, rule: Any, target: dict[str, Any], event: dict[str, Any]) -> None:
        """Queue one delivery; never blocks and never fails."""
        self._workers.submit(self._deliver, rule.arn, target, event)

    def close(self) -> None:
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _deliver(self, rule_arn: str, target: dict[str, Any], event: dict[str, Any]) -> None:
        arn = target["Arn"]
        name = f"{event['id']}_{hashlib.sha256((rule_arn + target['Id']).encode()).hexdigest()[:32]}"
        text = target_input(target, event, rule_arn)
        for pause in (*RETRY_SECONDS, None):
            try:
                self._send(target, arn, text, name)
                return
            except Exception as problem:  # noqa: BLE001 - whatever a target answers: again, then the dead-letter queue
                LOG.warning("event %s of rule %s not delivered to %s: %r", event["id"], rule_arn, arn, problem)
            if pause is not None:
                time.sleep(pause)
        dead_letters = target.get("DeadLetterConfig", {}).get("Arn")
        if dead_letters:
            self._send(target, dead_letters, json.dumps(event), name)

    def _send(self, target: dict[str, Any], arn: str, text: str, name: str) -> None:
        service = arn.split(":")[2]
        if "RoleArn" in target:
            self._permit(target["RoleArn"], ACTIONS[service], arn)
        self._senders[service](arn, text, name)


def target_input(target: dict[str, Any], event: dict[str, Any], rule_arn: str) -> str:
    """What the target gets: the whole event, a constant, a part of the event, or a filled template."""
    if "Input" in target:
        return str(target["Input"])
    if "InputPath" in target:
        return json.dumps(find(event, target["InputPath"]))
    if "InputTransformer" in target:
        transformer = target["InputTransformer"]
        values = {name: find(event, path) for name, path in transformer.get("InputPathsMap", {}).items()}
        values["aws.events.rule-arn"] = rule_arn
        values["aws.events.rule-name"] = rule_arn.rsplit("/", 1)[1]
        values["aws.events.event.ingestion-time"] = event["time"]
        values["aws.events.event.json"] = values["aws.events.event"] = event
        return fill(transformer["InputTemplate"], values)
    return json.dumps(event)


def find(event: Any, path: str) -> Any:
    """Value at a JSON path of names and indexes (``$.detail.items[0]``); None where there is nothing."""
    value = event
    for step in _STEP.findall(path.removeprefix("$")):
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.lstrip("-").isdigit():
            value = value[int(step)] if -len(value) <= int(step) < len(value) else None
        else:
            return None
    return value


def fill(template: str, values: dict[str, Any]) -> str:
    """The template with its ``<name>`` filled: as JSON where it stands free, as plain text inside a string."""
    parts: list[str] = []
    position, quoted = 0, False
    for match in _PLACEHOLDER.finditer(template):
        between = template[position : match.start()]
        quoted ^= len(re.findall(r'(?<!\\)"', between)) % 2 == 1
        parts.append(between)
        if match[1] not in values:
            parts.append(match[0])
        elif quoted:
            value = values[match[1]]
            parts.append(json.dumps(value if isinstance(value, str) else json.dumps(value))[1:-1])
        else:
            parts.append(json.dumps(values[match[1]]))
        position = match.end()
    return "".join(parts) + template[position:]

"""EventBridge's clock: calls the targets of rules, and of EventBridge Scheduler's schedules, that come at a rate or daily."""

from __future__ import annotations

import copy
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

LOG = logging.getLogger(__name__)

RATE = re.compile(r"^rate\((?:1 (minute|hour|day)|([2-9]|[1-9]\d+) (minute|hour|day)s)\)$")
DAILY = re.compile(r"^cron\(\d{1,2} \d{1,2} \* \* \? \*\)$")
SECONDS = {"minute": 60, "hour": 3_600, "day": 86_400}
NOTICE_SECONDS = 1.0
"""How long a new, changed or deleted rule may go unnoticed."""

Deliver = Callable[[Any, dict[str, Any], dict[str, Any]], None]


def rate_seconds(expression: str) -> int | None:
    """Seconds of ``rate(5 minutes)``; None for what is no rate as AWS takes it (1 wants the singular)."""
    found = RATE.match(expression)
    if found is None:
        return None
    return int(found[2] or 1) * SECONDS[found[1] or found[3]]


def period_seconds(expression: str) -> int | None:
    """The same; a cron expression that means once a day counts as ``rate(1 day)``, whatever its hour."""
    return SECONDS["day"] if DAILY.match(expression) else rate_seconds(expression)


@dataclass(frozen=True)
class Timed:
    """A schedule in the form of a rule."""

    arn: str
    name: str
    state: str
    scheduled_expression: str
    account_id: str
    region_name: str
    targets: tuple[dict[str, Any], ...]


def timed(schedule: Any) -> Timed:
    """A schedule of moto's EventBridge Scheduler."""
    *_, region, account, _ = schedule.arn.split(":")
    target = {"Id": schedule.name, **schedule.target}
    return Timed(schedule.arn, schedule.name, schedule.state, schedule.schedule_expression, account, region, (target,))


def filled(target: dict[str, Any], arn: str, at: str) -> dict[str, Any]:
    """A target whose input has the scheduler's context attributes in place of their names."""
    if "Input" not in target:
        return target
    known = {"scheduled-time": at, "schedule-arn": arn, "execution-id": uuid.uuid4().hex[:16], "attempt-number": "1"}
    text = str(target["Input"])
    for name, value in known.items():
        text = text.replace(f"<aws.scheduler.{name}>", value)
    return {**target, "Input": text}


class Clock:
    """``speed`` is how many times faster than written the rules come; the first call is one period after a rule is seen,
    and a call that is overdue is made once."""

    def __init__(self, rules: Callable[[], Iterable[Any]], deliver: Deliver, speed: float) -> None:
        self._rules, self._deliver, self._speed = rules, deliver, speed
        self._due: dict[tuple[str, str], float] = {}
        self._refused: set[str] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="eventbridge-clock")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """No call is made any more when this returns."""
        self._end.set()
        self._thread.join(2.0)

    def _run(self) -> None:
        wait = 0.0
        while not self._end.wait(wait):
            wait = min(NOTICE_SECONDS, max(0.02, self.tick(time.monotonic())))

    def tick(self, now: float) -> float:
        """Call what is due; answers the seconds until the next call is."""
        seen: dict[tuple[str, str], float] = {}
        for rule in self._rules():
            period = self._period(rule)
            if period is None:
                continue
            key = (rule.arn, rule.scheduled_expression)
            due = self._due.get(key, now + period)
            if due <= now:
                self._call(rule)
                due = now + period
            seen[key] = due
        self._due = seen
        return min((due - now for due in seen.values()), default=NOTICE_SECONDS)

    def _period(self, rule: Any) -> float | None:
        if rule.state != "ENABLED" or not rule.scheduled_expression:
            return None
        seconds = period_seconds(rule.scheduled_expression)
        if seconds is None and rule.scheduled_expression not in self._refused:
            self._refused.add(rule.scheduled_expression)
            LOG.error(
                "rule %s: %s is no rate or daily time that this clock takes", rule.name, rule.scheduled_expression
            )
        return None if seconds is None else seconds / self._speed

    def _call(self, rule: Any) -> None:
        event = scheduled_event(rule)
        for target in list(rule.targets):
            self._deliver(rule, filled(target, rule.arn, event["time"]), copy.deepcopy(event))


def scheduled_event(rule: Any) -> dict[str, Any]:
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": "Scheduled Event",
        "source": "aws.events",
        "account": rule.account_id,
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "region": rule.region_name,
        "resources": [rule.arn],
        "detail": {},
    }

"""The clock: rules with a rate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from local.cloud.schedule import Clock, period_seconds, rate_seconds
from tests.local_cloud.support import Cloud, eventually, unique


@pytest.mark.parametrize(
    ("expression", "seconds"),
    [("rate(1 minute)", 60), ("rate(5 minutes)", 300), ("rate(1 hour)", 3_600), ("rate(10 days)", 864_000)],
)
def test_a_rate_is_read(expression: str, seconds: int) -> None:
    assert rate_seconds(expression) == seconds


@pytest.mark.parametrize(
    "expression", ["rate(1 minutes)", "rate(5 minute)", "rate(0 minutes)", "rate(30 seconds)", "cron(0 12 * * ? *)", ""]
)
def test_what_aws_refuses_and_what_is_no_rate_is_no_rate(expression: str) -> None:
    assert rate_seconds(expression) is None


@pytest.mark.parametrize(
    ("expression", "seconds"),
    [
        ("cron(5 7 * * ? *)", 86_400),
        ("rate(5 minutes)", 300),
        ("cron(0 7 ? * MON *)", None),
        ("at(2026-12-01T00:00:00)", None),
    ],
)
def test_a_daily_time_counts_as_a_rate_of_a_day(expression: str, seconds: int | None) -> None:
    assert period_seconds(expression) == seconds


@dataclass
class Rule:
    scheduled_expression: str | None = "rate(1 minute)"
    state: str = "ENABLED"
    name: str = "clock"
    account_id: str = "123456789012"
    region_name: str = "us-east-1"
    targets: list[dict[str, Any]] = field(default_factory=lambda: [{"Id": "1"}])

    @property
    def arn(self) -> str:
        return f"arn:aws:events:us-east-1:123456789012:rule/{self.name}"


def calls(rules: list[Any], seconds: int, speed: float = 1.0) -> list[int]:
    """Seconds at which a target was called, looking once a second."""
    made: list[int] = []
    at = 0
    clock = Clock(lambda: rules, lambda *_: made.append(at), speed)
    for at in range(seconds + 1):
        clock.tick(float(at))
    return made


def test_a_rule_comes_once_a_period_and_first_one_period_after_it_was_made() -> None:
    assert calls([Rule()], 185) == [60, 120, 180]
    assert calls([Rule()], 10, speed=20) == [3, 6, 9]


def test_a_disabled_rule_and_one_without_a_rate_never_come() -> None:
    others = [Rule(state="DISABLED"), Rule(scheduled_expression=None), Rule(scheduled_expression="cron(0 12 * * ? *)")]
    assert calls(others, 200) == []


def test_a_rule_whose_rate_changes_begins_anew() -> None:
    rules = [Rule()]
    made: list[float] = []
    clock = Clock(lambda: rules, lambda *_: made.append(now), 1.0)
    for now in (0.0, 59.0):
        clock.tick(now)
    rules[0].scheduled_expression = "rate(2 minutes)"
    for now in (60.0, 100.0, 180.0):
        clock.tick(now)
    assert made == [180.0]


def test_a_scheduled_rule_calls_its_targets_with_the_documented_event(cloud: Cloud) -> None:
    url, arn = cloud.queue()
    events, name = cloud.client("events"), unique("r")
    events.put_rule(Name=name, ScheduleExpression="rate(1 minute)")
    events.put_targets(Rule=name, Targets=[{"Id": "1", "Arn": arn}])
    first, second = cloud.messages(url, 2)[:2]
    events.remove_targets(Rule=name, Ids=["1"])
    assert (first["source"], first["detail-type"], first["detail"]) == ("aws.events", "Scheduled Event", {})
    assert first["resources"][0].endswith(f":rule/{name}")
    assert first["id"] != second["id"]


def test_a_schedule_of_the_template_calls_its_function_with_the_time_that_was_meant(cloud: Cloud) -> None:
    event = eventually(lambda: cloud.note("often"))["event"]
    assert event["at"].endswith("Z") and len(event["at"]) == 20
    assert event["by"].endswith(":schedule/default/probe-often")
    assert event["to"] == f"s3://{cloud.outputs['BucketName']}/x"
    assert cloud.note("never") is None
    names = [one["Name"] for one in cloud.client("scheduler").list_schedules()["Schedules"]]
    assert names == ["probe-often"], "a schedule whose condition does not hold is not made"

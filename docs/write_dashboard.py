"""Writes the dashboard's body: ``make dashboard``. docs/dashboard.json is for reading, and the same body stands in template.yaml,
a widget a line, where CloudFormation puts the stack's names into it. A test fails where either differs from what this makes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from nightshift.core.measures import Metric
from nightshift.handlers.observability import NAMESPACE

PATH = Path(__file__).with_name("dashboard.json")
TEMPLATE = PATH.parent.parent / "template.yaml"
BODY = re.compile(r"(?<=      DashboardBody: !Sub \|\n)(?:        .*\n)+")
"""The body's lines in the template: those that are indented below its key."""

STACK = "${AWS::StackName}"
FUNCTIONS = ("Api", "Dashboard", "Intake", "Controller", "Signal", "Finisher", "Reconciler", "Notifier")
ALARMS = (
    "LookAlarm", "ReconcilerAlarm", "RepairAlarm", "RecoveryAlarm", "SlowRecoveryAlarm", "UndeliveredAlarm", "ErrorsAlarm",
    "ExecutionsAlarm", "MessagesAlarm",
)  # fmt: skip
WIDTH, HEIGHT, COLUMNS = 8, 6, 24

Json = dict[str, Any]


def ours(name: str, stat: str, label: str | None = None) -> list[Any]:
    """One of Nightshift's own metrics, of all runs together."""
    return [NAMESPACE, name, "service", STACK, {"stat": stat, "label": label or f"{name} ({stat})"}]


def parts(name: str, dimension: str, stat: str = "Sum") -> list[Any]:
    """One of Nightshift's own metrics, a line for each value of a dimension."""
    search = f'{{{NAMESPACE},service,{dimension}}} MetricName="{name}" service="{STACK}"'
    return [{"expression": f"SEARCH('{search}', '{stat}', 300)", "label": f"${{!PROP('Dim.{dimension}')}}"}]


def functions(metric: str, stat: str) -> list[list[Any]]:
    return [
        ["AWS/Lambda", metric, "FunctionName", f"${{{one}Function}}", {"stat": stat, "label": one.lower()}]
        for one in FUNCTIONS
    ]


def graph(title: str, *metrics: list[Any], stacked: bool = False) -> Json:
    shown: Json = {"title": title, "region": "${AWS::Region}", "view": "timeSeries", "stacked": stacked, "period": 300}
    return {"type": "metric", "properties": {**shown, "metrics": list(metrics)}}


def widgets() -> list[Json]:
    """From what a person asks first to what explains it."""
    states = "AWS/States"
    alarms = {"title": "Alarms", "alarms": [f"${{{name}.Arn}}" for name in ALARMS]}
    return [
        {"type": "alarm", "properties": alarms},
        graph("Runs now", ours(Metric.RUNS_OPEN, "Maximum", "open"), ours(Metric.RUNS_QUEUED, "Maximum", "in a queue")),
        graph("Age of the oldest look, seconds", ours("OldestLookAgeSeconds", "Maximum")),
        graph("Runs that began", ours(Metric.RUNS_STARTED, "Sum", "runs"), ours(Metric.ATTEMPTS, "Sum", "attempts")),
        graph("Runs that ended, by state", parts(Metric.RUNS_ENDED, "state"), stacked=True),
        graph("Recoveries, by cause", parts(Metric.RECOVERIES, "cause"), stacked=True),
        graph(
            "Seconds to recover",
            ours(Metric.RECOVERY_SECONDS, "p50", "median"),
            ours(Metric.RECOVERY_SECONDS, "Maximum", "slowest"),
            ours(Metric.LONGEST_RECOVERY_SECONDS, "Maximum", "under way"),
        ),
        graph("Steps that had to be done again", ours(Metric.STEPS_LOST, "Sum", "steps")),
        graph("Runs that failed after recoveries, by cause", parts(Metric.RECOVERIES_FAILED, "cause"), stacked=True),
        graph(
            "Seconds in a queue",
            ours(Metric.QUEUE_WAIT_SECONDS, "Maximum", "of runs that got their nodes"),
            ours(Metric.LONGEST_QUEUE_SECONDS, "Maximum", "still waiting"),
        ),
        graph("Dollars an hour, attributed at list prices", ours(Metric.DOLLARS_PER_HOUR, "Maximum", "now")),
        graph("Dollars of runs that ended", ours(Metric.DOLLARS, "Sum", "dollars")),
        graph("Repairs of the reconciler, by kind", parts("ReconcilerRepairs", "kind"), stacked=True),
        graph(
            "Looks, signals and steps",
            ours("Looks", "Sum", "looks"), ours("Signals", "Sum", "signals"), ours("Steps", "Sum", "steps"),
        ),
        graph("Messages, by stage", parts("NotificationSent", "stage"), stacked=True),
        graph("Errors of functions", *functions("Errors", "Sum"), stacked=True),
        graph("Throttled calls of functions", *functions("Throttles", "Sum"), stacked=True),
        graph("Slowest call of functions, milliseconds", *functions("Duration", "Maximum")),
        graph(
            "Executions of runs",
            *(
                [states, f"Executions{end}", "StateMachineArn", "${TrainingRun}", {"stat": "Sum", "label": end.lower()}]
                for end in ("Started", "Succeeded", "Failed", "TimedOut", "Aborted")
            ),
        ),
        graph(
            "The HTTP API",
            *(
                ["AWS/ApiGateway", name, "ApiId", "${HttpApi}", {"stat": "Sum", "label": name}]
                for name in ("Count", "4xx", "5xx")
            ),
        ),
        graph(
            "Undelivered events",
            [
                "AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName", "${Undelivered.QueueName}",
                {"stat": "Maximum", "label": "waiting for a person"},
            ],
        ),
    ]  # fmt: skip


def placed() -> list[Json]:
    """Row by row; the alarms take a row of their own."""
    found, x, y = [], 0, 0
    for one in widgets():
        width, height = (COLUMNS, 3) if one["type"] == "alarm" else (WIDTH, HEIGHT)
        found.append({**one, "x": x, "y": y, "width": width, "height": height})
        x += width
        if x >= COLUMNS:
            x, y = 0, y + height
    return found


def body() -> str:
    """For docs/dashboard.json."""
    return json.dumps({"widgets": placed()}, indent=2) + "\n"


def lines() -> str:
    """For the template: JSON with a widget a line."""
    each = ",\n".join(" " * 8 + json.dumps(one) for one in placed())
    return f'        {{"widgets": [\n{each}\n        ]}}\n'


def in_template(text: str) -> str:
    """The template with the body as it should be."""
    return BODY.sub(lambda _: lines(), text, count=1)


if __name__ == "__main__":
    PATH.write_text(body())
    TEMPLATE.write_text(in_template(TEMPLATE.read_text()))

"""The clock -> one pass of the reconciler."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext
from botocore.exceptions import BotoCoreError, ClientError

from nightshift.core.errors import TransientError
from nightshift.handlers.observability import logger, measure, metrics, take, tracer
from nightshift.handlers.settings import ReconcilerSettings, load
from nightshift.handlers.wiring import capacity_log, controller_ports
from nightshift.steps.costs import note_capacity
from nightshift.steps.ports import Ports
from nightshift.steps.reconcile import Report, reconcile
from nightshift.steps.schema import publish_schema

_schema_is_there = False
"""Looked at once in the life of a process, which is never older than its code."""


@logger.inject_lambda_context(clear_state=True)
@tracer.capture_lambda_handler(capture_response=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """What calls it says nothing: everything is read afresh. Alarms and repairs are logged where they are made."""
    settings = load(ReconcilerSettings)
    ports = controller_ports(
        settings, lambda: context.get_remaining_time_in_millis() / 1_000, settings.training_run_arn
    )
    report = reconcile(ports)
    _measure(report)
    _publish_schema(ports)
    _note_capacity(ports, settings)
    repairs = {kind.value: count for kind, count in report.by_kind.items()}
    told: dict[str, Any] = {"scaled": dict(report.scaled)} if report.scaled else {}
    told |= {"repairs": repairs, "alarms": len(report.alarms), "left": report.left}
    logger.info("reconciled", extra={**told, "oldest_look_age": report.oldest_look_age})
    return told


def _publish_schema(ports: Ports) -> None:
    """No pass fails for it: the next one tries again."""
    global _schema_is_there
    if _schema_is_there:
        return
    try:
        if publish_schema(ports.artifacts):
            logger.info("the schema of run specs was written to the bucket")
        _schema_is_there = True
    except (BotoCoreError, ClientError) as error:
        logger.warning("the schema of run specs was not written: %s", error)


def _note_capacity(ports: Ports, settings: ReconcilerSettings) -> None:
    """What stands idle is known from it. No pass fails for it: the next one looks again."""
    try:
        if note_capacity(ports.hyperpod, capacity_log(settings), settings.hyperpod_cluster, ports.now()):
            logger.info("HyperPod has other instances than before, which was written down")
    except (BotoCoreError, ClientError, TransientError) as error:
        logger.warning("what instances HyperPod has was not written down: %s", error)


def _measure(report: Report) -> None:
    """No dimension by run: a run's own numbers are in its record."""
    metrics.add_metric(name="OldestLookAgeSeconds", unit=MetricUnit.Seconds, value=report.oldest_look_age)
    metrics.add_metric(name="ReconcilerAlarms", unit=MetricUnit.Count, value=len(report.alarms))
    metrics.add_metric(name="ReconcilerLeft", unit=MetricUnit.Count, value=report.left)
    for one in report.standing:
        measure(one)
    for kind, count in report.by_kind.items():
        take("ReconcilerRepairs", count, by=("kind", kind.value))

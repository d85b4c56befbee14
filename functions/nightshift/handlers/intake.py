"""Events that ask for a run -> a run, or a record of every error: "Training Run Requested", a file dropped under
``requests/``, and what EventBridge Scheduler hands over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.parser import ValidationError, parse
from aws_lambda_powertools.utilities.parser.models import EventBridgeModel, S3EventNotificationEventBridgeModel
from aws_lambda_powertools.utilities.typing import LambdaContext

from nightshift.contract.events import FieldError, ScheduledStart, StartRequest
from nightshift.contract.rehearsal import is_rehearsal
from nightshift.core.errors import bounded
from nightshift.handlers.observability import logger, metrics, tracer
from nightshift.handlers.settings import IntakeSettings, load
from nightshift.handlers.wiring import store_ports
from nightshift.steps.intake import (
    Deployment,
    DroppedFile,
    Intake,
    request_of_file,
    request_of_schedule,
    request_run,
)
from nightshift.steps.ports import Ports


@logger.inject_lambda_context(clear_state=True)
@tracer.capture_lambda_handler(capture_response=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """A request that cannot be understood at all is logged and counted like any other invalid one, and never retried."""
    settings = load(IntakeSettings)
    ports = store_ports(settings, lambda: context.get_remaining_time_in_millis() / 1_000, settings.training_run_arn)
    try:
        take = _understood(event, settings)
    except ValidationError as error:
        logger.append_keys(run_id=None)
        logger.error("no start request", extra={"fields": bounded([e["loc"] for e in error.errors()], 300)})
        result: Intake | None = Intake(
            None, errors=(FieldError(field="event", problem="neither an event nor a scheduled start"),)
        )
    else:
        result = take(ports)
    if result is None:
        logger.info("no file")
        return {"run_id": None, "created": False, "errors": []}
    run_id = result.run.run_id if result.run is not None else None
    logger.append_keys(run_id=run_id)
    requested = "RehearsalsRequested" if is_rehearsal(run_id or "") else "RunsRequested"
    metrics.add_metric(name=requested if run_id else "RunsRefused", unit=MetricUnit.Count, value=1)
    logger.info("intake", extra={"new_run": result.created, "errors": [e.field for e in result.errors]})
    return {"run_id": run_id, "created": result.created, "errors": [e.model_dump() for e in result.errors]}


def _understood(event: dict[str, Any], settings: IntakeSettings) -> Callable[[Ports], Intake | None]:
    """What is to be done. Raises pydantic's ValidationError for what is none of the three; one that comes from the doing is a
    fault of ours, and must not look like one of the event's."""
    deployment = Deployment(settings.hyperpod_cluster, settings.namespace)
    if "scheduled_time" in event:
        start = ScheduledStart.model_validate(event)
        return lambda ports: request_of_schedule(ports, deployment, start, settings.bucket)
    if event.get("source") == "aws.s3":
        dropped = _dropped(parse(event=event, model=S3EventNotificationEventBridgeModel))
        return lambda ports: request_of_file(ports, deployment, dropped)
    envelope = parse(event=event, model=EventBridgeModel)
    detail: Any = envelope.detail
    try:
        request = StartRequest.model_validate(detail)
        raw, owner = request.spec, request.owner or envelope.account
    except ValidationError:
        raw, owner = (detail if isinstance(detail, dict) else {"detail": str(detail)}), envelope.account
    return lambda ports: request_run(ports, deployment, raw, owner)


def _dropped(event: S3EventNotificationEventBridgeModel) -> DroppedFile:
    detail = event.detail
    return DroppedFile(
        key=detail.object.key,
        size=int(detail.object.size or 0),
        requester=bounded(detail.requester, 100),
        source_ip=str(detail.source_ip_address or ""),
        version=detail.object.version_id or "",
    )

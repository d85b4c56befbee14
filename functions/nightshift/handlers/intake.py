"""EventBridge "Training Run Requested" -> a run, or a record of every error."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.parser import ValidationError, parse
from aws_lambda_powertools.utilities.parser.models import EventBridgeModel
from aws_lambda_powertools.utilities.typing import LambdaContext

from nightshift.contract.events import StartRequest
from nightshift.core.errors import bounded
from nightshift.handlers.observability import logger, metrics, tracer
from nightshift.handlers.settings import IntakeSettings, load
from nightshift.handlers.wiring import store_ports
from nightshift.steps.intake import Deployment, request_run


@logger.inject_lambda_context(clear_state=True)
@tracer.capture_lambda_handler(capture_response=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """A request that cannot be understood at all is recorded like any other invalid one, and never retried."""
    settings = load(IntakeSettings)
    try:
        envelope = parse(event=event, model=EventBridgeModel)
    except ValidationError as error:
        logger.append_keys(run_id=None)
        logger.error("not an event of EventBridge", extra={"fields": bounded([e["loc"] for e in error.errors()], 300)})
        metrics.add_metric(name="RunsRefused", unit=MetricUnit.Count, value=1)
        return {
            "run_id": None,
            "created": False,
            "errors": [{"field": "event", "problem": "not an event of EventBridge"}],
        }
    detail: Any = envelope.detail
    try:
        request = StartRequest.model_validate(detail)
        raw, owner = request.spec, request.owner or envelope.account
    except ValidationError:
        raw, owner = (detail if isinstance(detail, dict) else {"detail": str(detail)}), envelope.account
    ports = store_ports(settings, lambda: context.get_remaining_time_in_millis() / 1_000, settings.training_run_arn)
    result = request_run(ports, Deployment(settings.hyperpod_cluster, settings.namespace), raw, owner)
    run_id = result.run.run_id if result.run is not None else None
    logger.append_keys(run_id=run_id)
    metrics.add_metric(name="RunsRequested" if run_id else "RunsRefused", unit=MetricUnit.Count, value=1)
    logger.info("intake", extra={"new_run": result.created, "errors": [e.field for e in result.errors]})
    return {"run_id": run_id, "created": result.created, "errors": [e.model_dump() for e in result.errors]}

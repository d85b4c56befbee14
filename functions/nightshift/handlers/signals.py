"""HyperPod events and outcome objects -> signals."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from nightshift.handlers.observability import logger, metrics, tracer
from nightshift.handlers.settings import StoreSettings, load
from nightshift.handlers.wiring import store_ports
from nightshift.steps.signals import receive


@logger.inject_lambda_context(clear_state=True)
@tracer.capture_lambda_handler(capture_response=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """An EventBridge event. Unknown or unrelated ones wake nobody."""
    ports = store_ports(load(StoreSettings), lambda: context.get_remaining_time_in_millis() / 1_000)
    woken = receive(ports, event)
    for run_id in woken:
        logger.append_keys(run_id=run_id)
        logger.info("signal", extra={"detail_type": event.get("detail-type"), "event_id": event.get("id")})
    if not woken:
        logger.append_keys(run_id=None)
        logger.info("no run is concerned", extra={"detail_type": event.get("detail-type"), "event_id": event.get("id")})
    metrics.add_metric(name="Signals", unit=MetricUnit.Count, value=len(woken))
    return {"woken": woken}

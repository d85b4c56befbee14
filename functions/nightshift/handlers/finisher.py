"""Step Functions Execution Status Change (FAILED, TIMED_OUT, ABORTED) -> the run is ended properly."""

from __future__ import annotations

import re
from typing import Any

from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from nightshift.core.errors import bounded
from nightshift.handlers.observability import logger, metrics, tracer
from nightshift.handlers.settings import ControllerSettings, load
from nightshift.handlers.wiring import controller_ports
from nightshift.steps.ending import finish_for

EXECUTION_NAME = re.compile(r"(?P<run_id>[a-z][-a-z0-9]{0,39})-r(?P<k>[1-9][0-9]{0,5})")
ENDED = frozenset({"FAILED", "TIMED_OUT", "ABORTED"})
"""The rule lets nothing else through; a running execution's run must never be ended for an event of another kind."""


@logger.inject_lambda_context(clear_state=True)
@tracer.capture_lambda_handler(capture_response=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """An execution's name is its run's id and k; a run that is over already is left alone."""
    given = event.get("detail")
    detail: dict[str, Any] = given if isinstance(given, dict) else {}
    named = EXECUTION_NAME.fullmatch(str(detail.get("name")))
    status = str(detail.get("status"))
    if named is None or status not in ENDED:  # by hand, or no event of an end: there is no run to be ended for it
        logger.append_keys(run_id=None)
        extra = {"execution": bounded(detail.get("name"), 100), "status": bounded(status, 40)}
        logger.error("not the end of a run's execution", extra=extra)
        return {"run_id": None, "did": False}
    run_id, k = named["run_id"], int(named["k"])
    logger.append_keys(run_id=run_id, k=k)
    ports = controller_ports(load(ControllerSettings), lambda: context.get_remaining_time_in_millis() / 1_000)
    error = bounded(f"{detail.get('error') or ''} {detail.get('cause') or ''}".strip() or "no cause given", 500)
    did = finish_for(ports, run_id, k, status, error)
    metrics.add_metric(name="RunsFinishedByFinisher", unit=MetricUnit.Count, value=int(did))
    logger.info("finisher", extra={"status": status, "did": did})
    return {"run_id": run_id, "did": did}

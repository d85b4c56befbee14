"""Step Functions -> one step or look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from nightshift.handlers.observability import logger, metrics, tracer
from nightshift.handlers.settings import StepSettings, load
from nightshift.handlers.wiring import controller_ports, temporary_faults_named
from nightshift.steps import ending, publish, transitions
from nightshift.steps.look import look
from nightshift.steps.ports import Ports
from nightshift.steps.requests import LookRequest, Reply, StepRequest


def steps(settings: StepSettings) -> dict[str, Callable[[Ports, StepRequest], Reply]]:
    """Every step by its name in the payload; ``look`` answers a token and is called by itself."""
    return STEPS | {"submit": lambda ports, request: transitions.submit(ports, request, settings.bucket)}


STEPS: dict[str, Callable[[Ports, StepRequest], Reply]] = {
    "admit": transitions.admit,
    "successor": transitions.successor,
    "preflight": transitions.preflight,
    "provision": transitions.provision,
    "publish": publish.publish,
    "verify": publish.verify,
    "teardown": ending.teardown,
    "release": ending.release,
    "notify": ending.notify,
    "abandon": ending.abandon,
}


@logger.inject_lambda_context(clear_state=True)
@tracer.capture_lambda_handler(capture_response=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Payload: ``StepRequest`` or ``LookRequest``. A look's answer goes to its token, not to the caller."""
    request = StepRequest.model_validate(event)
    logger.append_keys(run_id=request.run_id, step=request.step, k=request.k)
    settings = load(StepSettings)
    remaining = context.get_remaining_time_in_millis
    ports = controller_ports(settings, lambda: remaining() / 1_000, settings.training_run_arn)
    with temporary_faults_named(request.run_id):
        if request.step == "look":
            reply = look(ports, LookRequest.model_validate(event), settings.look_seconds, settings.bounds)
        else:
            reply = steps(settings)[request.step](ports, request)
    decision = "nap" if reply is None else reply.decision
    metrics.add_metric(name="Looks" if request.step == "look" else "Steps", unit=MetricUnit.Count, value=1)
    logger.info("decided", extra={"decision": decision})
    return {} if reply is None else reply.model_dump(mode="json")

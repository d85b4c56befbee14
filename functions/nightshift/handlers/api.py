"""HTTP API: ``POST /runs``, ``GET /runs/{run_id}``, ``POST /runs/{run_id}/cancel`` and ``/answer``. Every error is a problem
document (RFC 9457)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext
from pydantic import ValidationError

from nightshift.contract.api import Answer, Problem, RunAccepted, RunTold
from nightshift.contract.events import FieldError, StartRequest
from nightshift.core.errors import TransientError, bounded
from nightshift.core.run import Run
from nightshift.handlers.observability import logger, metrics, tracer
from nightshift.handlers.settings import IntakeSettings, load
from nightshift.handlers.wiring import store_ports
from nightshift.steps import control
from nightshift.steps.intake import Deployment, request_run
from nightshift.steps.ports import Ports
from nightshift.steps.view import view_run

MAX_BODY = 200_000
app = APIGatewayHttpResolver()


def _problem(status: int, title: str, detail: str = "", errors: list[FieldError] | None = None) -> Response[str]:
    problem = Problem(title=title, status=status, detail=detail, errors=errors or [])
    return Response(status_code=status, content_type="application/problem+json", body=problem.model_dump_json())


def _ports() -> tuple[Ports, IntakeSettings]:
    settings = load(IntakeSettings)
    remaining = app.lambda_context.get_remaining_time_in_millis
    return store_ports(settings, lambda: remaining() / 1_000, settings.training_run_arn), settings


def _caller() -> str:
    """The caller's identity, as IAM proved it to the API."""
    context = app.current_event.raw_event.get("requestContext", {})
    iam = context.get("authorizer", {}).get("iam", {})
    return str(iam.get("userArn") or iam.get("accountId") or "unknown")


@app.post("/runs")
def start_run() -> Response[str]:
    body = app.current_event.body or ""
    if len(body) > MAX_BODY:
        return _problem(413, "Request too large", f"At most {MAX_BODY} characters.")
    try:
        request = StartRequest.model_validate(json.loads(body))
    except (json.JSONDecodeError, ValidationError) as error:
        return _problem(400, "Not a start request", bounded(error, 500))
    ports, settings = _ports()
    deployment = Deployment(settings.hyperpod_cluster, settings.namespace)
    result = request_run(ports, deployment, request.spec, _caller())
    if result.run is None:
        metrics.add_metric(name="RunsRefused", unit=MetricUnit.Count, value=1)
        status, title = (409, "Run id is taken") if result.conflict else (422, "Invalid run spec")
        return _problem(status, title, "Nothing was started.", list(result.errors))
    logger.append_keys(run_id=result.run.run_id)
    metrics.add_metric(name="RunsRequested", unit=MetricUnit.Count, value=1)
    accepted = RunAccepted(run_id=result.run.run_id, state=result.run.state.value, created=result.created)
    return Response(
        status_code=201 if result.created else 200, content_type="application/json", body=accepted.model_dump_json()
    )


@app.get("/runs/<run_id>")
def get_run(run_id: str) -> Response[str]:
    logger.append_keys(run_id=bounded(run_id, 40))
    if len(run_id) > 40:
        return _problem(404, "No such run", "A run id has at most 40 characters.")
    ports, settings = _ports()
    found = view_run(ports, run_id, settings.bucket)
    if found is None:
        return _problem(404, "No such run", f"Nobody asked for a run {run_id}.")
    return Response(status_code=200, content_type="application/json", body=found.model_dump_json())


@app.post("/runs/<run_id>/cancel")
def cancel_run(run_id: str) -> Response[str]:
    return _told(run_id, lambda ports: control.cancel(ports, run_id, _caller()))


@app.post("/runs/<run_id>/answer")
def answer_run(run_id: str) -> Response[str]:
    body = app.current_event.body or ""
    if len(body) > MAX_BODY:
        return _problem(413, "Request too large", f"At most {MAX_BODY} characters.")
    try:
        said = Answer.model_validate(json.loads(body))
    except (json.JSONDecodeError, ValidationError) as error:
        return _problem(400, "Not an answer", bounded(f'Send {{"go_on": true}} or {{"go_on": false}}. {error}', 500))
    return _told(run_id, lambda ports: control.answer(ports, run_id, said.go_on, _caller()))


def _told(run_id: str, tell: Callable[[Ports], Run]) -> Response[str]:
    logger.append_keys(run_id=bounded(run_id, 40))
    if len(run_id) > 40:
        return _problem(404, "No such run", "A run id has at most 40 characters.")
    ports, _ = _ports()
    try:
        run = tell(ports)
    except control.NoSuchRun as error:
        return _problem(404, "No such run", str(error))
    except control.NotPossible as error:
        return _problem(409, "Not possible now", str(error))
    except TransientError as error:
        return _problem(503, "Try again", str(error))
    body = RunTold(run_id=run.run_id, state=run.state.value).model_dump_json()
    return Response(status_code=202, content_type="application/json", body=body)


@app.not_found
def not_found(_: Exception) -> Response[str]:
    return _problem(404, "No such route")


@app.exception_handler(Exception)  # type: ignore[untyped-decorator]  # powertools leaves it untyped
def unexpected(error: Exception) -> Response[str]:
    logger.exception("unexpected error")
    return _problem(500, "Internal error", f"{type(error).__name__}; the function's log has the details.")


@logger.inject_lambda_context(clear_state=True)
@tracer.capture_lambda_handler(capture_response=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """API Gateway payload format 2.0."""
    return app.resolve(event, context)

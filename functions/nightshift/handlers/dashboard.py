"""``POST /runs/{run_id}/dashboard``, a function of its own: only it, of the API, may become the controller role."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.utilities.typing import LambdaContext

from nightshift.core.access import patterns
from nightshift.handlers.http import answer, caller, resolver, run_named
from nightshift.handlers.observability import logger, metrics, tracer
from nightshift.handlers.settings import DashboardSettings, load
from nightshift.handlers.wiring import dashboards, store_ports
from nightshift.steps.control import must_be_steered_by
from nightshift.steps.dashboard import open_dashboard

app = resolver()


@app.post("/runs/<run_id>/dashboard")
def open_run(run_id: str) -> Response[str]:
    settings = load(DashboardSettings)
    remaining = app.lambda_context.get_remaining_time_in_millis
    ports, who = store_ports(settings, lambda: remaining() / 1_000), caller(app)
    must_be_steered_by(ports, run_named(run_id), who, patterns(settings.operator_arns))
    return answer(200, open_dashboard(ports, dashboards(settings), run_id, who))


@logger.inject_lambda_context(clear_state=True)
@tracer.capture_lambda_handler(capture_response=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """API Gateway payload format 2.0. The answer holds an address that lets anybody in: it is never logged or traced."""
    return app.resolve(event, context)

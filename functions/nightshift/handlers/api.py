"""The HTTP API but for dashboards: ask for runs, look at them, steer them. ``docs/openapi.json`` describes it; every error is a
problem document (RFC 9457)."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.utilities.typing import LambdaContext

from nightshift.contract.api import Answer, Cancel, CancelMode, Retry, RunAccepted, RunTold
from nightshift.contract.costs import month_of
from nightshift.contract.events import FieldError, StartRequest
from nightshift.contract.rehearsal import is_rehearsal
from nightshift.core.access import patterns
from nightshift.core.run import Run, RunState
from nightshift.handlers.http import (
    BAD_REQUEST,
    INVALID_SPEC,
    NO_SUCH_RUN,
    RUN_ID_TAKEN,
    Refused,
    answer,
    body_of,
    caller,
    months,
    one_of,
    page_size,
    query,
    refuse_unknown,
    resolver,
    run_named,
)
from nightshift.handlers.observability import logger, metrics, tracer
from nightshift.handlers.settings import ApiSettings, load
from nightshift.handlers.wiring import ApiPorts, api_ports
from nightshift.steps import control, costs, listing
from nightshift.steps.intake import Deployment, request_run
from nightshift.steps.plan import plan_run
from nightshift.steps.retry import retry
from nightshift.steps.view import view_run

MAX_OWNER = 200
POOL_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
app = resolver()


class Order(StrEnum):
    OLDEST = "oldest"
    NEWEST = "newest"


def _wired() -> tuple[ApiPorts, ApiSettings]:
    settings = load(ApiSettings)
    remaining = app.lambda_context.get_remaining_time_in_millis
    return api_ports(settings, lambda: remaining() / 1_000), settings


def _steering(run_id: str) -> ApiPorts:
    """Ports for a change of the run. Raises NoSuchRun, and NotYours where the caller may only look at it."""
    wired, settings = _wired()
    control.must_be_steered_by(wired.ports, run_named(run_id), caller(app), patterns(settings.operator_arns))
    return wired


def _told(run: Run) -> Response[str]:
    return answer(202, RunTold(run_id=run.run_id, state=run.state.value))


def _short(name: str) -> str | None:
    """A parameter that is a name of something. Raises Refused."""
    given = query(app, name)
    if len(given or "") > MAX_OWNER:
        wrong = FieldError(field=name, problem=f"at most {MAX_OWNER} characters")
        raise Refused(BAD_REQUEST, "", [wrong])
    return given


# ask for runs ---------------------------------------------------------------------------------------------------------


@app.post("/runs")
def start_run() -> Response[str]:
    request = body_of(app, StartRequest)
    wired, settings = _wired()
    deployment = Deployment(settings.hyperpod_cluster, settings.namespace, patterns(settings.operator_arns))
    result = request_run(wired.ports, deployment, request.spec, caller(app))
    if result.run is None:
        metrics.add_metric(name="RunsRefused", unit=MetricUnit.Count, value=1)
        raise Refused(RUN_ID_TAKEN if result.conflict else INVALID_SPEC, "Nothing was started.", result.errors)
    logger.append_keys(run_id=result.run.run_id)
    requested = "RehearsalsRequested" if is_rehearsal(result.run.run_id) else "RunsRequested"
    metrics.add_metric(name=requested, unit=MetricUnit.Count, value=1)
    accepted = RunAccepted(run_id=result.run.run_id, state=result.run.state.value, created=result.created)
    return answer(201 if result.created else 200, accepted)


@app.post("/runs/plan")
def plan() -> Response[str]:
    request = body_of(app, StartRequest)
    wired, settings = _wired()
    planned = plan_run(wired.ports, wired.listings, request.spec, caller(app), patterns(settings.operator_arns))
    if planned.plan is None:
        raise Refused(RUN_ID_TAKEN if planned.conflict else INVALID_SPEC, "It would be refused.", planned.errors)
    return answer(200, planned.plan)


# look at them ---------------------------------------------------------------------------------------------------------


@app.get("/runs")
def list_runs() -> Response[str]:
    refuse_unknown(app, "state", "pool", "owner", "limit", "next")
    wanted = listing.RunFilter(one_of(app, "state", RunState), _short("pool"), _short("owner"))
    limit = page_size(app)
    wired, _ = _wired()
    return answer(200, listing.list_runs(wired.listings, wanted, limit, query(app, "next")))


@app.get("/runs/<run_id>")
def get_run(run_id: str) -> Response[str]:
    run_named(run_id)
    wired, settings = _wired()
    found = view_run(wired.ports, run_id, settings.bucket)
    if found is None:
        raise Refused(NO_SUCH_RUN, f"Nobody asked for a run {run_id}.")
    return answer(200, found)


@app.get("/runs/<run_id>/events")
def events(run_id: str) -> Response[str]:
    run_named(run_id)
    refuse_unknown(app, "order", "limit", "next")
    newest, limit = one_of(app, "order", Order, Order.OLDEST) is Order.NEWEST, page_size(app)
    wired, _ = _wired()
    return answer(200, listing.list_events(wired.ports, wired.listings, run_id, newest, limit, query(app, "next")))


@app.get("/runs/<run_id>/artifacts")
def artifacts(run_id: str) -> Response[str]:
    run_named(run_id)
    refuse_unknown(app, "limit", "next")
    limit = page_size(app)
    wired, _ = _wired()
    return answer(200, listing.list_artifacts(wired.ports, wired.downloads, run_id, limit, query(app, "next")))


@app.get("/pools/<pool>")
def pool_view(pool: str) -> Response[str]:
    refuse_unknown(app, "limit", "next")
    if POOL_NAME.fullmatch(pool) is None:
        wrong = FieldError(
            field="pool", problem="a name of at most 40 lower-case letters, digits and hyphens is wanted"
        )
        raise Refused(BAD_REQUEST, "", [wrong])
    limit = page_size(app)
    wired, _ = _wired()
    return answer(200, listing.view_pool(wired.ports, wired.listings, pool, limit, query(app, "next")))


@app.get("/costs")
def list_costs() -> Response[str]:
    refuse_unknown(app, "from", "to", "owner", "project", "limit", "next")
    wired, _ = _wired()
    now = wired.ports.now()
    wanted = costs.CostFilter(*months(app, month_of(now)), _short("owner"), _short("project"))
    return answer(200, costs.list_costs(wired.listings, wanted, now, page_size(app), query(app, "next")))


@app.get("/costs/capacity")
def list_capacity() -> Response[str]:
    refuse_unknown(app, "from", "to", "limit", "next")
    wired, settings = _wired()
    now, cluster = wired.ports.now(), settings.hyperpod_cluster
    wanted = costs.CostFilter(*months(app, month_of(now)))
    return answer(200, costs.list_capacity(wired.capacity, cluster, wanted, now, page_size(app), query(app, "next")))


# steer them -----------------------------------------------------------------------------------------------------------


@app.post("/runs/<run_id>/cancel")
def cancel_run(run_id: str) -> Response[str]:
    said = body_of(app, Cancel, empty=Cancel())
    at_once = said.mode is CancelMode.NOW
    return _told(control.cancel(_steering(run_id).ports, run_id, caller(app), at_once))


@app.post("/runs/<run_id>/answer")
def answer_run(run_id: str) -> Response[str]:
    said = body_of(app, Answer)
    return _told(control.answer(_steering(run_id).ports, run_id, said.go_on, caller(app)))


@app.post("/runs/<run_id>/retry")
def retry_run(run_id: str) -> Response[str]:
    change = body_of(app, Retry, empty=Retry())
    return _told(retry(_steering(run_id).ports, run_id, change, caller(app)))


@logger.inject_lambda_context(clear_state=True)
@tracer.capture_lambda_handler(capture_response=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """API Gateway payload format 2.0."""
    return app.resolve(event, context)

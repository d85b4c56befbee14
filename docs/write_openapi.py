"""Writes openapi.json from the API's models: ``make openapi``. A test fails where the two differ, another where a route lacks
its entry here, and a third asks the real handlers everything that the document allows."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from nightshift.contract import api, costs
from nightshift.contract.spec import RunSpec
from nightshift.core.run import RunState
from nightshift.handlers import http
from nightshift.handlers.http import Kind

PATH = Path(__file__).with_name("openapi.json")
REF = "#/components/schemas/{model}"
Json = dict[str, Any]


@dataclass(frozen=True)
class Route:
    """``answers``: status -> model and sentence. ``problems`` come on top of those that every route has."""

    method: str
    path: str
    operation: str
    summary: str
    answers: dict[int, tuple[type[BaseModel], str]]
    problems: tuple[Kind, ...] = ()
    body: Json | None = None
    body_needed: bool = True
    query: tuple[Json, ...] = field(default_factory=tuple)


RUN_ID = {
    "name": "run_id", "in": "path", "required": True, "description": "the run's id",
    "schema": {"type": "string", "minLength": 1, "maxLength": http.MAX_NAME, "pattern": "^[A-Za-z0-9._-]+$"},
}  # fmt: skip
POOL = {
    "name": "pool", "in": "path", "required": True, "description": "the pool's name",
    "schema": {"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"},
}  # fmt: skip


def _parameter(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


LIMIT = _parameter(
    "limit",
    {"type": "integer", "minimum": 1, "maximum": http.MAX_PAGE, "default": http.PAGE},
    "items that are read for a page",
)
NEXT = _parameter("next", {"type": "string", "minLength": 1, "maxLength": 1_600}, "of the page before, as it was given")
STATE = _parameter("state", {"type": "string", "enum": [s.value for s in RunState]}, "runs in this state only")
LIST_POOL = _parameter("pool", {"type": "string", "minLength": 1, "maxLength": 200}, "runs of this pool only")
OWNER = _parameter(
    "owner", {"type": "string", "minLength": 1, "maxLength": 200}, "runs of this owner only, as runs show it"
)
ORDER = _parameter("order", {"type": "string", "enum": ["oldest", "newest"], "default": "oldest"}, "which come first")

PROJECT = _parameter("project", {"type": "string", "minLength": 1, "maxLength": 200}, "runs of this project only")
FROM = _parameter(
    "from", {"type": "string", "pattern": costs.MONTH}, "first month, in UTC; this one where none is given"
)
TO = _parameter("to", {"type": "string", "pattern": costs.MONTH}, "last month; the first one where none is given")

START = {
    "type": "object",
    "properties": {"version": {"const": 1, "default": 1}, "spec": {"$ref": REF.format(model="RunSpec")}},
    "required": ["spec"],
}
STEERED = (http.NOT_YOURS, http.NO_SUCH_RUN, http.NOT_POSSIBLE)
TOLD = {202: (api.RunTold, "It is recorded, and the run goes by it.")}


def _body(model: str) -> Json:
    return {"$ref": REF.format(model=model)}


ROUTES = (
    Route("post", "/runs", "startRun", "Ask for a run. Asking again for the same one is harmless.",
          {200: (api.RunAccepted, "The same run was asked for before."), 201: (api.RunAccepted, "A new run.")},
          (http.BAD_REQUEST, http.RUN_ID_TAKEN, http.TOO_LARGE, http.INVALID_SPEC), START),
    Route("get", "/runs", "listRuns", "Runs that are not over, then the others, newest first each.",
          {200: (api.RunList, "A page.")}, (http.BAD_REQUEST, http.BAD_PAGE), query=(STATE, LIST_POOL, OWNER, LIMIT, NEXT)),
    Route("post", "/runs/plan", "planRun", "Check everything, and start nothing.",
          {200: (api.Plan, "What would be started.")},
          (http.BAD_REQUEST, http.RUN_ID_TAKEN, http.TOO_LARGE, http.INVALID_SPEC), START),
    Route("get", "/runs/{run_id}", "getRun", "Where a run is.", {200: (api.RunView, "The run.")}, (http.NO_SUCH_RUN,)),
    Route("get", "/runs/{run_id}/events", "listEvents", "A run's audit trail.", {200: (api.EventList, "A page.")},
          (http.BAD_REQUEST, http.BAD_PAGE, http.NO_SUCH_RUN), query=(ORDER, LIMIT, NEXT)),
    Route("get", "/runs/{run_id}/artifacts", "listArtifacts", "What a run left so far, each object with a short-lived address.",
          {200: (api.ArtifactList, "A page.")}, (http.BAD_REQUEST, http.BAD_PAGE, http.NO_SUCH_RUN), query=(LIMIT, NEXT)),
    Route("post", "/runs/{run_id}/cancel", "cancelRun", "End a run. Asking again is harmless.", TOLD,
          (http.BAD_REQUEST, http.TOO_LARGE, *STEERED), _body("Cancel"), body_needed=False),
    Route("post", "/runs/{run_id}/answer", "answerRun", "Answer a run's open question.", TOLD,
          (http.BAD_REQUEST, http.TOO_LARGE, *STEERED), _body("Answer")),
    Route("post", "/runs/{run_id}/retry", "retryRun", "Have a failed or cancelled run go on from its checkpoints.", TOLD,
          (http.BAD_REQUEST, http.TOO_LARGE, http.INVALID_RETRY, *STEERED), _body("Retry"), body_needed=False),
    Route("post", "/runs/{run_id}/dashboard", "openDashboard", "An address of the run's Ray dashboard, good for one session.",
          {200: (api.DashboardLink, "The address. Whoever has it is let in.")}, STEERED),
    Route("get", "/pools/{pool}", "getPool", "Who holds a pool, and who waits for it, in order.",
          {200: (api.PoolView, "The pool.")}, (http.BAD_REQUEST, http.BAD_PAGE, http.NO_SUCH_ROUTE), query=(LIMIT, NEXT)),
    Route("get", "/costs", "listCosts", "What is attributed to each run, by month.",
          {200: (costs.CostList, "A page.")}, (http.BAD_REQUEST, http.BAD_PAGE), query=(FROM, TO, OWNER, PROJECT, LIMIT, NEXT)),
    Route("get", "/costs/capacity", "listCapacity", "What instances HyperPod had, and what they cost an hour.",
          {200: (costs.CapacityList, "A page.")}, (http.BAD_REQUEST, http.BAD_PAGE), query=(FROM, TO, LIMIT, NEXT)),
)  # fmt: skip


def openapi() -> Json:
    """The document, OpenAPI 3.1."""
    sent = [(model, "validation") for model in (api.Cancel, api.Answer, api.Retry, RunSpec)]
    told = {model for route in ROUTES for model, _ in route.answers.values()} | {api.Problem}
    answers = [(model, "serialization") for model in sorted(told, key=lambda m: m.__name__)]
    _, schemas = models_json_schema([*sent, *answers], ref_template=REF)  # type: ignore[list-item]
    paths: Json = {}
    for route in ROUTES:
        parameters = [one for one in (RUN_ID, POOL) if f"{{{one['name']}}}" in route.path]
        paths.setdefault(route.path, {"parameters": parameters} if parameters else {})[route.method] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Nightshift",
            "version": "1",
            "description": "Training runs: ask for them, look at them, steer them. Every request is signed (AWS Signature "
            "Version 4, service execute-api). Every error is a problem document (RFC 9457) whose type names its kind; "
            "API Gateway itself answers an unsigned request with 403 and an unknown route with 404, in its own form.",
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas["$defs"].items())),
            "securitySchemes": {
                "sigv4": {
                    "type": "apiKey",
                    "name": "Authorization",
                    "in": "header",
                    "x-amazon-apigateway-authtype": "awsSigv4",
                }
            },
        },
        "security": [{"sigv4": []}],
    }


def _operation(route: Route) -> Json:
    made: Json = {"operationId": route.operation, "summary": route.summary}
    if route.query:
        made["parameters"] = list(route.query)
    if route.body is not None:
        made["requestBody"] = {"required": route.body_needed, "content": {http.JSON: {"schema": route.body}}}
    made["responses"] = {
        str(status): {
            "description": sentence,
            "content": {http.JSON: {"schema": {"$ref": REF.format(model=model.__name__)}}},
        }
        for status, (model, sentence) in sorted(route.answers.items())
    } | _problems((*route.problems, http.INTERNAL, http.TRY_AGAIN))
    return made


def _problems(kinds: tuple[Kind, ...]) -> Json:
    by_status: dict[int, list[Kind]] = {}
    for kind in kinds:
        by_status.setdefault(kind.status, []).append(kind)
    return {
        str(status): {
            "description": "; ".join(f"{one.title} ({api.PROBLEM_TYPES}{one.name})" for one in found),
            "content": {http.PROBLEM_JSON: {"schema": {"$ref": REF.format(model="Problem")}}},
        }
        for status, found in sorted(by_status.items())
    }


def openapi_text() -> str:
    return json.dumps(openapi(), indent=1, sort_keys=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(openapi_text())
    print(f"written: {PATH.name}")

"""docs/openapi.json is what the models and the routes say."""

from __future__ import annotations

import json
import re
import runpy
from typing import Any

import jsonschema

from nightshift.contract.api import PROBLEM_TYPES
from nightshift.handlers import api, dashboard, http
from nightshift.handlers.http import Kind
from tests.deploy.repository import ROOT

DOCUMENT: dict[str, Any] = json.loads((ROOT / "docs/openapi.json").read_text())
METHODS = {"get", "post", "put", "patch", "delete"}


def test_the_committed_document_is_the_models() -> None:
    made = runpy.run_path(str(ROOT / "docs/write_openapi.py"))["openapi_text"]()
    assert (ROOT / "docs/openapi.json").read_text() == made, "run `make openapi`"


def test_every_route_of_the_functions_is_described_and_no_other() -> None:
    routes = {
        (str(method).lower(), re.sub(r"<(\w+)>", r"{\1}", route.path))
        for app in (api.app, dashboard.app)
        for route in (*app._static_routes, *app._dynamic_routes)
        for method in [route.method]
    }
    described = {(m, path) for path, one in DOCUMENT["paths"].items() for m in one if m in METHODS}
    assert routes == described


def test_every_kind_of_problem_has_its_own_name_and_is_described_with_its_status() -> None:
    kinds = [kind for kind in vars(http).values() if isinstance(kind, Kind)]
    assert len({kind.name for kind in kinds}) == len(kinds)
    told = {
        (int(status), name)
        for one in DOCUMENT["paths"].values()
        for method in METHODS & one.keys()
        for status, answer in one[method]["responses"].items()
        for name in re.findall(rf"{PROBLEM_TYPES}([a-z-]+)", answer["description"])
    }
    assert {(kind.status, kind.name) for kind in kinds} == told


def test_its_schemas_are_json_schemas_and_its_references_lead_somewhere() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    wanted = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(DOCUMENT)))
    assert wanted <= DOCUMENT["components"]["schemas"].keys()

"""schemathesis asks the real handlers whatever docs/openapi.json allows, and what it forbids: no 5xx, no status, content type
or body that the document does not have."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import boto3
import pytest
import schemathesis
from hypothesis import Phase, settings
from moto import mock_aws
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from nightshift.core.run import RunState
from nightshift.steps.transitions import admit
from tests.api.support import OTHER, Http
from tests.steps.world import World, step

DOCUMENT = json.loads((Path(__file__).resolve().parents[2] / "docs/openapi.json").read_text())
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 12
"""Of each operation; 60 of each were green, too, when this was written."""

KNOWN = cycle(("queued-1", "failed-1", "succeeded-1", "others-1", "", "", ""))
"""Ids of runs that there are, and as often what was made up."""


class Gateway:
    """API Gateway as a WSGI application: a request becomes an event, and a function's answer a response."""

    http: Http

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        path = environ["PATH_INFO"].encode("latin-1").decode("utf-8", "replace")
        query = environ.get("QUERY_STRING", "")
        try:
            raw, encoded = body.decode(), False
        except UnicodeDecodeError:
            raw, encoded = base64.b64encode(body).decode(), True
        address = f"{path}?{query}" if query else path
        said = self.http.say(environ["REQUEST_METHOD"], address, raw=raw or None, isBase64Encoded=encoded, rawPath=path)
        start_response(f"{said.status} told", list(said.headers.items()))
        return [json.dumps(said.body).encode()]


gateway = Gateway()


def described(document: dict[str, Any]) -> Any:
    phases = {"coverage": {"enabled": False}, "examples": {"enabled": False}}
    made = schemathesis.openapi.from_dict(document, config=schemathesis.Config.from_dict({"phases": phases}))
    made.app = gateway
    return made


schema = described(DOCUMENT)


@pytest.fixture(scope="module", autouse=True)
def account(session: boto3.Session) -> Iterator[None]:
    """One account for all: what one request leaves, the next one meets."""
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        http = gateway.http = Http(World(session), session, patch)
        for name in ("queued-1", "failed-1", "succeeded-1"):
            assert http.start(name).status == 201
            admit(http.world.ports, step("admit", run_id=name))
        assert http.start("others-1", who=OTHER).status == 201
        http.over("failed-1", RunState.FAILED)
        http.over("succeeded-1", RunState.SUCCEEDED)
        yield


@schema.parametrize()
@settings(max_examples=EXAMPLES, phases=[Phase.generate], derandomize=True)
def test_nothing_is_answered_that_the_document_does_not_have(case: schemathesis.Case) -> None:
    known = next(KNOWN)
    if known and "run_id" in (case.path_parameters or {}):
        case.path_parameters["run_id"] = known
    case.call_and_validate(checks=CHECKS)


def test_an_answer_that_the_document_lacks_would_be_noticed() -> None:
    for status, run_id in (("404", "nobody"), ("200", "failed-1")):
        document = copy.deepcopy(DOCUMENT)
        del document["paths"]["/runs/{run_id}"]["get"]["responses"][status]
        case = described(document)["/runs/{run_id}"]["GET"].Case(path_parameters={"run_id": run_id})
        with pytest.raises(BaseExceptionGroup, match="Undocumented"):
            case.call_and_validate(checks=CHECKS)

"""API Gateway's HTTP API for the deployed routes: payload format 2.0 in, a function's answer out."""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, unquote

from local.cloud.functions import FunctionNotFoundError, Result, ThrottledError
from local.cloud.identity import Caller, RefusedError, SignedRequest, header_caller

MAX_BODY_BYTES = 10 * 1024 * 1024
API_ID = "local"
API_PREFIX = "/_api"
"""Path of the API on the cloud's port: its routes never meet a path of an AWS service."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Route:
    """``function`` is the name of a deployed function; ``iam`` demands a signature."""

    method: str
    path: str
    function: str
    iam: bool

    def match(self, method: str, path: str) -> dict[str, str] | None:
        """Path parameters, or None where the request is not for this route."""
        pattern = re.sub(r"\\\{(\w+)\\\+\\\}", r"(?P<\1>.+)", re.escape(self.path))
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", pattern)
        found = re.fullmatch(pattern, path)
        if found is None or self.method not in (method, "ANY", "X-AMAZON-APIGATEWAY-ANY-METHOD"):
            return None
        return {name: unquote(value) for name, value in found.groupdict().items()}


Invoke = Callable[[str, bytes], Result]


class HttpApi:
    """``serve`` takes the request as the caller signed it, and the path below the API's own address."""

    def __init__(self, invoke: Invoke, account: str) -> None:
        self._invoke, self._account = invoke, account
        self._routes: Sequence[Route] = ()

    def deploy(self, routes: Sequence[Route]) -> None:
        # Literal paths come before those with parameters, as in API Gateway.
        self._routes = sorted(routes, key=lambda one: one.path.count("{"))

    def serve(self, request: SignedRequest, path: str, source: str) -> Answer:
        if len(request.body) > MAX_BODY_BYTES:
            return _message(413, "Request Entity Too Large")
        for route in self._routes:
            parameters = route.match(request.method, path)
            if parameters is not None:
                break
        else:
            return _message(404, "Not Found")
        caller: Caller | None = None
        if route.iam:
            try:
                caller = header_caller(request, self._account, datetime.now(UTC))
            except RefusedError as refused:
                unsigned = refused.code == "MissingAuthenticationToken"
                return _message(403, "Forbidden" if unsigned else refused.message)
        event = proxy_event(request, path, route, parameters, caller, source)
        try:
            result = self._invoke(route.function, json.dumps(event).encode())
        except (ThrottledError, FunctionNotFoundError):
            return _message(503, "Service Unavailable")
        return _message(500, "Internal Server Error") if result.error else _answer(result.body)


def proxy_event(
    request: SignedRequest, path: str, route: Route, parameters: Mapping[str, str], caller: Caller | None, source: str
) -> dict[str, Any]:
    """The event of payload format 2.0."""
    now = datetime.now(UTC)
    key = f"{route.method} {route.path}"
    try:
        body, encoded = request.body.decode(), False
    except UnicodeDecodeError:
        body, encoded = base64.b64encode(request.body).decode(), True
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": key,
        "rawPath": path,
        "rawQueryString": request.query,
        "headers": dict(request.headers),
        "requestContext": {
            "accountId": caller.account if caller else "anonymous",
            "apiId": API_ID,
            "domainName": request.headers.get("host", ""),
            "domainPrefix": API_ID,
            "http": {
                "method": request.method,
                "path": path,
                "protocol": "HTTP/1.1",
                "sourceIp": source,
                "userAgent": request.headers.get("user-agent", ""),
            },
            "requestId": str(uuid.uuid4()),
            "routeKey": key,
            "stage": "$default",
            "time": now.strftime("%d/%b/%Y:%H:%M:%S +0000"),
            "timeEpoch": int(now.timestamp() * 1000),
        },
        "isBase64Encoded": encoded,
    }
    if body:
        event["body"] = body
    if parameters:
        event["pathParameters"] = dict(parameters)
    if request.query:
        event["queryStringParameters"] = _query(request.query)
    if caller is not None:
        event["requestContext"]["authorizer"] = {"iam": _iam(caller)}
    return event


def _iam(caller: Caller) -> dict[str, Any]:
    return {
        "accessKey": caller.access_key,
        "accountId": caller.account,
        "callerId": caller.user_id,
        "cognitoIdentity": None,
        "principalOrgId": None,
        "userArn": caller.arn,
        "userId": caller.user_id,
    }


def _query(text: str) -> dict[str, str]:
    """Values of a repeated name are joined by commas."""
    values: dict[str, list[str]] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        values.setdefault(name, []).append(value)
    return {name: ",".join(many) for name, many in values.items()}


def _answer(body: bytes) -> Answer:
    """A function's answer: a document with ``statusCode``, or any other value, which is then the body of a 200."""
    document = json.loads(body)
    if not isinstance(document, dict) or "statusCode" not in document:
        return Answer(200, body, {"Content-Type": "application/json"})
    text = document.get("body") or ""
    raw = base64.b64decode(text) if document.get("isBase64Encoded") else str(text).encode()
    headers = {str(name): str(value) for name, value in (document.get("headers") or {}).items()}
    headers.setdefault("Content-Type", "text/plain; charset=utf-8")
    return Answer(int(document["statusCode"]), raw, headers)


def _message(status: int, text: str) -> Answer:
    return Answer(status, json.dumps({"message": text}).encode(), {"Content-Type": "application/json"})

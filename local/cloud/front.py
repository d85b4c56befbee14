"""The WSGI front of the one port: the data planes that moto lacks take their requests, moto takes the rest."""

from __future__ import annotations

import base64
import json
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

from local.cloud.functions import FunctionHost, FunctionNotFoundError, ThrottledError
from local.cloud.http_api import API_PREFIX, Answer, HttpApi
from local.cloud.identity import Caller, RefusedError, SignedRequest, presigned_caller

Environ = dict[str, Any]
WsgiApp = Callable[[Environ, Any], Iterable[bytes]]

FUNCTIONS_PREFIX = "/2015-03-31/functions/"
HYPERPOD_CALLS = {"DescribeCluster", "ListClusterNodes", "DescribeClusterNode", "BatchReplaceClusterNodes"}
MAX_SYNC_BYTES = 6 * 1024 * 1024
MAX_ASYNC_BYTES = 1024 * 1024
JSON = {"Content-Type": "application/json"}
REASONS = {200: "OK", 201: "Created", 202: "Accepted", 400: "Bad Request", 403: "Forbidden", 404: "Not Found"}


class Front:
    """``local`` answers the routes below /_local; ``hyperpod_url`` answers four calls of SageMaker."""

    def __init__(
        self,
        moto: WsgiApp,
        functions: FunctionHost,
        api: HttpApi,
        local: Callable[[str, str, bytes], Answer],
        account: str,
        region: str,
        hyperpod_url: str,
    ) -> None:
        self._moto, self._functions, self._api, self._local = moto, functions, api, local
        self._account, self._region, self._hyperpod_url = account, region, hyperpod_url
        self._tables = threading.Lock()
        self._objects = threading.Lock()

    def __call__(self, environ: Environ, start: Any) -> Iterable[bytes]:
        answer = self._own(environ)
        if answer is None:
            return self._to_moto(environ, start)
        headers = [("Content-Length", str(len(answer.body))), ("x-amzn-RequestId", str(uuid.uuid4()))]
        start(f"{answer.status} {REASONS.get(answer.status, 'Status')}", [*answer.headers.items(), *headers])
        return [answer.body]

    def _own(self, environ: Environ) -> Answer | None:
        method, path = environ["REQUEST_METHOD"], _path(environ)
        if path.startswith("/_local/"):
            return self._local(method, path, _body(environ))
        if path.startswith(f"{API_PREFIX}/") or "/execute-api/" in environ.get("HTTP_AUTHORIZATION", ""):
            below = path.removeprefix(API_PREFIX) or "/"
            return self._api.serve(_request(environ), below, environ.get("REMOTE_ADDR", ""))
        if method == "POST" and path.startswith(FUNCTIONS_PREFIX) and path.endswith("/invocations"):
            return self._invoke(environ, unquote(path.removeprefix(FUNCTIONS_PREFIX).removesuffix("/invocations")))
        query = parse_qs(environ.get("QUERY_STRING", ""))
        if query.get("Action") == ["GetCallerIdentity"] and "X-Amz-Signature" in query:
            return self._identity(environ)
        service, _, call = environ.get("HTTP_X_AMZ_TARGET", "").partition(".")
        if service == "SageMaker" and call in HYPERPOD_CALLS:
            return self._hyperpod(call, _body(environ))
        return None

    def _to_moto(self, environ: Environ, start: Any) -> Iterable[bytes]:
        """moto checks a condition and then writes, on many threads: what must be one step is made one here."""
        if environ.get("HTTP_X_AMZ_TARGET", "").startswith("DynamoDB_"):
            with self._tables:
                return list(self._moto(environ, start))
        if environ["REQUEST_METHOD"] == "PUT" and {"HTTP_IF_NONE_MATCH", "HTTP_IF_MATCH"} & environ.keys():
            with self._objects:
                return list(self._moto(environ, start))
        return self._moto(environ, start)

    def _invoke(self, environ: Environ, given: str) -> Answer:
        name = given.split(":")[6] if given.startswith("arn:") else given.split(":")[0]
        payload, kind = _body(environ), environ.get("HTTP_X_AMZ_INVOCATION_TYPE", "RequestResponse")
        if len(payload) > (MAX_ASYNC_BYTES if kind == "Event" else MAX_SYNC_BYTES):
            return _lambda_error(
                413, "RequestTooLargeException", f"Request must be smaller than {MAX_SYNC_BYTES} bytes"
            )
        try:
            json.loads(payload or b"{}")
        except ValueError as problem:
            text = f"Could not parse request body into json: {problem}"
            return _lambda_error(400, "InvalidRequestContentException", text)
        try:
            if kind == "DryRun":
                self._functions.spec(name)
                return Answer(204)
            if kind == "Event":
                self._functions.invoke_async(name, payload)
                return Answer(202)
            result = self._functions.invoke(name, payload)
        except FunctionNotFoundError:
            arn = f"arn:aws:lambda:{self._region}:{self._account}:function:{name}"
            return _lambda_error(404, "ResourceNotFoundException", f"Function not found: {arn}")
        except ThrottledError:
            return _lambda_error(429, "TooManyRequestsException", "Rate Exceeded.")
        headers = {**JSON, "X-Amz-Executed-Version": "$LATEST"}
        if result.error:
            headers["X-Amz-Function-Error"] = result.error
        if environ.get("HTTP_X_AMZ_LOG_TYPE") == "Tail":
            headers["X-Amz-Log-Result"] = _base64(result.log_tail)
        return Answer(200, result.body, headers)

    def _identity(self, environ: Environ) -> Answer:
        as_json = "application/json" in environ.get("HTTP_ACCEPT", "")
        try:
            caller = presigned_caller(_request(environ), self._account, datetime.now(UTC))
        except RefusedError as refused:
            return _refused(refused, as_json)
        return _identity_answer(caller, as_json)

    def _hyperpod(self, call: str, body: bytes) -> Answer:
        headers = {"Content-Type": "application/x-amz-json-1.1"}
        request = urllib.request.Request(f"{self._hyperpod_url}/hyperpod/{call}", body, JSON, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return Answer(answer.status, answer.read(), headers)
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read(), headers)
        except OSError as error:
            text = json.dumps({"__type": "InternalFailure", "message": f"the local HyperPod does not answer: {error}"})
            return Answer(500, text.encode(), headers)


def _path(environ: Environ) -> str:
    """The path as it stands on the wire, still encoded."""
    raw = str(environ.get("RAW_URI") or environ.get("REQUEST_URI") or environ["PATH_INFO"])
    return raw.split("?", 1)[0]


def _body(environ: Environ) -> bytes:
    return bytes(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))


def _request(environ: Environ) -> SignedRequest:
    headers = {name[5:].lower().replace("_", "-"): value for name, value in environ.items() if name.startswith("HTTP_")}
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            headers[name.lower().replace("_", "-")] = environ[name]
    return SignedRequest(
        environ["REQUEST_METHOD"], _path(environ), environ.get("QUERY_STRING", ""), headers, _body(environ)
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _lambda_error(status: int, kind: str, message: str) -> Answer:
    body = json.dumps({"Type": "User", "Message": message, "message": message}).encode()
    return Answer(status, body, {**JSON, "x-amzn-ErrorType": kind})


def _refused(refused: RefusedError, as_json: bool) -> Answer:
    request_id = str(uuid.uuid4())
    if as_json:
        document = {"Error": {"Code": refused.code, "Message": refused.message, "Type": "Sender"}}
        return Answer(403, json.dumps({**document, "RequestId": request_id}).encode(), JSON)
    text = (
        '<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>'
        f"<Code>{refused.code}</Code><Message>{escape(refused.message)}</Message></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    )
    return Answer(403, text.encode(), {"Content-Type": "text/xml"})


def _identity_answer(caller: Caller, as_json: bool) -> Answer:
    request_id = str(uuid.uuid4())
    if as_json:
        result = {"Account": caller.account, "Arn": caller.arn, "UserId": caller.user_id}
        response = {"GetCallerIdentityResult": result, "ResponseMetadata": {"RequestId": request_id}}
        return Answer(200, json.dumps({"GetCallerIdentityResponse": response}).encode(), JSON)
    text = (
        '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>'
        f"<Arn>{escape(caller.arn)}</Arn><UserId>{escape(caller.user_id)}</UserId>"
        f"<Account>{caller.account}</Account></GetCallerIdentityResult><ResponseMetadata>"
        f"<RequestId>{request_id}</RequestId></ResponseMetadata></GetCallerIdentityResponse>"
    )
    return Answer(200, text.encode(), {"Content-Type": "text/xml"})

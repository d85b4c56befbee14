"""Stands in front of everything that takes requests, and lets through what the caller's role permits.

The account's own key (whoever deploys, and the demo's own clients) is not judged; a key that nobody gave out is refused.
Each judgement is a line of ``iam.jsonl`` in the state folder: ``role`` (ARN), ``action``, ``resource``, ``context``,
``allowed``, and for a refusal ``why``.
"""

from __future__ import annotations

import io
import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from moto.iam.exceptions import NotFoundException
from moto.iam.models import iam_backends
from moto.sts.models import sts_backends

from local.cloud.http_api import API_PREFIX
from local.cloud.iam.asks import LIST_BUCKET, UnknownCallError, World, asks, object_of
from local.cloud.iam.judge import Ask, permits
from local.cloud.identity import PARTITION, ROOT_KEY, SignedRequest

LOG = logging.getLogger(__name__)
LOG_NAME = "iam.jsonl"

Environ = dict[str, Any]
WsgiApp = Callable[[Environ, Any], Iterable[bytes]]


class NotAuthorizedError(Exception):
    """The text is the one that AWS gives, with role, action and resource."""


class Guard:
    """``log_folder`` takes ``iam.jsonl``."""

    def __init__(self, world: World, log_folder: Path) -> None:
        self._world = world
        self._path = log_folder / LOG_NAME
        self._lock = threading.Lock()

    def around(self, app: WsgiApp) -> WsgiApp:
        """The same application, for requests that are permitted."""

        def guarded(environ: Environ, start: Any) -> Iterable[bytes]:
            session = None
            try:
                key, service = _signed_by(environ)
                if key == ROOT_KEY or _is_for_anybody(environ):
                    return app(environ, start)
                if not key:
                    return _refusal(environ, start, service, "AccessDeniedException", "the request is not signed")
                session = sts_backends[self._world.account][PARTITION].get_assumed_role_from_access_key(key)
                if session is None:
                    return _refusal(environ, start, service, "UnrecognizedClientException", f"nobody has the key {key}")
                request = _request(environ, service)
                for ask in asks(service, request, self._world):
                    self.require(session.role_arn, ask, session.arn)
            except UnknownCallError as unknown:
                assert session is not None
                text = f"{unknown} is not known to local/cloud/iam/asks.py, so nobody is authorized to perform it"
                self._write(session.role_arn, Ask(str(unknown), "*"), text)
                return _refusal(environ, start, service, "AccessDeniedException", text)
            except NotAuthorizedError as refused:
                return _refusal(environ, start, service, "AccessDeniedException", str(refused))
            if service == "s3" and request.method in ("GET", "HEAD"):
                return self._only_lister_learns_of_nothing(app, environ, start, request, session)
            return app(environ, start)

        return guarded

    def require(self, role_arn: str, ask: Ask, caller: str = "") -> None:
        """Record one judgement of a role, its trust included. Raises NotAuthorizedError."""
        why = self._why_not(role_arn, ask)
        self._write(role_arn, ask, why)
        if why:
            raise NotAuthorizedError(
                f"User: {caller or role_arn} is not authorized to perform: {ask.action} on resource: {ask.resource}"
                f" because {why}"
            )

    def _why_not(self, role_arn: str, ask: Ask) -> str:
        backend = iam_backends[self._world.account][PARTITION]
        role = backend.get_role_by_arn(role_arn)
        if not permits(policies_of(role), ask):
            return f"no identity-based policy allows the {ask.action} action"
        if ask.action == "sts:AssumeRole":
            context = {**ask.context, "aws:PrincipalArn": role_arn}
            try:
                trust = _document(backend.get_role_by_arn(ask.resource).assume_role_policy_document)
            except NotFoundException:
                return "there is no such role"
            root = f"arn:aws:iam::{self._world.account}:root"
            if not permits([trust], Ask(ask.action, ask.resource, context), root):
                return "the trust policy of the role does not allow it"
        return ""

    def _write(self, role_arn: str, ask: Ask, why: str) -> None:
        line: dict[str, Any] = {"role": role_arn, "action": ask.action, "resource": ask.resource}
        line |= {"context": dict(ask.context), "allowed": not why}
        if why:
            line["why"] = why
            LOG.warning("refused: %s", line)
        with self._lock, self._path.open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")

    def _only_lister_learns_of_nothing(
        self, app: WsgiApp, environ: Environ, start: Any, request: SignedRequest, session: Any
    ) -> Iterable[bytes]:
        """An object that is not there is a 404 for who may list its bucket, and a 403 for anybody else."""
        bucket, key = object_of(request)
        begun: list[tuple[str, Any]] = []

        def hold(status: str, headers: Any, _: Any = None) -> Any:
            begun.append((status, headers))

        body = list(app(environ, hold))
        status, headers = begun[-1]
        if key and status.startswith("404"):
            try:
                self.require(session.role_arn, Ask(LIST_BUCKET, f"arn:aws:s3:::{bucket}"), session.arn)
            except NotAuthorizedError as refused:
                return _refusal(environ, start, "s3", "AccessDenied", str(refused))
        start(status, headers)
        return body


def policies_of(role: Any) -> list[dict[str, Any]]:
    """Documents of a role's inline policies (moto's role). Policies of AWS itself only let it log and trace."""
    return [_document(text) for text in role.policies.values()]


def _document(text: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(text) if isinstance(text, str) else text
    return document


def _signed_by(environ: Environ) -> tuple[str, str]:
    """(access key, service) of a request; no key where it is not signed. What names no service is S3's."""
    header = environ.get("HTTP_AUTHORIZATION", "")
    credential = header.partition("Credential=")[2].partition(",")[0]
    if not credential:
        query = parse_qs(environ.get("QUERY_STRING", ""))
        if "AWSAccessKeyId" in query:  # an address signed as S3 did it before version 4
            return query["AWSAccessKeyId"][0], "s3"
        credential = query.get("X-Amz-Credential", [""])[0]
    parts = credential.split("/")
    return (parts[0], parts[3]) if len(parts) == 5 else ("", "s3")


def _is_for_anybody(environ: Environ) -> bool:
    """The local routes; those of the HTTP API, which asks for signatures itself; and a presented identity, whose signer is
    what the presenter wants to know."""
    path, query = environ["PATH_INFO"], parse_qs(environ.get("QUERY_STRING", ""))
    return path.startswith(("/_local/", f"{API_PREFIX}/")) or query.get("Action") == ["GetCallerIdentity"]


def _request(environ: Environ, service: str) -> SignedRequest:
    """The request; its body is read, and put back, except for S3, where it may be large and says nothing."""
    body = b""
    if service != "s3":
        body = bytes(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
        environ["wsgi.input"] = io.BytesIO(body)
    raw = str(environ.get("RAW_URI") or environ.get("REQUEST_URI") or environ["PATH_INFO"])
    headers = {name[5:].lower().replace("_", "-"): value for name, value in environ.items() if name.startswith("HTTP_")}
    return SignedRequest(
        environ["REQUEST_METHOD"], raw.split("?", 1)[0], environ.get("QUERY_STRING", ""), headers, body
    )


def _refusal(environ: Environ, start: Any, service: str, code: str, text: str) -> Iterable[bytes]:
    """A 403 (400 in the JSON protocols) as the service would write it."""
    headers: Mapping[str, str]
    if service in ("s3", "sts", "iam"):
        code = code.removesuffix("Exception") if code.startswith("AccessDenied") else code
        error = f"<Code>{code}</Code><Message>{escape(text)}</Message>"
        inner = f"<Error>{error}</Error>"
        whole = (
            inner if service == "s3" else f"<ErrorResponse>{inner}<RequestId>{uuid.uuid4()}</RequestId></ErrorResponse>"
        )
        status, body, headers = "403 Forbidden", whole.encode(), {"Content-Type": "application/xml"}
    else:
        in_body = "HTTP_X_AMZ_TARGET" in environ
        status = "400 Bad Request" if in_body else "403 Forbidden"
        body = json.dumps({"__type": code, "message": text, "Message": text}).encode()
        headers = {"Content-Type": "application/x-amz-json-1.1", "x-amzn-ErrorType": code}
    if environ["REQUEST_METHOD"] == "HEAD":
        body = b""
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start(status, [*headers.items(), ("Content-Length", str(len(body))), ("x-amzn-RequestId", str(uuid.uuid4()))])
    return [body]

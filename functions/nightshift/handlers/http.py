"""What the HTTP functions share: bodies and parameters in, answers and problem documents (RFC 9457) out, and who calls."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from nightshift.contract.api import PROBLEM_TYPES, Problem
from nightshift.contract.base import Document
from nightshift.contract.costs import MONTH
from nightshift.contract.events import FieldError
from nightshift.core.errors import NightshiftError, TransientError, bounded
from nightshift.core.paging import BadToken
from nightshift.handlers.observability import logger
from nightshift.handlers.wiring import PERMANENT
from nightshift.steps.control import NoSuchRun, NotPossible, NotYours
from nightshift.steps.listing import MAX_PAGE
from nightshift.steps.retry import NotValid

MAX_BODY = 200_000
"""Characters; the largest honest spec has a tenth of that."""
MAX_NAME = 40
PAGE = 50
MAX_ERRORS = 50

JSON, PROBLEM_JSON = "application/json", "application/problem+json"
PRIVATE = {"Cache-Control": "no-store"}
"""Answers are about one moment, and some hold addresses that let anybody in."""

M = TypeVar("M", bound=BaseModel)
E = TypeVar("E", bound=Enum)


class Kind(NamedTuple):
    """A kind of problem: its name in the type's URI, its status and its title never change."""

    name: str
    status: int
    title: str


BAD_REQUEST = Kind("bad-request", 400, "Not a valid request")
BAD_PAGE = Kind("bad-page", 400, "Not a page of this list")
NOT_YOURS = Kind("not-yours", 403, "Somebody else's run")
NO_SUCH_RUN = Kind("no-such-run", 404, "No such run")
NO_SUCH_ROUTE = Kind("no-such-route", 404, "No such route")
RUN_ID_TAKEN = Kind("run-id-taken", 409, "Run id is taken")
NOT_POSSIBLE = Kind("not-possible", 409, "Not possible now")
TOO_LARGE = Kind("too-large", 413, "Request too large")
INVALID_SPEC = Kind("invalid-spec", 422, "Invalid run spec")
INVALID_RETRY = Kind("invalid-retry", 422, "Not a retry of this run")
TRY_AGAIN = Kind("try-again", 503, "Try again")
INTERNAL = Kind("internal", 500, "Internal error")


class Refused(Exception):
    """Ends a request with a problem. Nothing in it repeats a value that was sent."""

    def __init__(self, kind: Kind, detail: str = "", errors: Sequence[FieldError] = ()) -> None:
        super().__init__(kind.title)
        self.kind, self.detail, self.errors = kind, detail, list(errors)


def resolver() -> APIGatewayHttpResolver:
    """A resolver whose every error is a problem document."""
    app = APIGatewayHttpResolver()

    def told(kind: Kind, detail: str, errors: Sequence[FieldError] = ()) -> Response[str]:
        return problem(kind, detail, errors, str(app.current_event.raw_event.get("rawPath", "")))

    kinds: dict[type[Exception], Kind] = {
        BadToken: BAD_PAGE, NotYours: NOT_YOURS, NoSuchRun: NO_SUCH_RUN, NotPossible: NOT_POSSIBLE,
        TransientError: TRY_AGAIN,
    }  # fmt: skip
    for kind_of_error, kind in kinds.items():
        app.exception_handler(kind_of_error)(_teller(told, kind))

    @app.exception_handler(Refused)  # type: ignore[untyped-decorator]  # powertools leaves these untyped
    def refused(error: Refused) -> Response[str]:
        return told(error.kind, error.detail, error.errors)

    @app.exception_handler(NotValid)  # type: ignore[untyped-decorator]  # untyped there
    def not_valid(error: NotValid) -> Response[str]:
        return told(INVALID_RETRY, "Nothing was changed.", error.errors)

    def silent(error: Exception) -> Response[str]:
        logger.warning("AWS did not answer", extra={"error": bounded(error, 300)})
        return told(TRY_AGAIN, f"{type(error).__name__}: an AWS service did not answer as it should.")

    def unexpected(error: Exception) -> Response[str]:
        logger.exception("unexpected error")
        known = str(error) if isinstance(error, NightshiftError) else type(error).__name__
        return told(INTERNAL, f"{bounded(known, 600)}; the function's log has the details.")

    def aws_refused(error: ClientError) -> Response[str]:
        return unexpected(error) if error.response["Error"]["Code"] in PERMANENT else silent(error)

    app.exception_handler(ClientError)(aws_refused)
    app.exception_handler(BotoCoreError)(silent)
    app.exception_handler(Exception)(unexpected)

    @app.not_found
    def not_found(_: Exception) -> Response[str]:
        return told(NO_SUCH_ROUTE, "docs/openapi.json lists them.")

    return app


def _teller(told: Callable[[Kind, str], Response[str]], kind: Kind) -> Callable[[Exception], Response[str]]:
    return lambda error: told(kind, bounded(error, 900))


def problem(kind: Kind, detail: str, errors: Sequence[FieldError] = (), instance: str = "") -> Response[str]:
    document = Problem(
        type=f"{PROBLEM_TYPES}{kind.name}",
        title=kind.title,
        status=kind.status,
        detail=detail,
        instance=bounded(instance, 200),
        errors=list(errors),
    )
    return Response(kind.status, PROBLEM_JSON, document.model_dump_json(), headers=dict(PRIVATE))


def answer(status: int, document: Document) -> Response[str]:
    return Response(status, JSON, document.model_dump_json(), headers=dict(PRIVATE))


def caller(app: APIGatewayHttpResolver) -> str:
    """The caller's identity, as IAM proved it to the API: a user's ARN, or an assumed role's with its session."""
    context = app.current_event.raw_event.get("requestContext", {})
    iam = context.get("authorizer", {}).get("iam", {})
    return bounded(iam.get("userArn") or iam.get("accountId") or "unknown", 200)


def body_of(app: APIGatewayHttpResolver, model: type[M], empty: M | None = None) -> M:
    """The body, read as ``model``; ``empty`` stands for no body at all. Raises Refused, with every error by field."""
    event = app.current_event.raw_event
    text: str | bytes = event.get("body") or ""
    if len(text) > MAX_BODY:
        raise Refused(TOO_LARGE, f"At most {MAX_BODY:,} characters.")
    if not text and empty is not None:
        return empty
    try:
        document = from_json(base64.b64decode(text) if event.get("isBase64Encoded") else text, allow_inf_nan=False)
    except (ValueError, binascii.Error) as error:
        raise Refused(BAD_REQUEST, f"The body is no JSON: {bounded(error, 100)}.") from error
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise Refused(BAD_REQUEST, f"The body is no {model.__name__}.", field_errors(error)) from error


def field_errors(error: ValidationError) -> list[FieldError]:
    """Where and what, without the values."""
    found = error.errors(include_url=False, include_input=False, include_context=False)[:MAX_ERRORS]
    return [
        FieldError(
            field=bounded(".".join(map(str, e["loc"])) or "(the whole body)", 200), problem=bounded(e["msg"], 300)
        )
        for e in found
    ]


def query(app: APIGatewayHttpResolver, name: str) -> str | None:
    """A parameter of the query; None where it is not given or empty."""
    given: Any = (app.current_event.raw_event.get("queryStringParameters") or {}).get(name)
    return str(given) if given else None


def refuse_unknown(app: APIGatewayHttpResolver, *known: str) -> None:
    """A filter that is not known would silently list what nobody asked for."""
    given = app.current_event.raw_event.get("queryStringParameters") or {}
    unknown = [
        FieldError(field=bounded(n, 100), problem="not a parameter of this list") for n in given if n not in known
    ]
    if unknown:
        raise Refused(BAD_REQUEST, f"Known are {', '.join(known)}.", unknown[:MAX_ERRORS])


def page_size(app: APIGatewayHttpResolver) -> int:
    """``limit``: 1 to ``MAX_PAGE``."""
    given = query(app, "limit")
    if given is None:
        return PAGE
    if not (given.isascii() and given.isdigit() and len(given) <= 4 and 1 <= int(given) <= MAX_PAGE):
        wrong = FieldError(field="limit", problem=f"a number from 1 to {MAX_PAGE} is wanted")
        raise Refused(BAD_REQUEST, "", [wrong])
    return int(given)


def one_of(app: APIGatewayHttpResolver, name: str, kind: type[E], default: E | None = None) -> E | None:
    """A parameter that is one of an enum's values."""
    given = query(app, name)
    if given is None:
        return default
    try:
        return kind(given)
    except ValueError as error:
        wrong = FieldError(field=name, problem=f"one of {', '.join(str(k.value) for k in kind)} is wanted")
        raise Refused(BAD_REQUEST, "", [wrong]) from error


def months(app: APIGatewayHttpResolver, today: str) -> tuple[str, str]:
    """``from`` and ``to``, both included; the month of today where neither is given, and one month where one is."""
    first, last = query(app, "from"), query(app, "to")
    given = first or last or today, last or first or today
    wrong = [
        FieldError(field=name, problem="a month is wanted, as 2026-11")
        for name, month in (("from", first), ("to", last))
        if month is not None and re.fullmatch(MONTH, month, re.ASCII) is None
    ]
    if not wrong and given[0] > given[1]:
        wrong = [FieldError(field="to", problem="it is before from")]
    if wrong:
        raise Refused(BAD_REQUEST, "", wrong)
    return given


def run_named(run_id: str) -> str:
    """Raises Refused (404) for what can be no run's id, before anything is read."""
    logger.append_keys(run_id=bounded(run_id, MAX_NAME))
    if not 0 < len(run_id) <= MAX_NAME or not run_id.isprintable():
        raise Refused(NO_SUCH_RUN, f"A run id has at most {MAX_NAME} characters.")
    return run_id

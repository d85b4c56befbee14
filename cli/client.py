"""The HTTP API, called with SigV4 signatures of the caller's own AWS credentials."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote, urlencode, urlsplit

import botocore.session
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSPreparedRequest, AWSRequest
from botocore.exceptions import BotoCoreError
from botocore.httpsession import URLLib3Session
from pydantic import ValidationError

from cli.exits import CliError, Exit
from nightshift.contract.api import (
    Answer,
    ArtifactList,
    Cancel,
    CancelMode,
    DashboardLink,
    EventList,
    Plan,
    PoolView,
    Problem,
    Retry,
    RunAccepted,
    RunList,
    RunTold,
    RunView,
)
from nightshift.contract.base import Document
from nightshift.contract.costs import CapacityList, CostList
from nightshift.contract.events import StartRequest
from nightshift.contract.spec import RunSpec

TIMEOUT = (5.0, 30.0)
"""Seconds to connect, and to wait for an answer."""
SERVICE = "execute-api"
_Answer = TypeVar("_Answer", bound=Document)
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_REGION = re.compile(r"\.execute-api\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?$")

_EXITS = {
    400: Exit.BAD_DATA,
    401: Exit.NO_PERMISSION,
    403: Exit.NO_PERMISSION,
    404: Exit.NO_INPUT,
    409: Exit.BAD_DATA,
    413: Exit.BAD_DATA,
    422: Exit.BAD_DATA,
    429: Exit.TEMPORARY,
}


def checked_address(url: str) -> str:
    """The API's address without a trailing slash. Raises CliError (78): plain http is for this computer only."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise CliError(Exit.CONFIGURATION, f"{url} is no address: it must look like https://host") from error
    if not host or parts.scheme not in ("https", "http"):
        raise CliError(Exit.CONFIGURATION, f"{url} is no address of an API: it must look like https://host")
    if parts.scheme == "http" and host not in _LOOPBACK:
        raise CliError(Exit.CONFIGURATION, f"{url}: plain http is allowed to this computer only; use https")
    return url.rstrip("/")


@dataclass(frozen=True)
class Api:
    """The API at ``address``. Nothing is repeated: asking for the same run twice is harmless, so a person can."""

    address: str

    def start(self, spec: RunSpec) -> RunAccepted:
        """``POST /runs``. Raises CliError, as all of these do."""
        return _read(RunAccepted, self._call("POST", "/runs", _request(spec)))

    def plan(self, spec: RunSpec) -> Plan:
        """``POST /runs/plan``."""
        return _read(Plan, self._call("POST", "/runs/plan", _request(spec)))

    def runs(self, **wanted: str | None) -> RunList:
        """``GET /runs``; ``wanted`` are its parameters."""
        return _read(RunList, self._call("GET", f"/runs{_query(wanted)}"))

    def status(self, run_id: str) -> RunView:
        """``GET /runs/{run_id}``."""
        return _read(RunView, self._call("GET", _run(run_id)))

    def events(self, run_id: str, **wanted: str | None) -> EventList:
        """``GET /runs/{run_id}/events``."""
        return _read(EventList, self._call("GET", f"{_run(run_id, '/events')}{_query(wanted)}"))

    def artifacts(self, run_id: str, **wanted: str | None) -> ArtifactList:
        """``GET /runs/{run_id}/artifacts``."""
        return _read(ArtifactList, self._call("GET", f"{_run(run_id, '/artifacts')}{_query(wanted)}"))

    def pool(self, pool: str, **wanted: str | None) -> PoolView:
        """``GET /pools/{pool}``."""
        return _read(PoolView, self._call("GET", f"/pools/{quote(pool, safe='')}{_query(wanted)}"))

    def costs(self, **wanted: str | None) -> CostList:
        """``GET /costs``."""
        return _read(CostList, self._call("GET", f"/costs{_query(wanted)}"))

    def capacity(self, **wanted: str | None) -> CapacityList:
        """``GET /costs/capacity``."""
        return _read(CapacityList, self._call("GET", f"/costs/capacity{_query(wanted)}"))

    def cancel(self, run_id: str, mode: CancelMode) -> RunTold:
        """``POST /runs/{run_id}/cancel``."""
        return _read(RunTold, self._call("POST", _run(run_id, "/cancel"), Cancel(mode=mode).model_dump_json().encode()))

    def answer(self, run_id: str, go_on: bool) -> RunTold:
        """``POST /runs/{run_id}/answer``."""
        return _read(
            RunTold, self._call("POST", _run(run_id, "/answer"), Answer(go_on=go_on).model_dump_json().encode())
        )

    def retry(self, run_id: str, change: Retry) -> RunTold:
        """``POST /runs/{run_id}/retry``."""
        return _read(
            RunTold, self._call("POST", _run(run_id, "/retry"), change.model_dump_json(exclude_none=True).encode())
        )

    def dashboard(self, run_id: str) -> DashboardLink:
        """``POST /runs/{run_id}/dashboard``."""
        return _read(DashboardLink, self._call("POST", _run(run_id, "/dashboard")))

    def _call(self, method: str, path: str, body: bytes = b"") -> bytes:
        try:
            answer = URLLib3Session(timeout=TIMEOUT).send(self._signed(method, path, body))
            status, content = int(answer.status_code), bytes(answer.content)
        except BotoCoreError as error:
            what = f"{self.address} does not answer ({type(error).__name__}); is the address right?"
            raise CliError(Exit.UNAVAILABLE, what) from error
        if not 200 <= status < 300:
            raise _refused(status, content)
        return content

    def _signed(self, method: str, path: str, body: bytes) -> AWSPreparedRequest:
        session = botocore.session.get_session()
        url = self.address + path
        found = _REGION.search(urlsplit(self.address).hostname or "")
        region = found.group(1) if found else os.environ.get("AWS_REGION") or session.get_config_variable("region")
        try:
            credentials = session.get_credentials()
        except BotoCoreError as error:
            raise CliError(Exit.NO_PERMISSION, f"AWS credentials cannot be had: {error}") from error
        if credentials is None:
            raise CliError(Exit.NO_PERMISSION, "there are no AWS credentials: set AWS_PROFILE or log in")
        if not region:
            raise CliError(Exit.CONFIGURATION, "the AWS region is not known: set AWS_REGION")
        request = AWSRequest(method=method, url=url, data=body, headers={"Content-Type": "application/json"})
        try:
            SigV4Auth(credentials.get_frozen_credentials(), SERVICE, region).add_auth(request)
        except BotoCoreError as error:
            raise CliError(Exit.NO_PERMISSION, f"the request cannot be signed: {error}") from error
        return request.prepare()


def _request(spec: RunSpec) -> bytes:
    request = StartRequest(spec=spec.model_dump(mode="json", exclude_unset=True))
    return request.model_dump_json(exclude={"owner"}).encode()


def _run(run_id: str, rest: str = "") -> str:
    return f"/runs/{quote(run_id, safe='')}{rest}"


def _query(wanted: Mapping[str, str | None]) -> str:
    """SigV4 wants %20 for a space, and nothing else encoded than it encodes itself."""
    given = {name: value for name, value in wanted.items() if value is not None}
    return f"?{urlencode(given, quote_via=quote, safe='')}" if given else ""


def _read(model: type[_Answer], content: bytes) -> _Answer:
    try:
        return model.from_json(content)
    except ValidationError as error:
        what = "the answer is not one of Nightshift's API: is the address right, and this command as new as the API?"
        raise CliError(Exit.SOFTWARE, what) from error


def _refused(status: int, content: bytes) -> CliError:
    """Problem details as an error; anything else by its status alone."""
    code = _EXITS.get(status, Exit.TEMPORARY if status >= 500 else Exit.SOFTWARE)
    try:
        problem = Problem.model_validate_json(content)
    except ValidationError:
        hint = "; does your role allow execute-api:Invoke?" if code is Exit.NO_PERMISSION else ""
        return CliError(code, f"the API answered {status}{hint}")
    lines = tuple(f"{one.field}: {one.problem}" for one in problem.errors)
    return CliError(code, ": ".join(part for part in (problem.title, problem.detail) if part), lines)

"""Who is calling? EKS's answer: decode the bearer token, replay it to STS, map the role to an access entry.

A token is ``k8s-aws-v1.`` + base64url of a presigned STS GetCallerIdentity URL whose signed header ``x-k8s-aws-id``
names the EKS cluster. The checks are those of the authenticator that EKS runs; the signature itself is STS's business.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit
from xml.etree import ElementTree

import aiohttp
from yarl import URL

from local.config import StackConfig
from local.kube.errors import Unauthorized

PREFIX = "k8s-aws-v1."
MAX_TOKEN = 16_384
MAX_AGE = timedelta(minutes=15)
MAX_SKEW = timedelta(minutes=5)
CLUSTER_HEADER = "x-k8s-aws-id"
STS_TIMEOUT = aiohttp.ClientTimeout(total=10)

_PARAMETERS = frozenset(
    {
        *("action", "version", "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-expires"),
        *("x-amz-security-token", "x-amz-signature", "x-amz-signedheaders"),
    }
)
_ASSUMED_ROLE = re.compile(
    r"^arn:aws:sts::(?P<account>\d{12}):assumed-role/(?P<role>[\w+=,.@-]+)/(?P<session>[\w+=,.@-]+)$"
)


@dataclass(frozen=True)
class Caller:
    """``arn`` is the full assumed-role ARN with the session name: the identity that the Ray endpoint compares."""

    arn: str
    account: str
    role: str
    session: str


def presigned_url(token: str, region: str, now: datetime) -> str:
    """The URL inside a bearer token, once its shape and age are right. Raises :class:`Unauthorized`. Pure."""
    url = _decoded(token)
    parts = urlsplit(url)
    if parts.scheme != "https" or parts.netloc != f"sts.{region}.amazonaws.com" or parts.path != "/" or parts.fragment:
        raise Unauthorized("not a URL of the region's STS")
    pairs = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=20)
    values = {name.lower(): value for name, value in pairs}
    if len(values) != len(pairs) or not values.keys() <= _PARAMETERS:
        raise Unauthorized("repeated or unknown parameters")
    if values.get("action") != "GetCallerIdentity" or "x-amz-signature" not in values:
        raise Unauthorized("not a signed GetCallerIdentity")
    if CLUSTER_HEADER not in values.get("x-amz-signedheaders", "").split(";"):
        raise Unauthorized(f"{CLUSTER_HEADER} is not signed")
    expires = values.get("x-amz-expires", "")
    if not expires.isdigit() or not 0 < int(expires) <= MAX_AGE.total_seconds():
        raise Unauthorized("X-Amz-Expires is missing or above 15 minutes")
    _check_age(values.get("x-amz-date", ""), now)
    return url


def _decoded(token: str) -> str:
    if not token.startswith(PREFIX) or len(token) > MAX_TOKEN:
        raise Unauthorized("not an EKS token")
    body = token.removeprefix(PREFIX)
    try:
        return base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        raise Unauthorized("not base64url") from None


def _check_age(text: str, now: datetime) -> None:
    try:
        signed = datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise Unauthorized("X-Amz-Date is missing or malformed") from None
    if now - signed > MAX_AGE:
        raise Unauthorized("older than 15 minutes")
    if signed - now > MAX_SKEW:
        raise Unauthorized("signed in the future")


def parse_caller(body: str) -> Caller:
    """An STS answer, XML or JSON, as a :class:`Caller`. Only assumed roles are known here. Pure."""
    arn = _arn(body)
    found = _ASSUMED_ROLE.match(arn)
    if not found:
        raise Unauthorized(f"not an assumed role: {arn[:200]!r}")
    return Caller(arn, found["account"], found["role"], found["session"])


def _arn(body: str) -> str:
    if body.lstrip().startswith("{"):
        try:
            answer = json.loads(body)["GetCallerIdentityResponse"]["GetCallerIdentityResult"]["Arn"]
        except (ValueError, KeyError, TypeError):
            raise Unauthorized("STS answered JSON without an ARN") from None
        return str(answer)
    try:
        found = ElementTree.fromstring(body).find(".//{*}Arn")
    except ElementTree.ParseError:
        raise Unauthorized("STS answered neither XML nor JSON") from None
    return (found.text or "") if found is not None else ""


def has_access_entry(caller: Caller, principals: list[str]) -> bool:
    """Does an access entry name the caller's role? Entries are role ARNs, with or without a path. Pure."""
    for principal in principals:
        head, _, path = principal.partition(":role/")
        if head == f"arn:aws:iam::{caller.account}" and path.rsplit("/", 1)[-1] == caller.role:
            return True
    return False


class Authenticator:
    """Bearer token -> :class:`Caller`. Access entries are read afresh for every request."""

    def __init__(self, config: StackConfig, http: aiohttp.ClientSession) -> None:
        self._config = config
        self._http = http

    @property
    def entries_file(self) -> Path:
        return self._config.state_dir / "access_entries.json"

    async def caller(self, authorization: str) -> Caller:
        """Raises :class:`Unauthorized`, as EKS does also for an identity without an access entry."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Unauthorized("no bearer token")
        url = presigned_url(token.strip(), self._config.region, datetime.now(UTC))
        caller = parse_caller(await self._ask_sts(urlsplit(url).query))
        if not has_access_entry(caller, self._principals()):
            raise Unauthorized(f"no access entry for {caller.role}")
        return caller

    async def _ask_sts(self, query: str) -> str:
        # The query is sent byte by byte as it was signed.
        target = URL(f"{self._config.cloud_url}/?{query}", encoded=True)
        headers = {"Host": f"sts.{self._config.region}.amazonaws.com", CLUSTER_HEADER: self._config.eks_cluster}
        try:
            async with self._http.get(target, headers=headers, timeout=STS_TIMEOUT, allow_redirects=False) as answer:
                body = await answer.text()
                if answer.status != 200:
                    raise Unauthorized(f"STS answered {answer.status}: {body[:200]}")
                return body
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unauthorized(f"STS cannot be asked: {error!r}") from error

    def _principals(self) -> list[str]:
        try:
            entries = json.loads(self.entries_file.read_text())
        except FileNotFoundError:
            return []
        return [str(principal) for principal in entries["principals"]]

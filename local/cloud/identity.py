"""Who signs a request: Signature Version 4 is checked against the real secrets that moto's STS and IAM gave out."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, quote

from moto.iam.models import iam_backends
from moto.sts.models import sts_backends

PARTITION = "aws"
ROOT_KEY = ROOT_SECRET = "test"
"""The parent process and the demo's own clients sign as the account's root with this pair."""

SIGNED_URL_LIFE = timedelta(minutes=15)
"""STS takes a presigned GetCallerIdentity for that long after its date, whatever X-Amz-Expires says."""

CLOCK_SKEW = timedelta(minutes=5)
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


class RefusedError(Exception):
    """``code`` is AWS's error code; the answer is a 403."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


@dataclass(frozen=True)
class Caller:
    access_key: str
    account: str
    user_id: str
    arn: str


@dataclass(frozen=True)
class SignedRequest:
    """``path`` and ``query`` as they stand on the wire; header names in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True)
class _Key:
    secret: str
    token: str | None
    expires: datetime | None
    caller: Caller


def presigned_caller(request: SignedRequest, account: str, now: datetime) -> Caller:
    """The caller of a request that is signed in its query string. Raises RefusedError."""
    query = dict(parse_qsl(request.query, keep_blank_values=True))
    try:
        credential, signed = query["X-Amz-Credential"], query["X-Amz-SignedHeaders"]
        date, signature = query["X-Amz-Date"], query["X-Amz-Signature"]
    except KeyError as missing:
        raise RefusedError("IncompleteSignature", f"The request has no {missing.args[0]}") from None
    _check_age(date, now)
    key = _key_of(credential.split("/")[0], query.get("X-Amz-Security-Token"), account, now)
    rest = [pair for pair in request.query.split("&") if not pair.startswith("X-Amz-Signature=")]
    unsigned = SignedRequest(request.method, request.path, "&".join(rest), request.headers)
    _check_signature(unsigned, key, credential, signed, date, EMPTY_SHA256, signature)
    return key.caller


def header_caller(request: SignedRequest, account: str, now: datetime) -> Caller:
    """The caller of a request that is signed in its Authorization header. Raises RefusedError."""
    scheme, _, rest = request.headers.get("authorization", "").partition(" ")
    parts = dict(part.strip().split("=", 1) for part in rest.split(",") if "=" in part)
    date = request.headers.get("x-amz-date", "")
    if scheme != "AWS4-HMAC-SHA256" or not {"Credential", "SignedHeaders", "Signature"} <= set(parts) or not date:
        raise RefusedError("MissingAuthenticationToken", "Missing Authentication Token")
    _check_age(date, now)
    key = _key_of(parts["Credential"].split("/")[0], request.headers.get("x-amz-security-token"), account, now)
    payload = hashlib.sha256(request.body).hexdigest()
    _check_signature(request, key, parts["Credential"], parts["SignedHeaders"], date, payload, parts["Signature"])
    return key.caller


def _check_age(text: str, now: datetime) -> None:
    try:
        signed_at = datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise RefusedError("IncompleteSignature", f"Date '{text}' is not valid") from None
    if now - signed_at > SIGNED_URL_LIFE:
        raise RefusedError("SignatureDoesNotMatch", f"Signature expired: {text} is now earlier than allowed")
    if signed_at - now > CLOCK_SKEW:
        raise RefusedError("SignatureDoesNotMatch", f"Signature not yet current: {text} is still later than now")


def _key_of(access_key: str, token: str | None, account: str, now: datetime) -> _Key:
    key = _find_key(access_key, account)
    if key is None or (key.token is not None and not hmac.compare_digest(key.token, token or "")):
        raise RefusedError("InvalidClientTokenId", "The security token included in the request is invalid.")
    if key.expires is not None and key.expires < now:
        raise RefusedError("ExpiredToken", "The security token included in the request is expired")
    return key


def _find_key(access_key: str, account: str) -> _Key | None:
    if access_key == ROOT_KEY:
        return _Key(ROOT_SECRET, None, None, Caller(access_key, account, account, f"arn:aws:iam::{account}:root"))
    role = sts_backends[account][PARTITION].get_assumed_role_from_access_key(access_key)
    if role is not None:
        caller = Caller(access_key, role.account_id, role.user_id, role.arn)
        return _Key(role.secret_access_key, role.session_token, role.expiration.replace(tzinfo=UTC), caller)
    for user in iam_backends[account][PARTITION].users.values():
        for key in user.access_keys:
            if key.access_key_id == access_key:
                return _Key(key.secret_access_key, None, None, Caller(access_key, account, user.id, user.arn))
    return None


def _check_signature(
    request: SignedRequest, key: _Key, credential: str, signed: str, date: str, payload: str, signature: str
) -> None:
    scope = "/".join(credential.split("/")[1:])
    canonical = "\n".join(
        [
            request.method,
            quote(request.path or "/", safe="/~"),
            "&".join(sorted(request.query.split("&"))) if request.query else "",
            *(f"{name}:{' '.join(request.headers.get(name, '').split())}" for name in signed.split(";")),
            "",
            signed,
            payload,
        ]
    )
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    derived = f"AWS4{key.secret}".encode()
    for part in scope.split("/"):
        derived = hmac.new(derived, part.encode(), hashlib.sha256).digest()
    if not hmac.compare_digest(hmac.new(derived, text.encode(), hashlib.sha256).hexdigest(), signature):
        raise RefusedError(
            "SignatureDoesNotMatch",
            "The request signature we calculated does not match the signature you provided. Check your AWS Secret"
            " Access Key and signing method.",
        )

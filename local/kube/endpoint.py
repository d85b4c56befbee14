"""The authenticated endpoint in front of the Ray dashboards, as HyperPod's endpoint operator runs it.

``GET /bearer-auth?token=`` exchanges a one-use token (15 minutes) for the cookie ``ray_session`` (6 hours). Both are
good for one RayCluster only: the uid, so not for another of the same name made later.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import aiohttp
from aiohttp import web
from yarl import URL

COOKIE = "ray_session"
TOKEN_SECONDS = 15 * 60
SESSION_SECONDS = 6 * 3600
MAX_UPLOAD = 600 * 2**20
UPSTREAM_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=120)

HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailers"),
        *("transfer-encoding", "upgrade", "host", "content-length"),
    }
)

LOG = logging.getLogger("local.kube.endpoint")


@dataclass(frozen=True)
class Session:
    """What a cookie stands for."""

    cluster_uid: str
    identity: str
    expires: float


@dataclass
class Tokens:
    """One-use tokens (JSON Web Tokens, HS256) and the sessions they open. ``clock`` gives epoch seconds."""

    clock: Callable[[], float] = time.time
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _used: dict[str, float] = field(default_factory=dict)
    _sessions: dict[str, Session] = field(default_factory=dict)

    def issue(self, cluster_uid: str, identity: str) -> str:
        claims = {
            "sub": identity,
            "cluster": cluster_uid,
            "exp": int(self.clock()) + TOKEN_SECONDS,
            "jti": secrets.token_hex(8),
        }
        signed = f"{_encode({'alg': 'HS256', 'typ': 'JWT'})}.{_encode(claims)}"
        return f"{signed}.{self._signature(signed)}"

    def redeem(self, token: str) -> str | None:
        """A new session's cookie value; None for a token that is forged, expired or used."""
        signed, _, signature = token.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(signed).encode()):
            return None
        claims = json.loads(_decode(signed.split(".")[1]))
        now = self.clock()
        self._used = {jti: expires for jti, expires in self._used.items() if expires > now}
        if claims["exp"] <= now or claims["jti"] in self._used:
            return None
        self._used[claims["jti"]] = claims["exp"]
        self._sessions = {key: one for key, one in self._sessions.items() if one.expires > now}
        cookie = secrets.token_urlsafe(32)
        self._sessions[cookie] = Session(claims["cluster"], claims["sub"], now + SESSION_SECONDS)
        return cookie

    def expire(self) -> int:
        """End every session now, as the sixth hour would; returns how many there were."""
        ended = len(self._sessions)
        self._sessions.clear()
        return ended

    def session(self, cookie: str) -> Session | None:
        """None where there is none, or it is older than 6 hours."""
        found = self._sessions.get(cookie)
        return found if found is not None and found.expires > self.clock() else None

    def _signature(self, signed: str) -> str:
        return base64.urlsafe_b64encode(hmac.digest(self._key, signed.encode(), hashlib.sha256)).decode().rstrip("=")


def _encode(value: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


DashboardOf = Callable[[str], str | None]
"""RayCluster uid -> address of its dashboard; None where there is no running head. Raises KeyError: no such cluster."""


class Trouble(StrEnum):
    """How an endpoint can fail to answer."""

    REFUSE = "refuse"
    UNAUTHORIZED = "unauthorized"
    LOGIN_PAGE = "login_page"
    SERVER_ERROR = "server_error"


class Endpoint:
    """Cookie in, dashboard out: requests and answers are streamed, web sockets are passed on both ways."""

    def __init__(self, tokens: Tokens, dashboard_of: DashboardOf, http: aiohttp.ClientSession) -> None:
        self._tokens, self._dashboard_of, self._http = tokens, dashboard_of, http
        self._trouble: tuple[Trouble, float] | None = None
        self.troubled = 0
        """Calls that were answered with a trouble."""

    def fail(self, trouble: Trouble, seconds: float) -> None:
        """From now on, for so long, no call gets through."""
        self._trouble = (trouble, time.monotonic() + seconds)

    def expire(self) -> int:
        """End every session; returns how many there were."""
        return self._tokens.expire()

    def _refusal(self, request: web.Request) -> web.Response | None:
        if self._trouble is None or time.monotonic() > self._trouble[1]:
            return None
        self.troubled += 1
        match self._trouble[0]:
            case Trouble.REFUSE:
                if request.transport is not None:
                    request.transport.abort()
                return web.Response(status=503)
            case Trouble.UNAUTHORIZED:
                return web.Response(status=401, text="no session, or it has expired")
            case Trouble.LOGIN_PAGE:
                return web.Response(text="<html><body>Sign in</body></html>", content_type="text/html")
            case Trouble.SERVER_ERROR:
                return web.Response(status=500, text="internal error")

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_UPLOAD)
        app.router.add_get("/bearer-auth", self._bearer_auth)
        app.router.add_route("*", "/{path:.*}", self._proxy)
        return app

    async def _bearer_auth(self, request: web.Request) -> web.Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        cookie = self._tokens.redeem(request.query.get("token", ""))
        if cookie is None:
            return web.Response(status=401, text="the token is not valid, expired or used")
        answer = web.Response(status=302, headers={"Location": "/"})
        answer.set_cookie(COOKIE, cookie, max_age=SESSION_SECONDS, path="/", secure=True, httponly=True, samesite="Lax")
        return answer

    async def _proxy(self, request: web.Request) -> web.StreamResponse:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        session = self._tokens.session(request.cookies.get(COOKIE, ""))
        if session is None:
            return web.Response(status=401, text="no session, or it has expired")
        try:
            base = self._dashboard_of(session.cluster_uid)
        except KeyError:
            return web.Response(status=401, text="the session is for a RayCluster that no longer exists")
        if base is None:
            return web.Response(status=502, text="the RayCluster has no running head")
        url = URL(base + request.raw_path, encoded=True)
        try:
            if request.headers.get("Upgrade", "").lower() == "websocket":
                return await self._web_socket(request, url)
            return await self._stream(request, url)
        except (aiohttp.ClientError, TimeoutError) as error:
            LOG.info("dashboard of %s: %r", session.cluster_uid, error)
            return web.Response(status=502, text=f"the Ray dashboard does not answer: {type(error).__name__}")

    async def _stream(self, request: web.Request, url: URL) -> web.StreamResponse:
        headers = [(k, v) for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP and k.lower() != "cookie"]
        body = request.content if request.can_read_body else None
        async with self._http.request(
            request.method,
            url,
            headers=headers,
            data=body,
            timeout=UPSTREAM_TIMEOUT,
            allow_redirects=False,
            auto_decompress=False,
        ) as upstream:
            answer = web.StreamResponse(status=upstream.status, reason=upstream.reason)
            for name, value in upstream.headers.items():
                if name.lower() not in HOP_BY_HOP:
                    answer.headers.add(name, value)
            answer.content_length = upstream.content_length
            await answer.prepare(request)
            try:
                async for chunk in upstream.content.iter_any():
                    await answer.write(chunk)
            except (aiohttp.ClientError, TimeoutError):
                # Half an answer is out: only cutting the connection tells the client that it is not whole.
                if request.transport is not None:
                    request.transport.abort()
                return answer
            await answer.write_eof()
            return answer

    async def _web_socket(self, request: web.Request, url: URL) -> web.StreamResponse:
        async with self._http.ws_connect(url, max_msg_size=0) as upstream:
            down = web.WebSocketResponse(max_msg_size=0)
            await down.prepare(request)

            async def upwards() -> None:
                async for message in down:
                    await _pass_on(message, upstream)
                await upstream.close()

            task = asyncio.create_task(upwards())
            try:
                async for message in upstream:
                    await _pass_on(message, down)
            finally:
                # Before the close: with a reader waiting, aiohttp cuts the connection without hearing the client's
                # answer, and the client takes the end for an accident (1006).
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await down.close(code=upstream.close_code or 1000)
            return down


async def _pass_on(message: aiohttp.WSMessage, to: web.WebSocketResponse | aiohttp.ClientWebSocketResponse) -> None:
    if message.type is aiohttp.WSMsgType.TEXT:
        await to.send_str(message.data)
    elif message.type is aiohttp.WSMsgType.BINARY:
        await to.send_bytes(message.data)

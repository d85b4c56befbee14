"""HTTPS posts of which it is known afterwards whether they were accepted, and their repeats.

The standard library's client is used because it says exactly whether a request had left when something failed, and logs
nothing: paths, headers and queries hold secrets here, and stand in no error, no log line and no ``repr``.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from nightshift.report.words import bounded, clean
from nightshift.steps.notify import Delivery, Result

MAX_POSTS = 4
MAX_UNKNOWN_POSTS = 2
POST_SECONDS = 6.0
"""From connecting to the end of the answer's head, all together."""
FIRST_PAUSE = 0.5
_ANSWER_BYTES = 65_536
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_HOST = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")


class WebhookRefused(ValueError):
    """The address may not be posted to, or the token not be used. Says why, and never prints more than an address's host."""


@dataclass(frozen=True, repr=False)
class Address:
    """Where a post goes. ``target`` is the path with its query, which may be a secret."""

    host: str
    port: int
    target: str

    def __repr__(self) -> str:
        return f"{self.host}:{self.port}"


def allowed_address(url: str, allowed: Sequence[str]) -> Address:
    """An address, if ``allowed`` names its host (``host`` means port 443, else ``host:port``). Raises WebhookRefused."""
    try:
        parts = urlsplit(url.strip())
        host, port = (parts.hostname or "").lower(), parts.port or 443
    except ValueError:
        raise WebhookRefused("the webhook address cannot be read: it must look like https://host/path") from None
    if parts.scheme != "https" or not _HOST.match(host) or parts.username is not None:
        raise WebhookRefused("the webhook address must look like https://host/path, without a user name")
    names = [one.strip().lower() for one in allowed if one.strip()]
    listed = ", ".join(names) or "none"
    if not {f"{host}:{port}", host if port == 443 else ""} & set(names):
        raise WebhookRefused(f"{host}:{port} is not one of SLACK_ALLOWED_HOSTS ({listed}): nothing is posted there")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not _PRINTABLE.fullmatch(target):
        raise WebhookRefused("the webhook address holds blanks or other characters that no address has")
    return Address(host, port, target)


def usable_token(token: str) -> str:
    """Without what was copied around it. Raises WebhookRefused where it cannot stand in a header."""
    bare = token.strip()
    if not _PRINTABLE.fullmatch(bare):
        raise WebhookRefused("the bot token is empty, or holds blanks or other characters that no token has")
    return bare


@dataclass(frozen=True)
class Answer:
    """What a server answered; ``body`` is bounded."""

    status: int
    body: str
    retry_after: float | None

    @property
    def said(self) -> str:
        """Its own word for a refusal (``invalid_blocks``, ``no_service``), bounded; empty if it says none."""
        text = clean(self.body[:1_024])
        return f" ({bounded(text, 120)})" if text else ""


@dataclass(frozen=True)
class NoAnswer:
    """``had_left``: the request may have arrived."""

    had_left: bool
    reason: str


class Poster:
    """Posts over https. ``ca_file`` replaces the system's certificate authorities (REQUESTS_CA_BUNDLE)."""

    def __init__(
        self,
        *,
        ca_file: str | None = None,
        post_seconds: float = POST_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tls = ssl.create_default_context(cafile=ca_file)
        self._post_seconds = post_seconds
        self._sleep, self._monotonic = sleep, monotonic

    def patiently(self, once: Callable[[float], Delivery], *, repeat_unknown: bool, seconds: float) -> Delivery:
        """Call ``once`` with its own limit in seconds, and again within ``seconds`` where it was refused, or with
        ``repeat_unknown`` had no answer: at most ``MAX_POSTS`` times, ``MAX_UNKNOWN_POSTS`` of them unanswered."""
        end, pause, unknown, posts = self._monotonic() + seconds, FIRST_PAUSE, 0, 0
        while True:
            posts += 1
            done = once(min(self._post_seconds, max(0.1, end - self._monotonic())))
            delivery = Delivery(done.result, done.reason, posts, done.retry_after, done.thread)
            unknown += done.result is Result.UNKNOWN
            may_repeat = done.result is Result.REFUSED or (
                done.result is Result.UNKNOWN and repeat_unknown and unknown < MAX_UNKNOWN_POSTS
            )
            wait = max(pause, done.retry_after or 0.0)
            if not may_repeat or posts >= MAX_POSTS or self._monotonic() + wait >= end:
                # Once a post may have arrived, a later refusal does not make it known that none did.
                if unknown and done.result is Result.REFUSED:
                    return Delivery(Result.UNKNOWN, f"first no answer, then: {done.reason}", posts)
                return delivery
            self._sleep(wait)
            pause *= 2

    def post(self, to: Address, body: bytes, headers: Mapping[str, str], limit: float) -> Answer | NoAnswer:
        """One post within ``limit`` seconds. Raises nothing for what the network does."""
        connection = http.client.HTTPSConnection(to.host, to.port, timeout=limit, context=self._tls)
        try:
            started = self._monotonic()
            try:
                connection.connect()
            except (OSError, ValueError) as error:  # a ValueError: a name that no resolver takes
                return NoAnswer(False, f"no connection to {to!r} ({_cause(error)})")
            left = max(0.05, limit - (self._monotonic() - started))
            watchdog = threading.Timer(left, _hang_up, [connection.sock])
            watchdog.daemon = True
            watchdog.start()
            try:
                return self._exchange(connection, to, body, headers)
            except (OSError, http.client.HTTPException, ValueError) as error:
                return NoAnswer(True, f"sent, but no answer came within {limit:.0f} s ({_cause(error)})")
            finally:
                watchdog.cancel()
        finally:
            connection.close()

    def _exchange(
        self, connection: http.client.HTTPSConnection, to: Address, body: bytes, headers: Mapping[str, str]
    ) -> Answer | NoAnswer:
        try:
            connection.request("POST", to.target, body, {**headers, "User-Agent": "nightshift", "Connection": "close"})
        except OSError:
            raise
        except (ValueError, http.client.InvalidURL) as error:
            # The client refuses its head before anything has left, and its sentence repeats what is in it: a secret.
            return NoAnswer(False, f"no request could be made of the address and its headers ({type(error).__name__})")
        answer = connection.getresponse()
        return Answer(answer.status, _text(answer), _seconds(answer.getheader("Retry-After")))


def judged(to: Address, answer: Answer | NoAnswer, remedy: str) -> Delivery | None:
    """What is known where the status alone decides; None for a success, of which the body may say more."""
    if isinstance(answer, NoAnswer):
        return Delivery(Result.UNKNOWN if answer.had_left else Result.REFUSED, answer.reason, 1)
    if 200 <= answer.status < 300:
        return None
    reason = f"{to.host} answered {answer.status}{answer.said}"
    if answer.status == 429 or answer.status >= 500:
        return Delivery(Result.REFUSED, reason, 1, answer.retry_after)
    return Delivery(Result.REJECTED, f"{reason}; {remedy}", 1)


def _hang_up(sock: socket.socket) -> None:
    """End a post whose time is over, however slowly its answer trickles in; the reader then sees its end."""
    try:
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        return


def _cause(error: Exception) -> str:
    """The kind of a network error: never its text, which may hold the address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {bounded(clean(error.verify_message), 100)}"
    return type(error).__name__


def _text(answer: http.client.HTTPResponse) -> str:
    """The body, bounded; what could not be read of it is missing. The status is what decides, and it is known by now."""
    try:
        return answer.read(_ANSWER_BYTES).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return ""


def _seconds(header: str | None) -> float | None:
    """Retry-After in whole seconds; a date or nonsense counts as not given."""
    return float(header) if header is not None and re.fullmatch(r"\d{1,6}", header.strip()) else None

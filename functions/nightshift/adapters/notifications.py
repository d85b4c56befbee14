"""Slack's incoming webhooks, and the table's memory of which messages were sent.

The path of a webhook's address is its secret: it stands in no error, no log line and no ``repr``. The standard
library's client is used because it says exactly whether a request had left when something failed, and logs nothing.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from nightshift.contract.events import StageEvent
from nightshift.report.words import bounded, clean
from nightshift.steps.notify import Claim, Delivery, LogUnavailable, Result

MAX_POSTS = 4
MAX_UNKNOWN_POSTS = 2
POST_SECONDS = 6.0
"""From connecting to the end of the answer's head, all together."""
FIRST_PAUSE = 0.5
_ANSWER_BYTES = 1_024
_HOST = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")


class WebhookRefused(ValueError):
    """The configured address may not be posted to. Says why, and never prints more of it than its host."""


def allowed_origin(url: str, allowed: Sequence[str]) -> tuple[str, int]:
    """Host and port of a webhook address, if ``allowed`` names them (``host`` means port 443, else ``host:port``).

    Raises WebhookRefused.
    """
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
    return host, port


class SlackWebhook:
    """One incoming webhook. ``ca_file`` replaces the system's certificate authorities (REQUESTS_CA_BUNDLE).

    Raises WebhookRefused for an address that is not https or whose host and port are not ``allowed``.
    """

    def __init__(
        self,
        url: str,
        allowed: Sequence[str],
        *,
        ca_file: str | None = None,
        post_seconds: float = POST_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._port = allowed_origin(url, allowed)
        parts = urlsplit(url.strip())
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._tls = ssl.create_default_context(cafile=ca_file)
        self._post_seconds = post_seconds
        self._sleep, self._monotonic = sleep, monotonic

    def __repr__(self) -> str:
        return f"SlackWebhook({self._host}:{self._port})"

    def send(self, payload: Mapping[str, Any], *, repeat_unknown: bool, seconds: float) -> Delivery:
        """Post within ``seconds``; see ``Messenger``. At most ``MAX_POSTS`` posts, ``MAX_UNKNOWN_POSTS`` unanswered."""
        body = json.dumps(payload).encode()
        end, pause, unknown, posts = self._monotonic() + seconds, FIRST_PAUSE, 0, 0
        while True:
            posts += 1
            limit = min(self._post_seconds, max(0.1, end - self._monotonic()))
            result, reason, retry_after = self._post(body, limit)
            delivery = Delivery(result, reason, posts, retry_after)
            unknown += result is Result.UNKNOWN
            may_repeat = result is Result.REFUSED or (
                result is Result.UNKNOWN and repeat_unknown and unknown < MAX_UNKNOWN_POSTS
            )
            wait = max(pause, retry_after or 0.0)
            if not may_repeat or posts >= MAX_POSTS or self._monotonic() + wait >= end:
                # Once a post may have arrived, a later refusal does not make it known that none did.
                if unknown and result is Result.REFUSED:
                    return Delivery(Result.UNKNOWN, f"first no answer, then: {reason}", posts)
                return delivery
            self._sleep(wait)
            pause *= 2

    def _post(self, body: bytes, limit: float) -> tuple[Result, str, float | None]:
        """One post: what is known after it, why, and the seconds that the receiver asked to wait."""
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=limit, context=self._tls)
        try:
            started = self._monotonic()
            try:
                connection.connect()
            except OSError as error:
                return Result.REFUSED, f"no connection to {self._host}:{self._port} ({_cause(error)})", None
            left = max(0.05, limit - (self._monotonic() - started))
            watchdog = threading.Timer(left, _hang_up, [connection.sock])
            watchdog.daemon = True
            watchdog.start()
            try:
                return self._exchange(connection, body)
            except (OSError, http.client.HTTPException) as error:
                return Result.UNKNOWN, f"sent, but no answer came within {limit:.0f} s ({_cause(error)})", None
            finally:
                watchdog.cancel()
        finally:
            connection.close()

    def _exchange(self, connection: http.client.HTTPSConnection, body: bytes) -> tuple[Result, str, float | None]:
        headers = {"Content-Type": "application/json", "User-Agent": "nightshift", "Connection": "close"}
        connection.request("POST", self._target, body, headers)
        answer = connection.getresponse()
        if 200 <= answer.status < 300:
            return Result.DELIVERED, f"accepted with status {answer.status}", None
        reason = f"{self._host} answered {answer.status}{_said(answer)}"
        if answer.status == 429 or answer.status >= 500:
            return Result.REFUSED, reason, _seconds(answer.getheader("Retry-After"))
        return Result.REJECTED, f"{reason}; check the webhook in the secret", None


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


def _said(answer: http.client.HTTPResponse) -> str:
    """The receiver's own word for a refusal (``invalid_blocks``, ``no_service``), bounded; empty if it says none."""
    try:
        text = clean(answer.read(_ANSWER_BYTES).decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException):
        return ""
    return f" ({bounded(text, 120)})" if text else ""


def _seconds(header: str | None) -> float | None:
    """Retry-After in whole seconds; a date or nonsense counts as not given."""
    return float(header) if header is not None and re.fullmatch(r"\d{1,6}", header.strip()) else None


class DynamoNotificationLog:
    """``NotificationLog`` in the table: pk ``RUN#<run_id>``, sk ``NOTIFIED#<key>``. ``table`` is a boto3 Table.

    ``state`` is claimed, then delivered, rejected, unknown, or open (refused: anybody may send it).
    """

    def __init__(self, table: Any) -> None:
        self._table = table

    def claim(self, event: StageEvent, holder: str, now: datetime, until: datetime) -> Claim:
        free = "attribute_not_exists(pk) OR #state = :open"
        values: dict[str, Any] = {":open": "open"}
        if event.stage.is_final:
            free += " OR #state = :unknown OR (#state = :claimed AND (holder = :holder OR claimed_until < :now))"
            values |= {":unknown": "unknown", ":claimed": "claimed", ":holder": holder, ":now": _epoch(now)}
        item = {
            **_key(event),
            "version": 1,
            "state": "claimed",
            "stage": event.stage.value,
            "holder": holder,
            "claimed_at": now.isoformat(),
            "claimed_until": _epoch(until),
        }
        try:
            self._table.put_item(
                Item=item,
                ConditionExpression=free,
                ExpressionAttributeNames={"#state": "state"},
                ExpressionAttributeValues=values,
            )
        except ClientError as error:
            if _code(error) == "ConditionalCheckFailedException":
                return self._why_not(event, holder, now)
            raise LogUnavailable(event.run_id, f"claiming a message failed ({_code(error)})") from error
        except BotoCoreError as error:
            raise LogUnavailable(event.run_id, f"claiming a message failed ({type(error).__name__})") from error
        return Claim.TAKEN

    def _why_not(self, event: StageEvent, holder: str, now: datetime) -> Claim:
        try:
            item = self._table.get_item(Key=_key(event), ConsistentRead=True).get("Item") or {}
        except (ClientError, BotoCoreError) as error:
            raise LogUnavailable(event.run_id, f"reading a message's claim failed ({_code(error)})") from error
        if item.get("state") in ("delivered", "rejected"):
            return Claim.SETTLED
        live = item.get("holder") != holder and item.get("claimed_until", Decimal(0)) >= _epoch(now)
        return Claim.BUSY if item.get("state") != "unknown" and live else Claim.UNCERTAIN

    def settle(self, event: StageEvent, holder: str, delivery: Delivery, now: datetime) -> None:
        state = "open" if delivery.result is Result.REFUSED else delivery.result.value
        try:
            self._table.update_item(
                Key=_key(event),
                UpdateExpression="SET #state = :state, settled_at = :at, reason = :reason, posts = :posts",
                ConditionExpression="#state = :claimed AND holder = :holder",
                ExpressionAttributeNames={"#state": "state"},
                ExpressionAttributeValues={
                    ":state": state,
                    ":at": now.isoformat(),
                    ":reason": bounded(delivery.reason, 500),
                    ":posts": delivery.posts,
                    ":claimed": "claimed",
                    ":holder": holder,
                },
            )
        except ClientError as error:
            if _code(error) != "ConditionalCheckFailedException":
                raise LogUnavailable(event.run_id, f"settling a message failed ({_code(error)})") from error
        except BotoCoreError as error:
            raise LogUnavailable(event.run_id, f"settling a message failed ({type(error).__name__})") from error


def _code(error: Exception) -> str:
    return str(error.response["Error"]["Code"]) if isinstance(error, ClientError) else type(error).__name__


def _epoch(at: datetime) -> Decimal:
    return Decimal(f"{at.timestamp():.3f}")


def _key(event: StageEvent) -> dict[str, str]:
    return {"pk": f"RUN#{_short(event.run_id)}", "sk": f"NOTIFIED#{_short(event.key)}"}


def _short(text: str) -> str:
    """A refused request may carry any text as its id: DynamoDB's keys end at 1,024 bytes, so a long one is hashed."""
    raw = text.encode("utf-8", "replace")
    return raw.decode() if len(raw) <= 500 else hashlib.sha256(raw).hexdigest()

"""Slack: incoming webhooks, and a bot that keeps a run in one thread and shows its curve.

Web API methods as documented at docs.slack.dev (chat.postMessage, files.getUploadURLExternal,
files.completeUploadExternal). A method answers with status 200 also where it refuses: its ``ok`` and ``error`` count.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from nightshift.adapters.posting import (
    POST_SECONDS,
    Address,
    Poster,
    WebhookRefused,
    allowed_address,
    judged,
    usable_token,
)
from nightshift.report.words import bounded, clean
from nightshift.steps.notify import Delivery, Picture, Result, Thread

API = "https://slack.com/api"

NOT_NOW = frozenset({"ratelimited", "rate_limited", "service_unavailable", "request_timeout"})
"""Errors of the Web API after which the same message may be accepted."""

PERHAPS = frozenset({"fatal_error", "internal_error"})
"""Errors after which "some aspect of the operation" may have succeeded, as Slack says."""

NOT_THERE = frozenset(
    {
        "cannot_reply_to_message",
        "channel_not_found",
        "invalid_thread_ts",
        "is_archived",
        "message_not_found",
        "not_in_channel",
        "restricted_action_non_threadable_channel",
        "restricted_action_thread_locked",
        "thread_not_found",
    }
)
"""Errors that may be of the thread only: the same message may be accepted beside it."""

JSON_TYPE = "application/json; charset=utf-8"


class SlackWebhook:
    """One incoming webhook: messages into its channel, without threads and pictures.

    Raises WebhookRefused for an address that is not https or whose host and port are not ``allowed``.
    """

    has_threads = False

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
        self._to = allowed_address(url, allowed)
        self._poster = Poster(ca_file=ca_file, post_seconds=post_seconds, sleep=sleep, monotonic=monotonic)

    def __repr__(self) -> str:
        return f"SlackWebhook({self._to!r})"

    def send(
        self,
        payload: Mapping[str, Any],
        *,
        repeat_unknown: bool,
        seconds: float,
        thread: Thread | None = None,
        broadcast: bool = False,
    ) -> Delivery:
        body = json.dumps(payload).encode()

        def once(limit: float) -> Delivery:
            answer = self._poster.post(self._to, body, {"Content-Type": "application/json"}, limit)
            bad = judged(self._to, answer, "check the webhook in the secret")
            return bad or Delivery(Result.DELIVERED, "accepted", 1)

        return self._poster.patiently(once, repeat_unknown=repeat_unknown, seconds=seconds)

    def attach(self, picture: Picture, thread: Thread, *, seconds: float) -> Delivery:
        return Delivery(Result.REJECTED, "a webhook takes no pictures", 0)


class SlackBot:
    """A bot with ``chat:write`` and ``files:write`` that is a member of ``channel`` (an id, not a name).

    Raises WebhookRefused where the host of ``api`` is not ``allowed``, and for a token that cannot be one; an upload whose
    address Slack gives is held against ``allowed`` too.
    """

    has_threads = True

    def __init__(
        self,
        token: str,
        channel: str,
        allowed: Sequence[str],
        *,
        api: str = API,
        ca_file: str | None = None,
        post_seconds: float = POST_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._token, self._channel, self._allowed = usable_token(token), channel, tuple(allowed)
        self._api = allowed_address(api.rstrip("/"), allowed)
        self._poster = Poster(ca_file=ca_file, post_seconds=post_seconds, sleep=sleep, monotonic=monotonic)

    def __repr__(self) -> str:
        return f"SlackBot({self._api!r}, {self._channel})"

    def send(
        self,
        payload: Mapping[str, Any],
        *,
        repeat_unknown: bool,
        seconds: float,
        thread: Thread | None = None,
        broadcast: bool = False,
    ) -> Delivery:
        """A message; a thread that is not there any more, or is in another channel than the one that the secret now names, is
        left, and a new one begins."""
        message = {**payload, "channel": self._channel, "unfurl_links": False, "unfurl_media": False}
        place: dict[str, Any] = {}
        if thread is not None and thread.channel == self._channel:
            place = {"thread_ts": thread.ts, "reply_broadcast": broadcast}

        def once(limit: float) -> Delivery:
            done, said = self._call("chat.postMessage", {**message, **place}, limit)
            if place and said.get("error") in NOT_THERE:
                place.clear()
                return Delivery(Result.REFUSED, done.reason, 1)
            return _placed(done, said, thread if place else None)

        return self._poster.patiently(once, repeat_unknown=repeat_unknown, seconds=seconds)

    def attach(self, picture: Picture, thread: Thread, *, seconds: float) -> Delivery:
        """Upload a picture and share it in a thread. What is uploaded and not shared is seen by nobody, so both steps of the
        upload may be repeated; the last one shares it, and is not once it may have."""
        found: dict[str, Any] = {}

        def reserve(limit: float) -> Delivery:
            asked = {"filename": picture.name, "length": str(len(picture.body))}
            done, said = self._call("files.getUploadURLExternal", asked, limit, form=True)
            if done.result is not Result.DELIVERED:
                return done
            url, file_id = said.get("upload_url"), said.get("file_id")
            if not isinstance(url, str) or not isinstance(file_id, str):
                return Delivery(Result.REJECTED, "Slack gave no address for the picture", 1)
            try:
                found.update(to=allowed_address(url, self._allowed), id=file_id)
            except WebhookRefused as problem:
                return Delivery(Result.REJECTED, str(problem), 1)
            return done

        def upload(limit: float) -> Delivery:
            to = found["to"]
            answer = self._poster.post(to, picture.body, {"Content-Type": "application/octet-stream"}, limit)
            return judged(to, answer, "the picture was not taken") or Delivery(Result.DELIVERED, "taken", 1)

        def share(limit: float) -> Delivery:
            shared = {
                "files": [{"id": found["id"], "title": picture.title}],
                "channel_id": thread.channel,
                "thread_ts": thread.ts,
            }
            return self._call("files.completeUploadExternal", shared, limit)[0]

        delivery = Delivery(Result.REJECTED, "nothing was tried", 0)
        for part, repeatable in ((reserve, True), (upload, True), (share, False)):
            delivery = self._poster.patiently(part, repeat_unknown=repeatable, seconds=seconds / 3)
            if delivery.result is not Result.DELIVERED:
                break
        return delivery

    def _call(
        self, method: str, arguments: Mapping[str, Any], limit: float, form: bool = False
    ) -> tuple[Delivery, dict[str, Any]]:
        """One call of the Web API: what is known after it, and what it answered."""
        to = Address(self._api.host, self._api.port, f"{self._api.target}/{method}")
        body = urlencode(arguments).encode() if form else json.dumps(arguments).encode()
        kind = "application/x-www-form-urlencoded" if form else JSON_TYPE
        answer = self._poster.post(to, body, {"Content-Type": kind, "Authorization": f"Bearer {self._token}"}, limit)
        bad = judged(to, answer, f"{method} is not to be had at {to!r}")
        if bad is not None:
            return bad, {}
        said = _document(getattr(answer, "body", ""))
        if said.get("ok") is True:
            return Delivery(Result.DELIVERED, "accepted", 1), said
        error = bounded(clean(str(said.get("error") or "no word")), 80)
        reason = f"Slack's {method} answered {error}"
        if not said or error in PERHAPS:
            return Delivery(Result.UNKNOWN, reason, 1), said
        if error in NOT_NOW:
            return Delivery(Result.REFUSED, reason, 1, getattr(answer, "retry_after", None)), said
        return Delivery(Result.REJECTED, f"{reason}; check the bot's token, its scopes and its channel", 1), said


def _document(body: str) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _placed(done: Delivery, said: Mapping[str, Any], thread: Thread | None) -> Delivery:
    """With the thread that the message is in, or begins."""
    if done.result is not Result.DELIVERED or thread is not None:
        return Delivery(done.result, done.reason, 1, done.retry_after, thread)
    channel, ts = said.get("channel"), said.get("ts")
    begun = Thread(channel, ts) if isinstance(channel, str) and isinstance(ts, str) and channel and ts else None
    return Delivery(done.result, done.reason, 1, done.retry_after, begun)

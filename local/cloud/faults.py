"""Faults in front of the local AWS, for tests: calls that are refused or held, events that are lost, late or repeated.

``POST /_local/faults`` sets the whole plan (a list of rules, see ``rule_of``), ``GET`` answers how often each rule has
struck, ``DELETE`` takes the plan away. Whoever names itself ``app/nightshift-local`` in its user agent (the story that
watches from outside) is never hit, so that a fault is measured by something that it does not touch.
"""

from __future__ import annotations

import copy
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from io import BytesIO
from typing import Any
from xml.sax.saxutils import escape

Environ = dict[str, Any]
WsgiApp = Callable[[Environ, Any], Iterable[bytes]]
Delivery = Callable[[Any, dict[str, Any], dict[str, Any]], None]

ROUTE = "/_local/faults"
WATCHER = "app/nightshift-local"
ROOT_KEY = "test"
"""The account's root, whose credentials pods have here; functions have those of their role."""

LATE_STEP = 0.7
_CREDENTIAL = re.compile(r"Credential=([^/,]+)/\d+/[^/]+/([^/]+)/aws4_request")


@dataclass(frozen=True)
class Call:
    """One call of an AWS API: ``who`` is ``job``, ``functions`` or ``watcher``."""

    service: str
    operation: str
    who: str
    text: str = ""
    """The path, and the body where a rule asks for it."""


@dataclass
class CallRule:
    """Strikes calls; see ``rule_of`` for the fields."""

    services: tuple[str, ...]
    who: str = "any"
    operation: str = "*"
    contains: str = ""
    every: int = 1
    times: int | None = None
    until: float | None = None
    status: int = 500
    code: str = "InternalError"
    hold: float = 0.0
    seen: int = 0
    struck: int = 0

    def strikes(self, call: Call, now: float) -> bool:
        """Counts what it has seen and struck."""
        if call.who == "watcher" or call.service not in self.services or self.who not in ("any", call.who):
            return False
        if not fnmatchcase(call.operation, self.operation) or self.contains not in call.text:
            return False
        return _counted(self, now)


@dataclass
class EventRule:
    """Strikes deliveries of events; see ``rule_of`` for the fields."""

    detail_type: str = "*"
    contains: str = ""
    every: int = 1
    times: int | None = None
    until: float | None = None
    do: str = "drop"
    seen: int = 0
    struck: int = 0

    def strikes(self, event: Mapping[str, Any], now: float) -> bool:
        """Counts what it has seen and struck."""
        if not fnmatchcase(str(event.get("detail-type", "")), self.detail_type):
            return False
        if self.contains and self.contains not in json.dumps(event):
            return False
        return _counted(self, now)


def _counted(rule: CallRule | EventRule, now: float) -> bool:
    rule.seen += 1
    over = (rule.times is not None and rule.struck >= rule.times) or (rule.until is not None and now > rule.until)
    if over or rule.seen % rule.every:
        return False
    rule.struck += 1
    return True


DEEDS = ("drop", "double", "late")


def rule_of(document: Mapping[str, Any], now: float) -> CallRule | EventRule:
    """A rule from JSON. Raises ValueError for what is not one.

    ``{"what": "call", "services": ["s3"], "who": "job", "operation": "PUT", "contains": "progress", "every": 2,
    "times": 3, "seconds": 20, "status": 500, "code": "InternalError", "hold": 1.5}``: every second such call, three
    times and for 20 s at most, waits 1.5 s and is then answered with that error, and is never carried out.
    ``operation`` is a pattern over the API's operation, or over the HTTP method for S3.

    ``{"what": "event", "detail_type": "*Node Health*", "contains": "i-1", "do": "drop"}``: ``double`` delivers twice,
    ``late`` delivers each one later than the next, so that they arrive in the other order.
    """
    given = dict(document)
    what, seconds = given.pop("what", None), given.pop("seconds", None)
    until = None if seconds is None else now + float(seconds)
    if int(given.get("every", 1)) < 1:
        raise ValueError("every must be at least 1")
    if what == "call":
        return CallRule(**{**given, "services": tuple(given["services"]), "until": until})
    if what == "event":
        if given.get("do", "drop") not in DEEDS:
            raise ValueError(f"do is one of {', '.join(DEEDS)}")
        return EventRule(**{**given, "until": until})
    raise ValueError("what is call or event")


@dataclass
class Faults:
    """The plan; empty at first. Safe for several threads. ``later`` runs something after some seconds."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    later: Callable[[float, Callable[[], None]], None] = lambda seconds, work: _timer(seconds, work)
    _rules: list[CallRule | EventRule] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def around(self, app: WsgiApp) -> WsgiApp:
        """The WSGI application with the faults in front of it, and the route that sets them."""

        def faulty(environ: Environ, start: Any) -> Iterable[bytes]:
            if environ["PATH_INFO"] == ROUTE:
                return self._administer(environ, start)
            struck = self._strike(environ) if self._rules else None
            if struck is None:
                return app(environ, start)
            if struck.hold:
                self.sleep(struck.hold)
            return _refuse(struck, environ, start)

        return faulty

    def around_delivery(self, deliver: Delivery) -> Delivery:
        """EventBridge's delivery with the faults in front of it."""

        def faulty(rule: Any, target: dict[str, Any], event: dict[str, Any]) -> None:
            with self._lock:
                events = [one for one in self._rules if isinstance(one, EventRule)]
                struck = [one for one in events if one.strikes(event, self.clock())]
            deeds = {one.do for one in struck}
            if "drop" in deeds:
                return
            copies = 2 if "double" in deeds else 1
            wait = max((self._lateness(one) for one in struck if one.do == "late"), default=0.0)
            for _ in range(copies):
                if wait:
                    self.later(wait, lambda: deliver(rule, target, copy.deepcopy(event)))
                else:
                    deliver(rule, target, copy.deepcopy(event))

        return faulty

    @staticmethod
    def _lateness(rule: EventRule) -> float:
        """The first one is the latest: what is struck soon after it overtakes it."""
        return LATE_STEP * max(1, 4 - rule.struck)

    def _strike(self, environ: Environ) -> CallRule | None:
        with self._lock:
            calls = [one for one in self._rules if isinstance(one, CallRule)]
        if not calls:
            return None
        call = call_of(environ, with_body=any(one.contains for one in calls))
        if call is None:
            return None
        with self._lock:
            return next((one for one in calls if one.strikes(call, self.clock())), None)

    def _administer(self, environ: Environ, start: Any) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        try:
            if method == "POST":
                body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                rules = [rule_of(one, self.clock()) for one in json.loads(body)]
                with self._lock:
                    self._rules = rules
            elif method == "DELETE":
                with self._lock:
                    self._rules = []
            with self._lock:
                answer: Any = [{"seen": one.seen, "struck": one.struck} for one in self._rules]
            status = "200 OK"
        except (ValueError, KeyError, TypeError) as problem:
            status, answer = "400 Bad Request", {"message": f"{type(problem).__name__}: {problem}"}
        text = json.dumps(answer).encode()
        start(status, [("Content-Type", "application/json"), ("Content-Length", str(len(text)))])
        return [text]


def call_of(environ: Environ, with_body: bool) -> Call | None:
    """A signed call of an AWS API; None for everything else. With ``with_body`` the body is read, and put back."""
    match = _CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
    if match is None:
        return None
    key, service = match.groups()
    who = "job" if key == ROOT_KEY else "functions"
    if WATCHER in environ.get("HTTP_USER_AGENT", ""):
        who = "watcher"
    operation = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2] or environ["REQUEST_METHOD"]
    text = str(environ.get("PATH_INFO", ""))
    if with_body and environ.get("CONTENT_LENGTH"):
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        environ["wsgi.input"] = BytesIO(body)
        text = f"{text}\n{body.decode(errors='replace')}"
    return Call(service, operation, who, text)


def _refuse(rule: CallRule, environ: Environ, start: Any) -> Iterable[bytes]:
    message = "The local AWS was told to answer so"
    if "HTTP_X_AMZ_TARGET" in environ:
        kind = "application/x-amz-json-1.0"
        body = json.dumps({"__type": f"com.amazonaws#{rule.code}", "message": message}).encode()
    else:
        kind = "application/xml"
        code = f"<Code>{escape(rule.code)}</Code><Message>{message}</Message>"
        body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{code}</Error>'.encode()
    start(f"{rule.status} Told", [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]


def _timer(seconds: float, work: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, work)
    timer.daemon = True
    timer.start()

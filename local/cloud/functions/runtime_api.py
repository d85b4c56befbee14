"""The Lambda Runtime API (2018-06-01) for one execution environment: what the runtime client polls and answers to."""

from __future__ import annotations

import contextlib
import http.server
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Invocation:
    """``deadline`` is in milliseconds since the epoch."""

    request_id: str
    payload: bytes
    arn: str
    deadline: int
    trace_id: str


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A runtime that is killed in mid-request breaks its connection: that is no news here."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class RuntimeApi:
    """One invocation at a time goes in by ``offer``; what the runtime answered comes out by ``wait_answer``."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ready = False
        self.ready_at: float | None = None
        self._closed = False
        self._next: Invocation | None = None
        self._answer: tuple[str | None, bytes] | None = None
        self._failed_init: bytes | None = None
        self._server = _Server((HOST, 0), _handler(self))
        threading.Thread(target=self._serve, daemon=True, name="runtime-api").start()

    @property
    def address(self) -> str:
        return f"{HOST}:{self._server.server_port}"

    def offer(self, invocation: Invocation) -> None:
        with self._changed:
            self._answer, self._next = None, invocation
            self._changed.notify_all()

    def wait_ready(self, seconds: float) -> bool:
        """Whether the runtime has asked for work (or failed to start: then an answer is there) in that time."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._failed_init or self._closed, seconds)
            return self._ready or self._failed_init is not None

    @property
    def failed_init(self) -> bytes | None:
        """The runtime's error document, if it could not even load the handler."""
        return self._failed_init

    def wait_answer(self, seconds: float) -> tuple[str | None, bytes] | None:
        """(error kind or None, body), or None when there was no answer in that time or the process has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._answer is not None or self._closed, seconds)
            return self._answer

    def process_ended(self) -> None:
        """Nobody will answer any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close(self) -> None:
        self.process_ended()
        with contextlib.suppress(OSError):  # already closed
            socket.create_connection((HOST, self._server.server_port), timeout=1).close()

    def _serve(self) -> None:
        """Blocks between requests; closing makes one last connection to wake it."""
        while not self._closed:
            self._server.handle_request()
        self._server.server_close()

    def take(self) -> Invocation | None:
        """The next invocation for the runtime; None when the environment is closed."""
        with self._changed:
            self.ready_at = self.ready_at or time.monotonic()
            self._ready = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._next is not None or self._closed)
            invocation, self._next = self._next, None
            return invocation

    def put(self, path: str, body: bytes) -> None:
        """What the runtime posted: an answer, an error of the handler, or a failed init."""
        with self._changed:
            if path.endswith("/init/error"):
                self._failed_init = body
            else:
                self._answer = (None if path.endswith("/response") else "Unhandled", body)
            self._changed.notify_all()


def _handler(api: RuntimeApi) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # A head and a body in two small packets cost 40 ms for each answer, while one waits for the other's receipt.
        wbufsize = -1
        disable_nagle_algorithm = True

        def log_message(self, *_: Any) -> None:
            """Silent: the function's own log says what matters."""

        def do_GET(self) -> None:
            invocation = api.take()
            if invocation is None:  # nobody is left to answer to
                self.close_connection = True
                return
            self._send(
                200,
                invocation.payload,
                {
                    "Lambda-Runtime-Aws-Request-Id": invocation.request_id,
                    "Lambda-Runtime-Deadline-Ms": str(invocation.deadline),
                    "Lambda-Runtime-Invoked-Function-Arn": invocation.arn,
                    "Lambda-Runtime-Trace-Id": invocation.trace_id,
                    "Content-Type": "application/json",
                },
            )

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._send(202, b'{"status":"OK"}', {"Content-Type": "application/json"})
            api.put(self.path, body)

        def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler

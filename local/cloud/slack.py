"""Slack's incoming webhooks, and of its Web API what a bot needs, over https, with Slack's limits; what it takes goes to
``slack.jsonl``, a message as its ``payload`` and a shared file as its ``file``."""

from __future__ import annotations

import http.server
import itertools
import json
import ssl
import threading
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

MAX_SECTION_TEXT = 3_000
MAX_HEADER_TEXT = 150
MAX_BLOCKS = 50
MAX_FIELD_TEXT = 2_000
MAX_TEXT = 40_000
PATH_PREFIX, API_PREFIX, UPLOAD_PREFIX = "/services/", "/api/", "/upload/v1/"
BOT_TOKEN = "xoxb-local"
CHANNEL = "C0LOCAL"


@dataclass(frozen=True)
class PlannedAnswer:
    """What to answer instead of taking the next message."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: str = "error"


def problem(payload: Any) -> str | None:
    """Slack's error code for a payload that it would refuse, or None."""
    if not isinstance(payload, dict):
        return "invalid_payload"
    text, blocks = payload.get("text"), payload.get("blocks", [])
    if not text and not blocks and not payload.get("attachments"):
        return "no_text"
    if text is not None and (not isinstance(text, str) or len(text) > MAX_TEXT):
        return "invalid_payload" if not isinstance(text, str) else "msg_too_long"
    if not isinstance(blocks, list) or len(blocks) > MAX_BLOCKS or not all(_block_is_good(one) for one in blocks):
        return "invalid_blocks"
    return None


def _block_is_good(block: Any) -> bool:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        return False
    if block["type"] == "header":
        return _text_is_good(block.get("text"), MAX_HEADER_TEXT, {"plain_text"})
    if block["type"] == "section":
        fields = block.get("fields", [])
        if "text" not in block and not fields:
            return False
        return ("text" not in block or _text_is_good(block["text"], MAX_SECTION_TEXT)) and (
            len(fields) <= 10 and all(_text_is_good(one, MAX_FIELD_TEXT) for one in fields)
        )
    if block["type"] == "context":
        elements = block.get("elements", [])
        return 1 <= len(elements) <= 10 and all(
            one.get("type") == "image" or _text_is_good(one, MAX_SECTION_TEXT) for one in elements
        )
    return True


def _text_is_good(
    text: Any, limit: int, kinds: frozenset[str] | set[str] = frozenset({"plain_text", "mrkdwn"})
) -> bool:
    return (
        isinstance(text, dict)
        and text.get("type") in kinds
        and isinstance(text.get("text"), str)
        and 1 <= len(text["text"]) <= limit
    )


class SlackReceiver:
    """Serves from construction until ``close``; ``plan`` sets the answers to the next messages, one each."""

    def __init__(self, host: str, port: int, server_pem: Path, log: Path) -> None:
        self._log, self._planned, self._lock = log, deque[PlannedAnswer](), threading.Lock()
        self._port, self._numbers = port, itertools.count(1)
        self._threads, self._files = set[str](), dict[str, int]()
        self._server = http.server.ThreadingHTTPServer((host, port), _handler(self))
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server_pem)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self._server.serve_forever, daemon=True, name="slack").start()

    def plan(self, answer: PlannedAnswer) -> None:
        with self._lock:
            self._planned.append(answer)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, path: str, body: bytes, token: str = "") -> PlannedAnswer:
        """The answer to one POST; a message that is good is recorded."""
        with self._lock:
            if self._planned:
                return self._planned.popleft()
            if path.startswith(UPLOAD_PREFIX):
                return self._upload(path.removeprefix(UPLOAD_PREFIX), body)
            if path.startswith(API_PREFIX):
                method = path.removeprefix(API_PREFIX)
                known = self._call(method, body) if token == f"Bearer {BOT_TOKEN}" else {"error": "invalid_auth"}
                return PlannedAnswer(200, body=json.dumps({"ok": "error" not in known, **known}))
            if not path.startswith(PATH_PREFIX):
                return PlannedAnswer(404, body="no_service")
            try:
                payload = json.loads(body)
            except ValueError:
                return PlannedAnswer(400, body="invalid_payload")
            code = problem(payload)
            if code is not None:
                return PlannedAnswer(400, body=code)
            self._keep("payload", payload)
            return PlannedAnswer(200, body="ok")

    def _keep(self, what: str, document: Any) -> None:
        line = json.dumps({"at": datetime.now(UTC).isoformat(), what: document})
        with self._log.open("a", encoding="utf-8") as log:
            log.write(line + "\n")

    def _call(self, method: str, body: bytes) -> dict[str, Any]:
        """What a method of the Web API answers, or its ``error``."""
        if method == "files.getUploadURLExternal":
            said = {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
            if not said.get("filename") or not said.get("length", "").isdigit():
                return {"error": "invalid_arguments"}
            file_id = f"F{next(self._numbers)}"
            self._files[file_id] = int(said["length"])
            return {"file_id": file_id, "upload_url": f"https://localhost:{self._port}{UPLOAD_PREFIX}{file_id}"}
        try:
            said = json.loads(body)
        except ValueError:
            return {"error": "invalid_json"}
        if not isinstance(said, dict) or said.get("channel", said.get("channel_id")) != CHANNEL:
            return {"error": "channel_not_found"}
        if said.get("thread_ts") is not None and said["thread_ts"] not in self._threads:
            return {"error": "cannot_reply_to_message"}
        if method == "chat.postMessage":
            return self._post(said)
        if method == "files.completeUploadExternal":
            ids = [one.get("id") for one in said.get("files", [])]
            if not ids or any(self._files.get(one) != 0 for one in ids):  # 0: its bytes are here
                return {"error": "file_not_found"}
            self._keep("file", said)
            return {"files": said["files"]}
        return {"error": "unknown_method"}

    def _post(self, said: dict[str, Any]) -> dict[str, Any]:
        code = problem(said)
        if code is not None:
            return {"error": code}
        ts = f"1700000000.{next(self._numbers):06d}"
        if said.get("thread_ts") is None:
            self._threads.add(ts)
        self._keep("payload", said)
        return {"channel": CHANNEL, "ts": ts}

    def _upload(self, file_id: str, body: bytes) -> PlannedAnswer:
        if self._files.get(file_id) != len(body) or not body:
            return PlannedAnswer(400, body="wrong length")
        self._files[file_id] = 0
        return PlannedAnswer(200, body=f"OK - {len(body)}")


def _handler(receiver: SlackReceiver) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 10

        def log_message(self, *_: Any) -> None:
            """Silent: accepted messages are in the file."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = receiver.take(self.path, body, self.headers.get("Authorization") or "")
            text = answer.body.encode()
            self.send_response(answer.status)
            for name, value in {"Content-Type": "text/html", **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    return Handler

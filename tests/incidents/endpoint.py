"""A played endpoint of one RayCluster: the connection request, the cookie, and Ray's job API as far as the client uses it.

What it leaves out: everything that a job does. Its answers have the shape and the texts of Ray's and the
toolkit's own servers.
"""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import trustme

RAY_VERSION = "2.56.0"
NODES = [
    {
        "node_id": f"node-of-{instance}",
        "node_ip": f"ip-{instance}",
        "state": "ALIVE",
        "is_head_node": instance == "i-head",
        "resources_total": {} if instance == "i-head" else {"GPU": 2.0},
    }
    for instance in ("i-head", "i-w1", "i-w2", "i-w3")
]
"""Ray's nodes on the pods of ``tests.builders.cluster()``."""


class Endpoint:
    """``jobs`` maps submission ids to Ray's status; ``accepted`` are submissions that Ray took, in order."""

    def __init__(self) -> None:
        self.jobs: dict[str, str] = {}
        self.accepted: list[str] = []
        self.refused: list[str] = []
        self.connections = 0
        self.cookies: set[str] = set()
        self.gone = False
        self.refuses_cookies = False
        self.loses_replies = False
        self.before_unknown: threading.Barrier | None = None
        self.asked = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca: bytes = authority.cert_pem.bytes()
        authority.issue_cert("127.0.0.1").configure_cert(tls)
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def connect(self) -> tuple[int, str]:
        """The Kubernetes API's answer to a RayDashboardConnection."""
        if self.gone:
            return 404, '{"kind":"Status","message":"rayclusters \\"maze-1\\" not found"}'
        with self._lock:
            self.connections += 1
        return 201, json.dumps({"status": {"connectionUrl": f"{self.url}/?token=t{self.connections}"}})

    def answer(self, path: str) -> tuple[int, str]:
        """A GET of Ray's API."""
        if path == "/api/version":
            return 200, json.dumps({"version": "4", "ray_version": RAY_VERSION, "ray_commit": "x", "session_name": "s"})
        if path.startswith("/api/v0/"):  # every node of the cluster lives; no actor, group or worker does
            rows = NODES if path.startswith("/api/v0/nodes") else []
            return 200, json.dumps({"data": {"result": {"result": rows}}})
        job = path.removeprefix("/api/jobs/")
        self.asked.set()
        if job in self.jobs:
            shown = {"type": "SUBMISSION", "submission_id": job, "status": self.jobs[job], "entrypoint": "python"}
            return 200, json.dumps(shown)
        if self.before_unknown is not None:
            self.before_unknown.wait(5)
        return 404, f"Job {job} does not exist"

    def submit(self, body: dict[str, Any]) -> tuple[int, str] | None:
        """None: Ray took the job, and its reply is lost."""
        job = body["submission_id"]
        with self._lock:
            if job in self.jobs:
                self.refused.append(job)
                return 500, f"Traceback ...\nValueError: Job with submission_id {job} already exists."
            self.jobs[job] = "PENDING"
            self.accepted.append(job)
        return None if self.loses_replies else (200, json.dumps({"job_id": job, "submission_id": job}))

    def _handler(here) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.startswith("/bearer-auth"):
                    cookie = f"c{here.connections}"
                    here.cookies.add(cookie)
                    return self.reply(200, "ok", f"ray_session={cookie}; Path=/")
                if self.cookie_is_old():
                    return self.reply(401, "Unauthorized")
                return self.reply(*here.answer(self.path))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
                if self.path.startswith("/apis/"):
                    return self.reply(*here.connect())
                if self.cookie_is_old():
                    return self.reply(401, "Unauthorized")
                answer = here.submit(body) if self.path == "/api/jobs/" else (404, "no such job")
                if answer is None:
                    self.close_connection = True
                    return None
                return self.reply(*answer)

            def cookie_is_old(self) -> bool:
                sent = (self.headers.get("Cookie") or "").removeprefix("ray_session=")
                return here.refuses_cookies or sent not in here.cookies

            def reply(self, code: int, body: str, cookie: str | None = None) -> None:
                self.send_response(code)
                if cookie is not None:
                    self.send_header("Set-Cookie", cookie)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None: ...

        return Handler

"""One running local cloud for all probes of this folder, with a small stack of their own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psutil
import pytest

from local.cloud.deploy import deploy
from local.config import HOST
from tests.local_cloud.support import TEMPLATE, Cloud, eventually, probe_config, start


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    config = probe_config(tmp_path_factory.mktemp("cloud"))
    child = start(config)
    running = Cloud(config)
    try:
        running.outputs = deploy(config, TEMPLATE, {})
        yield running
        pids = [one["pid"] for one in running.local("GET", "/_local/processes")[1]]
    finally:
        status = child.stop()
    assert status == 0
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids), 3)


@pytest.fixture
def hyperpod(cloud: Cloud) -> Iterator[list[tuple[str, Any]]]:
    """A server in the place of the HyperPod part; gives the calls that it got and answers each with its own path."""
    calls: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            calls.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            missing = calls[-1][1].get("ClusterName") == "missing"
            answer = {"__type": "ResourceNotFound", "message": "no"} if missing else {"ClusterName": "local-hyperpod"}
            self.send_response(400 if missing else 200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

    server = ThreadingHTTPServer((HOST, cloud.config.admin_port), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield calls
    server.shutdown()
    server.server_close()

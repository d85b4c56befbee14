"""The real job client and toolkit against endpoints that answer wrongly or not at all: never evidence, never for ever."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nightshift.adapters import ray_jobs
from nightshift.adapters.kubernetes import EksCluster
from nightshift.adapters.ray_jobs import RayJobs, said_by_ray, write_kubeconfig
from nightshift.core.errors import TransientError
from nightshift.core.observation import JobState, RayView

ANSWERS = {
    "404, the RayCluster is gone": (404, '{"kind":"Status"}'),
    "403, another owner": (403, '{"kind":"Status"}'),
    "401, the token is too old": (401, "Unauthorized"),
    "500": (500, "oops"),
    "a login page": (200, "<html>please log in</html>"),
    "no address yet": (201, json.dumps({"status": {}})),
}


def serving(code: int, body: str) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_POST

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture(autouse=True)
def own_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "")  # restored afterwards, whatever write_kubeconfig sets


@pytest.fixture(params=ANSWERS)
def wrong_endpoint(request: pytest.FixtureRequest) -> Iterator[None]:
    server = serving(*ANSWERS[request.param])
    point_at(server.server_address[1])
    yield
    server.shutdown()
    server.server_close()


def point_at(port: int) -> None:
    write_kubeconfig(EksCluster("eks", f"http://127.0.0.1:{port}", base64.b64encode(b"").decode()), "token")


def must_know_nothing(jobs: RayJobs) -> None:
    assert jobs.view("maze-1-a1").state is JobState.UNREACHABLE
    assert jobs.ray() == RayView(None, None)
    jobs.stop("maze-1-a1")
    assert jobs.logs("maze-1-a1").startswith("no driver log: ")
    with pytest.raises(TransientError, match="maze-1-a1 could not be submitted"):
        jobs.submit("maze-1", "maze-1-a1", "true", {})


@pytest.mark.usefixtures("wrong_endpoint")
def test_a_wrong_answer_says_nothing_about_the_job_and_raises_nothing_unexpected() -> None:
    must_know_nothing(RayJobs("maze-1", "ns"))


def test_a_refused_connection_says_nothing_about_the_job() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        point_at(closed.getsockname()[1])
    must_know_nothing(RayJobs("maze-1", "ns"))


def test_a_silent_endpoint_is_left_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_jobs, "READ_SECONDS", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        point_at(silent.getsockname()[1])
        began = time.monotonic()
        assert RayJobs("maze-1", "ns").view("maze-1-a1").state is JobState.UNREACHABLE
        assert time.monotonic() - began < 20  # without a deadline: for ever


def test_a_jobs_message_is_told_without_the_log_that_ray_appends() -> None:
    ray_says = (
        "Job entrypoint command failed with exit code 75, last available logs (truncated to 20,000 chars):\nx y z"
    )
    assert said_by_ray(ray_says) == "Job entrypoint command failed with exit code 75"
    assert said_by_ray(None) == ""


def test_the_token_never_shows_in_what_is_told() -> None:
    server = serving(500, "x" * 5_000)
    point_at(server.server_address[1])
    told = RayJobs("maze-1", "ns").view("maze-1-a1").message
    server.shutdown()
    server.server_close()
    assert len(told) <= 400
    assert "Bearer" not in told

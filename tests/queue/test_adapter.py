"""Workloads over HTTP: what is asked for, and answers that mean that nothing is known."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from lightkube import ApiError, Client, KubeConfig
from lightkube.config.models import Cluster, Context, User

from nightshift.adapters.kubernetes import RayCluster
from nightshift.adapters.kueue import queue_view

ADMITTED = [
    {"type": kind, "status": "True", "lastTransitionTime": "2026-11-30T01:00:00Z"}
    for kind in ("QuotaReserved", "Admitted")
]


@dataclass
class Api:
    """One answer to everything; remembers the paths."""

    status: int = 200
    items: list[Any] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def api() -> Iterator[tuple[Api, Client]]:
    state = Api()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            failure = {"kind": "Status", "status": "Failure", "code": state.status, "message": "no", "metadata": {}}
            listed = {
                "apiVersion": "kueue.x-k8s.io/v1beta1",
                "kind": "WorkloadList",
                "metadata": {},
                "items": state.items,
            }
            body = json.dumps(listed if state.status == 200 else failure).encode()
            self.send_response(state.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = KubeConfig(
        clusters={"k": Cluster(server=f"http://127.0.0.1:{server.server_address[1]}")},
        users={"u": User(token="t")},
        contexts={"c": Context(cluster="k", user="u", namespace="ns")},
        current_context="c",
    )
    yield state, Client(config=config, namespace="ns")
    server.shutdown()
    server.server_close()


def raycluster(queue: str | None = "team", **spec: Any) -> Any:
    labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    metadata = {"name": "maze-1", "namespace": "ns", "uid": "uid-1", "labels": labels}
    refused = {"type": "ReplicaFailure", "status": "True", "message": "forbidden " * 100}
    return RayCluster.from_dict({"metadata": metadata, "spec": spec, "status": {"conditions": [refused]}})


def workload(made: str, conditions: list[Any]) -> Any:
    return {"metadata": {"name": f"w-{made}", "creationTimestamp": made}, "status": {"conditions": conditions}}


def test_the_newest_workload_of_the_very_raycluster_counts(api: tuple[Api, Client]) -> None:
    state, client = api
    old, new = "2026-11-30T00:00:00Z", "2026-11-30T01:00:00Z"
    state.items = [workload(new, ADMITTED), workload(old, [])]
    seen = queue_view(client, raycluster(suspend=True))
    assert seen["workload"].admitted and seen["suspended"] and len(seen["pods_refused"]) <= 300
    (path,) = state.asked
    assert urlsplit(path).path == "/apis/kueue.x-k8s.io/v1beta1/namespaces/ns/workloads"
    assert parse_qs(urlsplit(path).query)["labelSelector"] == ["kueue.x-k8s.io/job-uid=uid-1"]


@pytest.mark.parametrize("status", [200, 403, 404])
def test_no_workload_no_right_and_no_kueue_mean_that_nothing_is_known(api: tuple[Api, Client], status: int) -> None:
    state, client = api
    state.status = status
    assert queue_view(client, raycluster())["workload"] is None


def test_an_api_that_fails_is_no_answer(api: tuple[Api, Client]) -> None:
    state, client = api
    state.status = 500
    with pytest.raises(ApiError):
        queue_view(client, raycluster())


def test_a_raycluster_without_a_queue_is_not_asked_about(api: tuple[Api, Client]) -> None:
    state, client = api
    assert queue_view(client, raycluster(queue=None))["workload"] is None and state.asked == []

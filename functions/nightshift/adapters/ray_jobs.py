"""Ray jobs through the IAM-authenticated endpoint: Ray's own client, the toolkit's own scheme, both unchanged."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import requests

from nightshift.adapters.kubernetes import EksCluster
from nightshift.core.errors import TransientError, bounded
from nightshift.core.observation import JobState, JobView, RayView
from nightshift.core.raycluster import HEAD_RESOURCE
from nightshift.steps.ports import NO_LOG

LOG_TAIL = 20_000
CONNECT_SECONDS, READ_SECONDS = 3.0, 8.0
"""Deadline of each HTTP call: Ray's client sets none and the toolkit 30 s, and neither offers a way to change it."""

_RAY_INTERNAL = "_ray_internal_job_actor"


def write_kubeconfig(eks: EksCluster, token: str) -> Path:
    """The toolkit finds the cluster through KUBECONFIG; one file, rewritten by each invocation, readable by us only.

    A CA path instead of CA data: for data the toolkit leaves one temporary file behind with every client.
    """
    folder = Path(tempfile.gettempdir()) / f"nightshift-{os.getpid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    ca = folder / "ca.crt"
    ca.write_bytes(base64.b64decode(eks.ca_data))
    path = folder / "kubeconfig"
    path.touch(mode=0o600)
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "eks",
                "contexts": [{"name": "eks", "context": {"cluster": "eks", "user": "controller"}}],
                "clusters": [{"name": "eks", "cluster": {"server": eks.endpoint, "certificate-authority": str(ca)}}],
                "users": [{"name": "controller", "user": {"token": token}}],
            }
        )
    )
    os.environ["KUBECONFIG"] = str(path)
    return path


def is_unreachable(error: Exception) -> bool:
    """Whether the endpoint did not answer as it should: a non-200 answer (RuntimeError), HTML where JSON is expected
    (ValueError), a refused connection, a TLS or token failure. The toolkit's errors have no public base class, and Ray's
    own for a 401 or 403 derives from none of these."""
    expected = (RuntimeError, ConnectionError, requests.RequestException, ValueError, OSError)
    return isinstance(error, expected) or type(error).__module__.startswith(("toolkit_for_ray", "ray.exceptions"))


@contextmanager
def answers_needed() -> Iterator[None]:
    """Turn everything that means "no usable answer" into one exception, and leave programming errors alone."""
    try:
        yield
    except Exception as error:
        if not is_unreachable(error):
            raise
        raise NoAnswer(f"{type(error).__name__}: {bounded(error, 300)}") from error


class NoAnswer(Exception):
    """The endpoint gave no usable answer. It says nothing about the job."""


def bound_requests() -> None:
    """Give every call of this process's ``requests`` a deadline. Idempotent.

    A socket default does not do it: requests passes ``timeout=None`` down, which means to wait for ever, and a silent
    dashboard would hold a look until Lambda ends it.
    """
    send = requests.Session.send
    if getattr(send, "is_bounded", False):
        return

    def bounded_send(self: requests.Session, request: Any, **options: Any) -> Any:
        options["timeout"] = (CONNECT_SECONDS, READ_SECONDS)
        return send(self, request, **options)

    bounded_send.is_bounded = True  # type: ignore[attr-defined]
    requests.Session.send = bounded_send  # type: ignore[method-assign]


class RayJobs:
    """Implements ``steps.ports.Jobs``. The client's cookie is fetched once and never renewed, so the client lives as
    long as this object, which lives for one invocation; a refused call is repeated once with a new client."""

    def __init__(self, raycluster: str, namespace: str) -> None:
        self._raycluster = raycluster
        self._address = f"sagemaker_ray://{raycluster}/{namespace}"
        self._made: Any = None
        bound_requests()

    def _client(self) -> Any:
        if self._made is None:
            from ray.job_submission import JobSubmissionClient  # half a second: only where it is needed

            self._made = JobSubmissionClient(self._address)
        return self._made

    def _get(self, path: str) -> Any:
        """One JSON answer of the dashboard. Ray's client has no public call for its state API."""
        response = self._client()._do_request("GET", path)
        if response.status_code != 200:
            raise RuntimeError(f"{path}: status {response.status_code}")
        return response.json()

    def submit(self, run_id: str, submission_id: str, entrypoint: str, metadata: dict[str, str]) -> None:
        if self.view(submission_id).state not in (JobState.MISSING, JobState.UNREACHABLE):
            return  # a reply was lost, or two invocations met: the job that is there is ours
        try:
            with answers_needed():
                self._client().submit_job(
                    entrypoint=entrypoint,
                    submission_id=submission_id,
                    metadata=metadata,
                    entrypoint_num_cpus=0,
                    entrypoint_resources={HEAD_RESOURCE: 0.001},
                )
        except NoAnswer as error:
            if "already exists" not in str(error):
                raise TransientError(run_id, f"job {submission_id} could not be submitted: {error}") from error

    def view(self, submission_id: str) -> JobView:
        renewable = self._made is not None  # a cookie may have aged; a client that was never made is not made twice
        try:
            return self._view(submission_id)
        except NoAnswer as error:
            if not renewable:
                return _no_view(error)
        self._made = None
        try:
            return self._view(submission_id)
        except NoAnswer as error:
            return _no_view(error)

    def _view(self, submission_id: str) -> JobView:
        with answers_needed():
            info = self._client().get_job_info(submission_id)
        state = JobState(str(getattr(info.status, "value", info.status)).lower())
        return JobView(state, said_by_ray(info.message))

    def ray(self) -> RayView:
        try:
            with answers_needed():
                nodes = self._get("/api/v0/nodes?limit=1000")["data"]["result"]["result"]
                actors = self._get(
                    "/api/v0/actors?limit=10000&filter_keys=state&filter_predicates=%21%3D&filter_values=DEAD"
                )["data"]["result"]["result"]
        except NoAnswer:
            return RayView()
        gpus = {n["node_ip"]: int(n["resources_total"].get("GPU", 0)) for n in nodes if n["state"] == "ALIVE"}
        live = [a for a in actors if not str(a.get("name") or "").startswith(_RAY_INTERNAL)]
        return RayView(gpus, live_actors=len(live))

    def stop(self, submission_id: str) -> None:
        with suppress(NoAnswer), answers_needed():
            self._client().stop_job(submission_id)

    def logs(self, submission_id: str) -> str:
        try:
            with answers_needed():
                text: str = self._client().get_job_logs(submission_id)
        except NoAnswer as error:
            return f"{NO_LOG}{error}"
        return text[-LOG_TAIL:]


def said_by_ray(message: str | None) -> str:
    """Ray's message on a job without the log that it appends: the log is kept under diagnostics/."""
    return bounded((message or "").split(", last available logs", 1)[0], 500)


def _no_view(error: NoAnswer) -> JobView:
    """Ray's 404 for a job is an answer; everything else is none."""
    said = str(error)
    missing = "does not exist" in said and "404" in said and "TokenAcquisition" not in said
    return JobView(JobState.MISSING if missing else JobState.UNREACHABLE, said)

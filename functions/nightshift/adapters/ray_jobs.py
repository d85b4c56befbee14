"""Ray jobs through the IAM-authenticated endpoint: Ray's own client, the toolkit's own scheme, both unchanged."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import requests

from nightshift.adapters.kubernetes import EksCluster
from nightshift.core.errors import TransientError, bounded
from nightshift.core.observation import JobState, JobView, RayView
from nightshift.core.raycluster import HEAD_RESOURCE

LOG_TAIL = 20_000
UNREACHABLE = (RuntimeError, ConnectionError, requests.RequestException, ValueError, OSError)
"""What Ray's client, requests and the toolkit raise where the endpoint does not answer as it should: non-200 answers
(RuntimeError), HTML where JSON is expected (ValueError), refused connections, TLS and token failures."""

_RAY_INTERNAL = "_ray_internal_job_actor"


def write_kubeconfig(eks: EksCluster, token: str) -> Path:
    """The toolkit finds the cluster through KUBECONFIG; one file, rewritten by each invocation, readable by us only.

    A CA path instead of CA data: for data the toolkit leaves one temporary file behind with every client.
    """
    import base64

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


class RayJobs:
    """Implements ``steps.ports.Jobs``. The client's cookie is fetched once and never renewed, so the client lives as
    long as this object, which lives for one invocation; a refused call is repeated once with a new client."""

    def __init__(self, raycluster: str, namespace: str) -> None:
        self._raycluster = raycluster
        self._address = f"sagemaker_ray://{raycluster}/{namespace}"
        self._made: Any = None

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
        try:
            if self.view(submission_id).state not in (JobState.MISSING, JobState.UNREACHABLE):
                return  # a reply was lost, or two invocations met: the job that is there is ours
            self._client().submit_job(
                entrypoint=entrypoint,
                submission_id=submission_id,
                metadata=metadata,
                entrypoint_num_cpus=0,
                entrypoint_resources={HEAD_RESOURCE: 0.001},
            )
        except UNREACHABLE as error:
            if "already exists" in str(error):
                return
            raise TransientError(run_id, f"job {submission_id} could not be submitted: {error}") from error

    def view(self, submission_id: str) -> JobView:
        for fresh in (False, True):
            try:
                if fresh:
                    self._made = None
                info = self._client().get_job_info(submission_id)
            except UNREACHABLE as error:
                if "does not exist" in str(error) and "404" in str(error):
                    return JobView(JobState.MISSING, bounded(error, 300))
                if fresh:
                    return JobView(JobState.UNREACHABLE, f"{type(error).__name__}: {bounded(error, 300)}")
                continue
            except Exception as error:  # the toolkit's own errors have no public base class
                if not type(error).__module__.startswith("toolkit_for_ray"):
                    raise
                if fresh:
                    return JobView(JobState.UNREACHABLE, f"{type(error).__name__}: {bounded(error, 300)}")
                continue
            return JobView(
                JobState(str(getattr(info.status, "value", info.status)).lower()), bounded(info.message or "")
            )
        raise AssertionError("the second round returns")

    def ray(self) -> RayView:
        try:
            nodes = self._get("/api/v0/nodes?limit=1000")["data"]["result"]["result"]
            actors = self._get(
                "/api/v0/actors?limit=10000&filter_keys=state&filter_predicates=%21%3D&filter_values=DEAD"
            )["data"]["result"]["result"]
        except UNREACHABLE:
            return RayView()
        except Exception as error:
            if not type(error).__module__.startswith("toolkit_for_ray"):
                raise
            return RayView()
        gpus = sum(n["resources_total"].get("GPU", 0) for n in nodes if n["state"] == "ALIVE")
        live = [a for a in actors if not str(a.get("name") or "").startswith(_RAY_INTERNAL)]
        return RayView(gpus=int(gpus), live_actors=len(live))

    def stop(self, submission_id: str) -> None:
        try:
            self._client().stop_job(submission_id)
        except UNREACHABLE:
            return

    def logs(self, submission_id: str) -> str:
        try:
            text: str = self._client().get_job_logs(submission_id)
        except UNREACHABLE as error:
            return f"no driver log: {type(error).__name__}: {bounded(error, 500)}"
        return text[-LOG_TAIL:]

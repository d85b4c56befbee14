"""Ray jobs through the IAM-authenticated endpoint: Ray's own client, the toolkit's own scheme, both unchanged."""

from __future__ import annotations

import base64
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import requests

from nightshift.adapters import ray_state as state
from nightshift.adapters.kubernetes import EksCluster
from nightshift.core.errors import TransientError, bounded
from nightshift.core.observation import JobState, JobView, RayView
from nightshift.core.raycluster import HEAD_RESOURCE
from nightshift.steps.ports import NO_LOG

LOG_LINES, LOG_TAIL = 1_000, 64_000
"""Of the driver's log: lines asked for, bytes kept."""

INFRA_LINES, INFRA_TAIL, STACK_TAIL = 100, 8_000, 16_000
MAX_LOG_NODES, MAX_LOG_FILES, MAX_STACKS, MAX_RECORDS = 8, 6, 16, 500
MAX_READ = 16 * 2**20
"""Bytes read of one text answer: a line has no bound of its own."""

CONNECT_SECONDS, READ_SECONDS = 3.0, 8.0
"""Deadline of each HTTP call: Ray's client sets none and the toolkit 30 s, and neither offers a way to change it."""


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
    """Give every call of this process's ``requests`` a deadline; a shorter one that a call brings is kept. Idempotent.

    A socket default does not do it: requests passes ``timeout=None`` down, which means to wait for ever, and a silent
    dashboard would hold a look until Lambda ends it.
    """
    send = requests.Session.send
    if getattr(send, "is_bounded", False):
        return

    def bounded_send(self: requests.Session, request: Any, **options: Any) -> Any:
        given = options.get("timeout")
        read = min(given, READ_SECONDS) if isinstance(given, int | float) else READ_SECONDS
        options["timeout"] = (min(CONNECT_SECONDS, read), read)
        return send(self, request, **options)

    bounded_send.is_bounded = True  # type: ignore[attr-defined]  # a mark
    requests.Session.send = bounded_send  # type: ignore[method-assign]  # meant


class RayJobs:
    """Implements ``steps.ports.Jobs``. The client's cookie is fetched once and never renewed, so the client lives as
    long as this object, which lives for one invocation; a refused call is repeated once with a new client."""

    def __init__(self, raycluster: str, namespace: str) -> None:
        self._raycluster = raycluster
        self._address = f"sagemaker_ray://{raycluster}/{namespace}"
        self._made: Any = None
        self._making = Lock()
        bound_requests()

    def _client(self) -> Any:
        with self._making:  # diagnostics ask from several threads
            if self._made is None:
                from ray.job_submission import JobSubmissionClient  # half a second: only where it is needed

                self._made = JobSubmissionClient(self._address)
            return self._made

    def _get(self, path: str, seconds: float | None = None) -> Any:
        """One JSON answer of the dashboard."""
        response = self._client()._do_request("GET", path, timeout=seconds)
        if response.status_code != 200:
            raise RuntimeError(f"{path}: status {response.status_code}: {bounded(response.text, 200)}")
        return response.json()

    def _rows(self, path: str) -> Sequence[state.Row]:
        return state.rows(self._get(path))

    def _text(self, path: str, limit: int, seconds: float | None = None) -> str:
        """The end of a text answer, never held in memory as a whole: Ray's own client reads everything there is."""
        client, kept, read = self._client(), b"", 0
        answer = requests.get(
            client._address + path,
            cookies=client._cookies,
            headers=client._headers,
            verify=client._verify,
            timeout=seconds,
            stream=True,
            allow_redirects=False,
        )
        with answer:
            if answer.status_code != 200:
                said = next(answer.iter_content(300), b"").decode(errors="replace")
                raise RuntimeError(f"{path.partition('?')[0]}: status {answer.status_code}: {said}")
            deadline = time.monotonic() + (seconds or READ_SECONDS)
            for chunk in answer.iter_content(65_536):
                kept, read = (kept + chunk)[-limit:], read + len(chunk)
                if read > MAX_READ or time.monotonic() > deadline:
                    kept += b"\n[cut here: the rest was not read]"
                    break
        return kept.decode(errors="replace")

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
                return JobView(JobState.UNREACHABLE, str(error))
        self._made = None
        try:
            return self._view(submission_id)
        except NoAnswer as error:
            return JobView(JobState.UNREACHABLE, str(error))

    def _view(self, submission_id: str) -> JobView:
        """Ray's own 404 for the job is an answer; every other one is none."""
        with answers_needed():
            answer = self._client()._do_request("GET", f"/api/jobs/{submission_id}")
            if answer.status_code == 404 and f"Job {submission_id} does not exist" in answer.text:
                return JobView(JobState.MISSING, bounded(answer.text, 300))
            if answer.status_code != 200:
                raise RuntimeError(f"Request failed with status code {answer.status_code}: {answer.text}")
            seen = state.job_view(answer.json())
            return replace(seen, message=said_by_ray(seen.message))

    def ray(self) -> RayView:
        try:
            with answers_needed():
                nodes, live = self._rows(state.NODES), self._rows(state.LIVE_ACTORS)
                groups, workers = self._rows(state.PLACEMENT_GROUPS), self._rows(state.LIVE_WORKERS)
                doubtful = state.is_doubtful(nodes, live, groups, workers)
                dead = self._rows(state.DEAD_ACTORS) if doubtful else ()
                return state.ray_view(nodes, live, groups, workers, dead)
        except NoAnswer:
            return RayView()

    def stop(self, submission_id: str) -> None:
        with suppress(NoAnswer), answers_needed():
            self._client().stop_job(submission_id)

    def logs(self, submission_id: str) -> str:
        """The driver runs on the head, and so its log lies there: Ray's own call would bring the whole of it, and its
        look-up by submission id fails for jobs that are over."""
        try:
            with answers_needed():
                head = state.head_node(self._rows(state.NODES))
                name = f"job-driver-{submission_id}.log"
                text = self._text(state.log_file(head, name, LOG_LINES, int(READ_SECONDS)), LOG_TAIL)
        except NoAnswer as error:
            return f"{NO_LOG}{error}"
        return text

    def records(self) -> dict[str, Any]:
        """Ray's state for a person; a sentence in place of what cannot be had."""
        found: dict[str, Any] = {}
        for kind in ("nodes", "actors", "placement_groups", "jobs"):
            try:
                with answers_needed():
                    listed = self._rows(state.listing(kind, limit=MAX_RECORDS, detail=True))
                    found[kind] = [state.record(row) for row in listed]
            except NoAnswer as error:
                found[kind] = f"could not be had: {error}"
        return found

    def infra_logs(self, seconds: float) -> str:
        until = time.monotonic() + seconds
        try:
            with answers_needed():
                nodes = [n for n in self._rows(state.NODES) if state.is_alive(n)]
        except NoAnswer as error:
            return f"no infra logs: {error}"
        nodes.sort(key=lambda n: not n.get("is_head_node"))
        parts = [part for node in nodes[:MAX_LOG_NODES] for part in self._logs_of(node, until)]
        return "\n\n".join(parts) or "no infra logs: Ray lists no living node"

    def _logs_of(self, node: state.Row, until: float) -> Iterator[str]:
        where, node_id = str(node.get("node_ip")), str(node.get("node_id"))
        try:
            with answers_needed():
                names = state.log_names(self._get(f"/api/v0/logs?node_id={node_id}&timeout=3", _left(until)))
        except NoAnswer as error:
            yield f"==> {where}: no list of log files: {error}"
            return
        for name in state.telling_logs(names, MAX_LOG_FILES):
            if time.monotonic() > until:
                yield f"==> {where} {name}: not read, the time was over"
                continue
            try:
                with answers_needed():
                    text = self._text(state.log_file(node_id, name, INFRA_LINES, 3), INFRA_TAIL, _left(until))
            except NoAnswer as error:
                text = f"could not be read: {error}"
            if text.strip():
                yield f"==> {where} {name}\n{text}"

    def stacks(self, seconds: float) -> str:
        until = time.monotonic() + seconds
        try:
            with answers_needed():
                nodes, workers = self._rows(state.NODES), self._rows(state.LIVE_WORKERS)
        except NoAnswer as error:
            return f"no stacks: {error}"
        asked = [*state.living("WORKER", workers, nodes), *state.living("DRIVER", workers, nodes)][:MAX_STACKS]
        return "\n\n".join(self._stack_of(w, until) for w in asked) or "no stacks: Ray lists no driver and no worker"

    def _stack_of(self, worker: state.Row, until: float) -> str:
        what = f"==> {worker.get('ip')} {worker.get('worker_type')} {worker.get('pid')}"
        if time.monotonic() > until:
            return f"{what}: not asked, the time was over"
        path = f"/worker/traceback?pid={worker.get('pid')}&node_id={worker.get('node_id')}&native=0"
        try:
            with answers_needed():
                return f"{what}\n{self._text(path, STACK_TAIL, _left(until))}"
        except NoAnswer as error:
            return f"{what}: no stack: {error}"


def said_by_ray(message: str | None) -> str:
    """Ray's message on a job without the log that it appends: the log is kept under diagnostics/."""
    return bounded((message or "").split(", last available logs", 1)[0], 500)


def _left(until: float) -> float:
    """Seconds for one more call; what is late gets a last short chance."""
    return max(0.2, until - time.monotonic())

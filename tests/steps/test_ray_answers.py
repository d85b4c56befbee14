"""The real job client against an endpoint that lets it in, and a dashboard behind it that answers wrongly. Whatever comes,
it is never evidence about the job, never more than is asked for, and never an exception that nobody expects."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nightshift.adapters import ray_jobs
from nightshift.adapters.kubernetes import EksCluster
from nightshift.adapters.ray_jobs import RayJobs, write_kubeconfig
from nightshift.core.errors import TransientError
from nightshift.core.observation import JobState, RayView
from tests.incidents.endpoint import Endpoint

JOB = "maze-1-a1"
HTML = "<html><head><title>Sign in</title></head><body>does not exist</body></html>"
VERSION = json.dumps({"version": "4", "ray_version": "2.56.0", "ray_commit": "x", "session_name": "s"})


class Dashboard(Endpoint):
    """Answers everything behind the version check with ``wrong``."""

    wrong: tuple[int, str] = (200, "{}")

    def answer(self, path: str) -> tuple[int, str]:
        return (200, VERSION) if path == "/api/version" else self.wrong


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Dashboard]:
    monkeypatch.setenv("KUBECONFIG", "")
    with Dashboard() as served:
        (tmp_path / "ca.pem").write_bytes(served.ca)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))
        write_kubeconfig(EksCluster("eks", served.url, base64.b64encode(served.ca).decode()), "token")
        yield served


def listing(*rows: Any) -> str:
    return json.dumps({"data": {"result": {"result": list(rows)}}})


WRONG = {
    "HTML instead of JSON": (200, HTML),
    "a portal's 404 that also says does not exist": (404, HTML),
    "404 about another job": (404, "Job maze-1-a2 does not exist"),
    "401": (401, "Unauthorized"),
    "403": (403, "Forbidden"),
    "429": (429, "slow down"),
    "500": (500, "500 Internal Server Error\n\nServer got itself in trouble"),
    "502": (502, "the RayCluster has no running head"),
    "nothing at all": (200, ""),
    "JSON of another shape": (200, "[1, 2]"),
    "a status that Ray does not have": (200, json.dumps({"status": "THINKING", "message": 7})),
    "a listing that is none": (200, json.dumps({"data": {"result": None}})),
    "rows of another shape": (200, listing({"state": "ALIVE"}, {"pid": "x"})),
    "rows that are no objects": (200, listing("ALIVE", 3)),
    "truncated JSON": (200, '{"data": {"result": {"result": [{"node_id"'),
}


@pytest.mark.parametrize("answer", WRONG)
def test_a_wrong_answer_of_the_dashboard_says_nothing_about_the_job(answer: str, dashboard: Dashboard) -> None:
    dashboard.wrong = WRONG[answer]
    jobs = RayJobs("maze-1", "ns")
    assert jobs.view(JOB).state is JobState.UNREACHABLE
    assert jobs.ray() == RayView()
    assert jobs.logs(JOB).startswith("no driver log: ")
    assert jobs.infra_logs(1.0)
    assert jobs.stacks(1.0)
    assert set(jobs.records()) == {"nodes", "actors", "placement_groups", "jobs"}
    assert len(jobs.view(JOB).message) < 400
    jobs.stop(JOB)


def test_only_rays_own_word_about_this_very_job_makes_it_missing(dashboard: Dashboard) -> None:
    dashboard.wrong = (404, f"Job {JOB} does not exist")
    assert RayJobs("maze-1", "ns").view(JOB).state is JobState.MISSING


def test_a_duplicate_id_is_a_job_that_is_there_and_any_other_500_is_not(dashboard: Dashboard) -> None:
    dashboard.wrong = (404, f"Job {JOB} does not exist")
    dashboard.submit = lambda body: (500, f"ValueError: Job with submission_id {JOB} already exists.")  # type: ignore[method-assign]
    RayJobs("maze-1", "ns").submit("maze-1", JOB, "true", {})
    dashboard.submit = lambda body: (500, "RuntimeError: no head")  # type: ignore[method-assign]
    with pytest.raises(TransientError, match="could not be submitted"):
        RayJobs("maze-1", "ns").submit("maze-1", JOB, "true", {})


@pytest.mark.parametrize("loops", [True, False], ids=["redirects without end", "redirect to a login page"])
def test_redirects_are_no_answer(loops: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", "")

    class Portal(Dashboard):
        def _handler(self) -> Any:
            plain = super()._handler()

            class Redirecting(plain):  # type: ignore[valid-type,misc]
                def do_GET(self) -> None:
                    if self.path.startswith(("/bearer-auth", "/api/version", "/login")):
                        return super().do_GET()
                    self.send_response(302)
                    self.send_header("Location", self.path if loops else "/login")
                    self.send_header("Content-Length", "0")
                    return self.end_headers()

            return Redirecting

    with Portal() as served:
        served.wrong = (200, HTML)
        (tmp_path / "ca.pem").write_bytes(served.ca)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))
        write_kubeconfig(EksCluster("eks", served.url, base64.b64encode(served.ca).decode()), "token")
        jobs = RayJobs("maze-1", "ns")
        seen = jobs.view(JOB)
        assert seen.state is JobState.UNREACHABLE
        assert ("TooManyRedirects" in seen.message) is loops
        assert jobs.ray() == RayView()
        assert jobs.logs(JOB).startswith("no driver log: ")


def test_of_a_huge_log_only_its_end_is_ever_in_memory(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_jobs, "MAX_READ", 4 * 2**20)
    head = {"node_id": "n1", "node_ip": "ip", "state": "ALIVE", "is_head_node": True, "resources_total": {}}
    whole = "x" * (12 * 2**20) + "the end"  # one line
    dashboard.answer = (  # type: ignore[method-assign]
        lambda path: (200, VERSION if path == "/api/version" else listing(head) if "nodes" in path else whole)
    )
    jobs = RayJobs("maze-1", "ns")
    jobs.ray()
    text = jobs.logs(JOB)
    assert len(text) < 65_000
    assert text.endswith("[cut here: the rest was not read]")
    short = "y" * 100 + "the end"
    dashboard.answer = (  # type: ignore[method-assign]
        lambda path: (200, VERSION if path == "/api/version" else listing(head) if "nodes" in path else short)
    )
    assert jobs.logs(JOB) == short

"""Who may do what to whose run, what a cancel means, and an address of a dashboard that nobody can read anywhere."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.contract.layout import RunKeys
from nightshift.core.access import matches, may_steer, patterns
from nightshift.core.causes import EndCause
from nightshift.core.errors import PermanentError, TransientError
from nightshift.core.observation import JobState, JobView
from nightshift.core.run import Awaiting, RunState
from nightshift.steps.publish import publish
from nightshift.steps.transitions import admit, provision, submit
from tests.api.support import ME, OTHER, Http
from tests.steps.world import BUCKET, step

STEERING = {
    "cancel": None,
    "answer": {"go_on": True},
    "retry": None,
    "dashboard": None,
}


def running(http: Http) -> None:
    world = http.world
    assert http.start("maze-1").status == 201
    admit(world.ports, step("admit"))
    world.look(Awaiting.LEASE)
    provision(world.ports, step("provision"))
    world.look(Awaiting.CLUSTER)
    submit(world.ports, step("submit"), BUCKET)
    world.jobs.states["maze-1-a1"] = JobView(JobState.RUNNING)
    assert world.look(Awaiting.ATTEMPT, "token-n") is None
    world.later(1)  # what a person does has a moment of its own in the trail


# whose ---------------------------------------------------------------------------------------------------------------


def test_somebody_elses_run_may_be_looked_at_and_not_steered(http: Http) -> None:
    running(http)
    before = http.world.run()
    for what, body in STEERING.items():
        said = http.post(f"/runs/maze-1/{what}", body, who=OTHER)
        assert (said.status, said.problem) == (403, "not-yours") and ME in said.body["detail"], what
    assert http.world.run() == before and http.dashboards.asked == []
    assert not [e for e in http.get("/runs/maze-1/events").body["events"] if OTHER in e["detail"]]
    for address in ("/runs/maze-1", "/runs/maze-1/events", "/runs/maze-1/artifacts", "/runs"):
        assert http.get(address, who=OTHER).status == 200


def test_an_operator_steers_everybodys_run_and_his_name_is_in_the_trail(http: Http) -> None:
    running(http)
    http.operators("arn:aws:iam::123456789012:user/root, arn:aws:sts::123456789012:assumed-role/Trainer/you@*")
    assert http.post("/runs/maze-1/cancel", who=OTHER).status == 202
    trail = http.get("/runs/maze-1/events?order=newest&limit=1").body["events"]
    assert (trail[0]["what"], trail[0]["detail"]) == ("cancel requested", f"by {OTHER}")
    assert http.get("/runs/maze-1").body["owner"] == ME, "an owner never changes"


def test_a_run_that_came_as_an_event_belongs_to_the_whole_account(http: Http) -> None:
    http.world.ask(owner="schedule nightly")
    assert http.post("/runs/maze-1/cancel", who=OTHER).status == 202


@given(st.text(alphabet="ab:*?/", max_size=12))
def test_a_pattern_never_reaches_over_a_colon_and_an_exact_one_matches_itself(text: str) -> None:
    plain = text.replace("*", "").replace("?", "")
    assert matches(plain, plain)
    assert not matches(plain, f"{plain}:") and not matches("*", f"{plain}:x")
    assert matches("arn:aws:sts::1:*", f"arn:aws:sts::1:{plain.replace(':', '')}")


def test_a_role_is_an_operator_with_every_session_and_another_account_never() -> None:
    operators = patterns(" arn:aws:sts::1:assumed-role/Ops/* , ")
    assert operators == ("arn:aws:sts::1:assumed-role/Ops/*",)
    assert may_steer(ME, "arn:aws:sts::1:assumed-role/Ops/anybody", operators)
    assert not may_steer(ME, "arn:aws:sts::2:assumed-role/Ops/anybody", operators)
    assert not may_steer(ME, "arn:aws:sts::1:assumed-role/Ops2/anybody", operators)
    assert not may_steer(ME, "unknown", ())


# cancel --------------------------------------------------------------------------------------------------------------


def test_a_cancel_at_once_waits_for_no_checkpoint_and_publishes_what_there_is(http: Http) -> None:
    running(http)
    world = http.world
    assert http.post("/runs/maze-1/cancel", {"mode": "now"}).status == 202
    reply = world.look(Awaiting.ATTEMPT, "token-o")
    assert reply is not None and reply.decision == "cancelled"
    assert world.jobs.stopped == ["maze-1-a1"]
    run = world.run()
    assert (run.verdict, run.cause) == (
        RunState.CANCELLED,
        EndCause.CANCELLED,
    ) and "without a checkpoint" in run.sentence
    world.jobs.states["maze-1-a1"] = JobView(JobState.STOPPED)
    publish(world.ports, step("publish"))
    manifest = json.loads(world.s3.get_object(Bucket=BUCKET, Key=RunKeys("maze-1").manifest)["Body"].read())
    assert manifest["state"] == "cancelled"


def test_a_cancel_may_become_one_at_once_and_never_the_other_way(http: Http) -> None:
    running(http)
    world = http.world
    assert http.post("/runs/maze-1/cancel").status == 202
    asked_at = world.run().cancel_requested_at
    world.later(60)
    assert world.look(Awaiting.ATTEMPT, "token-o") is None, "it may save what it has"
    assert http.get("/runs/maze-1").body["cancel_mode"] == "after_checkpoint"
    for body in ({"mode": "now"}, {"mode": "now"}, {"mode": "after_checkpoint"}, None):
        assert http.post("/runs/maze-1/cancel", body).status == 202
    run = world.run()
    assert (run.cancel_now, run.cancel_requested_at) == (True, asked_at)
    lines = [e["what"] for e in http.get("/runs/maze-1/events").body["events"] if e["actor"] == "person"]
    assert lines == ["cancel requested", "cancel at once requested"], "repeats are no news"
    reply = world.look(Awaiting.ATTEMPT, "token-p")
    assert reply is not None and reply.decision == "cancelled"


def test_a_cancel_twice_has_the_same_answer_also_when_the_run_is_over(http: Http) -> None:
    http.start("maze-1")
    first = http.post("/runs/maze-1/cancel")
    assert (first.status, first.body["state"]) == (202, "admitted")
    assert http.post("/runs/maze-1/cancel") == first
    http.over("maze-1", RunState.CANCELLED)
    for body in (None, {"mode": "now"}):
        assert http.post("/runs/maze-1/cancel", body).status == 202, "what was asked for is so"
    http.start("maze-2")
    http.over("maze-2", RunState.SUCCEEDED)
    assert http.post("/runs/maze-2/cancel", {"mode": "now"}).problem == "not-possible"


# dashboards ----------------------------------------------------------------------------------------------------------


def test_an_address_is_in_the_answer_and_nowhere_else(
    http: Http, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    running(http)
    said = http.post("/runs/maze-1/dashboard")
    assert said.status == 200 and said.headers["Cache-Control"] == "no-store"
    assert said.body["url"] == "https://dash.example.org/bearer-auth?token=maze-1-t0ken"
    assert "t0ken" not in caplog.text + "".join(capsys.readouterr())
    assert "t0ken" not in json.dumps(http.world.table.scan()["Items"], default=str)
    newest = http.get("/runs/maze-1/events?order=newest&limit=1").body["events"][0]
    assert (newest["what"], newest["detail"]) == ("dashboard address asked for", f"by {ME}")


def test_an_address_that_cannot_be_had_is_asked_for_in_the_trail_all_the_same(http: Http) -> None:
    running(http)
    for error, status, kind in (
        (TransientError("maze-1", "the Kubernetes API does not answer"), 503, "try-again"),
        (PermanentError("maze-1", "its RayCluster is not there", "Ask later."), 409, "not-possible"),
    ):
        http.dashboards.failing = error
        said = http.post("/runs/maze-1/dashboard")
        assert (said.status, said.problem) == (status, kind)
    asked = [e for e in http.get("/runs/maze-1/events").body["events"] if e["what"] == "dashboard address asked for"]
    assert len(asked) == 2


def test_a_run_without_a_cluster_has_no_dashboard(http: Http) -> None:
    http.start("maze-1")
    assert http.post("/runs/maze-1/dashboard").problem == "not-possible"
    http.over("maze-1")
    assert http.post("/runs/maze-1/dashboard").problem == "not-possible"
    assert http.post("/runs/nobody/dashboard").problem == "no-such-run"
    assert http.dashboards.asked == []

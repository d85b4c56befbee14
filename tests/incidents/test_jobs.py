"""Incidents of jobs: submitted once, looked at without end, stopped before the next one starts."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest

from nightshift.adapters.ray_jobs import RayJobs
from nightshift.contract.layout import RunKeys
from nightshift.core.causes import EndCause
from nightshift.core.errors import TransientError
from nightshift.core.observation import JobState, JobView
from nightshift.core.run import Awaiting, RunState
from nightshift.handlers.settings import ControllerSettings
from nightshift.handlers.wiring import Controller
from nightshift.steps.transitions import admit, provision, submit
from tests.builders import progress
from tests.incidents.endpoint import Endpoint
from tests.incidents.table import comes_out_right, must_not
from tests.steps.test_run import finish_attempt, put_results, recovered
from tests.steps.test_signals import running
from tests.steps.world import BUCKET, World, step

KEYS = RunKeys("maze-1")
SETTINGS = ControllerSettings(
    TABLE_NAME="runs",
    BUCKET_NAME=BUCKET,
    AWS_REGION="us-east-1",
    CONTROLLER_ROLE_ARN="arn:aws:iam::123456789012:role/controller",
    CONTROLLER_SESSION_NAME="nightshift-controller",
    EKS_CLUSTER_NAME="eks",
    HYPERPOD_CLUSTER_NAME="hp",
    NAMESPACE="ns",
    SERVICE_ACCOUNT="sa",
    SHARED_CLAIM_NAME="claim",
)


def decided(world: World, awaiting: Awaiting = Awaiting.ATTEMPT, token: str = "token-2") -> str | None:
    reply = world.look(awaiting, token)
    return None if reply is None else reply.decision


def with_real_jobs(world: World) -> None:
    """From here on the steps reach Ray through the real client; each call makes its own, as each invocation does."""
    world.ports = replace(world.ports, jobs=lambda name: RayJobs(name, "ns"))


def about_to_submit(world: World) -> None:
    world.ask()
    admit(world.ports, step("admit"))
    world.look(Awaiting.LEASE, "lease")
    provision(world.ports, step("provision"))
    world.look(Awaiting.CLUSTER, "cluster")


def recovering(world: World, job: JobView, actors: int | None) -> None:
    """The job has ended in Ray's eyes; the fence is looked at for a moment only."""
    running(world)
    world.later(60)
    world.jobs.states["maze-1-a1"] = job
    world.jobs.actors = actors
    assert decided(world) == "recover"
    world.with_remaining(5)


@comes_out_right(3)
def test_a_job_called_failed_whose_driver_lives_is_stopped_before_the_next_one_starts(world: World) -> None:
    recovering(world, JobView(JobState.FAILED, "GCS is unavailable"), actors=6)
    world.put(KEYS.progress(1), progress(step=26, saved_step=20))
    assert decided(world, Awaiting.FENCE) == "look"
    assert world.jobs.stopped == ["maze-1-a1"], "Ray's word that it is over does not end it"
    world.put(KEYS.progress(1), progress(step=41, saved_step=40))
    world.jobs.actors = 0
    assert decided(world, Awaiting.FENCE) == "ready"
    submit(world.ports, step("submit"), BUCKET)
    assert world.jobs.submits == ["maze-1-a1", "maze-1-a2"]
    assert world.runs.attempts("maze-1")[-1].floor == 40, "what it saved while it was fenced is not lost"


@must_not(3)
def test_a_job_that_still_makes_steps_must_not_be_stopped_while_ray_calls_it_running(world: World) -> None:
    running(world)
    for at in (26, 27, 28):
        world.later(60)
        world.put(KEYS.progress(1), progress(step=at))
        assert decided(world) is None
    assert world.jobs.stopped == [] and world.run().state is RunState.RUNNING


@comes_out_right(4)
def test_a_job_that_a_ready_cluster_does_not_know_was_lost_with_its_head_and_goes_on(
    world: World, endpoint: Endpoint
) -> None:
    running(world)
    with_real_jobs(world)
    world.later(60)
    assert decided(world) == "recover"
    run = world.run()
    assert (run.cause, run.verdict) == (EndCause.HEAD_LOST, None)
    assert decided(world, Awaiting.FENCE) == "ready"
    submit(world.ports, step("submit"), BUCKET)
    assert endpoint.accepted == ["maze-1-a2"]
    assert world.runs.attempts("maze-1")[-1].floor == 20


@must_not(4)
def test_a_job_that_is_unknown_must_not_be_run_again_where_it_had_finished(world: World, endpoint: Endpoint) -> None:
    running(world)
    with_real_jobs(world)
    put_results(world, 1, {0: 28, 400: 62})
    world.later(60)
    assert decided(world) == "succeeded"
    assert endpoint.accepted == []


@comes_out_right(5)
def test_404_again_and_again_ends_in_a_verdict_after_a_bounded_number_of_attempts(
    world: World, endpoint: Endpoint
) -> None:
    about_to_submit(world)
    with_real_jobs(world)
    answers = []
    for look in range(10):
        submit(world.ports, step("submit"), BUCKET)
        endpoint.jobs.clear()
        world.later(60)
        answers.append(decided(world, token=f"token-{look}"))
        if answers[-1] != "recover":
            break
        assert decided(world, Awaiting.FENCE, "fence") == "ready"
    assert answers == ["recover", "recover", "failed"]
    assert (world.run().verdict, world.run().cause) == (RunState.FAILED, EndCause.HEAD_LOST)
    assert "the third time after saved step 0" in world.run().sentence
    assert {a.end_cause for a in world.runs.attempts("maze-1")} == {EndCause.HEAD_LOST}
    assert len(endpoint.accepted) == 3


@must_not(5)
def test_a_404_of_the_endpoint_must_not_be_taken_for_rays_word_on_the_job(world: World, endpoint: Endpoint) -> None:
    running(world)
    with_real_jobs(world)
    endpoint.gone = True
    for look in range(5):
        world.later(60)
        assert decided(world, token=f"token-{look}") is None
    assert world.run().recoveries_without_progress == 0 and len(world.runs.attempts("maze-1")) == 1


@comes_out_right(6)
def test_two_submits_at_once_claim_one_attempt_and_ray_takes_one_job(world: World, endpoint: Endpoint) -> None:
    about_to_submit(world)
    with_real_jobs(world)
    endpoint.before_unknown = threading.Barrier(2)  # both have asked, and know of no job, before either submits
    failures: list[BaseException] = []
    both = [threading.Thread(target=noted(lambda: submit(world.ports, step("submit"), BUCKET), failures))]
    both[0].start()
    assert endpoint.asked.wait(10)
    both.append(threading.Thread(target=noted(lambda: submit(world.ports, step("submit"), BUCKET), failures)))
    both[1].start()
    for one in both:
        one.join(20)
    assert failures == []
    assert (endpoint.accepted, endpoint.refused) == (["maze-1-a1"], ["maze-1-a1"])
    assert [a.n for a in world.runs.attempts("maze-1")] == [1]
    assert world.run().state is RunState.RUNNING


def noted(call: Callable[[], object], failures: list[BaseException]) -> Callable[[], None]:
    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - the test's own thread asserts on it
            failures.append(error)

    return run


@must_not(6)
def test_one_submit_an_attempt_must_not_keep_the_next_attempt_from_being_submitted(
    world: World, endpoint: Endpoint
) -> None:
    about_to_submit(world)
    with_real_jobs(world)
    submit(world.ports, step("submit"), BUCKET)
    endpoint.jobs["maze-1-a1"] = "FAILED"
    world.later(60)
    assert decided(world) == "recover"
    assert decided(world, Awaiting.FENCE) == "ready"
    submit(world.ports, step("submit"), BUCKET)
    assert endpoint.accepted == ["maze-1-a1", "maze-1-a2"]


@comes_out_right(7)
def test_a_submit_whose_reply_was_lost_adopts_the_job_when_it_is_repeated(world: World, endpoint: Endpoint) -> None:
    about_to_submit(world)
    with_real_jobs(world)
    endpoint.loses_replies = True
    with pytest.raises(TransientError, match="maze-1-a1 could not be submitted"):
        submit(world.ports, step("submit"), BUCKET)
    endpoint.loses_replies = False
    submit(world.ports, step("submit"), BUCKET)
    assert (endpoint.accepted, endpoint.refused) == (["maze-1-a1"], [])
    assert len(world.runs.attempts("maze-1")) == 1 and world.run().state is RunState.RUNNING


@must_not(7)
def test_a_job_of_another_run_or_attempt_must_not_be_adopted(world: World, endpoint: Endpoint) -> None:
    endpoint.jobs |= {"maze-1-a10": "RUNNING", "maze-10-a1": "RUNNING"}
    about_to_submit(world)
    with_real_jobs(world)
    submit(world.ports, step("submit"), BUCKET)
    assert endpoint.accepted == ["maze-1-a1"]


@comes_out_right(8)
def test_a_job_that_is_pending_for_20_minutes_ends_by_the_runs_own_start_deadline(world: World) -> None:
    world.ask(budgets={"start_minutes": 15})
    admit(world.ports, step("admit"))
    world.look(Awaiting.LEASE, "lease")
    provision(world.ports, step("provision"))
    world.look(Awaiting.CLUSTER, "cluster")
    submit(world.ports, step("submit"), BUCKET)
    world.later(14 * 60)
    assert decided(world) is None
    world.later(6 * 60)
    assert decided(world, token="token-3") == "recover"
    assert world.run().cause is EndCause.START_DEADLINE


@must_not(8)
def test_a_job_must_not_be_given_up_before_its_deadline_nor_by_it_once_it_was_heard(world: World) -> None:
    about_to_submit(world)
    submit(world.ports, step("submit"), BUCKET)
    world.later(20 * 60)
    assert decided(world) is None, "the default is an hour, whatever Ray's own is"
    world.put(KEYS.progress(1), progress(step=0, saved_step=0))
    assert decided(world, token="token-3") is None
    world.jobs.states["maze-1-a1"] = JobView(JobState.RUNNING)
    world.later(2 * 60 * 60)
    world.put(KEYS.progress(1), progress(step=9, saved_step=0, at=world.now()))
    assert decided(world, token="token-4") is None


@comes_out_right(20)
def test_a_look_in_a_warm_process_mints_its_own_token_and_renews_a_cookie_that_was_refused(
    aws: boto3.Session, endpoint: Endpoint
) -> None:
    first, second = Controller(SETTINGS), Controller(SETTINGS)
    assert first._token != second._token
    assert age_of(second._token) < timedelta(minutes=1)

    endpoint.jobs["maze-1-a1"] = "RUNNING"
    jobs = RayJobs("maze-1", "ns")
    assert jobs.view("maze-1-a1").state is JobState.RUNNING
    endpoint.cookies.clear()  # they are too old now
    assert jobs.view("maze-1-a1").state is JobState.RUNNING
    assert endpoint.connections == 2


def age_of(token: str) -> timedelta:
    raw = token.removeprefix("k8s-aws-v1.")
    url = base64.urlsafe_b64decode(raw + "=" * (-len(raw) % 4)).decode()
    signed = parse_qs(urlsplit(url).query)["X-Amz-Date"][0]
    return datetime.now(UTC) - datetime.strptime(signed, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)


@must_not(20)
def test_a_refusal_must_not_be_retried_for_ever_nor_be_evidence_nor_a_token_be_minted_for_each_call(
    aws: boto3.Session, endpoint: Endpoint, world: World
) -> None:
    controller = Controller(SETTINGS)
    assert controller._token is controller._token

    endpoint.jobs["maze-1-a1"] = "RUNNING"
    jobs = RayJobs("maze-1", "ns")
    jobs.view("maze-1-a1")
    assert [jobs.view("maze-1-a1").state for _ in range(3)] == [JobState.RUNNING] * 3
    assert endpoint.connections == 1
    endpoint.refuses_cookies = True
    assert jobs.view("maze-1-a1").state is JobState.UNREACHABLE
    assert endpoint.connections == 2

    running(world)
    with_real_jobs(world)
    world.later(60)
    assert decided(world) is None
    assert world.run().state is RunState.RUNNING


@comes_out_right(22)
def test_the_next_job_is_submitted_only_when_what_the_stopped_one_held_is_free(world: World) -> None:
    recovering(world, JobView(JobState.STOPPED), actors=6)
    for held in (6, 2, None):
        world.jobs.actors = held
        assert decided(world, Awaiting.FENCE) == "look"
        assert world.jobs.submits == ["maze-1-a1"]
    world.jobs.actors = 0
    assert decided(world, Awaiting.FENCE) == "ready"
    submit(world.ports, step("submit"), BUCKET)
    assert world.jobs.submits == ["maze-1-a1", "maze-1-a2"]


@must_not(22)
def test_a_fence_must_not_wait_where_nothing_is_held_nor_hold_back_a_job_that_has_finished(world: World) -> None:
    recovering(world, JobView(JobState.STOPPED), actors=0)
    slept = world.slept
    assert decided(world, Awaiting.FENCE) == "ready"
    assert world.slept == slept


@must_not(22)
def test_actors_that_linger_must_not_hide_the_success_of_a_finished_attempt(world: World) -> None:
    recovered(world)
    finish_attempt(world)
    world.jobs.actors = 6
    assert decided(world, token="token-6") == "succeeded"

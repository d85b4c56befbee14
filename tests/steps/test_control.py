"""A person ends a run, or answers its question: each of the four waits hears of it within one gap."""

from __future__ import annotations

import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from nightshift.adapters.downloads import S3Downloads
from nightshift.contract.control import Control, ControlCommand
from nightshift.contract.layout import RunKeys
from nightshift.core.causes import EndCause
from nightshift.core.decisions.cancelled import CANCEL_GRACE
from nightshift.core.observation import ClusterView, JobState, JobView
from nightshift.core.run import Awaiting, Question, RunState, SignalKind
from nightshift.handlers import api
from nightshift.handlers.wiring import ApiPorts
from nightshift.steps.control import NoSuchRun, NotPossible, answer, cancel
from nightshift.steps.ending import finish_for, teardown
from nightshift.steps.look import MIN_GAP
from nightshift.steps.publish import publish
from nightshift.steps.transitions import admit, provision, submit
from tests.builders import outcome
from tests.steps.test_run import lose_a_node
from tests.steps.test_signals import running
from tests.steps.world import BUCKET, World, step

NAPPING = {
    Awaiting.LEASE: "cancelled while queued",
    Awaiting.CLUSTER: "cancelled while waiting for its cluster",
    Awaiting.FENCE: "cancelled while recovering",
    Awaiting.ATTEMPT: "stopped on request",
}


def napping(world: World, awaiting: Awaiting) -> None:
    """The run's look at ``awaiting`` has registered token-n and naps."""
    if awaiting is Awaiting.LEASE:
        world.ask(run_id="maze-0")
        admit(world.ports, step("admit", run_id="maze-0"))
        world.look(Awaiting.LEASE, "lease", run_id="maze-0")
        world.ask()
        admit(world.ports, step("admit"))
    elif awaiting is Awaiting.CLUSTER:
        world.ask()
        admit(world.ports, step("admit"))
        world.look(Awaiting.LEASE)
        provision(world.ports, step("provision"))
        world.clusters.current = ClusterView(exists=True)
    else:
        running(world)
        if awaiting is Awaiting.FENCE:
            lose_a_node(world)
            world.look(Awaiting.ATTEMPT, "token-1")
            ask_about(world, EndCause.STORAGE_FULL)  # the fence is ready, and held back until somebody answers
    if awaiting is Awaiting.CLUSTER:
        world.later(181)  # no longer watched closely
    assert world.look(awaiting, "token-n") is None
    world.executions.answered.clear()
    world.slept = 0.0


@pytest.mark.parametrize("awaiting", Awaiting)
def test_a_cancel_wakes_every_wait_within_one_gap_and_the_next_look_ends_it(world: World, awaiting: Awaiting) -> None:
    napping(world, awaiting)
    asked_at = world.now()
    cancel(world.ports, "maze-1", "team")
    assert [token for token, _ in world.executions.answered] == ["token-n"]
    assert world.now() - asked_at <= timedelta(seconds=MIN_GAP)
    if awaiting is Awaiting.ATTEMPT:
        assert world.look(awaiting, "token-o") is None
        control = Control.from_json(world.s3.get_object(Bucket=BUCKET, Key=RunKeys("maze-1").control)["Body"].read())
        assert control.command is ControlCommand.STOP_AFTER_CHECKPOINT
        assert world.jobs.stopped == [], "it may save what it has"
        world.put(RunKeys("maze-1").outcome(1), outcome_stopped())
        world.jobs.states["maze-1-a1"] = JobView(JobState.SUCCEEDED)
    reply = world.look(awaiting, "token-p")
    assert reply is not None and reply.decision == "cancelled"
    run = world.run()
    assert (run.state, run.verdict, run.cause) == (RunState.PUBLISHING, RunState.CANCELLED, EndCause.CANCELLED)
    assert NAPPING[awaiting] in run.sentence


def outcome_stopped() -> Any:
    from nightshift.contract.job import OutcomeCause

    return outcome(OutcomeCause.STOPPED_ON_REQUEST, step=30, saved_step=30)


def test_a_queued_run_leaves_the_queue_with_the_look_that_hears_of_it(world: World) -> None:
    napping(world, Awaiting.LEASE)
    assert world.runs.next_in_line("default") == "maze-1"
    cancel(world.ports, "maze-1", "team")
    world.look(Awaiting.LEASE, "token-p")
    assert world.runs.next_in_line("default") is None
    assert world.runs.lease_holder("default") == "maze-0"


def test_a_job_that_does_not_stop_within_its_grace_is_stopped_and_torn_down(world: World) -> None:
    napping(world, Awaiting.ATTEMPT)
    cancel(world.ports, "maze-1", "team")
    world.later(CANCEL_GRACE.total_seconds() - 2)
    assert world.look(Awaiting.ATTEMPT, "token-o") is None
    assert world.jobs.stopped == []
    world.later(2)
    reply = world.look(Awaiting.ATTEMPT, "token-p")
    assert reply is not None and reply.decision == "cancelled"
    assert world.jobs.stopped == ["maze-1-a1"]
    publish(world.ports, step("publish"))
    teardown(world.ports, step("teardown"))
    assert world.clusters.deleted == ["maze-1"]
    assert world.run().verdict is RunState.CANCELLED


def test_a_cancelled_job_behind_a_silent_endpoint_is_not_waited_for_any_longer(world: World) -> None:
    napping(world, Awaiting.ATTEMPT)
    cancel(world.ports, "maze-1", "team")
    world.jobs.states["maze-1-a1"] = JobView(JobState.UNREACHABLE, "no answer")
    world.later(CANCEL_GRACE.total_seconds())
    reply = world.look(Awaiting.ATTEMPT, "token-p")
    assert reply is not None and reply.decision == "cancelled"
    assert world.jobs.stopped == [], "who does not answer cannot be asked"


def test_a_second_cancel_changes_nothing_but_wakes_the_run_again(world: World) -> None:
    napping(world, Awaiting.ATTEMPT)
    cancel(world.ports, "maze-1", "team")
    first = world.run()
    world.later(60)
    world.look(Awaiting.ATTEMPT, "token-o")
    world.executions.answered.clear()
    cancel(world.ports, "maze-1", "somebody else")
    assert world.run().cancel_requested_at == first.cancel_requested_at
    assert [token for token, _ in world.executions.answered] == ["token-o"]
    lines = [a for a in world.runs.audit_trail("maze-1", 100) if a.what == "cancel requested"]
    assert [(a.actor, a.detail) for a in lines] == [("person", "by team")]


def test_a_cancel_during_a_look_is_found_by_that_look(world: World) -> None:
    napping(world, Awaiting.ATTEMPT)
    view = world.jobs.view

    def overtaken(submission_id: str) -> JobView:
        if not world.run().cancel_requested:
            cancel(world.ports, "maze-1", "team")
        return view(submission_id)

    world.jobs.view = overtaken  # type: ignore[method-assign]
    reply = world.look(Awaiting.ATTEMPT, "token-o")
    assert reply is not None and reply.decision == "look"


def test_what_is_over_or_being_ended_cannot_be_cancelled(world: World) -> None:
    running(world)
    world.runs.update(world.run(), verdict=RunState.SUCCEEDED, state=RunState.PUBLISHING)
    with pytest.raises(NotPossible, match="being ended as succeeded"):
        cancel(world.ports, "maze-1", "team")
    finish_for(world.ports, "maze-1", 1, "ABORTED", "stopped")
    with pytest.raises(NotPossible, match="failed"):
        cancel(world.ports, "maze-1", "team")
    with pytest.raises(NoSuchRun):
        cancel(world.ports, "nobody", "team")
    assert not world.run().cancel_requested


def test_a_cancel_survives_a_succession_between_reading_and_writing(world: World) -> None:
    running(world)
    get = world.runs.get

    def slow(run_id: str) -> Any:
        world.runs.get = get  # type: ignore[method-assign]
        found = get(run_id)
        assert found is not None
        world.runs.succeed(found)
        return found

    world.runs.get = slow  # type: ignore[method-assign]
    cancel(world.ports, "maze-1", "team")
    run = world.run()
    assert (run.k, run.cancel_requested) == (2, True)


def ask_about(world: World, cause: EndCause) -> None:
    now = world.now()
    question = Question(cause=cause, text="What now?", asked_at=now, until=now + timedelta(hours=12))
    world.runs.update(world.run(), question=question)


def asked(world: World) -> None:
    """The run waits for nodes that do not come, and has asked about it."""
    napping(world, Awaiting.CLUSTER)
    ask_about(world, EndCause.CAPACITY_MISSING)


def test_going_on_clears_the_question_wakes_the_run_and_counts_its_wait_anew(world: World) -> None:
    asked(world)
    world.later(3_600)
    answer(world.ports, "maze-1", True, "team")
    run = world.run()
    assert run.question is None and run.waiting_since == world.now()
    assert [token for token, _ in world.executions.answered] == ["token-n"]
    assert world.runs.signals_since("maze-1", 0)[-1].kind is SignalKind.ANSWER
    assert world.runs.audit_trail("maze-1", 100)[-1].detail == "by team"
    with pytest.raises(NotPossible, match="no open question"):
        answer(world.ports, "maze-1", True, "team")


def test_giving_up_ends_the_run_for_the_questions_cause_with_the_name_of_who_said_so(world: World) -> None:
    asked(world)
    for _ in range(2):  # a repeat is harmless
        answer(world.ports, "maze-1", False, "team")
    with pytest.raises(NotPossible, match="gave it up"):
        answer(world.ports, "maze-1", True, "somebody else")
    reply = world.look(Awaiting.CLUSTER, "token-o")
    assert reply is not None and reply.decision == "failed"
    run = world.run()
    assert run.cause is EndCause.CAPACITY_MISSING and "team answered: give up" in run.sentence


def called(world: World, monkeypatch: pytest.MonkeyPatch, path: str, body: Any = None) -> tuple[int, Any]:
    """The API function's answer to a signed POST."""
    for name, value in {
        "TABLE_NAME": "runs", "BUCKET_NAME": BUCKET, "AWS_REGION": "us-east-1", "TRAINING_RUN_ARN": "arn:x",
        "HYPERPOD_CLUSTER_NAME": "hp", "NAMESPACE": "ns", "POWERTOOLS_TRACE_DISABLED": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    wired = ApiPorts(world.ports, world.runs, S3Downloads(world.s3, BUCKET), world.runs)
    monkeypatch.setattr(api, "api_ports", lambda *_: wired)
    event = {
        "version": "2.0",
        "rawPath": path,
        "requestContext": {
            "http": {"method": "POST", "path": path},
            "stage": "$default",
            "authorizer": {"iam": {"userArn": "arn:aws:iam::1:user/me"}},
        },
        "headers": {},
        "body": None if body is None else json.dumps(body),
    }
    context = SimpleNamespace(
        function_name="api", memory_limit_in_mb=1, invoked_function_arn="arn:f", aws_request_id="1",
        get_remaining_time_in_millis=lambda: 20_000,
    )  # fmt: skip
    result = api.handler(event, context)
    return result["statusCode"], json.loads(result["body"])


def test_the_api_records_who_cancelled_and_says_what_is_wrong(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(world)
    assert called(world, monkeypatch, "/runs/nobody/cancel")[0] == 404
    assert called(world, monkeypatch, "/runs/maze-1/answer", {"go_on": "perhaps"})[0] == 400
    assert called(world, monkeypatch, "/runs/maze-1/answer", {"go_on": True})[0] == 202
    status, problem = called(world, monkeypatch, "/runs/maze-1/answer", {"go_on": True})
    assert status == 409 and "no open question" in problem["detail"]
    assert called(world, monkeypatch, "/runs/maze-1/cancel")[0] == 202
    assert world.run().cancel_requested
    assert world.runs.audit_trail("maze-1", 100)[-1].detail == "by arn:aws:iam::1:user/me"
    world.runs.finish(world.run(), RunState.CANCELLED)
    assert called(world, monkeypatch, "/runs/maze-1/cancel")[0] == 202, "what was asked for is so"
    assert called(world, monkeypatch, "/runs/maze-1/answer", {"go_on": False})[0] == 409


def test_a_smaller_attempt_is_told_so_on_its_command_line_and_only_that_one(world: World) -> None:
    running(world)
    world.runs.update(world.run(), smaller=True)
    lose_a_node(world)
    world.look(Awaiting.ATTEMPT, "token-2")
    world.look(Awaiting.FENCE, "token-3")
    provision(world.ports, step("provision"))
    world.look(Awaiting.CLUSTER, "token-4")
    commands: list[str] = []
    real = world.jobs.submit

    def noted(run_id: str, submission_id: str, entrypoint: str, metadata: dict[str, str]) -> None:
        commands.append(entrypoint)
        real(run_id, submission_id, entrypoint, metadata)

    world.jobs.submit = noted  # type: ignore[method-assign]
    submit(world.ports, step("submit"), BUCKET)
    assert commands[0].endswith(" --smaller")
    assert [a.smaller for a in world.runs.attempts("maze-1")] == [False, True]

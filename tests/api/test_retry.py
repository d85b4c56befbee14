"""A run that is over goes on: once, under its next k, from what it had verified, within raised limits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from nightshift.contract.control import Control, ControlCommand
from nightshift.contract.events import Stage
from nightshift.contract.job import OutcomeCause
from nightshift.contract.layout import RunKeys
from nightshift.contract.spec import spec_digest
from nightshift.core.budgets import held_for
from nightshift.core.causes import EndCause
from nightshift.core.reconcile import ExecutionState, ExecutionStatus, Repair
from nightshift.core.run import Awaiting, Run, RunState
from nightshift.steps.ending import emit_final, finish_for
from nightshift.steps.reconcile import reconcile
from nightshift.steps.transitions import admit, preflight, provision, submit
from tests.api.support import ME, Http
from tests.builders import attempt, outcome
from tests.steps.world import BUCKET, World, step

NEW_IMAGE = f"registry/skyrl@sha256:{'1' * 64}"
HOUR = timedelta(hours=1)


def trained(http: Http, state: RunState = RunState.FAILED, **changes: Any) -> Run:
    """A run that held its pool for an hour, verified step 40 in its first attempt, and is over; everybody was told."""
    world = http.world
    assert http.start("maze-1", **changes).status == 201
    admit(world.ports, step("admit"))
    assert world.runs.take_lease(world.run(), world.now())
    world.runs.claim_attempt(world.run(), attempt(1, started_at=world.now()))
    world.later(HOUR.total_seconds())
    ended = {"started_at": world.now() - HOUR, "ended_at": world.now(), "end_cause": EndCause.CODE_ERROR}
    world.runs.save_attempt(world.run(), attempt(1, last_saved_step=40, **ended))
    world.runs.update(
        world.run(), state=RunState.TEARDOWN, verdict=state, cause=EndCause.CODE_ERROR, step=47, verified_step=40,
        blamed=("i-w1", "i-w1"), excluded=("i-w1",), recoveries_without_progress=3, published=True, shift_seq=1,
    )  # fmt: skip
    http.over("maze-1", state)
    emit_final(world.ports, world.run())
    return world.run()


def going_on(world: World, k: int = 2) -> None:
    """Up to the next attempt's job."""
    assert admit(world.ports, step("admit", k=k)).decision == "queued"
    assert world.look(Awaiting.LEASE, "t-lease", k=k) is not None
    preflight(world.ports, step("preflight", k=k))
    provision(world.ports, step("provision", k=k))
    assert world.look(Awaiting.CLUSTER, "t-cluster", k=k) is not None
    submit(world.ports, step("submit", k=k), BUCKET)


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.CANCELLED])
def test_a_retry_starts_the_next_execution_and_an_attempt_that_begins_at_the_floor(http: Http, state: RunState) -> None:
    before, world = trained(http, state), http.world
    world.later(3_600)
    said = http.post("/runs/maze-1/retry")
    assert (said.status, said.body["state"]) == (202, "admitted")
    run = world.run()
    assert (run.k, run.state, run.owner, run.attempt) == (2, RunState.ADMITTED, ME, 1)
    assert world.executions.started[-1] == ("maze-1-r2", {"version": 1, "run_id": "maze-1", "k": 2})
    assert (run.verified_step, run.step, run.recovery_floor, run.recoveries_without_progress) == (40, 40, 40, 0)
    assert (run.verdict, run.cause, run.ended_at, run.published, run.excluded) == (None, None, None, False, ())
    assert run.shift_seq == run.history_base == before.shift_seq
    going_on(world)
    attempts = world.runs.attempts("maze-1")
    assert [(a.n, a.floor) for a in attempts] == [(1, 0), (2, 40)]
    assert world.jobs.submits == ["maze-1-a2"]
    shown = http.get("/runs/maze-1").body
    assert (shown["retries"], shown["state"], shown["ended_at"]) == (1, "running", None)
    assert [e["what"] for e in http.get("/runs/maze-1/events").body["events"]].count("retried") == 1


def test_what_was_spent_stays_spent_and_the_time_between_is_not(http: Http) -> None:
    before = trained(http)
    http.world.later(100 * 3_600)
    assert http.post("/runs/maze-1/retry").status == 202
    run, now = http.world.run(), http.world.now()
    assert held_for(before, now) == held_for(run, now) == HOUR
    going_on(http.world)
    http.world.later(1_800)
    assert HOUR * 1.5 <= held_for(http.world.run(), http.world.now()) < HOUR * 1.6


def test_limits_may_be_raised_and_the_image_changed_for_every_later_step_and_for_the_job(http: Http) -> None:
    trained(http)
    body = {"budgets": {"wall_hours": 500, "max_rollback_steps": 60}, "image": NEW_IMAGE}
    assert http.post("/runs/maze-1/retry", body).status == 202
    going_on(http.world)
    spec, run = http.world.ports.artifacts.spec("maze-1"), http.world.run()
    assert (spec.budgets.wall_hours, spec.max_rollback_steps, spec.image) == (500, 60, NEW_IMAGE)
    assert run.image == NEW_IMAGE and http.get("/runs/maze-1").body["image"] == NEW_IMAGE
    assert run.spec_sha256 != spec_digest(spec), "what was asked for stays what was asked for"
    assert http.start("maze-1").status == 200, "the same request is still the same run"
    detail = next(e for e in http.get("/runs/maze-1/events").body["events"] if e["what"] == "retried")["detail"]
    assert ME in detail and "wall_hours 500" in detail and NEW_IMAGE in detail


def test_a_second_retry_keeps_what_the_first_one_raised_also_if_that_never_began(http: Http) -> None:
    trained(http)
    assert http.post("/runs/maze-1/retry", {"budgets": {"wall_hours": 500}}).status == 202
    http.over("maze-1")  # its execution died before its first step
    said = http.post("/runs/maze-1/retry", {"budgets": {"wall_hours": 400}})
    assert (said.status, said.problem) == (422, "invalid-retry")
    assert http.post("/runs/maze-1/retry", {"budgets": {"gpu_hours": 6_000}}).status == 202
    going_on(http.world, k=3)
    budgets = http.world.ports.artifacts.spec("maze-1").budgets
    assert (budgets.wall_hours, budgets.gpu_hours) == (500, 6_000)


LOWERED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"wall_hours": 1}, "budgets.wall_hours"),
    ({"max_recoveries_without_progress": 2}, "budgets.max_recoveries_without_progress"),
    ({"max_rollback_steps": 19}, "budgets.max_rollback_steps"),
    ({"dollars": 100}, "budgets.dollars"),
)


def test_a_limit_that_would_be_lowered_is_named_and_nothing_is_changed(http: Http) -> None:
    before = trained(http)
    for budgets, field in LOWERED:
        said = http.post("/runs/maze-1/retry", {"budgets": budgets})
        assert (said.status, said.problem) == (422, "invalid-retry")
        assert [e["field"] for e in said.body["errors"]] == [field]
        assert http.world.run() == before


def test_a_budget_that_is_spent_must_be_raised(http: Http) -> None:
    trained(http, budgets={"gpu_hours": 5})  # the attempt's hour on six GPUs is more
    said = http.post("/runs/maze-1/retry")
    assert said.status == 422 and [e["field"] for e in said.body["errors"]] == ["budgets.gpu_hours"]
    assert http.post("/runs/maze-1/retry", {"budgets": {"gpu_hours": 10}}).status == 202


def test_what_is_not_over_or_has_succeeded_is_not_retried(http: Http) -> None:
    assert http.post("/runs/maze-1/retry").problem == "no-such-run"
    http.start("maze-1")
    admit(http.world.ports, step("admit"))
    for state in (RunState.QUEUED, RunState.RUNNING, RunState.TEARDOWN):
        http.world.runs.update(http.world.run(), state=state)
        said = http.post("/runs/maze-1/retry")
        assert (said.status, said.problem) == (409, "not-possible") and str(state) in said.body["detail"]
    http.over("maze-1", RunState.SUCCEEDED)
    assert http.post("/runs/maze-1/retry").status == 409
    assert http.world.run().k == 1


def test_two_retries_at_once_are_one(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(http)
    store, real = http.world.runs, http.world.runs.reopen

    def overtaken(run: Run, **changes: Any) -> Any:
        monkeypatch.setattr(store, "reopen", real)
        assert http.post("/runs/maze-1/retry", {"budgets": {"wall_hours": 500}}).status == 202
        return real(run, **changes)

    monkeypatch.setattr(store, "reopen", overtaken)
    said = http.post("/runs/maze-1/retry", {"budgets": {"wall_hours": 900}})
    assert (said.status, said.problem) == (409, "not-possible")
    run = http.world.run()
    assert (run.k, run.reopenings, run.retry and run.retry.budgets.wall_hours) == (2, 1, 500)


def test_a_retry_that_dies_before_it_starts_the_execution_is_carried_on_by_the_reconciler(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(http)
    world = http.world
    world.executions.ended["maze-1-r1"] = ExecutionStatus(ExecutionState.SUCCEEDED, world.now(), "", world.now())

    def dies(*_: Any) -> None:
        raise KeyError("died")

    with monkeypatch.context() as patch:
        patch.setattr(world.executions, "start", dies)
        assert http.post("/runs/maze-1/retry").status == 500
    world.later(120)
    world.with_remaining(240)
    done = reconcile(world.ports)
    assert [f.repair for f in done.repairs] == [Repair.START_EXECUTION]
    assert world.executions.started[-1][0] == "maze-1-r2"


def retried(http: Http) -> list[str]:
    return [e["detail"] for e in http.get("/runs/maze-1/events").body["events"] if e["what"] == "retried"]


def test_the_trail_says_who_asked_also_where_no_execution_starts_and_asking_again_starts_it(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(http)
    wish = {"budgets": {"wall_hours": 500}}

    def refused(*_: Any) -> None:
        raise ClientError({"Error": {"Code": "ThrottlingException"}}, "StartExecution")

    with monkeypatch.context() as patch:
        patch.setattr(http.world.executions, "start", refused)
        assert http.post("/runs/maze-1/retry", wish).status >= 500
    assert len(retried(http)) == 1 and ME in retried(http)[0]
    http.world.later(5)
    said = http.post("/runs/maze-1/retry", wish)
    assert (said.status, said.body["state"]) == (202, "admitted")
    assert http.world.executions.started[-1][0] == "maze-1-r2" and len(retried(http)) == 1


def test_a_repeat_leaves_the_line_that_the_first_could_not_write(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(http)
    http.post("/runs/maze-1/retry")
    http.over("maze-1")
    emit_final(http.world.ports, http.world.run())
    http.world.later(60)

    def refused(*_: Any) -> None:
        raise ClientError({"Error": {"Code": "ThrottlingException"}}, "PutItem")

    with monkeypatch.context() as patch:
        patch.setattr(http.world.runs, "audit", refused)
        assert http.post("/runs/maze-1/retry").status >= 500
    assert http.world.executions.started[-1][0] == "maze-1-r2", "what has no line in the trail is not started"
    assert http.post("/runs/maze-1/retry").status == 202
    assert http.world.executions.started[-1][0] == "maze-1-r3" and len(retried(http)) == 2


def test_the_same_wish_again_is_the_same_retry_while_the_run_goes_on_and_another_is_refused(http: Http) -> None:
    trained(http)
    wish = {"budgets": {"wall_hours": 500}}
    assert http.post("/runs/maze-1/retry", wish).status == 202
    going_on(http.world)
    before, started = http.world.run(), list(http.world.executions.started)
    again = http.post("/runs/maze-1/retry", wish)
    assert (again.status, again.body["state"]) == (202, "running")
    assert http.post("/runs/maze-1/retry", {"budgets": {"wall_hours": 501}}).problem == "not-possible"
    assert (http.world.run(), http.world.executions.started) == (before, started) and len(retried(http)) == 1
    http.over("maze-1", RunState.SUCCEEDED)
    assert http.post("/runs/maze-1/retry", wish).status == 409


def test_no_retry_while_the_last_message_is_not_sent(http: Http) -> None:
    trained(http)
    http.post("/runs/maze-1/retry")
    http.world.runs.finish(http.world.run(), RunState.FAILED, ended_at=http.world.now())
    said = http.post("/runs/maze-1/retry")
    assert said.status == 409 and "last message" in said.body["detail"]
    emit_final(http.world.ports, http.world.run())
    assert http.post("/runs/maze-1/retry").status == 202
    finals = [e.key for e in http.world.stages.events if e.stage is Stage.FAILED]
    assert finals == ["final", "final-again1"], "each end is a message of its own"


def test_what_comes_late_of_the_execution_before_writes_nothing(http: Http) -> None:
    trained(http)
    http.post("/runs/maze-1/retry")
    before = http.world.run()
    assert not finish_for(http.world.ports, "maze-1", 1, "FAILED", "late")
    assert http.world.clusters.deleted == []
    assert http.world.look(Awaiting.ATTEMPT, "t-old", k=1) is not None
    assert http.world.run() == before


def test_a_stop_that_the_old_attempt_never_carried_out_is_not_carried_out_by_the_next(http: Http) -> None:
    trained(http, RunState.CANCELLED)
    world = http.world
    stop = Control(run_id="maze-1", seq=1, command=ControlCommand.STOP_AFTER_CHECKPOINT, reason="r", at=world.now())
    world.ports.artifacts.control(stop)
    item = {"pk": "RUN#maze-1", "sk": "RUN"}
    world.table.update_item(
        Key=item,
        UpdateExpression="SET control_seq = :one, control_command = :stop",
        ExpressionAttributeValues={":one": 1, ":stop": "stop_after_checkpoint"},
    )
    http.post("/runs/maze-1/retry")
    going_on(world)
    body = world.s3.get_object(Bucket=BUCKET, Key=RunKeys("maze-1").control)["Body"].read()
    control = Control.from_json(body)
    assert (control.seq, control.command) == (2, ControlCommand.CHECKPOINT_NOW)
    assert world.run().control_seq == 2


def test_a_retried_run_stands_behind_those_that_wait_already(http: Http) -> None:
    trained(http)
    http.start("maze-2")
    admit(http.world.ports, step("admit", run_id="maze-2"))
    http.world.later(60)
    http.post("/runs/maze-1/retry")
    admit(http.world.ports, step("admit", k=2))
    assert [p["run_id"] for p in http.get("/pools/default").body["waiting"]] == ["maze-2", "maze-1"]
    assert [r["run_id"] for r in http.get("/runs").body["runs"]] == ["maze-2", "maze-1"]


def test_a_retried_run_that_ends_again_counts_the_fault_of_before(http: Http) -> None:
    """The same end at the same saved step is a repeat, whatever was between: a retry that changes nothing costs one attempt."""
    trained(http)
    http.post("/runs/maze-1/retry")
    going_on(http.world)
    report = outcome(OutcomeCause.CODE_ERROR, attempt=2, step=45, saved_step=40, resumed_step=40)
    http.world.put(RunKeys("maze-1").outcome(2), report)
    reply = http.world.look(Awaiting.ATTEMPT, "t-1", k=2)
    assert reply is not None and reply.decision == "failed"
    assert "second time" in http.world.run().sentence

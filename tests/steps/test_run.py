"""A run through its steps, with the real table and bucket: through a node's death, and what repeats and crashes may not do."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import timedelta

import pytest

from nightshift.contract.evals import EvalSet
from nightshift.contract.events import Stage
from nightshift.contract.job import FileDigest, OutcomeCause
from nightshift.contract.layout import RunKeys
from nightshift.contract.publication import Manifest
from nightshift.core.causes import EndCause
from nightshift.core.errors import PublicationError, StaleExecution, TransientError
from nightshift.core.observation import JobState, JobView
from nightshift.core.run import Awaiting, RunState
from nightshift.steps.ending import abandon, finish_for, notify, release, teardown
from nightshift.steps.publish import publish, verify
from nightshift.steps.requests import Fault
from nightshift.steps.signals import receive
from nightshift.steps.transitions import admit, preflight, provision, submit
from tests.builders import cluster, export, outcome, progress, summary
from tests.steps.test_signals import health, running
from tests.steps.world import BUCKET, World, step

KEYS = RunKeys("maze-1")
REPLACED = cluster("i-head", "i-w1", "i-w2", "i-new")


def put_results(world: World, attempt: int, steps: dict[int, int]) -> None:
    """Evals (step -> solved) and exports as the job uploads them; adapter files hold small real bytes."""
    for at, solved in steps.items():
        rows = f"rows of step {at}".encode()
        world.s3.put_object(Bucket=BUCKET, Key=KEYS.eval_rows(attempt, at, EvalSet.FIXED), Body=rows)
        told = summary(at, solved, attempt).model_copy(update={"rows_sha256": hashlib.sha256(rows).hexdigest()})
        world.put(KEYS.eval_summary(attempt, at, EvalSet.FIXED), told)
        if at == 0:
            continue
        files = {}
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            body = f"{name} of step {at}".encode()
            world.s3.put_object(Bucket=BUCKET, Key=f"{KEYS.export(attempt, at)}{name}", Body=body)
            files[name] = FileDigest(sha256=hashlib.sha256(body).hexdigest(), size=len(body))
        world.put(KEYS.export_record(attempt, at), export(at, attempt, files=files))


def lose_a_node(world: World) -> None:
    world.later(5)
    world.clusters.current = REPLACED
    world.jobs.states["maze-1-a1"] = JobView(JobState.FAILED, "ActorDiedError")
    receive(world.ports, health("i-w3"))


def finish_attempt(world: World, attempt: int = 2) -> None:
    world.jobs.states[f"maze-1-a{attempt}"] = JobView(JobState.SUCCEEDED)
    put_results(world, attempt, {40: 50, 400: 62})
    world.put(KEYS.outcome(attempt), outcome(attempt=attempt, resumed_step=20))


def recovered(world: World) -> None:
    """Attempt 2 is running after i-w3 was replaced at verified step 20."""
    running(world)
    put_results(world, 1, {0: 28, 20: 40})
    lose_a_node(world)
    reply = world.look(Awaiting.ATTEMPT, "token-2")
    assert reply is not None and reply.decision == "recover"
    fenced = world.look(Awaiting.FENCE, "token-3")
    assert fenced is not None and fenced.decision == "ready"
    provision(world.ports, step("provision"))
    assert (ready := world.look(Awaiting.CLUSTER, "token-4")) is not None and ready.decision == "ready"
    submit(world.ports, step("submit"), BUCKET)
    world.jobs.states["maze-1-a2"] = JobView(JobState.RUNNING)
    world.put(KEYS.progress(2), progress(attempt=2, step=21, resumed_step=20))
    assert world.look(Awaiting.ATTEMPT, "token-5") is None


def test_a_run_goes_through_a_nodes_death_to_a_verified_publication(world: World) -> None:
    recovered(world)
    finish_attempt(world)
    done = world.look(Awaiting.ATTEMPT, "token-6")
    assert done is not None and done.decision == "succeeded"
    publish(world.ports, step("publish"))
    verify(world.ports, step("verify"))
    teardown(world.ports, step("teardown"))
    gone = world.look(Awaiting.FENCE, "token-7")
    assert gone is not None and gone.decision == "ready"
    release(world.ports, step("release"))
    assert notify(world.ports, step("notify")).decision == "succeeded"

    one, two = world.runs.attempts("maze-1")
    assert (one.end_cause, one.node, one.last_saved_step) == (EndCause.NODE_REPLACED, "i-w3", 20)
    assert one.signal == "hyperpod_node_health"
    assert (two.floor, two.resumed_step, two.end_cause) == (20, 20, EndCause.FINISHED)
    run = world.run()
    assert run.state is RunState.SUCCEEDED and run.published
    assert world.runs.lease_holder("default") is None
    assert world.clusters.deleted == ["maze-1"] and world.jobs.submits == ["maze-1-a1", "maze-1-a2"]
    assert [e.stage for e in world.stages.events] == [
        Stage.STARTED,
        Stage.RECOVERING,
        Stage.RECOVERED,
        Stage.FINISHED,
    ]
    body = world.ports.artifacts.read_small(KEYS.manifest)
    assert body is not None
    manifest = Manifest.from_json(body)
    assert manifest.adapters == {"best": 400, "final": 400}
    assert [s.step for s in manifest.curve] == [0, 20, 40, 400]
    stored = {o["Key"].removeprefix(KEYS.prefix) for o in world.s3.list_objects_v2(Bucket=BUCKET)["Contents"]}
    assert stored - {"manifest.json"} == set(manifest.objects)


def test_an_event_that_comes_after_the_decision_still_names_the_cause(world: World) -> None:
    running(world)
    world.later(5)
    world.clusters.current = REPLACED
    world.jobs.states["maze-1-a1"] = JobView(JobState.FAILED, "ActorDiedError")
    world.look(Awaiting.ATTEMPT, "token-2")
    assert world.runs.attempts("maze-1")[0].end_cause is EndCause.NODE_LOST
    receive(world.ports, health("i-w3"))
    world.look(Awaiting.FENCE, "token-3")
    (one,) = world.runs.attempts("maze-1")
    assert (one.end_cause, world.run().cause) == (EndCause.NODE_REPLACED, EndCause.NODE_REPLACED)
    assert one.ended_at is not None and world.run().recoveries_without_progress == 1


def test_an_event_about_another_node_does_not(world: World) -> None:
    running(world)
    world.later(5)
    world.clusters.current = REPLACED
    world.look(Awaiting.ATTEMPT, "token-2")
    receive(world.ports, health("i-w1"))
    world.look(Awaiting.FENCE, "token-3")
    assert world.runs.attempts("maze-1")[0].end_cause is EndCause.NODE_LOST


def test_every_record_carries_a_version(world: World) -> None:
    world.ask(run_id="Not valid")
    recovered(world)
    items = world.table.scan()["Items"]
    kinds = {i["sk"].split("#")[0] for i in items}
    assert kinds == {"RUN", "ATTEMPT", "SIGNAL", "AUDIT", "REJECTED", "LEASE"}
    assert all(i["version"] == 1 for i in items)


def test_repeating_the_look_that_recovered_spends_one_recovery(world: World) -> None:
    running(world)
    lose_a_node(world)
    for token in ("token-2", "token-3", "token-4"):
        reply = world.look(Awaiting.ATTEMPT, token)
        assert reply is not None and reply.decision == "recover"
    assert world.run().recoveries_without_progress == 1
    assert [e.stage for e in world.stages.events].count(Stage.RECOVERING) == 1


def test_repeating_submit_never_submits_twice_nor_claims_another_attempt(world: World) -> None:
    running(world)
    for _ in range(3):
        submit(world.ports, step("submit"), BUCKET)
    assert world.jobs.submits == ["maze-1-a1"]
    assert len(world.runs.attempts("maze-1")) == 1


def test_a_submit_that_dies_after_its_claim_submits_the_claimed_attempt_when_repeated(world: World) -> None:
    world.ask()
    admit(world.ports, step("admit"))
    world.look(Awaiting.LEASE)
    provision(world.ports, step("provision"))
    world.look(Awaiting.CLUSTER)
    real = world.jobs.submit

    def die(*_: object) -> None:
        raise ConnectionError("killed")

    world.jobs.submit = die  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        submit(world.ports, step("submit"), BUCKET)
    world.jobs.submit = real  # type: ignore[method-assign]
    submit(world.ports, step("submit"), BUCKET)
    assert world.jobs.submits == ["maze-1-a1"]


def test_an_execution_of_an_older_k_writes_nothing(world: World) -> None:
    running(world)
    world.table.update_item(
        Key={"pk": "RUN#maze-1", "sk": "RUN"}, UpdateExpression="SET k = :k", ExpressionAttributeValues={":k": 2}
    )
    before = world.run()
    for name, call in (("provision", provision), ("teardown", teardown), ("abandon", abandon)):
        with pytest.raises(StaleExecution):
            call(world.ports, step(name))
    reply = world.look(Awaiting.ATTEMPT, "token-9")
    assert reply is not None and reply.decision == "stale"
    assert world.run() == before
    assert world.clusters.deleted == []


def test_a_topology_without_nodes_fails_before_anything_is_created(world: World) -> None:
    world.ask(topology={"workers": {"instance_type": "ml.g7e.12xlarge", "count": 4, "gpus": 2}})
    admit(world.ports, step("admit"))
    assert preflight(world.ports, step("preflight")).decision == "failed"
    assert world.run().cause is EndCause.CAPACITY_MISSING
    assert "4 x ml.g7e.12xlarge" in world.run().sentence
    assert world.clusters.created == []


@pytest.mark.parametrize(("solved", "decision"), [(44, "recover"), (45, "succeeded")])
def test_a_target_is_reached_where_the_eval_says_so_and_not_where_only_the_job_does(
    world: World, solved: int, decision: str
) -> None:
    running(world, target={"success": 45 / 64, "stop": True})
    put_results(world, 1, {0: 28, 40: solved})
    world.put(KEYS.outcome(1), outcome(OutcomeCause.TARGET_REACHED, step=40, saved_step=40))
    world.jobs.states["maze-1-a1"] = JobView(JobState.SUCCEEDED)
    reply = world.look(Awaiting.ATTEMPT, "token-2")
    assert reply is not None and reply.decision == decision


def test_a_failed_run_publishes_what_there_is(world: World) -> None:
    running(world)
    put_results(world, 1, {0: 28, 20: 40})
    world.jobs.states["maze-1-a1"] = JobView(JobState.FAILED)
    world.put(KEYS.outcome(1), outcome(OutcomeCause.BAD_CONFIGURATION, message="ValueError: x", exit_code=65, step=25))
    reply = world.look(Awaiting.ATTEMPT, "token-2")
    assert reply is not None and reply.decision == "failed"
    publish(world.ports, step("publish"))
    verify(world.ports, step("verify"))
    body = world.ports.artifacts.read_small(KEYS.manifest)
    assert body is not None
    manifest = Manifest.from_json(body)
    assert (manifest.state, manifest.adapters) == ("failed", {"best": 20, "final": 20})
    assert "ValueError: x" in world.run().sentence


def test_a_byte_changed_after_publication_is_found_before_it_is_called_published(world: World) -> None:
    recovered(world)
    finish_attempt(world)
    world.look(Awaiting.ATTEMPT, "token-6")
    publish(world.ports, step("publish"))
    world.s3.put_object(Bucket=BUCKET, Key=f"{KEYS.adapter('best')}adapter_model.safetensors", Body=b"other bytes")
    with pytest.raises(PublicationError, match="adapters/best/adapter_model"):
        verify(world.ports, step("verify"))
    assert not world.run().published
    abandon(world.ports, step("abandon", error=Fault(Error="PublicationError", Cause="other bytes")))
    assert (world.run().verdict, world.run().cause) == (RunState.FAILED, EndCause.CONTROLLER_FAULT)


def test_the_finisher_ends_a_run_whose_execution_died_and_only_once(world: World) -> None:
    running(world)
    assert finish_for(world.ports, "maze-1", 1, "ABORTED", "stopped from a console")
    assert world.run().state is RunState.FAILED
    assert set(world.clusters.deleted) == {"maze-1"} and not world.clusters.current.exists
    assert world.runs.lease_holder("default") is None
    assert [e.stage for e in world.stages.events][-1] is Stage.FAILED
    keys = {e.key for e in world.stages.events}
    assert not finish_for(world.ports, "maze-1", 1, "ABORTED", "again")
    assert {e.key for e in world.stages.events} == keys  # repeats of a key are one message


def test_a_published_success_stays_one_when_its_teardown_broke(world: World) -> None:
    recovered(world)
    finish_attempt(world)
    world.look(Awaiting.ATTEMPT, "token-6")
    publish(world.ports, step("publish"))
    verify(world.ports, step("verify"))
    assert finish_for(world.ports, "maze-1", 1, "FAILED", "teardown")
    assert world.run().state is RunState.SUCCEEDED


def test_the_finisher_of_an_older_k_does_nothing(world: World) -> None:
    running(world)
    assert not finish_for(world.ports, "maze-1", 2, "FAILED", "x")
    assert world.clusters.deleted == []


def test_the_next_run_of_a_pool_waits_and_is_woken_by_the_release(world: World) -> None:
    running(world)
    world.later(1)
    world.ask(run_id="maze-2")
    admit(world.ports, step("admit", "maze-2"))
    assert world.look(Awaiting.LEASE, "second", run_id="maze-2") is None
    assert world.runs.lease_holder("default") == "maze-1"
    world.later(5)
    finish_for(world.ports, "maze-1", 1, "ABORTED", "x")
    assert [t for t, _ in world.executions.answered] == ["second"]
    taken = world.look(Awaiting.LEASE, "third", run_id="maze-2")
    assert taken is not None and taken.decision == "ready"
    assert world.runs.lease_holder("default") == "maze-2"


def test_a_held_look_answers_its_own_token_before_its_invocation_ends(world: World) -> None:
    world.ask()
    admit(world.ports, step("admit"))
    world.look(Awaiting.LEASE)
    provision(world.ports, step("provision"))
    world.clusters.current = cluster("i-head")
    world.with_remaining(5.0)
    reply = world.look(Awaiting.CLUSTER, "token-2")
    assert reply is not None and reply.decision == "look"
    assert world.executions.answered[-1][0] == "token-2"


def test_bytes_that_differ_from_what_the_job_wrote_are_never_published_as_a_success(world: World) -> None:
    recovered(world)
    finish_attempt(world)
    other = b"adapter_model.safetensors of step 401"  # as many bytes as its record says
    world.s3.put_object(Bucket=BUCKET, Key=f"{KEYS.export(2, 400)}adapter_model.safetensors", Body=other)
    world.look(Awaiting.ATTEMPT, "token-6")
    with pytest.raises(PublicationError, match="adapter_model"):
        publish(world.ports, step("publish"))
    assert world.ports.artifacts.manifest("maze-1") is None


def test_eval_rows_that_are_not_there_are_no_result(world: World) -> None:
    recovered(world)
    finish_attempt(world)
    world.s3.delete_object(Bucket=BUCKET, Key=KEYS.eval_rows(2, 400, EvalSet.FIXED))
    world.look(Awaiting.ATTEMPT, "token-6")
    with pytest.raises(PublicationError, match="fixed-step-400"):
        publish(world.ports, step("publish"))


def test_a_kubernetes_api_that_does_not_answer_ends_nothing(world: World) -> None:
    running(world)
    world.clusters.view = failing(TransientError("maze-1", "no route"))  # type: ignore[method-assign]
    assert world.look(Awaiting.ATTEMPT, "token-2") is None
    assert world.run().state is RunState.RUNNING


def test_a_driver_log_that_cannot_be_had_keeps_nothing_from_recovering(world: World) -> None:
    running(world)
    lose_a_node(world)
    world.jobs.logs = failing(TransientError("maze-1", "gone"))  # type: ignore[method-assign]
    reply = world.look(Awaiting.ATTEMPT, "token-2")
    assert reply is not None and reply.decision == "recover"


def test_a_late_look_cannot_undo_what_a_later_one_decided(world: World) -> None:
    running(world)
    lose_a_node(world)
    view = world.jobs.view

    def slow(submission_id: str) -> JobView:
        world.jobs.view = view  # type: ignore[method-assign]
        later = world.look(Awaiting.ATTEMPT, "newer")
        assert later is not None and later.decision == "recover"
        world.clusters.current = replace(REPLACED, pods=REPLACED.pods)
        return view(submission_id)

    world.jobs.view = slow  # type: ignore[method-assign]
    late = world.look(Awaiting.ATTEMPT, "older")
    assert late is not None and late.decision == "look"
    assert world.run().recoveries_without_progress == 1
    (one,) = world.runs.attempts("maze-1")
    assert one.end_cause is EndCause.NODE_REPLACED


def test_a_held_look_leaves_the_watch_to_a_later_one(world: World) -> None:
    running(world)
    lose_a_node(world)
    world.look(Awaiting.ATTEMPT, "token-2")
    world.jobs.actors = 3
    sleep = world.sleep

    def meanwhile(seconds: float) -> None:
        sleep(seconds)
        world.runs.begin_look("maze-1", 1, world.now())

    world.ports = replace(world.ports, sleep=meanwhile)
    answered = len(world.executions.answered)
    assert world.look(Awaiting.FENCE, "token-3") is None
    assert len(world.executions.answered) == answered


def test_a_fence_whose_work_is_done_never_stops_the_next_attempt(world: World) -> None:
    recovered(world)
    reply = world.look(Awaiting.FENCE, "orphan")
    assert reply is not None and reply.decision == "ready"
    assert world.jobs.stopped == []


def test_the_floor_is_what_the_old_attempt_had_saved_when_it_was_really_over(world: World) -> None:
    running(world)
    lose_a_node(world)
    world.look(Awaiting.ATTEMPT, "token-2")
    world.put(KEYS.progress(1), progress(step=42, saved_step=40))
    world.look(Awaiting.FENCE, "token-3")
    provision(world.ports, step("provision"))
    world.look(Awaiting.CLUSTER, "token-4")
    submit(world.ports, step("submit"), BUCKET)
    assert world.runs.attempts("maze-1")[-1].floor == 40


def test_a_cluster_that_vanishes_while_it_is_waited_for_is_created_again(world: World) -> None:
    world.ask()
    admit(world.ports, step("admit"))
    world.look(Awaiting.LEASE)
    provision(world.ports, step("provision"))
    world.clusters.delete("maze-1")
    reply = world.look(Awaiting.CLUSTER, "token-2")
    assert reply is not None and reply.decision == "ready"
    assert world.clusters.created == ["maze-1", "maze-1"]


def test_a_cluster_created_for_a_run_that_was_ended_meanwhile_is_deleted_again(world: World) -> None:
    world.ask()
    admit(world.ports, step("admit"))
    world.look(Awaiting.LEASE)
    create = world.clusters.create

    def slow(*given: object) -> bool:
        world.runs.finish(world.run(), RunState.FAILED)
        return create(*given)  # type: ignore[arg-type]

    world.clusters.create = slow  # type: ignore[method-assign,assignment]
    with pytest.raises(StaleExecution):
        provision(world.ports, step("provision"))
    assert world.clusters.deleted == ["maze-1"]


def test_a_request_whose_execution_never_started_blocks_nobody(world: World) -> None:
    world.ask()
    world.later(1)
    world.ask(run_id="maze-2")
    admit(world.ports, step("admit", "maze-2"))
    reply = world.look(Awaiting.LEASE, run_id="maze-2")
    assert reply is not None and reply.decision == "ready"


def test_time_in_the_queue_spends_no_wall_hours(world: World) -> None:
    world.ask(budgets={"wall_hours": 1})
    admit(world.ports, step("admit"))
    world.later(timedelta(hours=5).total_seconds())
    world.look(Awaiting.LEASE)
    provision(world.ports, step("provision"))
    world.look(Awaiting.CLUSTER, "cluster")
    submit(world.ports, step("submit"), BUCKET)
    world.jobs.states["maze-1-a1"] = JobView(JobState.RUNNING)
    assert world.look(Awaiting.ATTEMPT, "token-2") is None
    world.later(timedelta(hours=1, minutes=1).total_seconds())
    spent = world.look(Awaiting.ATTEMPT, "token-3")
    assert spent is not None and spent.decision == "failed"
    assert (world.run().cause, world.jobs.stopped) == (EndCause.BUDGET_SPENT, ["maze-1-a1"])


def test_a_final_message_that_was_not_accepted_is_tried_again(world: World) -> None:
    running(world)
    world.runs.finish(world.run(), RunState.FAILED, verdict=RunState.FAILED)
    world.stages.refusing = True
    with pytest.raises(TransientError):
        notify(world.ports, step("notify"))
    world.stages.refusing = False
    assert notify(world.ports, step("notify")).decision == "failed"
    assert [e.stage for e in world.stages.events][-1] is Stage.FAILED


def test_the_finisher_repeats_a_last_message_that_died_with_its_execution(world: World) -> None:
    running(world)
    world.runs.finish(world.run(), RunState.FAILED, verdict=RunState.FAILED)
    assert not finish_for(world.ports, "maze-1", 1, "FAILED", "x")
    assert [e.key for e in world.stages.events][-1] == "final"


def test_a_fault_is_told_without_documents_around_it(world: World) -> None:
    running(world)
    inner = json.dumps({"errorMessage": "run maze-1: no", "errorType": "TransientError", "stackTrace": ["x" * 900]})
    outer = json.dumps({"ExecutionArn": "arn:aws:states:...", "Error": "TransientError", "Cause": inner})
    abandon(world.ports, step("abandon", error=Fault(Error="States.TaskFailed", Cause=outer)))
    assert "(States.TaskFailed: run maze-1: no)" in world.run().sentence
    assert world.runs.attempts("maze-1")[-1].end_cause is EndCause.CONTROLLER_FAULT


def test_a_job_that_stands_still_is_recovered_and_one_whose_log_moves_is_not(world: World) -> None:
    running(world)
    log = ["first line"]
    world.jobs.logs = lambda _: log[0]  # type: ignore[method-assign]
    for minute in range(12):
        world.later(60)
        assert world.look(Awaiting.ATTEMPT, f"quiet-{minute}") is None
    log[0] = "a line after a long silence"
    world.later(60)
    assert world.look(Awaiting.ATTEMPT, "moved") is None
    for minute in range(4):
        world.later(60)
        assert world.look(Awaiting.ATTEMPT, f"still-{minute}") is None
    world.later(60)
    reply = world.look(Awaiting.ATTEMPT, "hung")
    assert reply is not None and reply.decision == "recover"
    assert world.run().cause is EndCause.HUNG
    assert world.run().witness is None


def failing(error: Exception):  # type: ignore[no-untyped-def]
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail

"""A whole run in a Kueue queue, over the real table and bucket: admitted late, preempted in mid-run, admitted again."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from nightshift.contract.events import Stage
from nightshift.core.causes import EndCause
from nightshift.core.errors import TransientError
from nightshift.core.observation import ClusterView, JobState, JobView, WorkloadView
from nightshift.core.run import Awaiting, RunState
from nightshift.steps.ending import release, teardown
from nightshift.steps.transitions import admit, preflight, provision, submit
from nightshift.steps.view import view_run
from tests.builders import cluster, progress
from tests.steps.test_run import KEYS, finish_attempt, put_results
from tests.steps.world import BUCKET, World, step

PENDING = ClusterView(
    exists=True, suspended=True, workload=WorkloadView(message="insufficient unused quota, 6 more needed")
)
MISSING_QUEUE = replace(PENDING, workload=WorkloadView(refused="Inadmissible", message="LocalQueue team doesn't exist"))


def admitted(at: datetime, *instances: str) -> ClusterView:
    return cluster(*instances, workload=WorkloadView(quota_reserved=True, admitted=True, admitted_at=at))


def evicted(view: ClusterView) -> ClusterView:
    """In the middle of it: Kueue has spoken, a worker is gone already, the rest is dying."""
    said = WorkloadView(quota_reserved=True, evicted="Preempted", message="to make room for something more important")
    return replace(view, pods=view.pods[:2], workload=said)


def in_line(world: World, **changes: object) -> None:
    """Admitted by Nightshift, its RayCluster created, not admitted by Kueue yet."""
    world.ask(queue="team", notify="all", **changes)
    admit(world.ports, step("admit"))
    assert (passed := world.look(Awaiting.LEASE, "token-0")) is not None and passed.decision == "ready"
    preflight(world.ports, step("preflight"))
    provision(world.ports, step("provision"))
    world.clusters.current = PENDING
    world.later(600)
    assert world.look(Awaiting.CLUSTER, "token-1") is None


def attempt_runs(world: World, n: int, token: str) -> None:
    assert (up := world.look(Awaiting.CLUSTER, f"{token}-up")) is not None and up.decision == "ready"
    submit(world.ports, step("submit"), BUCKET)
    world.jobs.states[f"maze-1-a{n}"] = JobView(JobState.RUNNING)
    world.put(KEYS.progress(n), progress(attempt=n, step=20 + n, at=world.now(), resumed_step=20 if n > 1 else None))
    assert world.look(Awaiting.ATTEMPT, token) is None


def preempt(world: World, token: str, view: ClusterView) -> None:
    world.clusters.current = evicted(view)
    reply = world.look(Awaiting.ATTEMPT, token)
    assert reply is not None and reply.decision == "recover"
    world.clusters.current = PENDING
    world.jobs.states = {}
    fenced = world.look(Awaiting.FENCE, f"{token}-fence")
    assert fenced is not None and fenced.decision == "ready"
    provision(world.ports, step("provision"))
    assert world.run().recoveries_without_progress == 0
    world.later(600)
    assert world.look(Awaiting.CLUSTER, f"{token}-again") is None


def test_a_run_is_admitted_late_preempted_and_admitted_again_and_ends_well(world: World) -> None:
    in_line(world)
    assert world.runs.lease_holder("default") is None and world.runs.next_in_line("default") is None
    assert world.run().leased_at is None, "nothing is counted yet"

    world.later(3 * 3_600)
    first = world.now() - timedelta(seconds=30)
    world.clusters.current = admitted(first)
    attempt_runs(world, 1, "token-2")
    assert (world.run().admitted_at, world.run().leased_at) == (first, first)
    put_results(world, 1, {0: 28, 20: 40})

    world.later(3_600)
    preempt(world, "token-3", admitted(first))
    gone_at = world.run().recovering_since
    assert gone_at is not None and world.run().state is RunState.PROVISIONING

    world.later(5 * 3_600)
    second = world.now() - timedelta(seconds=10)
    world.clusters.current = admitted(second, "i-head2", "i-w1", "i-w2", "i-new")
    attempt_runs(world, 2, "token-4")
    ended, going = world.runs.attempts("maze-1")
    assert (ended.end_cause, ended.node) == (EndCause.PREEMPTED, None)
    assert going.floor == 20 and world.run().admitted_at == second
    leased_at = world.run().leased_at
    assert leased_at is not None and abs(leased_at - (first + (second - gone_at))) < timedelta(seconds=1)

    finish_attempt(world)
    assert (done := world.look(Awaiting.ATTEMPT, "token-5")) is not None and done.decision == "succeeded"
    stages = [e.stage for e in world.stages.events]
    assert stages == [Stage.QUEUED, Stage.STARTED, Stage.RECOVERING, Stage.RECOVERED]
    assert world.stages.events[0].sentence == "Waiting for Kueue's queue team."


def test_ten_preemptions_in_a_row_spend_no_recovery(world: World) -> None:
    in_line(world, budgets={"max_recoveries_without_progress": 1})
    for n in range(1, 11):
        world.later(60)
        view = admitted(world.now() - timedelta(seconds=1))
        world.clusters.current = view
        attempt_runs(world, n, f"token-{n}")
        preempt(world, f"token-{n}p", view)
    assert {a.end_cause for a in world.runs.attempts("maze-1")} == {EndCause.PREEMPTED}
    assert world.run().state is RunState.PROVISIONING and world.run().blamed == ()


def test_a_run_that_was_preempted_and_admitted_between_two_looks_is_fenced_by_its_new_admission(world: World) -> None:
    in_line(world)
    world.clusters.current = admitted(world.now())
    attempt_runs(world, 1, "token-2")
    world.later(300)
    world.clusters.current = admitted(world.now(), "i-head2", "i-w1", "i-w2", "i-new")
    world.jobs.states = {"maze-1-a1": JobView(JobState.UNREACHABLE, "the head is starting")}
    assert (gone := world.look(Awaiting.ATTEMPT, "token-3")) is not None and gone.decision == "recover"
    assert (free := world.look(Awaiting.FENCE, "token-4")) is not None and free.decision == "ready"
    provision(world.ports, step("provision"))
    attempt_runs(world, 2, "token-5")
    assert world.jobs.submits == ["maze-1-a1", "maze-1-a2"]


def test_what_kueue_says_is_in_the_view_and_once_in_the_trail(world: World) -> None:
    in_line(world)
    for more in ("5 more needed", "4 more needed"):
        world.later(60)
        world.clusters.current = replace(PENDING, workload=WorkloadView(message=f"insufficient unused quota, {more}"))
        world.look(Awaiting.CLUSTER, "token-x")
    seen = view_run(world.ports, "maze-1", BUCKET)
    assert seen is not None and "4 more needed" in seen.waiting_for
    lines = [line for line in seen.audit if line.what == "waits in the queue"]
    assert len(lines) == 1 and "waits for quota in Kueue's queue team" in lines[0].detail
    world.clusters.current = admitted(world.now())
    world.look(Awaiting.CLUSTER, "token-y")
    after = view_run(world.ports, "maze-1", BUCKET)
    assert after is not None and after.waiting_for == ""
    assert [line.what for line in after.audit].count("waits in no queue any more") == 1


def test_a_queue_that_is_not_there_is_asked_about_and_the_question_answers_itself(world: World) -> None:
    in_line(world, budgets={"node_wait_minutes": 5, "ask_hours": 1})
    world.clusters.current = MISSING_QUEUE
    world.look(Awaiting.CLUSTER, "token-2")
    assert world.run().question is None
    world.later(5 * 60 + 1)
    world.look(Awaiting.CLUSTER, "token-3")
    question = world.run().question
    assert question is not None and question.cause is EndCause.QUOTA_MISSING
    assert "LocalQueue team doesn't exist" in question.text
    world.look(Awaiting.CLUSTER, "token-4")
    assert [e.stage for e in world.stages.events].count(Stage.ASKING) == 1, "asked once"

    world.later(60)
    world.clusters.current = PENDING
    world.look(Awaiting.CLUSTER, "token-5")
    assert world.run().question is None, "somebody made the queue"
    world.later(3 * 3_600)
    assert world.look(Awaiting.CLUSTER, "token-6") is None
    assert world.run().state is RunState.PROVISIONING


def test_a_queue_that_nobody_makes_ends_the_run_for_its_reason(world: World) -> None:
    in_line(world, budgets={"node_wait_minutes": 5, "ask_hours": 1})
    world.clusters.current = MISSING_QUEUE
    for seconds in (1, 301, 3_599):
        world.later(seconds)
        assert world.look(Awaiting.CLUSTER, "token-2") is None
    world.later(2)
    assert (over := world.look(Awaiting.CLUSTER, "token-3")) is not None and over.decision == "failed"
    assert world.run().cause is EndCause.QUOTA_MISSING and "LocalQueue team doesn't exist" in world.run().sentence
    teardown(world.ports, step("teardown"))
    assert world.clusters.deleted == ["maze-1"]
    world.look(Awaiting.FENCE, "token-4")
    release(world.ports, step("release"))
    assert world.run().state is RunState.FAILED


def test_a_preemption_before_the_submit_leaves_the_claimed_attempt_with_its_whole_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_line(world, budgets={"start_minutes": 10})
    world.clusters.current = admitted(world.now())
    assert (up := world.look(Awaiting.CLUSTER, "token-2")) is not None and up.decision == "ready"

    def unreachable(*_: object) -> None:
        raise TransientError("maze-1", "connection refused")

    with monkeypatch.context() as patch, pytest.raises(TransientError):
        patch.setattr(world.jobs, "submit", unreachable)
        submit(world.ports, step("submit"), BUCKET)
    world.clusters.current = PENDING
    world.later(6 * 3_600)
    assert world.look(Awaiting.CLUSTER, "token-3") is None
    world.clusters.current = admitted(world.now())
    attempt_runs(world, 1, "token-4")
    (only,) = world.runs.attempts("maze-1")
    assert only.ended_at is None and only.gpu_hours(world.now()) < 0.1
    assert world.jobs.submits == ["maze-1-a1"]


def test_a_run_in_a_kueue_queue_and_a_run_with_a_lease_do_not_hold_each_other_up(world: World) -> None:
    world.ask(queue="team")
    admit(world.ports, step("admit"))
    world.ask(run_id="maze-2")
    admit(world.ports, step("admit", "maze-2"))
    reply = world.look(Awaiting.LEASE, "token-2", run_id="maze-2")
    assert reply is not None and reply.decision == "ready"
    assert (other := world.look(Awaiting.LEASE, "token-1")) is not None and other.decision == "ready"
    assert world.runs.lease_holder("default") == "maze-2"


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.TEARDOWN])
def test_a_late_repeat_of_the_lease_look_takes_nothing_back(world: World, state: RunState) -> None:
    in_line(world)
    world.runs.update(world.run(), state=state)
    world.look(Awaiting.LEASE, "token-late")
    assert world.run().state is state
